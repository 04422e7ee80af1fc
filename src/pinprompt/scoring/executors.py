"""Where prompts are scored: in this process (here), or by Ray actors that each hold the task (`ray_executor`).

An executor gives scores in the order of the request, whatever order they were obtained in. It asks `stop` before it
sends more work; what was sent is always given back, so that nothing that was paid for is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pinprompt.errors import TaskError
from pinprompt.tasks.protocol import Task, complete
from pinprompt.values import Evaluation, Prompt, Score

Stop = Callable[[], bool]


class Executor(Protocol):
    """From prompts to scores, in order."""

    def run(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str, stop: Stop) -> Iterator[Score]:
        """Scores of the prompts, in order; fewer of them only if `stop` became true on the way."""

    def evaluate(self, prompt: Prompt, split: str, seed: int) -> Evaluation:
        """The task's evaluation of one prompt."""

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int) -> list[Evaluation]:
        """The task's evaluations of several prompts, in order."""

    def close(self) -> None:
        """Let go of workers."""


class Inline:
    """Scores in this process, one prompt after the other.

    Prompts go in chunks of the size that the task says (`Task.chunk`): alone, so that a score is journalled, and the
    clock looked at, as soon as it is there, or several where that is much faster.
    """

    def __init__(self, task: Task, chunk: int | None = None) -> None:
        self.task = complete(task)
        self.chunk = max(1, self.task.chunk) if chunk is None else chunk

    def run(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str, stop: Stop) -> Iterator[Score]:
        """Scores of the prompts, in order."""
        for start in range(0, len(prompts), self.chunk):
            if stop():
                return
            part = list(prompts[start : start + self.chunk])
            yield from score_part(self.task, part, list(seeds[start : start + self.chunk]), split)

    def evaluate(self, prompt: Prompt, split: str, seed: int) -> Evaluation:
        """The task's evaluation of one prompt."""
        return self.task.evaluate(prompt, split, seed)

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int) -> list[Evaluation]:
        """The task's evaluations of several prompts, in order."""
        return self.task.evaluate_many(prompts, split, seed)

    def close(self) -> None:
        """Nothing to let go of."""


def score_part(task: Any, prompts: list[Prompt], seeds: list[int], split: str) -> list[Score]:
    """One call of the task, with the number of its answers checked."""
    scores = task.score(prompts, seeds, split)
    if not isinstance(scores, Sequence) or len(scores) != len(prompts):
        given = f"{len(scores)} scores" if isinstance(scores, Sequence) else type(scores).__name__
        raise TaskError(f"the task '{task.name}' gave {given} for {len(prompts)} prompts; one score per prompt is due")
    return list(scores)
