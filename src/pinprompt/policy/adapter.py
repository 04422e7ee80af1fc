"""psi, the only trained component, and its slow copy."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

GAIN = 1e-4
BIAS = -1e-4


class Adapter(nn.Module):
    """psi: Linear(d, hidden) - ReLU - Linear(hidden, d), without a residual connection.

    Weights are Xavier-uniform with gain 1e-4 and biases are -1e-4, as published, so that Q starts near zero and the
    first policy is nearly uniform over the kept tokens. Weights are drawn from a separate generator, seeded here.
    """

    def __init__(self, dim: int, hidden: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # Nothing is drawn on the meta device, so the global random state does not change.
        self.inner = nn.Linear(dim, hidden, device="meta").to_empty(device="cpu")
        self.outer = nn.Linear(hidden, dim, device="meta").to_empty(device="cpu")
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight, gain=GAIN, generator=generator)
            nn.init.constant_(layer.bias, BIAS)

    def forward(self, states: Tensor) -> Tensor:
        """psi(e), [..., d] to [..., d]."""
        output: Tensor = self.outer(torch.relu(self.inner(states)))
        return output

    def slow_copy(self) -> Adapter:
        """A copy theta' that no gradient reaches."""
        return copy.deepcopy(self).requires_grad_(False)


@torch.no_grad()
def follow(slow: Adapter, psi: Adapter, rho: float) -> None:
    """Move the slow copy: theta' <- rho theta' + (1 - rho) theta."""
    for theta_slow, theta in zip(slow.parameters(), psi.parameters(), strict=True):
        theta_slow.mul_(rho).add_(theta, alpha=1 - rho)
