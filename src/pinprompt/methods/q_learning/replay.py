"""The replay D of Algorithm 1: a ring of episodes, sampled uniformly with replacement."""

from __future__ import annotations

import torch
from torch import Tensor

from pinprompt.methods.q_learning.rewards import EPSILON
from pinprompt.values import Episode


class Replay:
    """Ids and scores of the last `capacity` episodes; states live in the tree of prefixes, not here."""

    def __init__(self, capacity: int, length: int) -> None:
        self.capacity = capacity
        self._ids = torch.empty(0, length, dtype=torch.long)
        self._scores = torch.empty(0, dtype=torch.float64)
        self._rewards = torch.empty(0, dtype=torch.float64)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def add(self, episodes: list[Episode]) -> None:
        """Add episodes; beyond the capacity each takes the place of the oldest."""
        for episode in episodes:
            place = self._added % self.capacity
            if place >= len(self._ids):
                self._grow()
            self._ids[place] = torch.tensor(episode.ids)
            self._scores[place] = episode.score
            self._rewards[place] = episode.reward
            self._added += 1

    def sample(self, count: int, generator: torch.Generator, renormalise: bool = False) -> tuple[Tensor, Tensor]:
        """(ids [B, L], rewards [B]) of `count` episodes drawn with replacement.

        Rewards are as they stood among the prompts of their time (as published), or z-scored anew over the whole
        replay, so that old and new episodes are measured by one yardstick.
        """
        if not len(self):
            raise ValueError("the replay is empty")
        rows = torch.randint(len(self), (count,), generator=generator)
        rewards = self._rewards[rows]
        if renormalise:
            known = self._scores[: len(self)]
            rewards = (self._scores[rows] - known.mean()) / (known.std(correction=0) + EPSILON)
        return self._ids[rows], rewards.float()

    def _grow(self) -> None:
        size = min(self.capacity, max(256, 2 * len(self._ids)))
        self._ids = torch.cat([self._ids, self._ids.new_empty(size - len(self._ids), self._ids.shape[1])])
        self._scores = torch.cat([self._scores, self._scores.new_empty(size - len(self._scores))])
        self._rewards = torch.cat([self._rewards, self._rewards.new_empty(size - len(self._rewards))])
