"""The two entropies behind one door, and relative to a prior for states that keep their own few tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pinprompt.errors import PinpromptError
from pinprompt.maths import entropy, sparsemax
from pinprompt.maths.entropy import SMALLEST, Prior, largest, policies, values
from pinprompt.maths.state_values import differentiable_value, kept_value

Z = torch.tensor([math.log(1), math.log(2), math.log(5)], dtype=torch.float64)


def test_shannon_is_softmax_and_log_sum_exp() -> None:
    assert entropy.policy(Z, "shannon").tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8])
    assert entropy.value(Z, "shannon").item() == pytest.approx(math.log(8))


def test_shannon_leaves_masked_tokens_out() -> None:
    mask = torch.tensor([True, False, True])
    assert entropy.policy(Z, "shannon", mask).tolist() == pytest.approx([1 / 6, 0, 5 / 6])
    assert entropy.value(Z, "shannon", mask).item() == pytest.approx(math.log(6))


def test_tsallis_is_sparsemax() -> None:
    z = torch.tensor([1, 0.5, -0.2])
    assert entropy.policy(z, "tsallis").tolist() == pytest.approx([0.75, 0.25, 0])
    assert entropy.value(z, "tsallis").item() == pytest.approx(1.0625)
    mask = torch.tensor([False, True, True])
    assert entropy.policy(z, "tsallis", mask).tolist() == pytest.approx([0, 0.85, 0.15])
    assert entropy.value(z, "tsallis", mask).item() == sparsemax.value(torch.tensor([0.5, -0.2])).item()


@pytest.mark.parametrize("kind", ["tsallis", "shannon"])
def test_the_gradient_of_the_value_is_the_policy(kind: entropy.Entropy) -> None:
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(entropy.value(z, kind).sum(), z)
    assert gradient.numpy() == pytest.approx(entropy.policy(z, kind).detach().numpy(), abs=1e-12)
    assert torch.autograd.gradcheck(lambda z: entropy.value(z, kind), z)


@pytest.mark.parametrize("kind", ["tsallis", "shannon"])
def test_bad_rows_are_refused(kind: entropy.Entropy) -> None:
    for function in (entropy.policy, entropy.value):
        with pytest.raises(PinpromptError, match="not finite"):
            function(torch.tensor([0.0, torch.nan]), kind)
        with pytest.raises(PinpromptError, match="No token may be chosen"):
            function(torch.zeros(2), kind, torch.tensor([False, False]))


torch.set_num_threads(1)
KINDS = pytest.mark.parametrize("kind", ["tsallis", "shannon"])
V = 3 * SMALLEST


def made(n: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Prior]]:
    """Values of tokens, and priors over sets of very different sizes, one token and all of them among these."""
    chance = torch.Generator().manual_seed(1)
    z = 2 * torch.randn(n, V, generator=chance, dtype=dtype)
    priors = []
    for row in range(n):
        size = [1, 7, SMALLEST, SMALLEST + 1, V][row % 5]
        ids = torch.randperm(V, generator=chance)[:size].sort().values
        priors.append(Prior(ids, torch.softmax(2 * torch.randn(size, generator=chance, dtype=dtype), -1)))
    return z, priors


def brute(z: np.ndarray, mu: np.ndarray, kind: str) -> tuple[np.ndarray, float]:
    """Policy and value of one state over its kept tokens, by bisection or by the softmax's definition."""
    if kind == "shannon":
        weights = mu * np.exp(z)
        return weights / weights.sum(), float(np.log(weights.sum()))
    low, high = z.min() - 2, z.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (mu * np.maximum(z - middle, 0)).sum() > 1 else (low, middle)
    pi = mu * np.maximum(z - low, 0)
    return pi, float(pi @ z - ((pi**2 / mu).sum() - 1) / 2)


@KINDS
def test_every_state_has_the_policy_and_value_of_its_own_kept_tokens(kind: entropy.Entropy) -> None:
    z, priors = made()
    pi, v = policies(z, priors, kind), values(z, priors, kind)
    for row, prior in enumerate(priors):
        want_pi, want_v = brute(z[row][prior.ids].numpy(), prior.mu.numpy(), kind)
        assert pi[row][prior.ids].numpy() == pytest.approx(want_pi, abs=1e-9)
        assert v[row].item() == pytest.approx(want_v, abs=1e-9)
        outside = torch.ones(V, dtype=torch.bool)
        outside[prior.ids] = False
        assert (pi[row][outside] == 0).all()


@KINDS
def test_values_of_many_states_in_parts_and_with_a_gradient(kind: entropy.Entropy) -> None:
    _, priors = made(7)
    chance = torch.Generator().manual_seed(2)
    head = torch.randn(V, 6, generator=chance, dtype=torch.float64)
    hat_e = torch.randn(7, 6, generator=chance, dtype=torch.float64).requires_grad_()
    rows = [brute((hat_e @ head.T)[n][p.ids].detach().numpy(), p.mu.numpy(), kind) for n, p in enumerate(priors)]
    want = np.array([v for _, v in rows]) + 0.5
    for size in (1, 3, 7, 16):
        found = kept_value(hat_e, head, None, kind, rows=size, bias=0.5, priors=priors)
        assert found.numpy() == pytest.approx(want, abs=1e-9)
        ours = differentiable_value(hat_e, head, None, kind, rows=size, bias=0.5, priors=priors)
        assert ours.detach().numpy() == pytest.approx(want, abs=1e-9)
        (gradient,) = torch.autograd.grad(ours.sum(), hat_e)
        expected = np.stack([pi @ head[p.ids].numpy() for (pi, _), p in zip(rows, priors, strict=True)])
        assert gradient.numpy() == pytest.approx(expected, abs=1e-9)


@KINDS
def test_a_state_does_not_depend_on_its_batch(kind: entropy.Entropy) -> None:
    z, priors = made(10, torch.float32)
    pi, v = policies(z, priors, kind), values(z, priors, kind)
    order = [7, 2, 9, 0, 4, 4, 1, 3, 8, 5]
    again, values_again = (
        policies(z[order], [priors[n] for n in order], kind),
        values(z[order], [*map(priors.__getitem__, order)], kind),
    )
    assert torch.equal(again, pi[order])
    assert torch.equal(values_again, v[order])
    hat_e, head = torch.randn(10, 4, generator=torch.Generator().manual_seed(3)), z[:4].T.contiguous()
    whole = kept_value(hat_e, head, None, kind, rows=8, priors=priors)
    for start in range(10):
        assert torch.equal(kept_value(hat_e[start:], head, None, kind, rows=8, priors=priors[start:]), whole[start:])


def test_cut_to_the_largest() -> None:
    z = torch.tensor([[5.0, 1.0, 4.0, 3.0]])
    (cut,) = largest(z, [Prior(torch.tensor([1, 2, 3]), torch.tensor([0.5, 0.1, 0.4]))], 2)
    assert dict(zip(cut.ids.tolist(), cut.mu.tolist(), strict=True)) == pytest.approx({2: 0.2, 3: 0.8})
    (whole,) = largest(z, [Prior(torch.tensor([1, 2]), torch.tensor([0.25, 0.75]))], 9)
    assert sorted(whole.ids.tolist()) == [1, 2]
