"""The replay buffer D of Algorithm 1: a ring of episodes, optionally with the best of all time, sampled uniformly."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pinprompt.values import Episode, Score

# From raw scores to rewards: a z-score over comparable scores, then the scale 1/alpha.

EPSILON = 1e-4
"""Added to the standard deviation, as published, so that equal scores give reward 0 instead of a division by zero."""


def z_scores(values: Sequence[float]) -> list[float]:
    """(r - mean) / (population standard deviation + 1e-4)."""
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / (deviation + EPSILON) for value in values]


def normalise(scores: Sequence[Score], how: Literal["batch", "input", "none"]) -> list[float]:
    """The rewards of one step's prompts, before scaling.

    `batch` compares all prompts with each other; `input` compares, for each row, all values measured on it, and
    averages over a prompt's values. Where a prompt has several draws on a row, they are pooled as published: mean and
    deviation are those of all values, not of the prompts' means.
    """
    values = [score.value for score in scores]
    if how == "none":
        return values
    if how == "batch":
        return z_scores(values)
    columns: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for place, score in enumerate(scores):
        for row, value in zip(score.rows, score.values, strict=True):
            columns[row] += [(place, float(draw)) for draw in np.atleast_1d(value)]
    gathered: list[list[float]] = [[] for _ in scores]
    for column in columns.values():
        for (place, _), z in zip(column, z_scores([value for _, value in column]), strict=True):
            gathered[place].append(z)
    return [math.fsum(zs) / len(zs) for zs in gathered]


class Replay:
    """Ids and scores of the last `capacity` episodes; states live in the tree of prefixes, not here.

    The `best` best of the dropped episodes are also kept, each once.
    """

    def __init__(self, capacity: int, length: int, best: int = 0, paths: bool = False) -> None:
        self.capacity = capacity
        self.best = best
        self.paths = paths
        """Whether episodes have the scores of their prefixes, so that each token has a reward."""
        self._kept: dict[tuple[int, ...], Episode] = {}
        self._ids = torch.empty(0, length, dtype=torch.long)
        self._scores = torch.empty(0, dtype=torch.float64)
        self._rewards = torch.empty(0, dtype=torch.float64)
        self._paths = torch.empty(0, length if paths else 0, dtype=torch.float64)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def add(self, episodes: list[Episode]) -> None:
        """Add episodes; beyond the capacity each replaces the oldest."""
        for episode in episodes:
            place = self._added % self.capacity
            if place >= len(self._ids):
                self._grow()
            if self._added >= self.capacity:
                self._retire(place)
            self._ids[place] = torch.tensor(episode.ids)
            self._scores[place] = episode.score
            self._rewards[place] = episode.reward
            if self.paths:
                self._paths[place] = torch.tensor(episode.path, dtype=torch.float64)
            self._added += 1

    def sample(self, count: int, generator: torch.Generator, renormalise: bool = False) -> tuple[Tensor, Tensor]:
        """(ids [B, L], rewards) of `count` episodes drawn with replacement.

        Rewards are those of the step that wrote the prompt (as published), or z-scored again over the whole
        replay, so that old and new episodes are comparable. Where episodes have paths, rewards are [B, L]:
        the gain in score of each token, on the same scale; the empty prompt counts as 0.
        """
        if not len(self):
            raise ValueError("the replay is empty")
        ids, scores, old_rewards = self._ids[: len(self)], self._scores[: len(self)], self._rewards[: len(self)]
        paths = self._paths[: len(self)]
        if self._kept:
            best = list(self._kept.values())
            ids = torch.cat([ids, torch.tensor([episode.ids for episode in best])])
            scores = torch.cat([scores, scores.new_tensor([episode.score for episode in best])])
            old_rewards = torch.cat([old_rewards, scores.new_tensor([episode.reward for episode in best])])
            if self.paths:
                paths = torch.cat([paths, scores.new_tensor([episode.path for episode in best])])
        drawn = torch.randint(len(ids), (count,), generator=generator)
        mean, spread = scores.new_zeros(()), scores.new_ones(())
        if renormalise:
            mean, spread = scores.mean(), scores.std(correction=0) + EPSILON
        if self.paths:
            path = (paths[drawn] - mean) / spread
            return ids[drawn], path.diff(prepend=torch.zeros_like(path[:, :1])).float()
        rewards = (scores[drawn] - mean) / spread if renormalise else old_rewards[drawn]
        return ids[drawn], rewards.float()

    def drop_repeats(self) -> None:
        """Keep each prompt once, its first copy: a collapsed policy fills the ring with copies of one prompt.

        The first copy is kept, since the reward of a prompt that was scored among its own copies is meaningless.
        """
        start = self._added % self.capacity if self._added > self.capacity else 0
        places = [(start + age) % self.capacity for age in range(len(self))]
        first: dict[tuple[int, ...], int] = {}
        for place in places:
            first.setdefault(tuple(self._ids[place].tolist()), place)
        kept = torch.tensor(list(first.values()), dtype=torch.long)
        self._ids, self._scores, self._rewards = self._ids[kept], self._scores[kept], self._rewards[kept]
        self._paths = self._paths[kept]
        self._added = len(kept)

    def _retire(self, place: int) -> None:
        """Drop the episode at a position; if it is among the best dropped ones, keep it outside the ring."""
        if not self.best:
            return
        ids = tuple(self._ids[place].tolist())
        path = tuple(self._paths[place].tolist()) if self.paths else ()
        self._kept[ids] = Episode(ids, self._scores[place].item(), self._rewards[place].item(), path)
        if len(self._kept) > self.best:
            del self._kept[min(self._kept, key=lambda ids: self._kept[ids].score)]

    def _grow(self) -> None:
        more = min(self.capacity, max(256, 2 * len(self._ids))) - len(self._ids)
        self._ids, self._scores, self._rewards, self._paths = (
            torch.cat([part, part.new_empty(more, *part.shape[1:])])
            for part in (self._ids, self._scores, self._rewards, self._paths)
        )
