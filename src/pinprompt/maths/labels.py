"""From label log-probabilities to numbers: calibration, the paper's reward, and the metrics of a report.

Calibration removes a prompt's bias towards certain labels. `offsets` are one log-probability per class, with a mean of
0; a label's calibrated log-probability is its raw one minus its offset. With the offsets of a batch of texts, the
calibrated log-probabilities of that batch average to those of the prior (by default uniform).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.maths.bootstrap import least_share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 2000


def gaps(probabilities: Floats, labels: Ints) -> Floats:
    """p(true class) - max p(other class) per row.

    The true class is masked by its index, so a tie is a gap of 0 (masking equal values would make it a win).
    """
    rows = np.arange(len(labels))
    others = probabilities.copy()
    others[rows, labels] = -np.inf
    return np.asarray(probabilities[rows, labels] - others.max(axis=1))


def gap_reward(probabilities: Floats, labels: Ints, wrong: float, right: float) -> Floats:
    """The paper's piecewise reward per row: the gap times `right` if it is positive, otherwise times `wrong`."""
    found = gaps(probabilities, labels)
    return np.where(found > 0, right * found, wrong * found)


def reward_of(probabilities: Floats, labels: Ints, kind: str, wrong: float, right: float) -> Floats:
    """The value of each row: `accuracy` (1 if correct), `log-likelihood`, or `gap` (the paper's reward)."""
    if kind == "accuracy":
        return correct(probabilities, labels).astype(np.float64)
    if kind == "log-likelihood":
        return log_likelihood(probabilities, labels)
    return gap_reward(probabilities, labels, wrong, right)


def correct(probabilities: Floats, labels: Ints) -> NDArray[np.bool_]:
    """Which rows are correct: the true class is strictly the most likely, so a tie does not count."""
    return gaps(probabilities, labels) > 0


def log_likelihood(probabilities: Floats, labels: Ints) -> Floats:
    """log p(true class) per row; finite, since a probability that underflows is replaced by the smallest double."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return np.log(np.maximum(chosen, np.finfo(np.float64).tiny))


def predictions(probabilities: Floats, labels: Ints) -> Ints:
    """The most likely class per row; if the true class is tied with another, the other (as in `correct`)."""
    chosen = probabilities.argmax(axis=1)
    tied = (gaps(probabilities, labels) == 0) & (chosen == labels)
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    return np.asarray(np.where(tied, others.argmax(axis=1), chosen), dtype=np.int64)


def packed(probabilities: Floats, predicted: Ints) -> str:
    """Probabilities [N, C] as two hex digits each (times 254), with the predicted class strictly the largest."""
    # A diverged soft prompt gives NaN, which has no integer value: shown as 0.
    levels = np.rint(254 * np.clip(np.nan_to_num(probabilities), 0.0, 1.0)).astype(np.int64)
    places = np.arange(len(levels))
    chosen = levels[places, predicted]
    levels[places, predicted] = -1
    rivals = levels.max(axis=1)
    levels[places, predicted] = np.maximum(chosen, np.minimum(rivals + 1, 254))
    # Another class at the maximum must be lowered.
    full = (levels == 254) & (np.arange(levels.shape[1])[None, :] != predicted[:, None])
    levels[full] = 253
    return bytes(levels.astype(np.uint8).ravel()).hex()


def confusion(labels: Ints, predicted: Ints, classes: int) -> Ints:
    """Counts [true, predicted]."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (labels, predicted), 1)
    return table


def accuracy(tables: Ints) -> Floats:
    """The share of the diagonal in each table [..., C, C]."""
    return np.asarray(np.trace(tables, axis1=-2, axis2=-1) / np.maximum(1, tables.sum(axis=(-2, -1))))


def macro_f1(tables: Ints) -> Floats:
    """For each table [..., C, C] the mean of F1 over classes; one that neither occurs nor is predicted counts as 0."""
    hits = np.diagonal(tables, axis1=-2, axis2=-1).astype(np.float64)
    sums = tables.sum(axis=-2) + tables.sum(axis=-1)
    return np.asarray(np.mean(np.divide(2 * hits, sums, out=np.zeros_like(hits), where=sums > 0), axis=-1))


