"""Sparsemax relative to a prior: hand-worked values, two independent solvers, its properties and its special cases."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from pinprompt.errors import PinpromptError
from pinprompt.maths import relative_sparsemax as relative
from pinprompt.maths import sparsemax

torch.set_num_threads(1)

HAND = [
    # All three in the support: lambda = (0.5 * 1 + 0.3 * 0 - 0.2 * 0.5 - 1) / 1 = -0.6.
    ([1, 0, -0.5], [0.5, 0.3, 0.2], -0.6, [0.8, 0.18, 0.02], 0.5 + 0.5 * (0.5 * 0.64 - 0.3 * 0.36 - 0.2 * 0.11)),
    # The last falls out: lambda = (0.25 * 2 + 0.25 * 1 - 1) / 0.5 = -0.5, which is above -1.
    ([2, 1, -1], [0.25, 0.25, 0.5], -0.5, [0.625, 0.375, 0], 0.5 + 0.5 * (0.25 * 3.75 + 0.25 * 0.75)),
    # One token alone: lambda = (0.5 * 4 - 1) / 0.5 = 2, V = 1/2 + 1/4 (16 - 4).
    ([4, 0], [0.5, 0.5], 2, [1, 0], 3.5),
    # Without mass the largest z does not count.
    ([9, 0.5, 0.5], [0, 0.75, 0.25], -0.5, [0, 0.75, 0.25], 0.5),
    # Exactly at the level: lambda = (0.5 * 2 - 1) / 0.5 = 0, so the second is not chosen.
    ([2, 0], [0.5, 0.5], 0, [1, 0], 1.5),
]
numbers = st.floats(-20, 20, allow_nan=False, width=32)
masses = st.one_of(st.just(0.0), st.floats(1e-6, 1), st.floats(1e-30, 1e-6))
pairs = st.lists(st.tuples(numbers, masses), min_size=1, max_size=60).filter(
    lambda rows: max(m for _, m in rows) > 1e-3
)


def made(rows: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """z and mu in float64 from pairs."""
    z, mass = torch.tensor(rows, dtype=torch.float64).T.contiguous()
    return z, mass / mass.sum()


def objective(pi: np.ndarray, z: np.ndarray, mu: np.ndarray) -> float:
    """What the policy maximises, over tokens with mass."""
    return float(pi @ z - ((pi**2 / mu).sum() - 1) / 2)


def bisected(z: np.ndarray, mu: np.ndarray) -> tuple[float, np.ndarray, float]:
    """lambda, policy and value by bisection on sum mu max(z - lambda, 0) = 1, the value by its definition."""
    inside = mu > 0
    low, high = z[inside].min() - 1 / mu[inside].sum(), z[inside].max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (mu * np.maximum(z - middle, 0)).sum() > 1 else (low, middle)
    pi = np.where(inside, mu * np.maximum(z - low, 0), 0)
    return low, pi, objective(pi[inside], z[inside], mu[inside])


def enumerated(z: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, float]:
    """The best of the stationary points of all supports that lie in the simplex."""
    best, found = -np.inf, np.zeros_like(z)
    for size in range(1, len(z) + 1):
        for chosen in combinations(range(len(z)), size):
            at = list(chosen)
            # Stationary on the support: z_i - pi_i / mu_i = c and sum pi = 1, a linear system of its own.
            system = np.zeros((size + 1, size + 1))
            system[:size, :size] = np.diag(1 / mu[at])
            system[:size, size] = system[size, :size] = 1
            pi = np.linalg.solve(system, np.append(z[at], 1))[:size]
            if (pi >= 0).all() and objective(pi, z[at], mu[at]) > best:
                best, found = objective(pi, z[at], mu[at]), np.zeros_like(z)
                found[at] = pi
    return found, best


def by_full_sort(z: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """lambda and the support's size as the method's notes write them, by sorting everything (mu above 0)."""
    falling, order = z.sort(-1, descending=True)
    weights = mu.gather(-1, order)
    mass, mean = weights.cumsum(-1), (weights * falling).cumsum(-1)
    size = (1 + falling * mass > mean).sum(-1, keepdim=True)
    return ((mean.gather(-1, size - 1) - 1) / mass.gather(-1, size - 1)).squeeze(-1), size.squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("z", "mu", "level", "pi", "value"), HAND)
def test_hand_worked_values(
    z: list[float], mu: list[float], level: float, pi: list[float], value: float, dtype: torch.dtype
) -> None:
    given_z, given_mu = torch.tensor(z, dtype=dtype), torch.tensor(mu, dtype=dtype)
    assert relative.threshold(given_z, given_mu).item() == pytest.approx(level, abs=1e-6)
    assert relative.probabilities(given_z, given_mu).tolist() == pytest.approx(pi, abs=1e-6)
    assert (relative.probabilities(given_z, given_mu) > 0).tolist() == [p > 0 for p in pi]
    assert relative.value(given_z, given_mu).item() == pytest.approx(value, abs=1e-6)
    for answer in (relative.probabilities(given_z, given_mu), relative.value(given_z, given_mu)):
        assert answer.dtype == dtype


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-3, 3, width=32), st.floats(0.01, 1)), min_size=1, max_size=6))
def test_agrees_with_the_enumeration_of_supports(rows: list[tuple[float, float]]) -> None:
    z, mu = made(rows)
    pi, value = enumerated(z.numpy(), mu.numpy())
    assert relative.probabilities(z, mu).numpy() == pytest.approx(pi, abs=1e-7)
    assert relative.value(z, mu).item() == pytest.approx(value, abs=1e-9)


def test_agrees_with_a_quadratic_programme() -> None:
    z, mu = np.array([0.4, 2.1, -0.35, 1.6, 0.2]), np.array([0.4, 0.05, 0.25, 0.1, 0.2])
    solved = minimize(
        lambda p: -objective(p, z, mu),
        mu,
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14},
    )
    assert relative.probabilities(torch.tensor(z), torch.tensor(mu)).numpy() == pytest.approx(solved.x, abs=1e-5)
    assert relative.value(torch.tensor(z), torch.tensor(mu)).item() == pytest.approx(-solved.fun, abs=1e-8)


@settings(max_examples=150, deadline=None)
@given(pairs)
def test_agrees_with_bisection(rows: list[tuple[float, float]]) -> None:
    z, mu = made(rows)
    level, pi, value = bisected(z.numpy(), mu.numpy())
    assert relative.threshold(z, mu).item() == pytest.approx(level, abs=1e-9)
    assert relative.probabilities(z, mu).numpy() == pytest.approx(pi, abs=1e-9)
    assert relative.value(z, mu).item() == pytest.approx(value, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([2, 33, 1500, 9000]), st.sampled_from([1e-4, 0.3, 3.0, 40.0]))
def test_climbing_is_the_full_sort(seed: int, count: int, deviation: float) -> None:
    chance = torch.Generator().manual_seed(seed)
    z = torch.randn(3, count, generator=chance, dtype=torch.float64) * deviation
    mu = torch.softmax(3 * torch.randn(3, count, generator=chance, dtype=torch.float64), -1)
    level, size = by_full_sort(z, mu)
    assert relative.threshold(z, mu).numpy() == pytest.approx(level.numpy(), abs=1e-9)
    assert (relative.probabilities(z, mu) > 0).sum(-1).tolist() == size.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=50), st.data())
def test_a_uniform_prior_is_the_sparsemax_of_the_paper(row: list[float], data: st.DataObject) -> None:
    kept = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)).filter(any)))
    q, k = torch.tensor(row, dtype=torch.float64), int(kept.sum())
    mu = kept.double() / k
    # alpha / k in place of alpha = 1: z = k q.
    assert relative.probabilities(k * q, mu).numpy() == pytest.approx(
        sparsemax.probabilities(q, kept).numpy(), abs=1e-9
    )
    # In units of alpha the bonuses differ by a constant: the entropy of the uniform prior, (1 - 1/k) / 2.
    paper = sparsemax.value(q, kept).item()
    assert relative.value(k * q, mu).item() / k == pytest.approx(paper - (1 - 1 / k) / 2, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(pairs, st.floats(-50, 50))
def test_a_constant_gives_the_prior(rows: list[tuple[float, float]], level: float) -> None:
    _, mu = made(rows)
    z = torch.full_like(mu, level)
    assert relative.probabilities(z, mu).numpy() == pytest.approx(mu.numpy(), abs=1e-12)
    assert relative.value(z, mu).item() == pytest.approx(level, abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(pairs)
def test_the_policy_is_a_distribution_within_the_prior(rows: list[tuple[float, float]]) -> None:
    z, mu = (part.float() for part in made(rows))
    pi = relative.probabilities(z, mu)
    assert (pi >= 0).all()
    assert (pi[mu == 0] == 0).all()
    assert pi.sum().item() == pytest.approx(1, abs=1e-4)
    # Where the prior is, odds against it rise with z.
    inside = mu > 1e-20
    odds = (pi / mu)[inside][z[inside].argsort(stable=True)]
    assert (odds.diff() >= -1e-5 * odds.abs().max()).all()


@settings(max_examples=80, deadline=None)
@given(pairs, st.floats(-50, 50), st.randoms(use_true_random=False))
def test_translation_and_permutation(rows: list[tuple[float, float]], shift: float, chance: object) -> None:
    z, mu = made(rows)
    pi, value = relative.probabilities(z, mu), relative.value(z, mu)
    assert relative.probabilities(z + shift, mu).numpy() == pytest.approx(pi.numpy(), abs=1e-9)
    assert relative.value(z + shift, mu).item() == pytest.approx(value.item() + shift, abs=1e-9)
    order = list(range(len(rows)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    assert relative.probabilities(z[order], mu[order]).numpy() == pytest.approx(pi[order].numpy(), abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(pairs)
def test_the_value_lies_between_the_priors_mean_and_the_maximum(rows: list[tuple[float, float]]) -> None:
    z, mu = made(rows)
    value = relative.value(z, mu).item()
    # pi = mu costs nothing, and the penalty (half the chi-square distance from mu) is never below 0.
    assert (mu * z).sum().item() - 1e-9 <= value <= z[mu > 0].max().item() + 1e-9


@settings(max_examples=60, deadline=None)
@given(pairs, st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e30]))
def test_tokens_without_mass_do_not_exist(rows: list[tuple[float, float]], strange: float) -> None:
    z, mu = made([*rows, (0.0, 0.0)])
    z[-1] = strange
    inside = mu > 0
    assert relative.probabilities(z, mu)[inside].numpy() == pytest.approx(
        relative.probabilities(z[inside], mu[inside]).numpy(), abs=1e-12
    )
    assert relative.value(z, mu).item() == pytest.approx(relative.value(z[inside], mu[inside]).item(), abs=1e-12)
    assert not (relative.probabilities(z, mu) > 0)[-1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([-1e4, 0.0, 1e4]), st.sampled_from([0.3, 5.0]))
def test_float32_loses_no_digits(seed: int, level: float, spread: float) -> None:
    chance = torch.Generator().manual_seed(seed)
    z = (torch.randn(2, 3000, generator=chance) * spread + level).float()
    mu = torch.softmax(4 * torch.randn(2, 3000, generator=chance), -1)
    for row in range(2):
        _, pi, value = bisected(z[row].double().numpy(), mu[row].double().numpy())
        assert relative.probabilities(z, mu)[row].numpy() == pytest.approx(pi, abs=2e-6)
        assert relative.value(z, mu)[row].item() == pytest.approx(value, rel=2e-7, abs=1e-5)


def test_a_tiny_mass_far_above_and_denormal_numbers() -> None:
    # The first has mass 1e-30: it hardly moves the level of the others, (0 - 1) / 1, and gets 1e-30 (1000 + 1).
    z, mu = torch.tensor([1000.0, 0.0]), torch.tensor([1e-30, 1.0])
    assert relative.probabilities(z, mu).tolist() == pytest.approx([1.001e-27, 1.0], rel=1e-5)
    mu = torch.tensor([1e-45, 1.0])
    assert relative.probabilities(z, mu)[1].item() == pytest.approx(1)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7)])
def test_shapes_and_rows_are_independent(shape: tuple[int, ...]) -> None:
    chance = torch.Generator().manual_seed(0)
    z, mu = torch.randn(shape, generator=chance) * 3, torch.softmax(torch.randn(shape, generator=chance), -1)
    assert relative.threshold(z, mu).shape == relative.value(z, mu).shape == shape[:-1]
    assert relative.probabilities(z, mu).shape == shape
    pi = relative.probabilities(z, mu).reshape(-1, 7)
    for row, (one, prior) in enumerate(zip(z.reshape(-1, 7), mu.reshape(-1, 7), strict=True)):
        assert pi[row].numpy() == pytest.approx(relative.probabilities(one, prior).numpy(), abs=1e-6)


def test_the_gradient_of_the_value_is_the_policy() -> None:
    chance = torch.Generator().manual_seed(4)
    for shape in ((9,), (2, 3, 9)):
        z = (3 * torch.randn(shape, generator=chance, dtype=torch.float64)).requires_grad_()
        mu = torch.softmax(torch.randn(shape, generator=chance, dtype=torch.float64), -1)
        mu[..., 2] = 0
        mu = mu / mu.sum(-1, keepdim=True)
        rows = zip(z.detach().reshape(-1, 9).numpy(), mu.reshape(-1, 9).numpy(), strict=True)
        policy = np.stack([bisected(*row)[1] for row in rows]).reshape(shape)
        (gradient,) = torch.autograd.grad(relative.value(z, mu).sum(), z)
        assert gradient.numpy() == pytest.approx(policy, abs=1e-9)


@pytest.mark.parametrize("function", [relative.value, relative.threshold, relative.probabilities])
def test_gradients_are_those_of_finite_differences(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    chance = torch.Generator().manual_seed(3)
    z = (2 * torch.randn(2, 6, generator=chance, dtype=torch.float64)).requires_grad_()
    mu = torch.softmax(torch.randn(2, 6, generator=chance, dtype=torch.float64), -1)
    assert 0 < (relative.probabilities(z, mu) > 0).sum() < 12
    assert torch.autograd.gradcheck(lambda z: function(z, mu), z, eps=1e-7)


@pytest.mark.parametrize("function", [relative.threshold, relative.probabilities, relative.value])
def test_bad_input_gives_an_error_message(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    half = torch.tensor([0.5, 0.5])
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(PinpromptError, match=r"^Values of tokens .* not finite.*lower the learning rate"):
            function(torch.tensor([[0.0, 1.0], [0.0, bad]]), half.expand(2, -1))
    with pytest.raises(PinpromptError, match=r"^No token may be chosen.*Loosen the constraints or raise k\.$"):
        function(torch.zeros(2, 2), torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    for mu in ([0.5, 0.4], [1.5, -0.5], [0.5, torch.nan]):
        with pytest.raises(PinpromptError, match=r"^A prior over tokens must be a distribution.*renormalise it"):
            function(torch.zeros(2), torch.tensor(mu))
