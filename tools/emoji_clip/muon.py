"""The Muon optimizer in float32, for tools/emoji_clip/train.py."""

from __future__ import annotations

from typing import Any

import torch


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised matrix steps (Jordan et al. 2024).

    torch.optim.Muon uses bfloat16, which is slow on a CPU. This one uses float32 and handles all matrices of one shape
    at once.
    """

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Make one step for every matrix that has a gradient."""
        shapes: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
        for shape, members in shapes.items():
            for p in members:
                state = self.state[p]
                state["momentum"] = state.get("momentum", torch.zeros_like(p)).mul_(0.95).add_(p.grad)
            x = torch.stack([p.grad + 0.95 * self.state[p]["momentum"] for p in members])
            x = x.mT if shape[0] > shape[1] else x
            x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
            for _ in range(5):
                square = x @ x.mT
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            x = x.mT if shape[0] > shape[1] else x
            rate = self.param_groups[0]["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
            for p, change in zip(members, x, strict=True):
                p.mul_(1 - 0.02 * self.param_groups[0]["lr"]).sub_(change, alpha=rate)
