"""What Q is regressed on: values of states, targets and losses, with no vocabulary-wide tensor in the graph.

All in units of alpha (z = Q/alpha, rewards r/alpha), all [B, L]: B sequences of L tokens; q_t = Q(z_{0:t-1}, z_t)/alpha
of the taken tokens; V of state t is the value of the prefix z_{0:t-1}. Targets and slow values are constants to
autograd; the value of a state has a gradient where a loss asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import PinpromptError, SettingError
from pinprompt.maths import entropy as entropies


def monte_carlo(rewards: Tensor, length: int, gamma: float) -> Tensor:
    """The discounted return of each taken token: the target of the released PIN code.

    target_t = gamma^(L-1-t) R
    Paper: R of Eq. (5), `eq:sp_target`, at every t instead of the last alone.
    rewards [B] -> [B, L]
    """
    if length < 1:
        raise SettingError(f"A prompt needs at least one token: length is {length}.")
    exponent = torch.arange(length - 1, -1, -1, device=rewards.device)
    return rewards.unsqueeze(-1) * torch.pow(gamma, exponent).to(rewards.dtype)


def bootstrapped(rewards: Tensor, v_next: Tensor, gamma: float) -> Tensor:
    """The discounted value of the state that a token leads to, and the reward after the last token.

    target_t = gamma V'(z_{0:t})  for t < L-1;  target_{L-1} = R
    Paper: Eq. (5), `eq:sp_target` (Tsallis V'), and the one below Eq. (3), `eqn:mse_loss` (Shannon V').
    rewards [B], v_next [B, L-1] (column t: the slow copy's value of state t+1) -> [B, L]
    """
    if v_next.ndim != 2 or len(v_next) != len(rewards):
        raise PinpromptError(
            f"Values of next states must be [B, L-1] for rewards [B]: got {[*v_next.shape]} for {[*rewards.shape]}."
        )
    return torch.cat([gamma * v_next, rewards.unsqueeze(-1)], -1)


def monte_carlo_gains(gains: Tensor, gamma: float) -> Tensor:
    """The discounted return of each taken token where every token has a reward of its own.

    target_t = sum_{l >= t} gamma^(l-t) r_l
    Paper: not printed; with r_l = 0 but for r_{L-1} = R it is `monte_carlo`.
    gains [B, L] -> [B, L]
    """
    target = gains.clone()
    for place in range(gains.shape[1] - 2, -1, -1):
        target[:, place] += gamma * target[:, place + 1]
    return target


def bootstrapped_gains(gains: Tensor, v_next: Tensor, gamma: float) -> Tensor:
    """The reward of each token and the discounted value of the state that it leads to.

    target_t = r_t + gamma V'(z_{0:t})  for t < L-1;  target_{L-1} = r_{L-1}
    Paper: Eq. (5), `eq:sp_target`, with a reward at every t; with r_l = 0 but for r_{L-1} = R it is `bootstrapped`.
    gains [B, L], v_next [B, L-1] -> [B, L]
    """
    if v_next.ndim != 2 or v_next.shape != (gains.shape[0], gains.shape[1] - 1):
        raise PinpromptError(
            f"Values of next states must be [B, L-1] for gains [B, L]: got {[*v_next.shape]} for {[*gains.shape]}."
        )
    return gains + torch.cat([gamma * v_next, torch.zeros_like(gains[:, :1])], -1)


def squared_error(q_t: Tensor, target: Tensor) -> Tensor:
    """The loss of Q against a target that is held still.

    1/B sum_b sum_t (q_t - target_t)^2
    Paper: Eq. (3), `eqn:mse_loss`.
    q_t [B, L], target [B, L] -> scalar
    """
    if q_t.ndim != 2 or q_t.shape != target.shape:
        raise PinpromptError(f"Q and its target must both be [B, L]: got {[*q_t.shape]} and {[*target.shape]}.")
    return (q_t - target.detach()).square().sum(-1).mean()


def path_single(q_t: Tensor, v_t: Tensor, v_slow: Tensor, rewards: Tensor, gamma: float) -> Tensor:
    """RLPrompt's single-step path consistency: the advantage of a token is what it adds to the slow value.

    1/B sum_b sum_t (A_t - (gamma V'_{t+1} - V'_t))^2,  A_t = q_t - V_t,  R in place of gamma V'_{t+1} at t = L-1
    Paper: not printed; the loss of RLPrompt's code (`v2`), whose A_t is log pi for the Shannon policy.
    q_t, v_t, v_slow [B, L], rewards [B] -> scalar
    """
    return squared_error(q_t - v_t, bootstrapped(rewards, v_slow[:, 1:], gamma) - v_slow)


def path_multi(q_t: Tensor, v_t: Tensor, v_slow: Tensor, rewards: Tensor) -> Tensor:
    """RLPrompt's multi-step path consistency: the advantages to come add up to what the slow value is short of R.

    1/B sum_b sum_t (sum_{l >= t} A_l - (R - V'_t))^2,  A_l = q_l - V_l
    Paper: not printed; the loss of RLPrompt's code (`v3`), without discount as there.
    q_t, v_t, v_slow [B, L], rewards [B] -> scalar
    """
    to_come = (q_t - v_t).flip(-1).cumsum(-1).flip(-1)
    return squared_error(to_come, rewards.unsqueeze(-1) - v_slow)


def path_mean(q_t: Tensor, v_t: Tensor, v_slow: Tensor, rewards: Tensor, gamma: float) -> Tensor:
    """RLPrompt's default loss: the mean of the single-step and the multi-step one.

    1/2 (path_single + path_multi)
    Paper: not printed; RLPrompt's `v2_v2r_v3_v3r`, in which the reversed terms are off.
    q_t, v_t, v_slow [B, L], rewards [B] -> scalar
    """
    single = path_single(q_t, v_t, v_slow, rewards, gamma)
    return (single + path_multi(q_t, v_t, v_slow, rewards)) / 2


# Q of taken tokens and values of many states, without a tensor of states x vocabulary.

Masks = Tensor | Sequence[Tensor] | None


def taken(hat_e: Tensor, head: Tensor, actions: Tensor) -> Tensor:
    """Q/alpha of the taken tokens alone: one row of the head each, a dot product; differentiable in hat_e.

    q_t = w_{z_t}^T psi(e_t)
    Paper: w_{i_z}^T psi_theta(e_t) = Q_theta(z_{0:t-1}, z), above Eq. (3).
    hat_e [B, L, d], head [V, d], actions [B, L] -> [B, L]
    """
    return (hat_e * head[actions]).sum(-1)


def kept_value(
    hat_e: Tensor,
    head: Tensor,
    masks: Masks,
    entropy: entropies.Entropy,
    rows: int = 128,
    bias: float = 0.0,
    priors: Sequence[entropies.Prior] | None = None,
) -> Tensor:
    """The value of each state over the tokens it keeps, `rows` states at a time, without a gradient.

    V_n = V(F_I[W hat_e_n])
    Paper: Eq. (5), `eq:sp_target`, with F_I as in Algorithm 1.
    hat_e [N, d], head [V, d] -> [N]. Masks: None (all kept), packed bits [N, ceil(V/8)] (the fast way), booleans
    [N, V], or a sequence of N rows of either. `bias` is added to every value of a token. With `priors` (N of them) the
    values are relative to those, and they say what is kept.

    Every product has `rows` rows, the last one padded: on a CPU a state's value then never depends on which states
    it is computed with. The only tensor as wide as the vocabulary is one of `rows` rows, used again and again.
    """
    count, size = len(hat_e), len(head)
    if masks is not None and len(masks) != count:
        raise PinpromptError(f"{count} states need {count} masks of kept tokens: got {len(masks)}.")
    values = hat_e.new_empty(count)
    z = hat_e.new_empty(rows, size)
    with torch.no_grad():
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            part = hat_e[start:stop].detach()
            if len(part) < rows:
                part = torch.cat([part, part.new_zeros(rows - len(part), part.shape[-1])])
            torch.mm(part, head.T, out=z)
            # V(z + b) = V(z) + b for both entropies, so the bias need not touch every token.
            if priors is not None:
                some = [*priors[start:stop], *[priors[stop - 1]] * (rows - (stop - start))]
                values[start:stop] = entropies.values(z, some, entropy)[: stop - start] + bias
                continue
            kept = z[: stop - start]
            if masks is not None:
                kept += _penalties(_bits(masks, start, stop), size, z)
            values[start:stop] = entropies.value(kept, entropy) + bias
    return values


def pack(mask: Tensor) -> Tensor:
    """Eight booleans to a byte, the first in the lowest bit; the last byte is filled up with False.

    byte_j = sum_{i < 8} 2^i mask_{8j+i}
    mask [..., V] -> [..., ceil(V/8)] uint8
    """
    missing = -mask.shape[-1] % 8
    bits = torch.nn.functional.pad(mask, (0, missing)).view(*mask.shape[:-1], -1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], device=mask.device, dtype=torch.uint8)
    return (bits * weights).sum(-1, dtype=torch.uint8)


def unpack(bits: Tensor, size: int) -> Tensor:
    """The booleans of packed bits.

    mask_{8j+i} = bit i of byte_j
    bits [..., ceil(V/8)] uint8, size = V -> [..., V]
    """
    return _looked_up(_booleans().to(bits.device), bits, size)


def mask_rows(masks: Tensor | Sequence[Tensor], start: int, stop: int, size: int) -> Tensor:
    """The masks of some states as booleans, whichever way they are kept.

    masks as in `kept_value`, size = V -> [stop - start, V]
    """
    return unpack(_bits(masks, start, stop), size)


def _penalties(bits: Tensor, size: int, like: Tensor) -> Tensor:
    """What F_I adds: 0 for a kept token, -inf for another. Adding runs at the memory's speed, masking does not.

    bits [N, ceil(V/8)] uint8, size = V -> [N, V]
    """
    table = torch.zeros(256, 8).masked_fill(~_booleans(), -torch.inf)
    return _looked_up(table.to(like), bits.to(like.device), size)


def _looked_up(table: Tensor, bits: Tensor, size: int) -> Tensor:
    """For each byte the eight entries that a table [256, 8] has for it: [..., ceil(V/8)] -> [..., V]."""
    if bits.dtype != torch.uint8 or bits.shape[-1] != -(-size // 8):
        raise PinpromptError(
            f"{size} tokens pack into {-(-size // 8)} bytes (uint8): got {bits.shape[-1]} of {bits.dtype}."
        )
    return table.index_select(0, bits.int().flatten()).view(*bits.shape[:-1], -1)[..., :size]


@lru_cache(maxsize=1)
def _booleans() -> Tensor:
    """The eight booleans of every byte [256, 8], lowest bit first."""
    return (torch.arange(256).unsqueeze(-1) >> torch.arange(8)) & 1 == 1


def _bits(masks: Tensor | Sequence[Tensor], start: int, stop: int) -> Tensor:
    """The masks of some states as packed bits [stop - start, ceil(V/8)]."""
    part = masks[start:stop]
    some = part if isinstance(part, Tensor) else torch.stack(list(part))
    return pack(some) if some.dtype == torch.bool else some


def differentiable_value(
    hat_e: Tensor,
    head: Tensor,
    masks: Masks,
    entropy: entropies.Entropy,
    rows: int = 32,
    bias: float = 0.0,
    priors: Sequence[entropies.Prior] | None = None,
) -> Tensor:
    """`kept_value`, differentiable in hat_e; what RLPrompt's path-consistency losses need.

    dV/dhat_e = sum_z pi(z) w_z, for both Shannon and Tsallis entropy (the envelope theorem)
    hat_e [N, d], head [V, d], masks and priors as in `kept_value` -> [N]
    """
    value: Tensor = _Value.apply(hat_e, head, masks, entropy, rows, priors)  # type: ignore[no-untyped-call]
    return value + bias


class _Value(torch.autograd.Function):
    """V forward; backward needs only the policy's mean row of the head, kept as [N, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        hat_e: Tensor,
        head: Tensor,
        masks: Masks,
        entropy: entropies.Entropy,
        rows: int,
        priors: Sequence[entropies.Prior] | None,
    ) -> Tensor:
        values, directions = hat_e.new_empty(len(hat_e)), torch.empty_like(hat_e)
        for start in range(0, len(hat_e), rows):
            stop = min(start + rows, len(hat_e))
            z = hat_e[start:stop] @ head.T
            if priors is not None:
                some = priors[start:stop]
                values[start:stop] = entropies.values(z, some, entropy)
                directions[start:stop] = entropies.policies(z, some, entropy) @ head
                continue
            mask = None if masks is None else mask_rows(masks, start, stop, len(head)).to(z.device)
            values[start:stop] = entropies.value(z, entropy, mask)
            directions[start:stop] = entropies.policy(z, entropy, mask) @ head
        ctx.save_for_backward(directions)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (directions,) = ctx.saved_tensors
        return gradient.unsqueeze(-1) * directions, None, None, None, None, None
