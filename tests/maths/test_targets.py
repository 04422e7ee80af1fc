"""Targets and losses: golden values, hand-worked discounts, and brute-force value iteration on toy vocabularies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pinprompt.errors import PinpromptError
from pinprompt.maths import entropy, targets

torch.set_num_threads(1)

# spec.md 1.7: B = 1, L = 3, |V| = 4
Q = torch.tensor([[0.2, -0.1, 0.4, 0], [0.5, 0.3, -0.2, 0.1], [-0.3, 0.6, 0.2, 0]], dtype=torch.float64)
SLOW = torch.tensor([[0.1, 0, 0.3, -0.1], [0.4, 0.2, -0.1, 0], [-0.2, 0.5, 0.1, 0.1]], dtype=torch.float64)
Q_T = torch.tensor([[0.4, 0.5, 0.6]], dtype=torch.float64)
R = torch.tensor([1.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "bootstrap", "single", "multi", "mean"),
    [
        ("shannon", 3.174333, 3.485930, 15.315765, 9.400848),
        ("tsallis", 0.854589, 1.059984, 4.463272, 2.761628),
    ],
)
def test_golden_losses(kind: entropy.Entropy, bootstrap: float, single: float, multi: float, mean: float) -> None:
    v, v_slow = entropy.value(Q, kind).unsqueeze(0), entropy.value(SLOW, kind).unsqueeze(0)
    target = targets.bootstrapped(R, v_slow[:, 1:], 1.0)
    assert targets.squared_error(Q_T, target).item() == pytest.approx(bootstrap, abs=1e-6)
    assert targets.path_single(Q_T, v, v_slow, R, 1.0).item() == pytest.approx(single, abs=1e-6)
    assert targets.path_multi(Q_T, v, v_slow, R).item() == pytest.approx(multi, abs=1e-6)
    assert targets.path_mean(Q_T, v, v_slow, R, 1.0).item() == pytest.approx(mean, abs=1e-6)


def test_golden_monte_carlo_loss() -> None:
    assert targets.squared_error(Q_T, targets.monte_carlo(R, 3, 1.0)).item() == pytest.approx(3.02, abs=1e-9)


def test_monte_carlo_discounts_from_the_end() -> None:
    target = targets.monte_carlo(torch.tensor([8.0, -1.0]), 4, 0.5)
    assert target.tolist() == [[1.0, 2.0, 4.0, 8.0], [-0.125, -0.25, -0.5, -1.0]]
    assert targets.monte_carlo(torch.tensor([3.0]), 1, 0.5).tolist() == [[3.0]]
    assert targets.monte_carlo(torch.ones(2, dtype=torch.float64), 3, 0.9).dtype == torch.float64
    assert targets.monte_carlo(torch.ones(2), 3, 0.9).dtype == torch.float32


def test_bootstrapped_discounts_the_next_value_and_ends_in_the_reward() -> None:
    target = targets.bootstrapped(torch.tensor([8.0, -1.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0.5)
    assert target.tolist() == [[0.5, 1.0, 8.0], [1.5, 2.0, -1.0]]
    assert targets.bootstrapped(torch.tensor([3.0]), torch.empty(1, 0), 0.5).tolist() == [[3.0]]


def test_squared_error_sums_over_tokens_and_averages_over_sequences() -> None:
    q_t = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert targets.squared_error(q_t, torch.tensor([[0.0, 0.0], [0.0, 3.0]])).item() == (1 + 4 + 9) / 2


def test_path_losses_by_hand() -> None:
    q_t, v_t = torch.tensor([[3.0, 1.0], [0.0, 2.0]]), torch.tensor([[1.0, 2.0], [1.0, 1.0]])
    v_slow, rewards = torch.tensor([[4.0, 2.0], [0.0, 6.0]]), torch.tensor([5.0, 1.0])
    # A = [[2, -1], [-1, 1]]; gamma = 1/2: aims [[1 - 4, 5 - 2], [3 - 0, 1 - 6]]
    single = ((2 + 3) ** 2 + (-1 - 3) ** 2 + (-1 - 3) ** 2 + (1 + 5) ** 2) / 2
    # sums to come [[1, -1], [0, 1]]; aims [[5 - 4, 5 - 2], [1 - 0, 1 - 6]]
    multi = ((1 - 1) ** 2 + (-1 - 3) ** 2 + (0 - 1) ** 2 + (1 + 5) ** 2) / 2
    assert targets.path_single(q_t, v_t, v_slow, rewards, 0.5).item() == pytest.approx(single)
    assert targets.path_multi(q_t, v_t, v_slow, rewards).item() == pytest.approx(multi)
    assert targets.path_mean(q_t, v_t, v_slow, rewards, 0.5).item() == pytest.approx((single + multi) / 2)


def test_gradients_reach_what_is_learnt_and_nothing_else() -> None:
    made = torch.Generator().manual_seed(0)
    q_t, v_t, v_slow = (torch.randn(3, 4, generator=made, dtype=torch.float64).requires_grad_() for _ in range(3))
    rewards = torch.randn(3, generator=made, dtype=torch.float64)
    losses: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda q, v: targets.path_single(q, v, v_slow, rewards, 0.9),
        lambda q, v: targets.path_multi(q, v, v_slow, rewards),
        lambda q, v: targets.path_mean(q, v, v_slow, rewards, 0.9),
    ]
    for loss in losses:
        assert torch.autograd.gradcheck(loss, (q_t, v_t))
        assert torch.autograd.grad(loss(q_t, v_t), v_slow, allow_unused=True) == (None,)
    target = targets.bootstrapped(rewards, v_slow[:, 1:], 0.9)
    (gradient,) = torch.autograd.grad(targets.squared_error(q_t, target), q_t)
    assert gradient.numpy() == pytest.approx((2 * (q_t - target) / 3).detach().numpy())
    assert torch.autograd.grad(targets.squared_error(q_t, target), v_slow, allow_unused=True) == (None,)


def best_with_bonus(q: list[float], kind: str) -> float:
    """max over distributions of sum pi q + bonus, without the code under test: bisection or log-sum-exp."""
    if kind == "shannon":
        return math.log(sum(math.exp(x) for x in q))
    low, high = max(q) - 1, max(q)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(x - middle, 0) for x in q) > 1 else (low, middle)
    pi = [max(x - low, 0) for x in q]
    return sum(p * x for p, x in zip(pi, q, strict=True)) + (1 - sum(p * p for p in pi)) / 2


@pytest.mark.parametrize("kind", ["tsallis", "shannon"])
@pytest.mark.parametrize(("size", "length", "gamma"), [(2, 1, 1.0), (3, 2, 0.9), (3, 4, 1.0), (4, 3, 0.5)])
def test_the_fixed_point_is_value_iteration(kind: entropy.Entropy, size: int, length: int, gamma: float) -> None:
    sequences = list(itertools.product(range(size), repeat=length))
    made = torch.Generator().manual_seed(size * length)
    rewards = torch.randn(len(sequences), generator=made, dtype=torch.float64) * 2
    reward = dict(zip(sequences, rewards.tolist(), strict=True))

    def exact(prefix: tuple[int, ...]) -> list[float]:
        """Q of every next token, solved backwards from the rewards."""
        longer = [(*prefix, z) for z in range(size)]
        if len(prefix) == length - 1:
            return [reward[sequence] for sequence in longer]
        return [gamma * best_with_bonus(exact(sequence), kind) for sequence in longer]

    prefixes = [p for t in range(length) for p in itertools.product(range(size), repeat=t)]
    number = {prefix: n for n, prefix in enumerate(prefixes)}
    table = torch.randn(len(prefixes), size, generator=made, dtype=torch.float64)
    states = torch.tensor([[number[sequence[:t]] for t in range(length)] for sequence in sequences])
    actions = torch.tensor(sequences)
    for sweep in range(length + 1):
        target = targets.bootstrapped(rewards, entropy.value(table, kind)[states[:, 1:]], gamma)
        if sweep == length:
            assert targets.squared_error(table[states, actions], target).item() == pytest.approx(0, abs=1e-20)
        table[states, actions] = target
    for prefix in prefixes:
        assert table[number[prefix]].tolist() == pytest.approx(exact(prefix), abs=1e-9)


def test_path_consistency_holds_at_the_optimum_of_soft_q() -> None:
    # At Shannon's fixed point A = log pi, and both losses vanish.
    rewards = torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64)
    last = rewards.view(2, 2)
    first = entropy.value(last, "shannon")
    q_t = torch.stack([first.repeat_interleave(2), rewards], -1)
    v_t = torch.stack([entropy.value(first, "shannon").expand(4), first.repeat_interleave(2)], -1)
    assert targets.path_single(q_t, v_t, v_t, rewards, 1.0).item() == pytest.approx(0, abs=1e-20)
    assert targets.path_multi(q_t, v_t, v_t, rewards).item() == pytest.approx(0, abs=1e-20)


def test_wrong_shapes_are_refused() -> None:
    for target in (torch.ones(2), torch.ones(2, 1), torch.ones(1, 3)):
        with pytest.raises(PinpromptError, match=r"^Q and its target must both be \[B, L\]: got \[2, 3\] and"):
            targets.squared_error(torch.ones(2, 3), target)
    with pytest.raises(PinpromptError, match="must both be"):
        targets.squared_error(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_return_has_the_rewards_type_and_device(dtype: torch.dtype) -> None:
    assert targets.monte_carlo(torch.ones(2, dtype=dtype), 3, 0.9).dtype == dtype
    assert targets.monte_carlo(torch.ones(2, dtype=dtype, device="meta"), 3, 0.9).device.type == "meta"


def test_returns_of_gains_by_hand() -> None:
    gains = torch.tensor([[1.0, 2.0, -4.0], [0.5, 0.0, 8.0]])
    assert targets.monte_carlo_gains(gains, 1.0).tolist() == [[-1.0, -2.0, -4.0], [8.5, 8.0, 8.0]]
    assert targets.monte_carlo_gains(gains, 0.5).tolist() == [[1.0, 0.0, -4.0], [2.5, 4.0, 8.0]]


def test_bootstrapped_gains_by_hand() -> None:
    gains, v_next = torch.tensor([[1.0, 2.0, -4.0]]), torch.tensor([[10.0, 20.0]])
    assert targets.bootstrapped_gains(gains, v_next, 0.5).tolist() == [[6.0, 12.0, -4.0]]


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_gains_at_the_last_token_alone_are_the_papers_targets(gamma: float) -> None:
    rewards, v_next = torch.tensor([1.5, -0.5]), torch.tensor([[0.3, 0.4], [0.1, -0.2]])
    gains = torch.zeros(2, 3)
    gains[:, -1] = rewards
    assert torch.allclose(targets.monte_carlo_gains(gains, gamma), targets.monte_carlo(rewards, 3, gamma))
    assert torch.equal(targets.bootstrapped_gains(gains, v_next, gamma), targets.bootstrapped(rewards, v_next, gamma))
