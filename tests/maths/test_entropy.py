"""The two entropies behind one pair of functions."""

from __future__ import annotations

import math

import pytest
import torch

from pinprompt.errors import PinpromptError
from pinprompt.maths import entropy, sparsemax

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
