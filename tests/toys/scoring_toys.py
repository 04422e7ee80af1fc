"""Small tasks for the tests of this room."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pinprompt.values import Evaluation, Prompt, Score

CALLS = {"train": 4, "dev": 2, "test": 8}


class Toy:
    """Scores a prompt by its length (or by a function of text and seed), and remembers what it was asked."""

    name = "toy"
    fingerprint = "toy-1"
    primary = "accuracy"
    splits = ("train", "dev", "test")

    def __init__(
        self,
        function: Callable[[str, int], float] | None = None,
        stochastic: bool = False,
    ) -> None:
        self.function = function or (lambda text, seed: float(len(text)))
        self.stochastic = stochastic
        self.asked: list[tuple[str, str, int]] = []
        self.evaluated: list[tuple[str, str, int]] = []

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        self.asked += [(prompt.text, split, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        return [
            Score(self.function(prompt.text, seed), CALLS[split], details={"length": len(prompt.text)})
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        self.evaluated.append((prompt.text, split, seed))
        outcomes = {"accuracy": (1.0, 0.0, 1.0), "j": (0.5, 1.0)}
        intervals = {"accuracy": (0.0, 1.0)}
        return Evaluation(split, {"accuracy": len(prompt.text) / 10}, 5, CALLS[split], intervals, outcomes=outcomes)

    def calls(self, split: str = "train") -> int:
        return CALLS[split]

    def context(self) -> str:
        return ""

    def baselines(self) -> dict[str, str]:
        return {}


def noisy(text: str, seed: int) -> float:
    """A score that depends on the seed and on the text."""
    return random.Random(f"{text}/{seed}").random()


def build_noisy() -> Toy:
    """A stochastic toy, for workers to build."""
    return Toy(noisy, stochastic=True)


def prompts(*texts: str) -> list[Prompt]:
    """Prompts of these texts, with made-up ids."""
    return [Prompt(text, tuple(map(ord, text))) for text in texts]
