"""The interface of search methods. They depend on the task contract and the evaluator, never on a concrete task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.recipe.sections import PolicySettings, ScoringSettings
from pinprompt.tasks.protocol import Task, calls
from pinprompt.values import Answers, Event, Prompt, Score, derive

if TYPE_CHECKING:
    import torch

    from pinprompt.folder.checkpoint import Checkpoint
    from pinprompt.policy.writer import Writer


@dataclass(frozen=True)
class Block:
    """Rows that prompts are asked on together; a stochastic task draws the same for all prompts on a named block."""

    name: str
    rows: tuple[int, ...]


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
    blocks: Sequence[Block] = ()
    """The blocks of rows that prompts were asked on in turn, if there were any."""


@dataclass
class Search:
    """Everything a method may use."""

    task: Task
    evaluator: Evaluator
    emit: Callable[[Event], None]
    checkpoint: Checkpoint
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
    """How the answer is chosen."""
    problem: str = ""
    """Why the search was ended before its budget, if it was ended because all prompts tie."""

    @property
    def splits(self) -> tuple[str, ...]:
        return self.evaluator.splits

    def rows(self, split: str = "train") -> tuple[int, ...]:
        return self.evaluator.rows(split)

    def calls(self, split: str = "train") -> int:
        """The most calls that one prompt costs on a split."""
        return calls(self.task, self.evaluator.rows(split))

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int]) -> list[Answers]:
        """The task model's answers to prompts on rows; BudgetSpent before a limit is exceeded."""
        return self.evaluator.ask(prompts, rows)

    def score(self, prompts: Sequence[Prompt], rows: str | Sequence[int] = "train") -> list[Score]:
        """The scores of prompts on a split or on some rows; BudgetSpent before a limit is exceeded."""
        return self.evaluator.score(prompts, rows)

    def write(self, count: int, temperature: float = 1.0) -> list[Prompt]:
        """Prompts sampled from the frozen LM, under the filter and the user's constraints."""
        return self.writer().lm_sample(count, self.random, temperature)

    @cached_property
    def random(self) -> torch.Generator:
        """A random stream for the method, the same for the same seed."""
        import torch

        return torch.Generator().manual_seed(derive(self.seed, "method"))

    def candidates(self, count: int = 16, source: str = "searched") -> list[Candidate]:
        """The best prompts that were asked on all of train so far, best first."""
        known = [
            Candidate(asked.prompt, source, score.value)
            for asked in self.evaluator.table.prompts.values()
            if asked.searched and (score := self.evaluator.known(asked.prompt)) is not None
        ]
        return sorted(known, key=lambda one: -one.score)[:count]


@dataclass(frozen=True)
class Cost:
    """What a search is expected to cost."""

    calls: int
    """Calls of the search and of choosing its answer, within the budget."""
    enough: int
    """Calls with which the method works well."""
    few: str = ""
    """What happens with the calls of the budget, if they are fewer than enough."""
    written: float = 0.0
    """Number of prompts that the LM writes."""
    words: int = 5
    """Expected number of words of the answer."""
    rows: tuple[int, ...] | None = None
    """The rows that its best prompts are asked on; None: all of train and dev."""
    asked_on_train: bool = True
    """Whether its answer has a score on train alone; otherwise the report asks for it."""


def outcome_of(found: Any, search: Search, name: str) -> Outcome:
    """What a method from outside returned, as an outcome: prompts (or their texts), best first, or an `Outcome`."""
    if isinstance(found, Outcome):
        return found
    given = [found] if isinstance(found, str | Prompt) else list(found)
    prompts = [one.prompt if isinstance(one, Candidate) else Prompt(one) if isinstance(one, str) else one
               for one in given]  # fmt: skip
    wrong = next((one for one in prompts if not isinstance(one, Prompt)), None)
    if wrong is not None:
        raise SettingError(
            f"the method '{name}' returned a {type(wrong).__name__}; it must return prompts, their texts, or an Outcome"
        )
    if not prompts:
        raise SettingError(f"the method '{name}' returned no prompt; return at least one")
    try:
        scores = search.score(prompts)
    except BudgetSpent as spent:
        scores = list(spent.scores)
    candidates = [Candidate(prompt, name, score.value) for prompt, score in zip(prompts, scores, strict=False)]
    return Outcome(candidates or search.candidates(source=name), "finished")
