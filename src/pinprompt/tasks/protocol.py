"""What a task promises. A task turns prompt text into scores; it never sees how the prompt was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from pinprompt.values import Evaluation, Prompt, Score

SPLITS = ("train", "dev", "test")


@runtime_checkable
class Task(Protocol):
    """The contract; `tasks.check.check_task` is the same contract as code."""

    name: str
    stochastic: bool
    """True where the same prompt may score differently twice; such scores are never memoised by default."""
    fingerprint: str
    """Changes whenever a score could: model and revision, template, label words, data, reward."""
    splits: tuple[str, ...]
    """The splits that can be scored; 'train' always, 'dev' and 'test' where there is data for them."""
    primary: str
    """The metric of `evaluate` that decides which prompt is better, for people."""

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        """One score per prompt, in order, higher is better.

        A prompt's score never depends on the other prompts of the call. `seeds` has one seed per prompt, for
        stochastic tasks. One example that fails is recorded in `Score.failures`; an exception means that nothing
        can be scored.
        """

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        """The metrics that people read, on one split."""

    def calls(self, split: str = "train") -> int:
        """How many model calls one prompt costs on a split, at the most; what a budget reserves."""

    def context(self) -> str:
        """Text that makes likely tokens likely for this task (template, examples); '' where there is none."""

    def baselines(self) -> dict[str, str]:
        """Hand-written prompts to compare with: 'manual', 'instructions', 'in-context' where they exist."""


class Differentiable(Protocol):
    """The view that white-box methods ask for with `task.differentiable()`; a black box has none.

    Prompts are vectors at the prompt's position in the task model's own input space.
    """

    embeddings: Any
    """[V, d] input embeddings of the task model (a frozen tensor)."""
    tokenizer: Any

    def loss(self, vectors: Any, rows: Sequence[int]) -> Any:
        """Mean loss over the given training rows for prompt vectors [n, d]; differentiable in `vectors`."""

    def score_vectors(self, vectors: Any, split: str) -> Score:
        """The task's own score of prompt vectors, without a gradient."""

    def rows(self, split: str) -> int:
        """How many examples a split has."""
