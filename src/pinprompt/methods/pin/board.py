"""The board of written prompts: each distinct text with the mean of its raw scores."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from pinprompt.methods.protocol import Candidate
from pinprompt.values import Prompt


@dataclass
class _Entry:
    prompt: Prompt
    total: float
    count: int
    order: int

    @property
    def mean(self) -> float:
        return self.total / self.count


class Board:
    """Knows the best sampled prompts; a stochastic task's prompt counts with its mean, not with its luckiest draw."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, prompt: Prompt, score: float) -> bool:
        """Book one score; True where the text is new."""
        entry = self._entries.get(prompt.text)
        if entry is None:
            self._entries[prompt.text] = _Entry(prompt, score, 1, len(self._entries))
            return True
        entry.total += score
        entry.count += 1
        return False

    def best(self, count: int) -> list[Candidate]:
        """The best prompts, the earlier first where scores are equal."""
        entries = heapq.nsmallest(count, self._entries.values(), key=lambda entry: (-entry.mean, entry.order))
        return [Candidate(entry.prompt, "sampled", entry.mean) for entry in entries]