def pseudo_values(labels: Ints, predicted: Ints, classes: int, metric: Callable[[Ints], Floats]) -> Floats:
    """Values per row [N] of a metric that is no mean over rows, for paired tests: N m - (N - 1) m without the row."""
    table = confusion(labels, predicted, classes)
    without = np.repeat(table[None], classes * classes, axis=0)
    cells = np.arange(classes * classes)
    without[cells, cells // classes, cells % classes] -= 1  # only cells that have a row are used below
    left_out = metric(without)[labels * classes + predicted]
    return np.asarray(len(labels) * float(metric(table)) - (len(labels) - 1) * left_out)


def balanced_accuracy(table: Ints) -> float:
    """The mean recall over the classes that occur."""
    rows = table.sum(axis=1)
    there = rows > 0
    return float(np.mean(np.diag(table)[there] / rows[there])) if there.any() else 0.0


def label_entropy(table: Ints) -> float:
    """The entropy (natural logarithm) of the predicted labels: 0 if all rows get the same one."""
    shares = table.sum(axis=0) / max(1, table.sum())
    return float(-sum(share * np.log(share) for share in shares if share > 0)) + 0.0


def intervals(
    labels: Ints, predicted: Ints, classes: int, metrics: Mapping[str, Callable[[Ints], Floats]], seed: int
) -> dict[str, tuple[float, float]]:
    """95 % percentile bootstrap intervals over rows, the same for the same seed.

    Where all rows are right (or all wrong) resampling shows no uncertainty; there the exact interval of n of n
    successes is given: its other end p has p^n = 2.5 %.
    """
    if not len(labels):
        return dict.fromkeys(metrics, (0.0, 0.0))
    exact = least_share(len(labels))
    cells = labels * classes + predicted
    # Resampling rows is a multinomial draw of the table's cells: the same distribution, without drawing rows.
    shares = np.bincount(cells, minlength=classes * classes) / len(cells)
    drawn = np.random.default_rng(seed).multinomial(len(cells), shares, size=RESAMPLES)
    tables = drawn.reshape(-1, classes, classes)
    found = {}
    for name, metric in metrics.items():
        low, high = np.percentile(metric(tables), [2.5, 97.5])
        found[name] = (exact, 1.0) if low == 1 else (0.0, 1 - exact) if high == 0 else (float(low), float(high))
    return found


FEW_ROWS, FEW_PER_CLASS = 16, 4
"""With fewer training rows, the offsets of a batch are so uncertain that a warning is printed."""
DIGITS = 6
"""Decimals of an offset, rounded when measured, so that a stored offset equals the one used."""


def prior_of(given: Mapping[str, float], labels: Sequence[str]) -> Floats:
    """Shares of the classes [C] from given weights (which need not sum to 1); none: all equal."""
    if not given:
        return np.full(len(labels), 1 / len(labels))
    named = {label.strip(): share for label, share in given.items()}
    for label in named:
        if label not in labels:
            raise SettingError(
                f"task.prior has a share for '{label}', which is not a label; {did_you_mean(label, labels)}"
            )
    absent = [label for label in labels if label not in named]
    if absent:
        raise SettingError(f"task.prior has no share for {', '.join(absent)}; give every label one")
    shares = np.array([named[label] for label in labels], dtype=np.float64)
    return np.asarray(shares / shares.sum())


def batch_offsets(logs: Floats, labels: Ints, prior: Floats) -> Floats:
    """Offsets [C] from the label log-probabilities [N, C] of the training rows: their mean minus the log prior.

    Every class has the same weight, however many rows it has: otherwise the share of a class among the rows would be
    mistaken for a bias of the prompt. For balanced classes this is the mean over rows (arXiv 2309.17249).
    """
    counts = np.bincount(labels, minlength=logs.shape[1]).astype(np.float64)
    weights = 1 / counts[labels]
    mean = (weights[:, None] * logs).sum(axis=0) / weights.sum()
    return _centred(mean - np.log(prior))


def calibrated(logs: Floats, offsets: Floats | Sequence[float]) -> Floats:
    """Probabilities [N, C] from label log-probabilities [N, C] and offsets [C]."""
    moved = logs - np.asarray(offsets, dtype=np.float64)
    moved = np.exp(moved - moved.max(axis=1, keepdims=True))
    return np.asarray(moved / moved.sum(axis=1, keepdims=True))


def few_rows(labels: Ints, classes: int) -> str | None:
    """A warning if there are too few training rows for reliable offsets."""
    least = int(np.bincount(labels, minlength=classes).min())
    if len(labels) >= FEW_ROWS and least >= FEW_PER_CLASS:
        return None
    return (
        f"labels: {len(labels)} training rows, {least} of the rarest class, are few to measure label offsets on "
        f"(better {FEW_ROWS} or more, and {FEW_PER_CLASS} per class): compare the raw and the calibrated figures"
    )


def _centred(offsets: Floats) -> Floats:
    return np.asarray(np.round(offsets - offsets.mean(), DIGITS) + 0.0)  # + 0.0 turns -0.0 into 0.0
