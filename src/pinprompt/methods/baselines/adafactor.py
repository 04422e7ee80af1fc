"""Adafactor for one matrix of prompt vectors, at a fixed learning rate: what PEZ was published with for LMs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_EPS = 1e-30
_CLIP = 1.0


class Adafactor(torch.optim.Optimizer):
    """Second moments kept as row and column means; the update is clipped to a root mean square of 1.

    Shazeer and Stern 2018 without relative steps, parameter scaling and momentum. torch's own always shrinks its steps
    with time, which the published run did not.
    """

    def __init__(self, parameters: list[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter [n, d] that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"])

    def _update(self, parameter: Tensor, rate: float, decay: float) -> None:
        gradient = parameter.grad.float()  # type: ignore[union-attr]
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["rows"] = gradient.new_zeros(gradient.shape[0])
            state["columns"] = gradient.new_zeros(gradient.shape[1])
        state["step"] += 1
        keep = 1.0 - float(state["step"]) ** -0.8
        squares = gradient.square() + _EPS
        state["rows"].mul_(keep).add_(squares.mean(dim=1), alpha=1 - keep)
        state["columns"].mul_(keep).add_(squares.mean(dim=0), alpha=1 - keep)
        # v = rows x columns / mean(rows), the best factored estimate of the second moments.
        scale = (state["rows"] / state["rows"].mean()).rsqrt()[:, None] * state["columns"].rsqrt()[None]
        update = gradient * scale
        update /= max(1.0, float(update.square().mean().sqrt()) / _CLIP)
        parameter.mul_(1 - rate * decay).sub_(update.to(parameter.dtype), alpha=rate)
