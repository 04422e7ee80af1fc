"""The two entropies that regularise Q-learning: the policy and the value that each gives for z = Q/alpha."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pinprompt.maths import sparsemax

Entropy = Literal["tsallis", "shannon"]


def policy(z: Tensor, entropy: Entropy, mask: Tensor | None = None) -> Tensor:
    """The optimal policy under an entropy bonus.

    tsallis: pi = sparsemax(z);  shannon: pi_i = exp(z_i) / sum_j exp(z_j)
    Paper: Eq. (4), `eq:sp_opt_policy`, and the unnumbered one below Eq. (2), `eqn:sql_objective`.
    z [..., V], mask [..., V] -> pi [..., V]
    """
    if entropy == "tsallis":
        return sparsemax.probabilities(z, mask)
    z, _ = sparsemax.filtered(z, mask)
    return torch.softmax(z, -1)


def value(z: Tensor, entropy: Entropy, mask: Tensor | None = None) -> Tensor:
    """The value of a state under an entropy bonus; its gradient is the policy.

    tsallis: V = 1/2 (1 + sum_{i in S} (z_i^2 - tau^2));  shannon: V = log sum_i exp(z_i)
    Paper: Eq. (5), `eq:sp_target`, and the target below Eq. (3), `eqn:mse_loss`.
    z [..., V], mask [..., V] -> V [...]
    """
    if entropy == "tsallis":
        return sparsemax.value(z, mask)
    z, _ = sparsemax.filtered(z, mask)
    return torch.logsumexp(z, -1)
