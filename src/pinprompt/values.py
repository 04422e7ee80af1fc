"""Frozen values passed between the parts of the package, and seeds. Imports nothing else from pinprompt.

One root seed gives many named random streams, so that drawing more from one does not change another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Prompt:
    """A candidate prompt: its text for the task, and its token ids for the policy.

    `offsets` are the calibration offsets measured when it was scored on train, one per class (`tasks.label_scores`).
    Without them a task that calibrates measures them itself, which costs calls.
    `draw` is the step that wrote the prompt and its position in it, for tasks that draw inputs at each step; without
    it such a task uses the same inputs for every prompt.
    """

    text: str
    ids: tuple[int, ...] = ()
    offsets: tuple[float, ...] = ()
    draw: tuple[int, int] | None = None


@dataclass(frozen=True)
class Score:
    """The task's score of one prompt; higher is better.

    `group` names the inputs it was measured on, for tasks that draw inputs: scores of different groups are only
    comparable after a z-score within the group. `failures` are examples that could not be scored, with the reason.
    `answers` are the model's raw answers per example, packed by the task (`Task.row_values` gives one number per row),
    and `offsets` their calibration.
    """

    value: float
    calls: int = 0
    group: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    rows: str = ""
    """The details of a classification score, for people to look at: two hex digits per example and label (the
    probability times 254, the predicted label strictly the largest); '' for other tasks."""
    answers: bytes = field(default=b"", repr=False)
    offsets: tuple[float, ...] = ()


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
    calls: int = 0
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


class Meter(Protocol):
    """Records the requests of a remote model: stores answers, counts what is sent, and enforces limits.

    Thread-safe.
    """

    def recall(self, question: str) -> tuple[Any, int, int] | None:
        """The stored answer to a question in this run, with its tokens in and out."""

    def keep(self, question: str, answer: Any, tokens_in: int, tokens_out: int) -> None:
        """Store an answer (JSON values); it is on disk when this returns."""

    def sending(self, calls: int, tokens_in: int, tokens_out: int) -> int:
        """Register a request and its maximum cost before sending; returns its number. Raises at a limit."""

    def ended(self, number: int, calls: int, tokens_in: int, tokens_out: int, how: str = "told") -> None:
        """Register what a request used; 0 calls if it is not billed.

        `how` is one of 'told' (by the server), 'untold' (the maximum is assumed), 'lost' (no answer), 'refused'.
        """

    def seconds_left(self) -> float | None:
        """The maximum time to wait; None if there is no limit."""


Listener = Callable[[Event], None]


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for a named stream, a function of root seed and name on any machine."""
    key = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
