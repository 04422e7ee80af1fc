"""Frozen values passed between the parts of the package, and seeds. Imports nothing else from pinprompt.

One root seed gives many named random streams, so that drawing more from one does not change another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # numpy is imported where it is used, so that `pinprompt --help` starts without it
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
else:
    Floats = Any


@dataclass(frozen=True)
class Prompt:
    """A candidate prompt: its text for the task, and its token ids for the policy."""

    text: str
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """An example of a task: what the model is given, and what is expected of it.

    `key` identifies the input for the memo, which keeps answers across runs; '' if answers on this row are not kept.
    """

    split: str
    """train, dev or test; any other name for rows that only the task itself uses."""
    index: int
    """Its position in the split."""
    input: Any = None
    target: Any = None
    key: str = ""
    calls: int = 1
    """The most calls that one answer costs."""
    report_calls: int | None = None
    """The same in a report, if a report asks again (stochastic tasks); None: as `calls`."""


@dataclass(frozen=True)
class Draw:
    """How a stochastic task draws an answer; a deterministic task ignores it."""

    seed: int = 0
    report: bool = False
    """Whether the answer is for the report."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What the task model answered to one prompt, row by row.

    `contents` has one entry per row: an array of numbers [n, ...], or a list of JSON values. A row in `failures` has
    no usable answer, for the reason given; the task decides what its content is.
    """

    rows: tuple[int, ...] = ()
    contents: Any = ()
    failures: Mapping[int, str] = field(default_factory=dict)
    tokens: tuple[int, int] = (0, 0)
    """Tokens in and out that a billed model reported for these answers."""

    def on(self, rows: Sequence[int]) -> Any:
        """The contents of these rows, in this order; KeyError if one of them was not asked."""
        if tuple(rows) == self.rows:
            return self.contents
        place = {row: number for number, row in enumerate(self.rows)}
        places = [place[row] for row in rows]
        return self.contents[places] if _is_array(self.contents) else [self.contents[at] for at in places]

    def part(self, rows: tuple[int, ...]) -> Answers:
        """The answers on these rows, in this order; tokens are only known for all of the rows together."""
        if rows == self.rows:
            return self
        tokens = self.tokens if set(rows) == set(self.rows) else (0, 0)
        failures = {row: self.failures[row] for row in rows if row in self.failures}
        return Answers(rows, self.on(rows), failures, tokens)

    def missing(self, rows: Iterable[int]) -> tuple[int, ...]:
        """Those of the rows that were not asked, in order."""
        known = set(self.rows)
        return tuple(row for row in rows if row not in known)

    def failed(self, rows: Iterable[int]) -> tuple[str, ...]:
        """The reasons of failures among the rows; equal ones once."""
        return tuple(dict.fromkeys(self.failures[row] for row in rows if row in self.failures))

    def joined(self, more: Answers) -> Answers:
        """These answers and those on further rows."""
        if not self.rows:
            return more
        contents: Any = [*self.contents, *more.contents]
        if _is_array(self.contents) and _is_array(more.contents):
            import numpy as np

            contents = np.concatenate([self.contents, more.contents])
        tokens = (self.tokens[0] + more.tokens[0], self.tokens[1] + more.tokens[1])
        return Answers(self.rows + more.rows, contents, {**self.failures, **more.failures}, tokens)


def _is_array(contents: Any) -> bool:
    return hasattr(contents, "dtype")


@dataclass(frozen=True, eq=False)
class Score:
    """A prompt's score on some rows, a function of its answers: the mean of the task's values; higher is better."""

    value: float
    values: Floats = field(repr=False)
    """The value of every row, [N] or, if an answer has several draws, [N, D]."""
    rows: tuple[int, ...] = field(repr=False)
    failures: tuple[str, ...] = ()
    """Why answers could not be used."""
    draw: str = ""
    """The name of its draw in the table, for a stochastic task."""


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one prompt on one split.

    `intervals` are 95 % bootstrap intervals per metric; `tables` hold what a report shows beyond numbers
    (a confusion matrix, correct and wrong examples), as plain JSON values. `outcomes` are the values of a metric row by
    row, for metrics that are a mean over rows: two prompts on the same rows are compared by them.
    """

    split: str
    metrics: Mapping[str, float]
    rows: int
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    outcomes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """The evaluation as in result.json: metrics, rows, intervals and outcomes."""
        intervals = {name: list(ends) for name, ends in self.intervals.items()}
        outcomes = {"outcomes": pack_outcomes(self.outcomes)} if self.outcomes else {}
        return {**self.metrics, "rows": self.rows, "intervals": intervals, **outcomes}


def pack_outcomes(outcomes: Mapping[str, Sequence[float]]) -> dict[str, str | list[float]]:
    """Outcomes as JSON values: one digit per row if all are 0 or 1, otherwise a list."""
    return {
        str(name): "".join("1" if value else "0" for value in values)
        if set(values) <= {0, 1}
        else [float(value) for value in values]
        for name, values in outcomes.items()
    }


@dataclass(frozen=True)
class Episode:
    """One written prompt with its raw score, and its reward relative to the prompts of its step."""

    ids: tuple[int, ...]
    score: float
    reward: float
    path: tuple[float, ...] = ()
    """The raw scores of its prefixes, from one token to all, if each token is rewarded."""


@dataclass(frozen=True)
class Event:
    """An event of a run.

    `data` is a function of recipe and seed alone, so that two runs can be compared byte for byte;
    `costs` (seconds per phase, cache hits, calls actually sent) may differ between runs and is stored separately.
    """

    kind: str
    step: int
    data: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def counted(number: float, noun: str) -> str:
    """A number of things as text: "1 row", "1,200 rows"."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for a named stream, a function of root seed and name on any machine."""
    key = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
