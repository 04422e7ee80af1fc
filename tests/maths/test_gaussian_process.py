"""The Gaussian process against textbook formulas and a direct solution."""

from __future__ import annotations

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


def test_equal_features_tell_nothing_apart() -> None:
    assert np.allclose(kernel(np.ones((3, 2))), 1)


def test_it_is_the_conditional_normal_distribution() -> None:
    features, values = some(12)
    similarity, scored, noise = kernel(features), list(range(7)), 0.05
    mean, variance = posterior(similarity, scored, values[:7], noise)
    # Conditioning the joint normal distribution by hand, with the share that has the largest density.
    centre, total = values[:7].mean(), max(values[:7].var() - noise, 0.1 * values[:7].var())
    found = []
    for share in SHARES:
        prior = share * total * similarity + (1 - share) * total * np.eye(12)
        measured = prior[:7, :7] + (noise + 1e-9) * np.eye(7)
        residual = values[:7] - centre
        log_density = -0.5 * residual @ np.linalg.inv(measured) @ residual - 0.5 * np.linalg.slogdet(measured)[1]
        gain = prior[:, :7] @ np.linalg.inv(measured)
        found.append((log_density, centre + gain @ residual, np.diag(prior - gain @ prior[:7])))
    _, wanted_mean, wanted_variance = max(found, key=lambda one: one[0])
    assert np.allclose(mean, wanted_mean, atol=1e-6)
    assert np.allclose(variance, wanted_variance, atol=1e-6)


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
