"""A Gaussian process over prompts: predicts the scores of unscored prompts from scored ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHARES = (0.2, 0.5, 0.8, 0.95)
"""Candidate shares of the variance that the features explain; the one with the largest likelihood is used."""
LEAST = 1e-9


def kernel(features: Floats) -> Floats:
    """Similarity of prompts by their features: k(a, b) = exp(-|a - b|^2 / m), [n, d] -> [n, n].

    Coordinates are standardised and vectors scaled to length 1 first; m is the median squared distance.
    """
    spread = features.std(axis=0)
    x = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    x = x / np.where(norm > 0, norm, 1.0)
    length = np.square(x).sum(axis=1)
    square = np.maximum(length[:, None] + length - 2.0 * (x @ x.T), 0.0)
    apart = square[~np.eye(len(x), dtype=bool)]
    median = float(np.median(apart)) if len(apart) else 0.0
    return np.exp(-square / median) if median > 0 else np.ones_like(square)


def posterior(similarity: Floats, scored: Sequence[int], values: Floats, noise: float) -> tuple[Floats, Floats]:
    """Mean [n] and variance [n] of every prompt's true score, given the measured scores of some.

    A score is mean + f + g + e: f has covariance s T K, g (what features cannot tell) variance (1 - s) T, and e, the
    error of measuring on few rows, variance `noise`. T is the variance of the scores minus the noise (at least a tenth
    of it), and s the share of SHARES with the largest marginal likelihood.
    """
    at = np.asarray(scored, dtype=np.int64)
    centre = float(values.mean())
    residual = values - centre
    total = max(float(residual.var()) - noise, 0.1 * float(residual.var()), LEAST)
    inner = similarity[np.ix_(at, at)]
    best: tuple[float, float, Floats, Floats] | None = None
    for share in SHARES:
        own = (1 - share) * total + noise
        factor: Floats = np.linalg.cholesky(share * total * inner + (own + LEAST) * np.eye(len(at))).astype(np.float64)
        white: Floats = np.linalg.solve(factor, residual).astype(np.float64)
        likelihood = -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
        if best is None or likelihood > best[0]:
            best = (likelihood, share, factor, white)
    assert best is not None
    _, share, factor, white = best
    across = share * total * similarity[:, at]
    across[at, np.arange(len(at))] += (1 - share) * total
    seen = np.linalg.solve(factor, across.T)
    mean = centre + seen.T @ white
    variance = share * total * np.diag(similarity) + (1 - share) * total - np.square(seen).sum(axis=0)
    return mean, np.maximum(variance, LEAST)
