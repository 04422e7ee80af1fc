"""From label probabilities to numbers: the paper's reward, and what a report shows with its intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 2000


def gaps(probabilities: Floats, labels: Ints) -> Floats:
    """p(true class) - max p(other class) per row.

    The true class is masked by its index: a tie is a gap of 0, not (as when equal values are masked) a win.
    """
    rows = np.arange(len(labels))
    others = probabilities.copy()
    others[rows, labels] = -np.inf
    return np.asarray(probabilities[rows, labels] - others.max(axis=1))


def gap_reward(probabilities: Floats, labels: Ints, wrong: float, right: float) -> Floats:
    """The paper's piecewise reward per row: the gap times `right` where it is positive, times `wrong` elsewhere."""
    found = gaps(probabilities, labels)
    return np.where(found > 0, right * found, wrong * found)


def correct(probabilities: Floats, labels: Ints) -> NDArray[np.bool_]:
    """Which rows are right: the true class is strictly the likeliest, so that a tie is not counted."""
    return gaps(probabilities, labels) > 0


def log_likelihood(probabilities: Floats, labels: Ints) -> Floats:
    """log p(true class) per row; finite, since a probability that underflows is taken as the smallest double."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return np.log(np.maximum(chosen, np.finfo(np.float64).tiny))


def predictions(probabilities: Floats, labels: Ints) -> Ints:
    """The likeliest class per row; where the true class is tied with another, the other (as in `correct`)."""
    chosen = probabilities.argmax(axis=1)
    tied = (gaps(probabilities, labels) == 0) & (chosen == labels)
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    return np.asarray(np.where(tied, others.argmax(axis=1), chosen), dtype=np.int64)


def packed(probabilities: Floats, predicted: Ints) -> str:
    """Probabilities [N, C] as two hex digits each (times 254), with the predicted class strictly the largest."""
    # A soft prompt that diverged gives NaN, which has no integer: shown as no probability.
    levels = np.rint(254 * np.clip(np.nan_to_num(probabilities), 0.0, 1.0)).astype(np.int64)
    places = np.arange(len(levels))
    chosen = levels[places, predicted]
    levels[places, predicted] = -1
    rivals = levels.max(axis=1)
    levels[places, predicted] = np.maximum(chosen, np.minimum(rivals + 1, 254))
    # A rival at the very top leaves no room above it.
    full = (levels == 254) & (np.arange(levels.shape[1])[None, :] != predicted[:, None])
    levels[full] = 253
    return bytes(levels.astype(np.uint8).ravel()).hex()


def confusion(labels: Ints, predicted: Ints, classes: int) -> Ints:
    """Counts [true, predicted]."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (labels, predicted), 1)
    return table


def accuracy(table: Ints) -> float:
    """The share of the diagonal."""
    return float(np.trace(table) / max(1, table.sum()))


def macro_f1(table: Ints) -> float:
    """The mean over classes of F1; a class that is neither there nor predicted counts as 0."""
    hits = np.diag(table).astype(np.float64)
    sums = table.sum(axis=0) + table.sum(axis=1)
    return float(np.mean(np.divide(2 * hits, sums, out=np.zeros_like(hits), where=sums > 0)))


def balanced_accuracy(table: Ints) -> float:
    """The mean over the classes that are there of the share that is labelled right."""
    rows = table.sum(axis=1)
    there = rows > 0
    return float(np.mean(np.diag(table)[there] / rows[there])) if there.any() else 0.0


def label_entropy(table: Ints) -> float:
    """The entropy (natural logarithm) of the predicted labels: 0 where all rows get the same one."""
    shares = table.sum(axis=0) / max(1, table.sum())
    return float(-sum(share * np.log(share) for share in shares if share > 0)) + 0.0


def intervals(
    labels: Ints, predicted: Ints, classes: int, metrics: Mapping[str, Callable[[Ints], float]], seed: int
) -> dict[str, tuple[float, float]]:
    """95 % percentile bootstrap intervals over rows, the same for the same seed."""
    if not len(labels):
        return dict.fromkeys(metrics, (0.0, 0.0))
    cells = labels * classes + predicted
    # A resample of rows is a multinomial draw of the table's cells: the same distribution, without drawing rows.
    shares = np.bincount(cells, minlength=classes * classes) / len(cells)
    drawn = np.random.default_rng(seed).multinomial(len(cells), shares, size=RESAMPLES)
    found = {}
    for name, metric in metrics.items():
        values = [metric(row.reshape(classes, classes)) for row in drawn]
        low, high = np.percentile(values, [2.5, 97.5])
        found[name] = (float(low), float(high))
    return found
