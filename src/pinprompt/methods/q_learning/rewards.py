"""From raw scores to rewards: a z-score among comparable scores, then the scale 1/alpha."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pinprompt.values import Score

EPSILON = 1e-4
"""Added to the standard deviation, as published, so that equal scores give reward 0 instead of a division by zero."""

INPUT = "input/"
"""Keys of `Score.details` that hold a prompt's score on one single input."""


def z_scores(values: Sequence[float]) -> list[float]:
    """(r - mean) / (population standard deviation + 1e-4)."""
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / (deviation + EPSILON) for value in values]


def normalise(scores: Sequence[Score], how: Literal["batch", "input", "none"]) -> list[float]:
    """The rewards of one step's prompts, before scaling.

    `batch` compares all prompts with each other; `input` compares, for each input, the prompts measured on it (single
    inputs where the task reports them, else the scores of one group) and averages over a prompt's inputs.
    """
    values = [score.value for score in scores]
    if how == "none":
        return values
    if how == "batch":
        return z_scores(values)
    columns: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, score in enumerate(scores):
        inputs = {key: value for key, value in score.details.items() if key.startswith(INPUT)}
        for key, value in (inputs or {score.group: score.value}).items():
            columns[key].append((place, value))
    gathered: list[list[float]] = [[] for _ in scores]
    for column in columns.values():
        for (place, _), z in zip(column, z_scores([value for _, value in column]), strict=True):
            gathered[place].append(z)
    return [math.fsum(zs) / len(zs) for zs in gathered]
