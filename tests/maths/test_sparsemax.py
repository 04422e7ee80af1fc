"""Sparsemax against hand-worked values, its defining properties, entmax, and a solver that shares nothing with it."""

from __future__ import annotations

import entmax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from pinprompt.errors import PinpromptError
from pinprompt.maths import sparsemax

torch.set_num_threads(1)

GOLDEN = [  # spec.md 1.4: z, tau, policy, value
    ([1, 0.5, -0.2], 0.25, [0.75, 0.25, 0], 1.0625),
    ([0.3, 0.1, -0.2, -1], -0.266667, [0.566667, 0.366667, 0.066667, 0], 0.463333),
    ([2, 0, 0], 1, [1, 0, 0], 2),
    ([0, 0, 0, 0], -0.25, [0.25, 0.25, 0.25, 0.25], 0.375),
    ([0.1, 0.1, 0.05, -0.9], -0.25, [0.35, 0.35, 0.3, 0], 0.4175),
]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
numbers = st.floats(-20, 20, allow_nan=False, width=32)
vectors = st.lists(numbers, min_size=1, max_size=60)
# Long rows with many close entries are the ones that the first look at the largest does not settle.
long_rows = st.tuples(st.integers(0, 2**31), st.sampled_from([33, 300, 1500, 9000, 16385]), st.floats(1e-4, 3))


def bisected(z: np.ndarray) -> tuple[float, np.ndarray, float]:
    """tau, policy and value in float64 by bisection on sum max(z - tau, 0) = 1, and the value by its definition."""
    low, high = z.max() - 1, z.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(z - middle, 0).sum() > 1 else (low, middle)
    pi = np.maximum(z - low, 0)
    chosen = pi > 0
    return low, pi, float((pi[chosen] * z[chosen]).sum() + (1 - (pi**2).sum()) / 2)


def by_full_sort(z: Tensor) -> tuple[Tensor, Tensor]:
    """The threshold and the support's size as the paper writes them, by sorting everything."""
    falling = z.sort(-1, descending=True).values
    n = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    size = (1 + n * falling > falling.cumsum(-1)).sum(-1)
    first = torch.arange(z.shape[-1]) < size.unsqueeze(-1)
    return (torch.where(first, falling, 0).sum(-1) - 1) / size, size


@BOTH
@pytest.mark.parametrize(("z", "tau", "pi", "value"), GOLDEN)
def test_golden_values(z: list[float], tau: float, pi: list[float], value: float, dtype: torch.dtype) -> None:
    given_z = torch.tensor(z, dtype=dtype)
    level, size = sparsemax.threshold(given_z)
    assert level.item() == pytest.approx(tau, abs=1e-6)
    assert size.item() == sum(p > 0 for p in pi)
    assert size.dtype == torch.long
    assert sparsemax.probabilities(given_z).tolist() == pytest.approx(pi, abs=1e-6)
    assert (sparsemax.probabilities(given_z) > 0).tolist() == [p > 0 for p in pi]
    assert sparsemax.value(given_z).item() == pytest.approx(value, abs=1e-6)
    for answer in (level, sparsemax.probabilities(given_z), sparsemax.value(given_z)):
        assert answer.dtype == dtype


def test_one_element_and_all_equal() -> None:
    assert sparsemax.probabilities(torch.tensor([7.0])).tolist() == [1.0]
    assert sparsemax.value(torch.tensor([7.0])).item() == pytest.approx(7.0)
    for count in (2, 31, 32, 33, 64, 1024, 1025, 20000):
        z = torch.full((count,), 3.0)
        tau, size = sparsemax.threshold(z)
        assert size.item() == count
        assert tau.item() == pytest.approx(3 - 1 / count, rel=1e-6)
        assert sparsemax.probabilities(z).numpy() == pytest.approx(np.full(count, 1 / count), rel=2e-2)
        assert sparsemax.value(z).item() == pytest.approx(3 + (1 - 1 / count) / 2, rel=1e-6)


def test_ties_share_equally() -> None:
    pi = sparsemax.probabilities(torch.tensor([0.2, 1.0, 1.0, 0.9, -4.0, 0.9], dtype=torch.float64))
    # S = {1.0, 1.0, 0.9, 0.9}, tau = (3.8 - 1) / 4 = 0.7; 0.2 is below it.
    assert pi.tolist() == pytest.approx([0, 0.3, 0.3, 0.2, 0, 0.2])


def test_an_entry_exactly_at_the_level_is_not_chosen() -> None:
    tau, size = sparsemax.threshold(torch.tensor([1.0, 0.0, -1.0]))
    assert (tau.item(), size.item()) == (0.0, 1)
    assert (sparsemax.probabilities(torch.tensor([1.0, 0.0, -1.0])) > 0).tolist() == [True, False, False]


