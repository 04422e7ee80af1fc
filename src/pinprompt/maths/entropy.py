"""The two entropies that regularise Q-learning: the policy and the value that each gives for z = Q/alpha.

`policy` and `value` are for one set of tokens in every state. `policies` and `values` are relative to a prior, for many
states that each keep their own few tokens: a tensor of states x kept tokens instead of states x vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pinprompt.maths import relative_sparsemax, sparsemax

Entropy = Literal["tsallis", "shannon"]


def policy(z: Tensor, entropy: Entropy, mask: Tensor | None = None, mu: Tensor | None = None) -> Tensor:
    """The optimal policy under an entropy bonus, or relative to a prior mu (then the mask is where mu > 0).

    tsallis: pi = sparsemax(z);  shannon: pi_i = exp(z_i) / sum_j exp(z_j)
    with mu: pi_i = mu_i max(z_i - lambda(z), 0);  pi_i = mu_i exp(z_i) / sum_j mu_j exp(z_j)
    Paper: Eq. (4), `eq:sp_opt_policy`, and the unnumbered one below Eq. (2), `eqn:sql_objective`; mu is not in it.
    z [..., V], mask [..., V], mu [..., V] -> pi [..., V]
    """
    if entropy == "tsallis":
        return sparsemax.probabilities(z, mask) if mu is None else relative_sparsemax.probabilities(z, mu)
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
    z, _ = sparsemax.filtered(z, mask) if mu is None else sparsemax.filtered(z + mu.log(), mu > 0)
    return torch.logsumexp(z, -1)


SMALLEST = 64
"""Kept tokens that every set is filled up to; larger ones to the next power of two times this."""


@dataclass(frozen=True)
class Prior:
    """The tokens that a state keeps, ids [K], and their probabilities under the LM, mu [K] (sums to 1)."""

    ids: Tensor
    mu: Tensor


def policies(z: Tensor, priors: Sequence[Prior], entropy: Entropy) -> Tensor:
    """The policy of each state relative to its prior; 0 for tokens that are not kept.

    tsallis: pi_i = mu_i max(z_i - lambda(z), 0);  shannon: pi_i = mu_i exp(z_i) / sum_j mu_j exp(z_j)
    z [N, V], N priors -> pi [N, V]
    """
    found = torch.zeros_like(z)
    for rows, ids, mu in _grouped(priors, len(z)):
        pi = policy(_at(z, rows, ids), entropy, mu=mu)[: len(rows)]
        # Padding has probability 0, so adding it to token 0 changes nothing.
        found[rows] = found[rows].scatter_add_(-1, ids[: len(rows)], pi)
    return found


def values(z: Tensor, priors: Sequence[Prior], entropy: Entropy) -> Tensor:
    """The value of each state relative to its prior; its gradient in z is the policy.

    tsallis: V = 1/2 + 1/2 sum_{i in S} mu_i (z_i^2 - lambda^2);  shannon: V = log sum_i mu_i exp(z_i)
    z [N, V], N priors -> V [N]
    """
    found = z.new_empty(len(z))
    for rows, ids, mu in _grouped(priors, len(z)):
        found[rows] = value(_at(z, rows, ids), entropy, mu=mu)[: len(rows)]
    return found


def largest(z: Tensor, priors: Sequence[Prior], count: int) -> list[Prior]:
    """The priors restricted to the `count` tokens with the largest z, renormalised.

    z [N, V], N priors -> N priors
    """
    cut = []
    for row, prior in zip(z, priors, strict=True):
        best = row[prior.ids].topk(min(count, len(prior.ids)), sorted=False).indices
        cut.append(Prior(prior.ids[best], prior.mu[best] / prior.mu[best].sum()))
    return cut


def _grouped(priors: Sequence[Prior], count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """States of like size together: their rows [n], ids and mu [count, K], both filled up.

    A tensor's shape depends on the state's own size and on `count` alone, so that on a CPU a state's result never
    depends on its neighbours.
    """
    sizes: dict[int, list[int]] = {}
    for row, prior in enumerate(priors):
        size = SMALLEST
        while size < len(prior.ids):
            size *= 2
        sizes.setdefault(size, []).append(row)
    for size, rows in sizes.items():
        device = priors[rows[0]].mu.device
        ids = torch.zeros(count, size, dtype=torch.long, device=device)
        mu = torch.zeros(count, size, device=device, dtype=priors[rows[0]].mu.dtype)
        mu[len(rows) :, 0] = 1  # padding rows
        for place, row in enumerate(rows):
            kept = len(priors[row].ids)
            ids[place, :kept], mu[place, :kept] = priors[row].ids, priors[row].mu
        yield torch.tensor(rows, device=device), ids, mu


def _at(z: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """z of the kept tokens, [count, K]."""
    row = torch.cat([rows, rows.new_zeros(len(ids) - len(rows))])
    return z[row.unsqueeze(-1), ids]
