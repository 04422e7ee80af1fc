"""Small tasks for tests: a prompt is worth what a function says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pinprompt.tasks.protocol import Draft, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Prompt, Row

CALLS = {"train": 4, "dev": 2, "test": 8}


class Toy:
    """Answers with a number for a prompt on a row, and remembers what it was asked.

    By default every split has as many rows as `CALLS` says, each a call, and a prompt is worth its length on all.
    """

    def __init__(
        self,
        function: Callable[[str, int], float] | None = None,
        stochastic: bool = False,
        *,
        rows: Mapping[str, int] = CALLS,
        calls: int = 1,
        fingerprint: str = "toy-1",
        drafts: Sequence[Draft] = (),
        chunk: int = 1,
    ) -> None:
        self.function = function or (lambda text, seed: float(len(text)))
        self.info = TaskInfo("toy", fingerprint, "accuracy", stochastic=stochastic, chunk=chunk)
        self.rows = tuple(
            Row(split, index, key=f"{split} {index}", calls=calls)
            for split, count in rows.items()
            for index in range(count)
        )
        self.asked: list[tuple[str, str, int]] = []
        """The prompt, the split and the seed of every question, in order."""
        self.cells = 0
        self._drafts = list(drafts)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        split = self.rows[rows[0]].split
        self.asked += [(prompt.text, split, draw.seed) for prompt, draw in zip(prompts, draws, strict=True)]
        self.cells += len(prompts) * len(rows)
        return [self._answers(prompt.text, tuple(rows), draw) for prompt, draw in zip(prompts, draws, strict=True)]

    def _answers(self, text: str, rows: tuple[int, ...], draw: Draw) -> Answers:
        value = self.function(text, draw.seed)
        failures = dict.fromkeys(rows, f"no number for {text}") if np.isnan(value) else {}
        return Answers(rows, np.full(len(rows), value), failures)

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return np.asarray(answers.on(rows), dtype=np.float64)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        value = float(self.values(answers, rows).mean())
        return Evaluation(self.rows[rows[0]].split, {"accuracy": value / 10}, len(rows), {"accuracy": (0.0, 1.0)})

    def context(self) -> str:
        return ""

    def drafts(self) -> list[Draft]:
        return self._drafts


def noisy(text: str, seed: int) -> float:
    """A score that depends on the seed and on the text."""
    return random.Random(f"{text}/{seed}").random()


def build_noisy() -> Toy:
    """A stochastic toy, for workers to build."""
    return Toy(noisy, stochastic=True)


def prompts(*texts: str) -> list[Prompt]:
    """Prompts of these texts, with made-up ids."""
    return [Prompt(text, tuple(map(ord, text))) for text in texts]