@settings(max_examples=150, deadline=None)
@given(vectors)
def test_agrees_with_bisection_and_entmax(row: list[float]) -> None:
    z = torch.tensor(row, dtype=torch.float64)
    tau, pi, value = bisected(z.numpy())
    assert sparsemax.threshold(z)[0].item() == pytest.approx(tau, abs=1e-9)
    assert sparsemax.probabilities(z).numpy() == pytest.approx(pi, abs=1e-9)
    assert sparsemax.value(z).item() == pytest.approx(value, abs=1e-9)
    assert sparsemax.probabilities(z).numpy() == pytest.approx(entmax.sparsemax(z, -1).numpy(), abs=1e-9)


def test_agrees_with_a_quadratic_programme() -> None:
    z = np.array([0.4, 0.1, 0.35, -0.6, 0.2])
    solved = minimize(
        lambda p: -(p @ z) - (1 - p @ p) / 2,
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14},
    )
    assert sparsemax.probabilities(torch.tensor(z)).numpy() == pytest.approx(solved.x, abs=1e-5)
    assert sparsemax.value(torch.tensor(z)).item() == pytest.approx(-solved.fun, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(long_rows, st.floats(0, 0.95))
def test_partial_selection_is_the_full_sort(of: tuple[int, int, float], masked: float) -> None:
    seed, count, deviation = of
    made = torch.Generator().manual_seed(seed)
    z = torch.randn(3, count, generator=made, dtype=torch.float64) * deviation
    mask = torch.rand(3, count, generator=made) >= masked
    mask[:, 0] = True
    tau, size = sparsemax.threshold(z, mask)
    want_tau, want_size = by_full_sort(z.masked_fill(~mask, -1e6))
    assert tau.numpy() == pytest.approx(want_tau.numpy(), abs=1e-9)
    assert size.tolist() == want_size.tolist()
    assert (sparsemax.probabilities(z, mask) > 0).sum(-1).tolist() == want_size.tolist()
    for row in range(3):
        assert sparsemax.value(z, mask)[row].item() == pytest.approx(bisected(z[row][mask[row]].numpy())[2], abs=1e-9)


def test_rows_that_need_different_amounts_of_looking() -> None:
    made = torch.Generator().manual_seed(1)
    noise = torch.randn(7, 20011, generator=made, dtype=torch.float64)
    # Supports of a few, of tens, of hundreds, of thousands, in one call and out of order.
    z = noise * torch.tensor([1e-3, 5.0, 0.02, 0.5, 1e-4, 2.0, 0.1], dtype=torch.float64).unsqueeze(-1)
    tau, size = sparsemax.threshold(z)
    want_tau, want_size = by_full_sort(z)
    assert want_size.min() < 20
    assert want_size.max() > 5000
    assert size.tolist() == want_size.tolist()
    assert tau.numpy() == pytest.approx(want_tau.numpy(), abs=1e-12)
    squares = (z - want_tau.unsqueeze(-1)).clamp_min(0).square().sum(-1)
    assert sparsemax.value(z).numpy() == pytest.approx((want_tau + 0.5 + squares / 2).numpy(), abs=1e-12)


def test_the_largest_may_be_in_the_last_short_block() -> None:
    z = torch.zeros(32 * 40 + 5, dtype=torch.float64)
    z[-1], z[-2], z[0] = 3.0, 2.75, 2.5
    # S of three: tau = (8.25 - 1) / 3 = 2.41666
    assert sparsemax.threshold(z)[0].item() == pytest.approx(7.25 / 3)
    assert (sparsemax.probabilities(z) > 0).nonzero().flatten().tolist() == [0, len(z) - 2, len(z) - 1]


def test_the_support_may_be_two_tokens_or_the_whole_vocabulary() -> None:
    steep = torch.linspace(0, 50000, 50272).expand(4, -1)
    assert sparsemax.threshold(steep)[1].tolist() == [2] * 4
    flat = torch.linspace(0, 1e-6, 30000, dtype=torch.float64)
    assert sparsemax.threshold(flat)[1].item() == 30000


@settings(max_examples=100, deadline=None)
@given(vectors)
def test_policy_is_a_distribution_in_the_order_of_values(row: list[float]) -> None:
    z = torch.tensor(row)
    pi = sparsemax.probabilities(z)
    assert (pi >= 0).all()
    assert pi.sum().item() == pytest.approx(1, abs=1e-4)
    assert (pi[z.argsort()].diff() >= 0).all()
    assert pi[z.argmax()] > 0


@settings(max_examples=100, deadline=None)
@given(vectors, st.floats(-50, 50), st.randoms(use_true_random=False))
def test_translation_and_permutation(row: list[float], shift: float, chance: object) -> None:
    z = torch.tensor(row, dtype=torch.float64)
    pi, value, tau = sparsemax.probabilities(z), sparsemax.value(z), sparsemax.threshold(z)[0]
    assert sparsemax.probabilities(z + shift).numpy() == pytest.approx(pi.numpy(), abs=1e-9)
    assert sparsemax.value(z + shift).item() == pytest.approx(value.item() + shift, abs=1e-9)
    assert sparsemax.threshold(z + shift)[0].item() == pytest.approx(tau.item() + shift, abs=1e-9)
    order = list(range(len(row)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    assert sparsemax.probabilities(z[order]).numpy() == pytest.approx(pi[order].numpy(), abs=1e-12)
    assert sparsemax.value(z[order]).item() == pytest.approx(value.item(), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-30, 30), min_size=2, max_size=20, unique=True))
def test_limits_of_alpha(row: list[int]) -> None:
    q = torch.tensor(row, dtype=torch.float64)
    greedy = sparsemax.probabilities(q / 0.01)
    assert greedy.argmax() == q.argmax()
    assert greedy.max().item() == pytest.approx(1)
    assert 0.01 * sparsemax.value(q / 0.01).item() == pytest.approx(max(row), abs=1e-9)
    flat = sparsemax.probabilities(q / 1e7)
    assert flat.numpy() == pytest.approx(np.full(len(row), 1 / len(row)), abs=1e-4)
    sizes = [sparsemax.threshold(q / alpha)[1].item() for alpha in (0.1, 1, 10, 100, 1000)]
    assert sizes == sorted(sizes)


@settings(max_examples=80, deadline=None)
@given(vectors)
def test_value_lies_between_its_bounds(row: list[float]) -> None:
    value = sparsemax.value(torch.tensor(row, dtype=torch.float64)).item()
    assert max(row) - 1e-9 <= value <= max(row) + (1 - 1 / len(row)) / 2 + 1e-9


@settings(max_examples=100, deadline=None)
@given(vectors, st.data())
def test_masked_entries_do_not_exist(row: list[float], data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row)).filter(any))
    z, mask = torch.tensor(row, dtype=torch.float64), torch.tensor(keep)
    without = z[mask]
    pi = sparsemax.probabilities(z, mask)
    assert (pi[~mask] == 0).all()
    assert pi[mask].numpy() == pytest.approx(sparsemax.probabilities(without).numpy(), abs=1e-12)
    assert sparsemax.value(z, mask).item() == pytest.approx(sparsemax.value(without).item(), abs=1e-12)
    assert sparsemax.threshold(z, mask)[0].item() == pytest.approx(sparsemax.threshold(without)[0].item(), abs=1e-12)
    assert not (sparsemax.probabilities(z, mask) > 0)[~mask].any()
    assert sparsemax.value(z.masked_fill(~mask, torch.nan), mask).item() == sparsemax.value(z, mask).item()
    assert sparsemax.value(z.masked_fill(~mask, -torch.inf)).item() == sparsemax.value(z, mask).item()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([-1e4, -3e3, 3e3, 1e4]))
