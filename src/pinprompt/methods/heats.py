"""Heats: prompts are scored on a few rows first, and on more only while they can still be among the best.

The rows of train come in blocks. Every prompt is scored on the first one. It advances to the next while its mean over
its rows is among the `keep` best of all prompts that were scored on as many. No row is asked twice.

A prompt that stops early gets its mean so far, plus what prompts with all rows gained on average after as many rows:
easy first rows are then no advantage over those that went on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pinprompt.errors import BudgetSpent
from pinprompt.methods.protocol import Evaluator
from pinprompt.tasks.protocol import Task
from pinprompt.values import Prompt, Score


@dataclass(frozen=True)
class Raced:
    """A prompt's score, and its mean after each block that it was scored on."""

    score: Score
    means: tuple[float, ...] = ()


class Heats:
    """The best means of a search after each block of train."""

    def __init__(self, task: Task, evaluator: Evaluator, keep: int) -> None:
        self.task, self.keep, self.blocks = task, keep, train_blocks(task)
        self._evaluator = evaluator
        self._texts: set[str] = set()
        self._best: list[list[float]] = [[] for _ in self.blocks]
        self._gains = [0.0] * len(self.blocks)
        self._whole = 0

    def score(self, prompts: Sequence[Prompt]) -> list[Raced]:
        """Scores in order; where the budget ends, BudgetSpent has those that were scored on one block at least."""
        given: list[list[Score]] = [[] for _ in prompts]
        means: list[list[float]] = [[] for _ in prompts]
        racing, refusal = list(range(len(prompts))), None
        for number, block in enumerate(self.blocks):
            try:
                scores = self._evaluator.score([asked(prompts[place], given[place]) for place in racing], block)
            except BudgetSpent as spent:
                scores, refusal = spent.scores, spent
            for place, score in zip(racing, scores, strict=False):
                given[place].append(score)
                values = self.task.pooled(given[place])
                means[place].append(sum(values) / len(values))
            if refusal is not None:
                break
            new = {prompts[place].text: means[place][number] for place in racing}
            mark = self._mark(number, [mean for text, mean in new.items() if text not in self._texts])
            racing = [place for place in racing if means[place][number] >= mark]
        for prompt, own in zip(prompts, means, strict=True):
            self.enter(prompt.text, own)
        raced = [Raced(self._score(scores, own), tuple(own)) for scores, own in zip(given, means, strict=True) if own]
        if refusal is not None:
            raise BudgetSpent(str(refusal), scores=raced)
        return raced

    def enter(self, text: str, means: Sequence[float]) -> None:
        """Count a prompt among those that others are compared with; each text counts once."""
        if text in self._texts or not means:
            return
        self._texts.add(text)
        for best, mean in zip(self._best, means, strict=False):
            heapq.heappush(best, mean)
            if len(best) > self.keep:
                heapq.heappop(best)
        if len(means) == len(self.blocks):
            self._whole += 1
            self._gains = [gain + means[-1] - mean for gain, mean in zip(self._gains, means, strict=True)]

    def _mark(self, number: int, new: Sequence[float]) -> float:
        """The least mean after a block with which a prompt advances, the new ones counted."""
        best = heapq.nlargest(self.keep, (*self._best[number], *new))
        return best[-1] if len(best) == self.keep else float("-inf")

    def _score(self, scores: Sequence[Score], means: Sequence[float]) -> Score:
        whole = self.task.whole_splits(scores).get("train")
        calls = sum(score.calls for score in scores)
        if whole is not None:
            return replace(whole, calls=calls)
        failures = tuple(failure for score in scores for failure in score.failures)
        gain = self._gains[len(means) - 1] / self._whole if self._whole else 0.0
        return Score(means[-1] + gain, calls=calls, failures=failures)


def train_blocks(task: Task) -> tuple[str, ...]:
    """The blocks that make up train; they come first."""
    rows, found = task.calls("train"), 0
    for number, block in enumerate(task.blocks, 1):
        found += task.calls(block)
        if found >= rows:
            return task.blocks[:number]
    return task.blocks


def score_whole(task: Task, evaluator: Evaluator, prompts: Sequence[Prompt]) -> None:
    """Have prompts scored on all of train, block by block, so that the rows of earlier heats are not asked again."""
    given: list[list[Score]] = [[] for _ in prompts]
    for block in train_blocks(task):
        scores = evaluator.score([asked(*pair) for pair in zip(prompts, given, strict=True)], block)
        for own, score in zip(given, scores, strict=True):
            own.append(score)
    for prompt, own in zip(prompts, given, strict=True):
        evaluator.derive(prompt, own)


def asked(prompt: Prompt, scores: Sequence[Score]) -> Prompt:
    """A prompt as its next block is asked: with the offsets that its first block measured."""
    return replace(prompt, offsets=scores[0].offsets) if scores else prompt
