"""What travels between the rooms: plain frozen data, and seeds. Imports nothing of ours.

One root seed gives many named streams of randomness, so that drawing more from one never shifts another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Prompt:
    """A candidate prompt: the text that the black box sees, and the ids by which the policy wrote it.

    `offsets` are what its score on train measured for tasks that calibrate: one number per class, see
    `tasks.label_scores`. Without them such a task measures them itself, which costs calls.
    `draw` is the step of the search that wrote it and its place there, for tasks that draw inputs for each step;
    without it such a task takes the same inputs for every prompt.
    """

    text: str
    ids: tuple[int, ...] = ()
    offsets: tuple[float, ...] = ()
    draw: tuple[int, int] | None = None


@dataclass(frozen=True)
class Score:
    """What the task said of one prompt; higher is better.

    `group` names the inputs it was measured on, for tasks that draw inputs: scores of different groups are only
    comparable after a z-score within the group. `failures` are examples that could not be scored, one sentence each.
    `answers` are what the model said of each example, as the task packs it (`Task.row_values` gives one number a row),
    and `offsets` how the task calibrated them.
    """

    value: float
    calls: int = 0
    group: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    rows: str = ""
    """The details of a classification score, for people to look at: two hex digits per example and label (the
    probability times 254, the predicted label strictly the largest); '' where the task has nothing of the kind."""
    answers: bytes = field(default=b"", repr=False)
    offsets: tuple[float, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one prompt on one split, as people read them.

    `intervals` are 95 % bootstrap intervals per metric; `tables` hold what a report shows beyond numbers
    (a confusion matrix, examples right and wrong), as plain JSON values. `outcomes` are the values of a metric row by
    row, for metrics that are a mean over rows: two prompts on the same rows are compared by them.
    """

    split: str
    metrics: Mapping[str, float]
    rows: int
    calls: int = 0
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    outcomes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What result.json has of it: metrics side by side with rows, intervals and outcomes."""
        intervals = {name: list(ends) for name, ends in self.intervals.items()}
        outcomes = {"outcomes": pack_outcomes(self.outcomes)} if self.outcomes else {}
        return {**self.metrics, "rows": self.rows, "intervals": intervals, **outcomes}


def pack_outcomes(outcomes: Mapping[str, Sequence[float]]) -> dict[str, str | list[float]]:
    """Outcomes as JSON values: a digit a row where all are 0 or 1, else a list."""
    return {
        str(name): "".join("1" if value else "0" for value in values)
        if set(values) <= {0, 1}
        else [float(value) for value in values]
        for name, values in outcomes.items()
    }


@dataclass(frozen=True)
class Episode:
    """One written prompt with what it earned: raw score, and the reward it had among the prompts of its time."""

    ids: tuple[int, ...]
    score: float
    reward: float
    path: tuple[float, ...] = ()
    """The raw scores of its beginnings, of one token to all of them, where each token is rewarded."""


@dataclass(frozen=True)
class Event:
    """One thing that happened in a run.

    `data` is a function of recipe and seed alone, so that two runs can be compared byte for byte;
    `costs` (seconds per phase, cache hits, calls really sent) may differ from run to run and is kept apart.
    """

    kind: str
    step: int
    data: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)


class Meter(Protocol):
    """Whom a model behind an API tells of its requests: it keeps answers, counts what is sent, and says when to stop.

    Safe to use from several threads.
    """

    def recall(self, question: str) -> tuple[Any, int, int] | None:
        """The answer that a question had before in this run, with its tokens in and out."""

    def keep(self, question: str, answer: Any, tokens_in: int, tokens_out: int) -> None:
        """An answer as JSON values; it is safe when this returns."""

    def sending(self, calls: int, tokens_in: int, tokens_out: int) -> int:
        """A request is about to be sent, at its worst; gives its number. Raises where nothing more may be sent."""

    def ended(self, number: int, calls: int, tokens_in: int, tokens_out: int, how: str = "told") -> None:
        """What a request took; 0 calls where it is not billed.

        `how` that is known: 'told' by the server, 'untold' (the most that its answer can have taken), 'lost' (it has no
        answer), 'refused'.
        """

    def seconds_left(self) -> float | None:
        """How long one may wait; None where there is no limit."""


Listener = Callable[[Event], None]


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream of that name: the same for the same root seed and name, on any machine."""
    key = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
