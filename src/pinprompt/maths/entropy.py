"""The two entropies that the RL family is regularised with, and what each makes of z = Q/alpha."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.maths import relative_sparsemax, sparsemax

Entropy = Literal["tsallis", "shannon"]


def policy(z: Tensor, entropy: Entropy, mask: Tensor | None = None, mu: Tensor | None = None) -> Tensor:
    """The policy that is optimal under an entropy bonus, or relative to a prior mu (then the mask is where mu > 0).

    tsallis: pi = sparsemax(z);  shannon: pi_i = exp(z_i) / sum_j exp(z_j)
    with mu: pi_i = mu_i max(z_i - lambda(z), 0);  pi_i = mu_i exp(z_i) / sum_j mu_j exp(z_j)
    Paper: Eq. (4), `eq:sp_opt_policy`, and the unnumbered one below Eq. (2), `eqn:sql_objective`; mu is not in it.
    z [..., V], mask [..., V], mu [..., V] -> pi [..., V]
    """
    if entropy == "tsallis":
        return sparsemax.probabilities(z, mask) if mu is None else relative_sparsemax.probabilities(z, mu)
    _known(entropy)
    z, _ = sparsemax.filtered(z, mask) if mu is None else sparsemax.filtered(z + mu.log(), mu > 0)
    return torch.softmax(z, -1)


def value(z: Tensor, entropy: Entropy, mask: Tensor | None = None, mu: Tensor | None = None) -> Tensor:
    """The value of a state under an entropy bonus, or relative to a prior mu; its gradient is the policy.

    tsallis: V = 1/2 (1 + sum_{i in S} (z_i^2 - tau^2));  shannon: V = log sum_i exp(z_i)
    with mu: V = 1/2 + 1/2 sum_{i in S} mu_i (z_i^2 - lambda^2);  V = log sum_i mu_i exp(z_i)
    Paper: Eq. (5), `eq:sp_target`, and the target below Eq. (3), `eqn:mse_loss`; mu is not in it.
    z [..., V], mask [..., V], mu [..., V] -> V [...]
    """
    if entropy == "tsallis":
        return sparsemax.value(z, mask) if mu is None else relative_sparsemax.value(z, mu)
    _known(entropy)
    z, _ = sparsemax.filtered(z, mask) if mu is None else sparsemax.filtered(z + mu.log(), mu > 0)
    return torch.logsumexp(z, -1)


def _known(entropy: str) -> None:
    """Refuse a name that is neither of the two."""
    if entropy != "shannon":
        raise SettingError(f"Unknown entropy '{entropy}': {did_you_mean(entropy, ('tsallis', 'shannon'))}")
