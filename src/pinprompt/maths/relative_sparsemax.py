"""Sparsemax relative to a prior: the policy and value under a chi-square (relative Tsallis) penalty.

Everywhere z = Q/alpha, mu is the prior (each row sums to 1), and the last dimension is the vocabulary or the kept part
of it. A token with mu = 0 cannot be chosen, whatever its z. With a uniform mu over k tokens and alpha/k in place of
alpha this is the sparsemax of the paper; with a constant z the policy is mu itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinprompt.errors import PinpromptError

_TOLERANCE = 1e-3  # on the sum of a prior: loose enough for a softmax in half precision, tight enough for a missing one


def threshold(z: Tensor, mu: Tensor) -> Tensor:
    """The level lambda above which tokens are chosen.

    lambda(z) = (sum_{i in S} mu_i z_i - 1) / sum_{i in S} mu_i
    z [..., V], mu [..., V] -> lambda [...]
    """
    return _above(z, mu)[1]


def probabilities(z: Tensor, mu: Tensor) -> Tensor:
    """The policy: the prior times the part of each entry above the level.

    pi_i = mu_i max(z_i - lambda(z), 0)
    z [..., V], mu [..., V] -> pi [..., V]
    """
    return mu * _above(z, mu)[0].clamp_min(0)


def value(z: Tensor, mu: Tensor) -> Tensor:
    """The maximum of expected value minus penalty, max_pi sum_i pi_i z_i - 1/2 (sum_i pi_i^2 / mu_i - 1).

    V(z) = 1/2 + 1/2 sum_{i in S} mu_i (z_i^2 - lambda^2) = lambda + 1/2 (1 + sum_{i in S} mu_i (z_i - lambda)^2)
    The second form is the one computed: the first takes the difference of two large numbers. The gradient of V in z is
    the policy.
    z [..., V], mu [..., V] -> V [...]
    """
    above, level = _above(z, mu)
    return level + (1 + (mu * above.clamp_min(0).square()).sum(-1)) / 2


def _above(z: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """z - lambda [..., V] (0 or less where mu is 0) and lambda [...]; differentiable in z."""
    possible = mu > 0
    mass = mu.sum(-1)
    if not bool(((mass - 1).abs() <= _TOLERANCE).all()) or bool((mu < 0).any()):
        if not bool(possible.any(-1).all()):
            raise PinpromptError(
                "No token may be chosen: the prior of a row is 0 everywhere. Loosen the constraints or raise k."
            )
        raise PinpromptError(
            f"A prior over tokens must be a distribution, but its rows sum to {mass.min():.6g} ... {mass.max():.6g} "
            f"and its smallest entry is {mu.min():.6g}; renormalise it over the kept tokens."
        )
    z = torch.where(possible, z, 0)
    level = _climb(z.detach(), mu)
    if not bool(torch.isfinite(level).all()):
        raise PinpromptError(
            "Values of tokens (Q/alpha) are not finite: NaN or infinity in the row. "
            "The search has diverged: lower the learning rate, or look for a reward that is not a number."
        )
    # Measured from the level, values of 1e4 lose no digits in float32, and the level is exact after this last step.
    # The support does not move under an infinitesimal step of z, so autograd sees the level as a smooth function of it.
    above = z - level.unsqueeze(-1)
    chosen = mu * (above.detach() > 0)
    step = ((chosen * above).sum(-1) - 1) / chosen.sum(-1)
    return torch.where(possible, above - step.unsqueeze(-1), 0), level + step


def _climb(z: Tensor, mu: Tensor) -> Tensor:
    """The level by Newton's steps on sum_i mu_i max(z_i - lambda, 0) = 1, from the level of the whole row.

    The sum is convex, falling and piecewise linear in lambda, and the level of the whole row is a lower bound: steps
    only climb and the set above lambda only shrinks. Once the set stays the same, lambda is exactly its level. No sort
    and no selection of the largest: many tokens of little mass are in the support, so no few of them would settle it.
    z [..., V], mu [..., V] -> lambda [...]
    """
    level = ((mu * z).sum(-1) - 1) / mu.sum(-1)
    before = torch.full_like(level, torch.inf)
    while True:
        above = (z - level.unsqueeze(-1)).clamp_min_(0)
        inside = above.sign()
        # Counted in floats, which is exact to 2^24 tokens: counting booleans takes longer than all the rest.
        size = inside.sum(-1)
        climbing = size < before
        if not bool(climbing.any()):
            return level
        step = ((mu * above).sum(-1) - 1) / (mu * inside).sum(-1)
        level = torch.where(climbing, level + step, level)
        before = size
