"""Q of taken tokens and values of many states, with and without a gradient, without a tensor of states x vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import PinpromptError
from pinprompt.maths import entropy as entropies

Masks = Tensor | Sequence[Tensor] | None
_Block = tuple[int, int, Tensor | None]
"""The first state of a block, the first after it, and what its states keep: packed bits, or everything."""
AT_ONCE = 8
"""Blocks whose kept tokens are loaded together."""


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
    batch: int = 128,
    bias: float = 0.0,
    product: Callable[[Tensor], Tensor] | None = None,
    each: Callable[[Callable[[_Block], Tensor], Sequence[_Block]], Iterable[Tensor]] = map,
) -> Tensor:
    """The value of each state over the tokens it keeps, `batch` states at a time, without a gradient.

    V_n = V(F_I[W hat_e_n])
    Paper: Eq. (5), `eq:sp_target`, with F_I as in Algorithm 1.
    hat_e [N, d], head [V, d] -> [N]. Masks: None (all kept), packed bits [N, ceil(V/8)] (the fast way), booleans
    [N, V], or a sequence of N lines of either. `bias` is added to every value of a token.

    Every product has `batch` states, the last one padded: on a CPU a state's value then never depends on which states
    it is computed with. No tensor as wide as the vocabulary has more than `batch` lines. `product` replaces hat_e W^T
    and `each` replaces `map` over the blocks of states; a caller passes them where it has a faster way.
    """
    count, size = len(hat_e), len(head)
    if masks is not None and len(masks) != count:
        raise PinpromptError(f"{count} states need {count} masks of kept tokens: got {len(masks)}.")

    def given(start: int) -> _Block:
        stop = min(start + batch, count)
        return start, stop, None if masks is None else _bits(masks, start, stop)

    @torch.no_grad()
    def block(some: _Block) -> Tensor:
        start, stop, kept = some
        part = hat_e[start:stop].detach()
        if len(part) < batch:
            part = torch.cat([part, part.new_zeros(batch - len(part), part.shape[-1])])
        z = part @ head.T if product is None else product(part)
        z = z[: stop - start]
        if kept is not None:
            z += _penalties(kept, size, z)
        # V(z + b) = V(z) + b for both entropies, so the bias need not touch every token.
        return entropies.value(z, entropy) + bias

    values = [hat_e.new_empty(0)]
    for first in range(0, count, batch * AT_ONCE):
        # What is kept is loaded here and not by `each`: it may come from somewhere that only one thread may use.
        values += each(block, [given(start) for start in range(first, min(first + batch * AT_ONCE, count), batch)])
    return torch.cat(values)


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
    hat_e: Tensor, head: Tensor, masks: Masks, entropy: entropies.Entropy, batch: int = 32, bias: float = 0.0
) -> Tensor:
    """`kept_value`, differentiable in hat_e; what RLPrompt's path-consistency losses need.

    dV/dhat_e = sum_z pi(z) w_z, for both Shannon and Tsallis entropy (the envelope theorem)
    hat_e [N, d], head [V, d], masks as in `kept_value` -> [N]
    """
    value: Tensor = _Value.apply(hat_e, head, masks, entropy, batch)  # type: ignore[no-untyped-call]
    return value + bias


class _Value(torch.autograd.Function):
    """V forward; backward needs only the policy's mean row of the head, kept as [N, d]."""

    @staticmethod
    def forward(ctx: Any, hat_e: Tensor, head: Tensor, masks: Masks, entropy: entropies.Entropy, batch: int) -> Tensor:
        values, directions = hat_e.new_empty(len(hat_e)), torch.empty_like(hat_e)
        for start in range(0, len(hat_e), batch):
            stop = min(start + batch, len(hat_e))
            z = hat_e[start:stop] @ head.T
            mask = None if masks is None else unpack(_bits(masks, start, stop), len(head)).to(z.device)
            values[start:stop] = entropies.value(z, entropy, mask)
            directions[start:stop] = entropies.policy(z, entropy, mask) @ head
        ctx.save_for_backward(directions)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (directions,) = ctx.saved_tensors
        return gradient.unsqueeze(-1) * directions, None, None, None, None
