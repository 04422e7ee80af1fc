"""The value of a state with its gradient, against autograd through everything and against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pinprompt.errors import PinpromptError
from pinprompt.maths import entropy
from pinprompt.maths.state_values import differentiable_value, pack

torch.set_num_threads(1)

KINDS = pytest.mark.parametrize("kind", ["tsallis", "shannon"])


def made(n: int = 7, v: int = 43, d: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """States that want a gradient, a head, and masks of kept tokens."""
    chance = torch.Generator().manual_seed(2)
    mask = torch.rand(n, v, generator=chance) < 0.5
    hat_e = torch.randn(n, d, generator=chance, dtype=torch.float64).requires_grad_()
    return hat_e, torch.randn(v, d, generator=chance, dtype=torch.float64), mask


@KINDS
@pytest.mark.parametrize("batch", [1, 3, 7, 32])
def test_value_and_gradient_are_those_of_the_full_product(kind: entropy.Entropy, batch: int) -> None:
    hat_e, head, mask = made()
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)
    for masks in (None, mask, pack(mask), list(mask), list(pack(mask))):
        plain = entropy.value(hat_e @ head.T + 0.5, kind, None if masks is None else mask)
        (expected,) = torch.autograd.grad((plain * weights).sum(), hat_e)
        ours = differentiable_value(hat_e, head, masks, kind, batch=batch, bias=0.5)
        (found,) = torch.autograd.grad((ours * weights).sum(), hat_e)
        assert ours.detach().numpy() == pytest.approx(plain.detach().numpy(), rel=1e-12)
        assert found.numpy() == pytest.approx(expected.numpy(), rel=1e-10)


@KINDS
def test_finite_differences_agree(kind: entropy.Entropy) -> None:
    hat_e, head, mask = made(n=3, v=11)
    assert torch.autograd.gradcheck(lambda states: differentiable_value(states, head, mask, kind), hat_e)


def test_without_masks_and_bias_it_is_the_log_sum_exp() -> None:
    hat_e, head, _ = made(n=70)
    ours = differentiable_value(hat_e, head, None, "shannon")
    assert ours.detach().numpy() == pytest.approx(torch.logsumexp(hat_e @ head.T, -1).detach().numpy(), rel=1e-12)


def test_only_the_states_are_learnt() -> None:
    hat_e, head, mask = made()
    values = differentiable_value(hat_e, head.requires_grad_(), mask, "tsallis")
    assert values.dtype == torch.float64
    assert torch.autograd.grad(values.sum(), head, allow_unused=True) == (None,)


def test_a_state_that_keeps_no_token_is_refused() -> None:
    hat_e, head, mask = made()
    with pytest.raises(PinpromptError, match="No token may be chosen"):
        differentiable_value(hat_e, head, torch.zeros_like(mask), "tsallis")
