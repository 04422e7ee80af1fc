"""What a run has scored so far: the table that repeats are answered from, and that prompts.csv is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pinprompt.values import Prompt, Score


@dataclass
class _Entry:
    """One distinct prompt: its ids, the request it first came in, and per split (sum of scores, times scored)."""

    ids: tuple[int, ...]
    first: int
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    failures: int = 0


class Table:
    """Scores by split and text, and the worst score of each split."""

    def __init__(self) -> None:
        self.texts: dict[str, _Entry] = {}
        self._scores: dict[tuple[str, str], Score] = {}
        self._worst: dict[str, float] = {}

    def get(self, split: str, text: str) -> Score | None:
        """The latest score of a prompt on a split."""
        return self._scores.get((split, text))

    def enter(self, number: int, split: str, scored: Sequence[tuple[int, Prompt, Score]]) -> dict[int, Score]:
        """Take in the scores of one request and give them back by place, those that failed as the worst so far.

        Failures on a split that has no score at all yet cannot be given a value and are left out.
        """
        finite = [score.value for _, _, score in scored if not math.isnan(score.value)]
        if finite:
            self._worst[split] = min([*finite, self._worst.get(split, math.inf)])
        settled: dict[int, Score] = {}
        for place, prompt, raw in scored:
            score = raw
            if math.isnan(raw.value):
                if split not in self._worst:
                    continue
                score = replace(raw, value=self._worst[split])
            settled[place] = score
            self._scores[split, prompt.text] = score
            entry = self.texts.setdefault(prompt.text, _Entry(prompt.ids, number))
            total, times = entry.sums.get(split, (0.0, 0))
            entry.sums[split] = (total + score.value, times + 1)
            entry.failures += len(score.failures)
        return settled

    def rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        """Every distinct prompt in order of appearance: text, ids, mean score per split, times scored, failures."""
        rows = []
        for text, entry in self.texts.items():
            row: dict[str, Any] = {"prompt": text, "ids": " ".join(map(str, entry.ids)), "first": entry.first}
            for split in splits:
                total, times = entry.sums.get(split, (0.0, 0))
                row[split] = total / times if times else None
            row["scored"] = sum(times for _, times in entry.sums.values())
            row["failures"] = entry.failures
            rows.append(row)
        return rows