def test_large_values_in_float32_lose_no_digits(seed: int, level: float) -> None:
    z = (torch.randn(2, 400, generator=torch.Generator().manual_seed(seed)) * 0.3 + level).float()
    exact = [bisected(row.double().numpy()) for row in z]
    for row, (tau, pi, value) in enumerate(exact):
        assert sparsemax.probabilities(z)[row].numpy() == pytest.approx(pi, abs=1e-5)
        assert sparsemax.value(z)[row].item() == pytest.approx(value, rel=2e-7)
        assert sparsemax.threshold(z)[0][row].item() == pytest.approx(tau, rel=2e-7)


def test_many_entries_near_the_edge_lose_no_digits_in_the_value() -> None:
    # sum z^2 - |S| tau^2 would be the difference of two numbers near 20000 here.
    z = torch.full((20001,), -0.999)
    z[0] = 0
    tau, _, value = bisected(z.double().numpy())
    assert sparsemax.value(z).item() == pytest.approx(value, abs=1e-6)
    assert sparsemax.threshold(z)[0].item() == pytest.approx(tau, abs=1e-6)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7)])
def test_shapes(shape: tuple[int, ...]) -> None:
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    tau, size = sparsemax.threshold(z)
    assert tau.shape == size.shape == sparsemax.value(z).shape == shape[:-1]
    assert sparsemax.probabilities(z).shape == shape


def test_strides_and_the_input_are_left_alone() -> None:
    z = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0)).T
    before = z.clone()
    assert sparsemax.value(z).tolist() == pytest.approx(sparsemax.value(z.contiguous()).tolist())
    assert torch.equal(z, before)


