"""Sparsemax: the policy and value under sparse Tsallis entropy, by partial selection instead of a full sort.

Everywhere z = Q/alpha, the last dimension is the vocabulary, and a mask is True where a token may be chosen. An entry
of -inf is a token that may not be chosen, too: that is how the filter F_I of the paper writes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinprompt.errors import PinpromptError

# How many of the largest entries are looked at before every entry is. Trained policies choose among a few tokens, which
# this settles; a fresh one may choose among all it is given.
FIRST_TRIED = 32

# Entries per block when the largest are looked for: the blocks' maxima take one fast pass, and only m blocks are read.
WIDTH = 32


def threshold(z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The level tau above which tokens are chosen, and how many are.

    tau(z) = (sum_{i in S} z_i - 1) / |S|,  S = {(n) : 1 + n z_(n) > sum_{m <= n} z_(m)}
    Paper: tau and S below Eq. (4), `eq:sp_opt_policy`.
    z [..., V], mask [..., V] -> tau [...], |S| [...]
    """
    z, top = filtered(z, mask)
    tau, size, _ = _level(z, top)
    return top + tau, size


def probabilities(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """The policy: the part of each entry above the threshold, zero for the others.

    pi_i = max(z_i - tau(z), 0)
    Paper: Eq. (4), `eq:sp_opt_policy`.
    z [..., V], mask [..., V] -> pi [..., V]
    """
    z, top = filtered(z, mask)
    tau, _, _ = _level(z, top)
    return (z - top.unsqueeze(-1)).sub_(tau.unsqueeze(-1)).clamp_min_(0)


def value(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """The greatest expected value with its Tsallis bonus, max_pi sum_i pi_i z_i + 1/2 (1 - sum_i pi_i^2).

    V(z) = 1/2 (1 + sum_{i in S} (z_i^2 - tau^2)) = tau + 1/2 (1 + sum_i pi_i^2)
    Paper: the sparsemax operator below Eq. (5), `eq:sp_target`. The second form is the one computed: the first takes
    the difference of two large numbers. The gradient of V is the policy.
    z [..., V], mask [..., V] -> V [...]
    """
    z, top = filtered(z, mask)
    tau, _, squares = _level(z, top)
    return top + tau + (1 + squares) / 2


def filtered(z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The filter F_I: tokens outside the mask at -inf, with the largest entry left (a constant to autograd).

    F_I[z]_i = z_i where i may be chosen, -inf where it may not
    Paper: F_I in section 4.2.
    z [..., V], mask [..., V] -> F_I[z] [..., V], max_i F_I[z]_i [...]
    """
    if mask is not None:
        z = torch.where(mask, z, -torch.inf)
    top = z.detach().amax(-1)
    if not bool(torch.isfinite(top).all()):
        if bool((top == -torch.inf).any()):
            raise PinpromptError(
                "No token may be chosen: every entry of a row is masked out. Loosen the constraints or raise k."
            )
        raise PinpromptError(
            "Values of tokens (Q/alpha) are not finite: NaN or infinity in the row. "
            "The search has diverged: lower the learning rate, or look for a reward that is not a number."
        )
    return z, top


def _level(z: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """tau - max z, |S| and sum_i pi_i^2, each [...]; differentiable in z where autograd is on.

    All is measured from the largest entry, so that values of 1e4 lose no digits in float32.
    """
    rows = z.detach().reshape(-1, z.shape[-1])
    tau, size, squares = (part.reshape(top.shape) for part in _search(rows, top.reshape(-1)))
    if z.requires_grad and torch.is_grad_enabled():
        # The support does not move under an infinitesimal step, so tau and the squares are smooth functions of it.
        above = z - top.unsqueeze(-1)
        chosen = above.detach() > tau.unsqueeze(-1)
        tau = (torch.where(chosen, above, 0).sum(-1) - 1) / size
        squares = torch.where(chosen, above - tau.unsqueeze(-1), 0).square().sum(-1)
    return tau, size, squares


def _search(z: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The level of each row from its m largest entries, or from all of them where those do not certify it.

    The certificate is |S| < m: the m-th largest entry is not in the support (1 + m z_(m) <= sum of the m largest),
    so nothing smaller is. Rows that fail it continue from their level, which is a lower bound.
    z [N, V], top [N] -> tau - top [N], |S| [N], sum_i pi_i^2 [N]
    """
    m = min(FIRST_TRIED, z.shape[-1])
    largest = _largest(z, m) - top.unsqueeze(-1)
    total = largest.cumsum(-1)
    n = torch.arange(1, m + 1, device=z.device, dtype=z.dtype)
    count = (1 + n * largest > total).sum(-1)
    tau = (total.gather(-1, count.unsqueeze(-1) - 1).squeeze(-1) - 1) / count
    pi = (largest - tau.unsqueeze(-1)).clamp_min(0)
    size, squares = (pi > 0).sum(-1), pi.square().sum(-1)
    rows = (count == m).nonzero().squeeze(-1)
    if m == z.shape[-1] or len(rows) == 0:
        return tau, size, squares
    if z.device.type == "cpu":
        for row in rows.tolist():
            tau[row], size[row], squares[row] = _climb_row((z[row] - top[row]).numpy(), tau[row].numpy())
    else:
        tau[rows], size[rows], squares[rows] = _climb(z[rows] - top[rows].unsqueeze(-1), tau[rows])
    return tau, size, squares


def _largest(z: Tensor, m: int) -> Tensor:
    """The m largest entries in falling order: they stand in the m blocks with the largest maxima, or in the rest.

    z [N, V] -> z_(1), ..., z_(m) [N, m]
    """
    blocks = z.shape[-1] // WIDTH
    if blocks <= m:
        return z.topk(m).values
    body = z[:, : blocks * WIDTH].view(len(z), blocks, WIDTH)
    best = body.amax(-1).topk(m, sorted=False).indices
    inside = body.gather(1, best.unsqueeze(-1).expand(-1, -1, WIDTH)).flatten(1)
    return torch.cat([inside, z[:, blocks * WIDTH :]], -1).topk(m).values


def _climb(z: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The level from all entries by Newton's steps on sum_i max(z_i - tau, 0) = 1, from any lower bound.

    The sum is convex, falling and piecewise linear in tau: from below, steps only climb and the set above tau only
    shrinks, so once the set stays the same, tau is exactly its level. That is the certificate; no sort is needed.
    z [N, V] with a largest entry of 0, tau [N] -> tau [N], |S| [N], sum_i pi_i^2 [N]
    """
    pi, ones = torch.empty_like(z), torch.empty_like(z)
    before = torch.full_like(tau, torch.inf)
    settled = torch.zeros_like(tau, dtype=torch.bool)
    while True:
        torch.sub(z, tau.unsqueeze(-1), out=pi).clamp_min_(0)
        # Counted in floats, which is exact to 2^24 tokens: counting booleans takes longer than all the rest.
        size = torch.sign(pi, out=ones).sum(-1)
        settled = settled | (size >= before)
        if bool(settled.all()):
            return tau, size.long(), pi.square_().sum(-1)
        tau = torch.where(settled, tau, tau + (pi.sum(-1) - 1) / size)
        before = size


def _climb_row(z: Any, tau: Any) -> tuple[float, int, float]:
    """`_climb` for one row on a CPU: faster by itself, since only what is above the bound is looked at again.

    z [V] and tau, both of numpy -> tau, |S|, sum_i pi_i^2
    """
    z = z[np.flatnonzero(z > tau)]
    before = len(z) + 1
    while (size := int(np.count_nonzero(z > tau))) < before:
        tau = tau + (np.maximum(z - tau, 0).sum() - 1) / size
        before = size
    return float(tau), size, float(np.square(np.maximum(z - tau, 0)).sum())
