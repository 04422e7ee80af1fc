"""What a search method gets and gives. Methods know the task's contract and the evaluator, never a concrete task."""

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
    """The only way from prompts to scores: it deduplicates, memoises, charges the budget, and may work in parallel."""

    budget: Budget

    @property
    def charged_calls(self) -> int:
        """Calls booked to the search's budget so far."""

    @property
    def report_calls(self) -> int:
        """Calls of the report, which `budget.calls` does not limit."""

    @property
    def distinct(self) -> int:
        """Different prompts scored so far."""

    @property
    def paid_calls(self) -> int:
        """Calls really sent to a model so far."""

    @property
    def memo_hits(self) -> int:
        """Prompts that the memo of earlier runs knew."""

    def score(self, prompts: list[Prompt], split: str = "train", *, report: bool = False) -> list[Score]:
        """Scores in order. Raises BudgetSpent before anything is overspent; what was scored by then is kept.

        With `report` the calls are counted apart from those of the search, and limited by what limits both together.
        """

    def totals(self) -> dict[str, Any]:
        """What was charged and what was really sent so far, as result.json has it."""

    def evaluate(self, prompt: Prompt, split: str) -> Evaluation:
        """The task's metrics of a prompt, counted as a report."""

    def evaluate_all(self, prompts: list[Prompt], split: str) -> list[Evaluation]:
        """The same of several prompts together, which a task may do faster."""

    def known(self, prompt: Prompt, split: str) -> Score | None:
        """The latest score of a prompt on a split; None where there is none, and nothing is asked."""

    def derive(self, prompt: Prompt, scores: list[Score]) -> None:
        """Make known what a prompt's scores on the first blocks of rows say of whole splits."""

    def charge(self, calls: int) -> None:
        """Book calls that a white-box method made itself (a forward pass is 1 a row, a backward pass 2)."""


class Checkpointer(Protocol):
    """Where a method keeps what it needs to resume after being killed."""

    def due(self) -> bool:
        """True when it is time to save again; chosen so that saving costs little of the run's time."""

    def mark(self) -> None:
        """A resumed run continues from here in events, scores and costs, once `save` is called."""

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Keep JSON-able `state` and `tensors` (torch) as the new checkpoint, atomically."""

    def load(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """The last checkpoint as (step, state, tensors), or None in a fresh run."""

    def append(self, stream: str, rows: list[dict[str, Any]]) -> None:
        """Add JSON rows to a growing stream; they count once the next `save` has succeeded."""

    def stream(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a stream, up to the last checkpoint."""


@dataclass(frozen=True)
class Candidate:
    """A prompt that may become the answer, with where it came from ('greedy', 'sampled', 'manual', ...)."""

    prompt: Prompt
    source: str
    score: float
    dev: float | None = None
    """Its score on dev, where it was paid for while searching."""


@dataclass(frozen=True)
class Finalist:
    """A candidate with its dev score (None where the task has no dev split or it was not tried there).

    `chance` is how likely it is to be the best finalist, by a bootstrap over `rows` rows; None where that is unknown.
    """

    candidate: Candidate
    dev: float | None
    chance: float | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a method found: candidates in order of training score (the caller scores them on dev, and dev decides).

    `tensor` names a file for methods whose answer is not text (soft prompts); `extras` goes into the result as it is.
    """

    candidates: list[Candidate]
    stopped: str
    """Why it stopped: 'finished', 'budget', 'collapsed', ..."""
    steps: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)
    finalists: list[Finalist] | None = None
    """Set by a method that chooses by itself: best first. None: the caller scores the candidates on dev."""


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
    """Length and constraints of a prompt, for methods that write without the LM too."""
    writer: Callable[[], Writer]
    """The frozen LM that writes prompts, loaded at the first call."""
    open_reserve: Callable[[], None] = lambda: None
    """Give back the calls that were set aside for the end of the search; called once it is over."""
    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    """Whether prompts are raced over the rows, and by what the answer is chosen."""


class Method(Protocol):
    """A method is a function of a `Search` and of its own section of the recipe (None where it has none)."""

    def __call__(self, search: Search, settings: Any) -> Outcome: ...
