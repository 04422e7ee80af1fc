"""The value of a state with its gradient, still without a vocabulary-wide tensor in the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pinprompt.maths import entropy as entropies
from pinprompt.maths.values_of_states import Masks, mask_rows


def differentiable_value(
    hat_e: Tensor, head: Tensor, masks: Masks, entropy: entropies.Entropy, rows: int = 32, bias: float = 0.0
) -> Tensor:
    """`kept_value`, differentiable in hat_e; what RLPrompt's path-consistency losses need.

    dV/dhat_e = sum_z pi(z) w_z, for Shannon and for Tsallis entropy alike (the envelope theorem)
    hat_e [N, d], head [V, d], masks as in `kept_value` -> [N]
    """
    value: Tensor = _Value.apply(hat_e, head, masks, entropy, rows)  # type: ignore[no-untyped-call]
    return value + bias


class _Value(torch.autograd.Function):
    """V forward; backward needs only the policy's mean row of the head, kept as [N, d]."""

    @staticmethod
    def forward(ctx: Any, hat_e: Tensor, head: Tensor, masks: Masks, entropy: entropies.Entropy, rows: int) -> Tensor:
        values, directions = hat_e.new_empty(len(hat_e)), torch.empty_like(hat_e)
        for start in range(0, len(hat_e), rows):
            stop = min(start + rows, len(hat_e))
            z = hat_e[start:stop] @ head.T
            mask = None if masks is None else mask_rows(masks, start, stop, len(head)).to(z.device)
            values[start:stop] = entropies.value(z, entropy, mask)
            directions[start:stop] = entropies.policy(z, entropy, mask) @ head
        ctx.save_for_backward(directions)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (directions,) = ctx.saved_tensors
        return gradient.unsqueeze(-1) * directions, None, None, None, None
