"""One update in the formulation of the released PIN code, written anew from its description, to measure against.

Per batch: four products with the whole head (Q with a gradient, Q of the slow copy, and the LM's logits once for each
of their filters), two top-k, two full sorts, and a backward pass through the first product. Where the description
leaves room (whether the logged value carries a gradient), the cheaper reading is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

FILTERED = -1000.0

Psi = Callable[[Tensor], Tensor]


def filtered_q(psi: Psi, states: Tensor, head: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Q/alpha of every token, at -1000 below the k-th largest LM logit: states [B, L, d] -> [B, L, V], [B, L, V]."""
    q = psi(states) @ head.T
    with torch.no_grad():
        logits = states @ head.T
        ignorable = logits < logits.topk(k).values[..., -1:]
    return torch.where(ignorable, FILTERED, q), ~ignorable


def sorted_value(q: Tensor, mask: Tensor) -> Tensor:
    """The sparsemax value by a full sort of the vocabulary: q [B, L, V], mask [B, L, V] -> [B, L]."""
    falling = q.sort(-1).values.flip(-1)
    total = falling.cumsum(-1)
    n = torch.arange(1, q.shape[-1] + 1, device=q.device, dtype=q.dtype)
    size = (1 + n * falling > total).sum(-1, keepdim=True)
    tau = (total.gather(-1, size - 1) - 1) / size
    chosen = mask & (q > tau)
    return (1 + (chosen * (q.square() - tau.square())).sum(-1)) / 2


def loss(
    psi: Psi,
    slow: Psi,
    states: Tensor,
    actions: Tensor,
    rewards: Tensor,
    head: Tensor,
    k: int,
    gamma: float,
    target: Literal["bootstrap", "monte-carlo"],
) -> Tensor:
    """The loss of a batch; both values are computed whatever the target, as the released code does (for its log).

    states [B, L, d], actions [B, L], rewards [B], head [V, d] -> scalar
    """
    q, mask = filtered_q(psi, states, head, k)
    q_t = q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        sorted_value(q, mask)
        v_slow = sorted_value(*filtered_q(slow, states, head, k))
        length = actions.shape[-1]
        if target == "bootstrap":
            aim = torch.cat([gamma * v_slow[:, 1:], rewards.unsqueeze(-1)], -1)
        else:
            aim = rewards.unsqueeze(-1) * gamma ** torch.arange(length - 1, -1, -1, device=rewards.device)
    return (q_t - aim).square().sum(-1).mean()
