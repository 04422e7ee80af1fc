"""Calibration of labels: what a prompt makes likely whatever the text says is measured once and taken away again.

`offsets` are one number per class, in logarithms, with a mean of 0. A label's calibrated log-probability is its raw one
less its offset. With the offsets of a batch of texts the calibrated log-probabilities of that batch average to those of
the prior: without one, no class is ahead before a text is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.tasks.metrics import Floats, Ints

FEW_ROWS, FEW_PER_CLASS = 16, 4
"""With fewer training rows than these, the offsets of a batch are too uncertain to be used without a warning."""
DIGITS = 6
"""Decimals of an offset. Rounded where they are measured, so that a stored offset is the very one that was used."""


def prior_of(given: Mapping[str, float], labels: Sequence[str]) -> Floats:
    """Shares of the classes [C] from numbers that a user gave (they need not sum to 1); none: all the same."""
    if not given:
        return np.full(len(labels), 1 / len(labels))
    named = {label.strip(): share for label, share in given.items()}
    for label in named:
        if label not in labels:
            raise SettingError(
                f"task.prior has a share for '{label}', which is no label; {did_you_mean(label, labels)}"
            )
    absent = [label for label in labels if label not in named]
    if absent:
        raise SettingError(f"task.prior has no share for {', '.join(absent)}; give every label one")
    shares = np.array([named[label] for label in labels], dtype=np.float64)
    return np.asarray(shares / shares.sum())


def batch_offsets(logs: Floats, labels: Ints, prior: Floats) -> Floats:
    """Offsets [C] from the label log-probabilities [N, C] of the training rows: their mean, less the log prior.

    Every class weighs the same, however many rows it has: otherwise the share of a class among the rows would be taken
    for a liking of the prompt. Where classes have equally many rows this is the mean over rows (arXiv 2309.17249).
    """
    counts = np.bincount(labels, minlength=logs.shape[1]).astype(np.float64)
    weights = 1 / counts[labels]
    mean = (weights[:, None] * logs).sum(axis=0) / weights.sum()
    return _centred(mean - np.log(prior))


def content_free_offsets(logs: Floats, prior: Floats) -> Floats:
    """Offsets [C] from the label log-probabilities [n, C] of texts without content: the log of the mean probability."""
    mean = np.maximum(np.exp(logs).mean(axis=0), np.finfo(np.float64).tiny)
    return _centred(np.log(mean) - np.log(prior))


def calibrated(logs: Floats, offsets: Floats | Sequence[float]) -> Floats:
    """Probabilities [N, C] from label log-probabilities [N, C] and offsets [C]."""
    moved = logs - np.asarray(offsets, dtype=np.float64)
    moved = np.exp(moved - moved.max(axis=1, keepdims=True))
    return np.asarray(moved / moved.sum(axis=1, keepdims=True))


def few_rows(labels: Ints, classes: int) -> str | None:
    """A sentence where the training rows are too few for offsets that can be relied on."""
    least = int(np.bincount(labels, minlength=classes).min())
    if len(labels) >= FEW_ROWS and least >= FEW_PER_CLASS:
        return None
    return (
        f"calibrate: {len(labels)} training rows, {least} of the rarest class, are few to measure label offsets on "
        f"(better {FEW_ROWS} or more, and {FEW_PER_CLASS} per class): compare the raw and the calibrated figures"
    )


def pack_rows(logs: Floats) -> bytes:
    """Label log-probabilities [N, C] as little-endian float32, row by row."""
    return logs.astype("<f4").tobytes()


def unpack_rows(answers: bytes, classes: int) -> Floats:
    """The label log-probabilities [N, C] of `pack_rows`."""
    return np.asarray(np.frombuffer(answers, dtype="<f4").reshape(-1, classes), dtype=np.float64)


def _centred(offsets: Floats) -> Floats:
    return np.asarray(np.round(offsets - offsets.mean(), DIGITS) + 0.0)  # + 0.0 makes a negative zero a plain one
