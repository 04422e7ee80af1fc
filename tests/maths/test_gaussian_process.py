"""The Gaussian process against textbook formulas and a direct solution."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from pinprompt.maths.gaussian_process import SHARES, kernel, posterior


def some(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 4))
    return features, features[:, 0] * 2 + random.normal(size=count) * 0.1


def test_similarity_is_one_with_itself_symmetric_and_falls_with_distance() -> None:
    found = kernel(np.array([[0.0, 1.0], [0.1, 1.0], [5.0, -3.0], [-4.0, 2.0]]))
    assert np.allclose(np.diag(found), 1)
    assert np.allclose(found, found.T)
    assert found[0, 1] > found[0, 2]
    assert np.linalg.eigvalsh(found).min() > -1e-9


def similarities(features: np.ndarray) -> np.ndarray:
    """The same by its definition, row by row."""
    columns = []
    for column in features.T:
        spread = np.sqrt(np.mean((column - column.mean()) ** 2))
        columns.append((column - column.mean()) / (spread if spread else 1))
    rows = [row / (np.sqrt(row @ row) or 1) for row in np.array(columns).T]
    squares = np.array([[(one - other) @ (one - other) for other in rows] for one in rows])
    middle = np.median([squares[a, b] for a in range(len(rows)) for b in range(len(rows)) if a != b])
    return np.exp(-squares / middle)


@pytest.mark.parametrize(
    "features",
    [
        some(9)[0] * [1, 10, 0.1, 3] + 5,  # coordinates of different size
        np.array([[1.0, 0], [-1, 0], [3, 7], [-3, -7], [0, 0]]),  # the last lies in the middle: it has no direction
        np.array([[2.0, 1, 4], [2, 3, -4], [2, 5, 4]]),  # a coordinate in which all are equal
        np.array([[5.0, 5], [5, 5.1], [5.1, 5], [5.1, 5.1], [-20, -20]]),  # most are near to each other
        np.array([[0.0, 0, 0, 0, 9], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [-1, -1, -1, -1, 0]]),
    ],
)
def test_similarity_by_its_definition(features: np.ndarray) -> None:
    assert np.allclose(kernel(features), similarities(features), atol=1e-9)


def test_equal_features_tell_nothing_apart() -> None:
    assert np.allclose(kernel(np.ones((3, 2))), np.ones((3, 3)))
    assert kernel(np.ones((3, 2))).shape == (3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one prompt has no other that it could be apart from
        assert kernel(np.array([[1.0, 2.0]])).tolist() == [[1.0]]


@pytest.mark.parametrize("noise", [0.05, 0.8, 50.0])  # the last is more than the scores vary
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_conditional_normal_distribution(seed: int, noise: float) -> None:
    features, values = some(12, seed)
    scored = [11, 2, 5, 0, 7, 3, 8]
    similarity, known = kernel(features), values[scored]
    mean, variance = posterior(similarity, scored, known, noise)
    # Conditioning the joint normal distribution by hand, with the share that has the largest density.
    centre, total = known.mean(), max(known.var() - noise, 0.1 * known.var())
    found = []
    for share in SHARES:
        prior = share * total * similarity + (1 - share) * total * np.eye(12)
        measured = prior[np.ix_(scored, scored)] + (noise + 1e-9) * np.eye(7)
        residual = known - centre
        log_density = -0.5 * residual @ np.linalg.inv(measured) @ residual - 0.5 * np.linalg.slogdet(measured)[1]
        gain = prior[:, scored] @ np.linalg.inv(measured)
        found.append((log_density, centre + gain @ residual, np.diag(prior - gain @ prior[scored])))
    _, wanted_mean, wanted_variance = max(found, key=lambda one: one[0])
    assert np.allclose(mean, wanted_mean, atol=1e-6)
    assert np.allclose(variance, wanted_variance, atol=1e-6)


def test_scores_that_are_all_equal_say_so_without_dividing_by_zero() -> None:
    mean, variance = posterior(kernel(some(6)[0]), [0, 1, 2], np.full(3, 0.4), 0.0)
    assert mean == pytest.approx(0.4)
    assert (variance > 0).all()
    assert variance.max() < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_it_ranks_what_was_never_scored(seed: int) -> None:
    features, values = some(60, seed)
    mean, _ = posterior(kernel(features), list(range(30)), values[:30], 0.01)
    assert np.corrcoef(mean[30:], values[30:])[0, 1] > 0.5


def test_a_scored_prompt_is_surer_than_an_unscored_one_and_noise_shrinks_to_the_mean() -> None:
    features, values = some(20)
    similarity, scored = kernel(features), list(range(10))
    sure, spread = posterior(similarity, scored, values[:10], 1e-6)
    assert spread[:10].max() < spread[10:].min()
    assert np.allclose(sure[:10], values[:10], atol=1e-3)
    vague, _ = posterior(similarity, scored, values[:10], 100.0)
    assert np.ptp(vague) < np.ptp(sure)
    assert np.allclose(vague.mean(), values[:10].mean(), atol=0.05)
