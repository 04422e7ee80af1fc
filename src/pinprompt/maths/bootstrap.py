"""Means, standard errors and paired tests: over splits and seeds, and over the rows of one split. Exact or seeded."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Unit = tuple[str, int | None]
"""What a value was measured on: the split (or picture), and the seed; None if the seed does not matter."""

EXACT = 5  # up to this many pairs every bootstrap sample is enumerated: 5 ** 5 of them
DRAWS = 10_000
ENOUGH = 20_000_000  # rows drawn for one test: fewer samples if there are many rows
FEWEST = 5  # with fewer pairs no difference is called significant


@dataclass(frozen=True)
class Difference:
    """How much higher one row is than another on the same splits and seeds.

    `low` and `high` bound the mean difference at 95 % by a bootstrap over splits (over seeds where there is one split).
    """

    mean: float
    low: float
    high: float
    p: float
    pairs: int

    @property
    def significant(self) -> bool:
        """Whether there are enough pairs and the interval excludes zero."""
        return self.pairs >= FEWEST and (self.low > 0 or self.high < 0)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean (n - 1 in the variance), or None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def pairs(ours: Mapping[Unit, float], theirs: Mapping[Unit, float]) -> dict[Unit, float]:
    """Differences on the units that both have; a value without a seed is paired with every seed of its split."""
    found = {}
    for (split, seed), value in ours.items():
        other = theirs.get((split, seed), theirs.get((split, None)))
        if other is not None:
            found[split, seed] = value - other
    return found


def compare_paired(ours: Mapping[Unit, float], theirs: Mapping[Unit, float]) -> Difference | None:
    """The paired bootstrap of `ours` over `theirs`, or None for fewer than two pairs."""
    differences = pairs(ours, theirs)
    if len(differences) < 2:
        return None
    splits: dict[str, list[float]] = {}
    for (split, _), value in sorted(differences.items(), key=str):
        splits.setdefault(split, []).append(value)
    # Seeds of one split share their data, so splits are resampled; with a single split, seeds are.
    blocks = [mean(values) for values in splits.values()] if len(splits) > 1 else list(differences.values())
    return _difference(mean(blocks), sorted(_resampled(blocks)), len(blocks))


def mcnemar(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """McNemar's exact test on rows that are correct (1) or wrong (0) under two prompts: the two-sided p-value.

    Of the n rows where the two differ, b are correct only under `ours`. If neither prompt is better, b follows
    Binomial(n, 1/2), so p = min(1, 2 P(B <= min(b, n - b))).
    """
    b = sum(1 for one, other in zip(ours, theirs, strict=True) if one > other)
    c = sum(1 for one, other in zip(ours, theirs, strict=True) if one < other)
    n, log_half = b + c, -math.log(2)
    tail = math.fsum(
        math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + n * log_half)
        for k in range(min(b, c) + 1)
    )
    return min(1.0, 2 * tail)


def mcnemar_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """An exact 95 % interval of the mean difference of such rows; it excludes 0 where `mcnemar` gives p < 0.05.

    Clopper and Pearson's interval of b / n among the n rows where the two differ, scaled to all rows.
    """
    b = sum(1 for one, other in zip(ours, theirs, strict=True) if one > other)
    n = b + sum(1 for one, other in zip(ours, theirs, strict=True) if one < other)

    def at_most(k: int, share: float) -> float:
        return math.fsum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k + 1))

    def solved(k: int, tail: float) -> float:
        """The share with which at most k of n happen with the probability `tail`."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(k, middle) > tail else (low, middle)
        return low

    ends = (solved(b - 1, 0.975) if b else 0.0, solved(b, 0.025) if b < n else 1.0)
    return (2 * ends[0] - 1) * n / len(ours), (2 * ends[1] - 1) * n / len(ours)


def compare_rows(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """The paired bootstrap of `ours` over `theirs` over the rows that both were measured on."""
    import numpy as np

    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    count = len(differences)
    stream = np.random.default_rng(0)
    draws = max(1000, min(DRAWS, ENOUGH // count))
    means = sorted(float(differences[stream.integers(0, count, count)].mean()) for _ in range(draws))
    return _difference(mean(differences.tolist()), means, count)


def _difference(centre: float, means: Sequence[float], count: int) -> Difference:
    """The 95 % interval and the two-sided p-value from the sorted means of bootstrap samples."""
    low, high = _quantile(means, 0.025), _quantile(means, 0.975)
    below = sum(1 for value in means if value <= 0) / len(means)
    above = sum(1 for value in means if value >= 0) / len(means)
    # Not smaller than the samples can resolve: a bootstrap cannot give p = 0.
    p = min(1.0, max(2 * min(below, above), 2 / len(means)))
    return Difference(centre, low, high, p, count)


def _resampled(blocks: Sequence[float]) -> list[float]:
    if len(blocks) <= EXACT:
        return [mean(sample) for sample in itertools.product(blocks, repeat=len(blocks))]
    rng = random.Random(0)
    return [mean(rng.choices(blocks, k=len(blocks))) for _ in range(DRAWS)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def least_share(rows: int) -> float:
    """The lower end of the exact 95 % interval of a share that is 1 on all rows: the p with p^n = 2.5 %."""
    return float(0.025 ** (1 / rows))


def interval_of_mean(values: Any, seed: int, *, shares: bool = False) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean over rows, the same for the same seed.

    If values are `shares` from 0 to 1 and all are 0 or all are 1, resampling shows no uncertainty, and the exact
    interval is given.
    """
    import numpy as np

    known = np.asarray(values, dtype=np.float64)
    if shares and (known == known[0]).all() and known[0] in (0, 1):
        least = least_share(len(known))
        return (least, 1.0) if known[0] else (0.0, 1 - least)
    drawn = np.random.default_rng(seed).integers(0, len(known), (2000, len(known)))
    low, high = np.percentile(known[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
