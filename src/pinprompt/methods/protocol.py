"""The interface of search methods. They depend on the task protocol and the evaluator, never on a concrete task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pinprompt.recipe.sections import PolicySettings, ScoringSettings
from pinprompt.scoring.budget import Budget
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Event, Prompt, Score

if TYPE_CHECKING:
    from pinprompt.policy.writer import Writer


class Evaluator(Protocol):
    """Scores prompts: deduplicates, uses the memo, charges the budget, and may work in parallel."""

    budget: Budget

    @property
    def charged_calls(self) -> int:
        """Calls charged to the search's budget so far."""

    @property
    def report_calls(self) -> int:
        """Calls of the report, which `budget.calls` does not limit."""

    @property
    def distinct(self) -> int:
        """Different prompts scored so far."""

    @property
    def paid_calls(self) -> int:
        """Calls actually sent to a model so far."""

    @property
    def memo_hits(self) -> int:
        """Number of scores taken from the memo."""

    def score(self, prompts: list[Prompt], split: str = "train", *, report: bool = False) -> list[Score]:
        """Scores in order. Raises BudgetSpent before a limit is exceeded; scores obtained by then are kept.

        With `report` the calls are counted separately from the search's, and only the common limits apply.
        """

    def totals(self) -> dict[str, Any]:
        """What was charged and what was actually sent so far, as in result.json."""

    def evaluate(self, prompt: Prompt, split: str) -> Evaluation:
        """The task's metrics of a prompt, charged to the report."""

    def evaluate_all(self, prompts: list[Prompt], split: str) -> list[Evaluation]:
        """The same for several prompts together, which may be faster."""

    def known(self, prompt: Prompt, split: str) -> Score | None:
        """The latest score of a prompt on a split; None where there is none, and nothing is asked."""

    def derive(self, prompt: Prompt, scores: list[Score]) -> None:
        """Derive a prompt's score on whole splits from its scores on the first blocks of rows."""

    def charge(self, calls: int) -> None:
        """Charge calls that a white-box method makes itself (a forward pass is 1 per row, a backward pass 2)."""


class Checkpointer(Protocol):
    """Stores a method's state for resuming."""

    def due(self) -> bool:
        """Whether it is time to save again; saving takes a small share of the run's time."""

    def mark(self) -> None:
        """Set the point from which a resumed run continues, once `save` is called."""

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Save `state` (JSON values) and `tensors` (torch) as the new checkpoint, atomically."""

    def load(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """The last checkpoint as (step, state, tensors), or None in a fresh run."""

    def append(self, stream: str, rows: list[dict[str, Any]]) -> None:
        """Append JSON rows to a stream; they are valid once the next `save` has succeeded."""

    def stream(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a stream, up to the last checkpoint."""


@dataclass(frozen=True)
class Candidate:
    """A candidate answer, with its source ('greedy', 'sampled', 'manual', ...)."""

    prompt: Prompt
    source: str
    score: float
    dev: float | None = None
    """Its score on dev, if it was computed during the search."""


@dataclass(frozen=True)
class Finalist:
    """A candidate with its dev score (None if the task has no dev split or it was not scored there).

    `chance` is the probability that it is the best finalist, by a bootstrap over `rows` rows; None if unknown.
    """

    candidate: Candidate
    dev: float | None
    chance: float | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a method: candidates in order of training score (the caller chooses among them on dev).

    `tensor` names a file for methods whose answer is not text (soft prompts); `extras` is added to the result.
    """

    candidates: list[Candidate]
    stopped: str
    """Why it stopped: 'finished', 'budget', 'collapsed', ..."""
    steps: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)
    finalists: list[Finalist] | None = None
    """Set by a method that chooses the answer itself: best first. None: the caller scores the candidates on dev."""


@dataclass
class Search:
    """Everything a method may use."""

    task: Task
    evaluator: Evaluator
    emit: Callable[[Event], None]
    checkpoint: Checkpointer
    seed: int
    device: str
    folder: Path
    policy: PolicySettings
    """Length and constraints of a prompt, also for methods that write without the LM."""
    writer: Callable[[], Writer]
    """The frozen LM that writes prompts, loaded on the first call."""
    open_reserve: Callable[[], None] = lambda: None
    """Release the calls reserved for the end of the search; called once it is over."""
    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    """Settings of racing over rows and of choosing the answer."""


class Method(Protocol):
    """A method is a function of a `Search` and of its section of the recipe (None if it has none)."""

    def __call__(self, search: Search, settings: Any) -> Outcome: ...