@pytest.mark.parametrize("count", [6, 400])
def test_gradients(count: int) -> None:
    made = torch.Generator().manual_seed(3)
    z = (torch.randn(2, count, generator=made, dtype=torch.float64) * 0.01).requires_grad_()
    mask = torch.rand(2, count, generator=made) > 0.3
    mask[:, 0] = True
    assert torch.autograd.gradcheck(lambda z: sparsemax.value(z, mask), z, eps=1e-7)
    assert torch.autograd.gradcheck(lambda z: sparsemax.threshold(z, mask)[0], z, eps=1e-7)
    if count < 100:
        assert torch.autograd.gradcheck(lambda z: sparsemax.probabilities(z, mask), z, eps=1e-7)
    (gradient,) = torch.autograd.grad(sparsemax.value(z, mask).sum(), z)
    assert gradient.numpy() == pytest.approx(sparsemax.probabilities(z, mask).detach().numpy(), abs=1e-12)


def test_gradients_of_one_row_and_of_many_dimensions() -> None:
    """The gradient of the value is the policy, worked out here by bisection, whatever stands before the vocabulary."""
    made = torch.Generator().manual_seed(4)
    for shape in ((9,), (2, 3, 9), (9, 2, 9)):
        z = torch.randn(shape, generator=made, dtype=torch.float64).requires_grad_()
        rows = z.detach().reshape(-1, 9).numpy()
        policy = np.stack([bisected(row)[1] for row in rows]).reshape(shape)
        (gradient,) = torch.autograd.grad(sparsemax.value(z).sum(), z)
        assert gradient.numpy() == pytest.approx(policy, abs=1e-9)
        # d tau / d z_i = 1 / |S| inside the support, 0 outside.
        (gradient,) = torch.autograd.grad(sparsemax.threshold(z)[0].sum(), z)
        inside = policy > 0
        assert gradient.numpy() == pytest.approx(inside / inside.sum(-1, keepdims=True), abs=1e-12)


def test_an_entry_exactly_at_the_level_has_no_part_in_the_gradient() -> None:
    z = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64).requires_grad_()
    assert sparsemax.threshold(z)[0].item() == 0.0
    assert sparsemax.value(z).item() == 1.0
    (gradient,) = torch.autograd.grad(sparsemax.value(z), z)
    assert gradient.tolist() == [1.0, 0.0, 0.0]


def test_with_and_without_a_gradient_the_numbers_are_the_same() -> None:
    z = torch.randn(5, 3000, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 0.1
    with_gradient = z.clone().requires_grad_()
    assert sparsemax.value(with_gradient).detach().numpy() == pytest.approx(sparsemax.value(z).numpy(), abs=1e-12)
    with torch.no_grad():
        assert not sparsemax.value(with_gradient).requires_grad


@pytest.mark.parametrize("function", [sparsemax.threshold, sparsemax.probabilities, sparsemax.value])
def test_bad_input_gives_an_error_message(function: object) -> None:
    call = function  # the four share one signature
    for bad in (torch.nan, torch.inf):
        with pytest.raises(
            PinpromptError, match=r"^Values of tokens .* not finite.* diverged: lower the learning rate"
        ):
            call(torch.tensor([[0.0, 1.0], [0.0, bad]]))  # type: ignore[operator]
    with pytest.raises(PinpromptError, match=r"^No token may be chosen.*Loosen the constraints or raise k\.$"):
        call(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))  # type: ignore[operator]


def test_a_row_does_not_depend_on_its_batch() -> None:
    # Supports of one token, of dozens, and of thousands, as a fresh policy has them.
    spread = torch.tensor([10.0, 0.3, 1e-2, 1e-4, 1e-5]).unsqueeze(-1)
    z = torch.randn(5, 6000, generator=torch.Generator().manual_seed(3)) * spread
    together = sparsemax.probabilities(z)
    assert int((together > 0).sum(-1).max()) > 3000
    for row in range(5):
        assert torch.equal(sparsemax.probabilities(z[row : row + 1])[0], together[row])
        assert torch.equal(sparsemax.value(z[row : row + 1])[0], sparsemax.value(z)[row])


@pytest.mark.parametrize("deviation", [1e-5, 1e-3, 0.1])
def test_climbing_row_by_row_gives_the_same_threshold(deviation: float) -> None:
    z = torch.randn(4, 9000, generator=torch.Generator().manual_seed(7), dtype=torch.float64) * deviation
    z -= z.amax(-1, keepdim=True)
    bound = torch.full((4,), -1.0, dtype=torch.float64)
    together = sparsemax._climb(z, bound)
    for row in range(4):
        alone = sparsemax._climb_row(z[row].numpy(), bound[row].numpy())
        assert alone[1] == together[1][row]
        assert [alone[0], alone[2]] == pytest.approx([float(together[0][row]), float(together[2][row])], abs=1e-12)
