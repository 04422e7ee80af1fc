"""psi as published, and its slow copy."""

from __future__ import annotations

import math

import torch

from pinprompt.policy.adapter import Adapter, follow


def test_shape_and_published_init() -> None:
    psi = Adapter(768, 2048, seed=3)
    assert [tuple(p.shape) for p in psi.parameters()] == [(2048, 768), (2048,), (768, 2048), (768,)]
    bound = 1e-4 * math.sqrt(6 / (768 + 2048))
    assert abs(bound - 4.6e-6) < 1e-7  # the figure that spec.md gives for d = 768
    for name, parameter in psi.named_parameters():
        if name.endswith("bias"):
            assert torch.all(parameter == torch.tensor(-1e-4))
        else:
            assert 0.99 * bound < parameter.abs().max() <= bound
            assert abs(parameter.mean().item()) < bound / 100


def test_no_residual_and_q_begins_near_zero() -> None:
    psi = Adapter(16, 64, seed=0)
    output = psi(torch.randn(5, 16, generator=torch.Generator().manual_seed(1)))
    # Behind the ReLU nearly everything is zero, so psi(e) is the outer bias: -1e-4 whatever the state.
    torch.testing.assert_close(output, torch.full((5, 16), -1e-4), atol=2e-6, rtol=0)


def test_relu_is_applied_between_the_layers() -> None:
    psi = Adapter(2, 3, seed=0)
    with torch.no_grad():
        psi.inner.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
        psi.outer.weight.copy_(torch.tensor([[1.0, 10.0, 100.0], [0.0, 0.0, 1.0]]))
        psi.inner.bias.zero_()
        psi.outer.bias.zero_()
    torch.testing.assert_close(psi(torch.tensor([2.0, -3.0])), torch.tensor([102.0, 1.0]))


def test_the_seed_decides_and_the_global_stream_is_untouched() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two, other = Adapter(8, 4, 0), Adapter(8, 4, 0), Adapter(8, 4, 1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.inner.weight, two.inner.weight)
    assert not torch.equal(one.inner.weight, other.inner.weight)
    assert not torch.equal(one.inner.weight.flatten(), one.outer.weight.flatten())


def test_the_slow_copy_follows() -> None:
    psi = Adapter(4, 4, 0)
    slow = psi.slow_copy()
    assert all(torch.equal(a, b) for a, b in zip(psi.parameters(), slow.parameters(), strict=True))
    assert not any(p.requires_grad for p in slow.parameters())
    with torch.no_grad():
        for theta, theta_slow in zip(psi.parameters(), slow.parameters(), strict=True):
            theta.fill_(1.0)
            theta_slow.fill_(0.0)
    for _ in range(2):
        follow(slow, psi, 0.75)
    for theta_slow in slow.parameters():
        torch.testing.assert_close(theta_slow, torch.full_like(theta_slow, 1 - 0.75**2))
    assert all(torch.all(theta == 1) for theta in psi.parameters())
