"""The update of Algorithm 1: targets from the slow copy, one gradient step on psi, update of the slow copy.

No tensor has both the size of the vocabulary and a gradient: Q of the chosen token is one row of the head, and values
of next prefixes are computed once per distinct prefix and without a graph (docs/method.md, "Exact savings").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import TaskError
from pinprompt.maths import targets
from pinprompt.maths.state_values import differentiable_value, kept_value, taken
from pinprompt.policy.adapter import Adapter, follow
from pinprompt.policy.reader import Prefix
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import QLearningSettings

GAMMA = 1.0
"""Discount factor per token, as published: a prompt is rewarded as a whole."""
MAX_NORM = 5.0
"""Maximum norm of a gradient, as published."""


class ActionSets(Sequence[Any]):
    """The action sets of many prefixes, loaded a few at a time, since all at once may not fit in memory.

    Each is a mask of the allowed tokens (packed if it comes from the tree).
    """

    def __init__(self, prefixes: list[Prefix], sets: Callable[[list[Prefix]], Any]) -> None:
        self._prefixes, self._sets = prefixes, sets

    def __len__(self) -> int:
        return len(self._prefixes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._sets(self._prefixes[index])
        return self._sets([self._prefixes[index]])[0]


@dataclass(frozen=True)
class Update:
    """Statistics of one gradient step."""

    loss: float
    q_min: float
    q_max: float
    v_min: float
    v_max: float


class Learner:
    """psi, its slow copy and the optimiser."""

    def __init__(self, writer: Writer, settings: QLearningSettings) -> None:
        self.writer = writer
        self.settings = settings
        self.reset()

    def restart(self, seed: int) -> None:
        old = self.writer.psi
        self.writer.psi = Adapter(old.inner.in_features, old.inner.out_features, seed).to(old.inner.weight.device)
        self.reset()

    def reset(self) -> None:
        """Start from the writer's psi: theta' <- theta, a new optimiser."""
        self.slow = self.writer.psi.slow_copy()
        self.optimiser = torch.optim.Adam(self.writer.psi.parameters(), lr=self.settings.learning_rate)

    def update(self, ids: Tensor, rewards: Tensor) -> Update:
        """One step on episodes `ids` [B, L] with rewards (already scaled by 1/alpha): [B], or [B, L] by token."""
        prefixes, place = distinct_prefixes(ids)
        e = self.writer.tree.states(prefixes)
        hat_e = self.writer.psi(e)
        place = place.to(e.device)
        q_t = taken(hat_e[place], self.writer.backbone.head, ids.to(e.device)) + self.settings.logit_bias
        loss, values = self._loss(q_t, hat_e, e, prefixes, place, rewards.to(e.device))
        if not torch.isfinite(loss):
            raise TaskError(
                "the loss is no longer finite: lower q_learning.learning_rate or raise q_learning.alpha; "
                "the best prompts so far are kept"
            )
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.writer.psi.parameters(), MAX_NORM)
        self.optimiser.step()
        follow(self.slow, self.writer.psi, self.settings.rho)
        q = q_t.detach()
        low, high = (values.min().item(), values.max().item()) if len(values) else (0.0, 0.0)
        return Update(loss.item(), q.min().item(), q.max().item(), low, high)

    def _loss(
        self, q_t: Tensor, hat_e: Tensor, e: Tensor, prefixes: list[Prefix], place: Tensor, rewards: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of the chosen target, and the values that went into it."""
        settings, length = self.settings, place.shape[1]
        if settings.target == "monte-carlo":
            if rewards.ndim == 2:
                target = targets.monte_carlo_gains(rewards, GAMMA)
            else:
                target = targets.monte_carlo(rewards, length, GAMMA)
            return targets.squared_error(q_t, target), torch.empty(0)
        if settings.target == "bootstrap":
            v = torch.zeros(len(prefixes), device=e.device)
            later = [row for row, prefix in enumerate(prefixes) if prefix]  # the empty prefix is never a next state
            if later:
                v[later] = self._slow_values(e[later], [prefixes[row] for row in later])
            estimate = targets.bootstrapped_gains if rewards.ndim == 2 else targets.bootstrapped
            target = estimate(rewards, v[place[:, 1:]], GAMMA)
            return targets.squared_error(q_t, target), v[later]
        v_slow = self._slow_values(e, prefixes)[place]
        head, bias = self.writer.backbone.head, settings.logit_bias
        v = differentiable_value(hat_e, head, self._action_sets(prefixes), settings.entropy, bias=bias)[place]
        if settings.target == "path-single":
            loss = targets.path_single(q_t, v, v_slow, rewards, GAMMA)
        elif settings.target == "path-multi":
            loss = targets.path_multi(q_t, v, v_slow, rewards)
        else:
            loss = targets.path_mean(q_t, v, v_slow, rewards, GAMMA)
        return loss, v.detach()

    @torch.no_grad()
    def _slow_values(self, e: Tensor, prefixes: list[Prefix]) -> Tensor:
        """V of the slow copy at each prefix, [N]."""
        backbone, bias = self.writer.backbone, self.settings.logit_bias
        return kept_value(
            self.slow(e), backbone.head, self._action_sets(prefixes), self.settings.entropy, bias=bias,
            product=backbone.over_vocabulary, each=backbone.side_by_side,
        )  # fmt: skip

    def _action_sets(self, prefixes: list[Prefix]) -> ActionSets:
        """Which tokens count in a value: masks of what the filter keeps, or of all that may be written."""
        sets = self.writer.tree.packed if self.settings.filter == "values" else self.writer.allowed
        return ActionSets(prefixes, sets)

    def state(self) -> dict[str, Tensor]:
        """The state for a checkpoint: psi, its slow copy and Adam's moments."""
        tensors = {f"psi.{name}": tensor for name, tensor in self.writer.psi.state_dict().items()}
        tensors |= {f"slow.{name}": tensor for name, tensor in self.slow.state_dict().items()}
        moments = self.optimiser.state_dict()["state"]
        for number, entry in moments.items():
            tensors |= {f"adam.{number}.{name}": tensor for name, tensor in entry.items()}
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        self.writer.psi.load_state_dict(part("psi."))
        self.slow.load_state_dict(part("slow."))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in part("adam.").items():
            number, _, key = name.partition(".")
            moments.setdefault(int(number), {})[key] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})


def distinct_prefixes(ids: Tensor) -> tuple[list[Prefix], Tensor]:
    """The distinct prefixes z_{0:t-1} of episodes [B, L], and the index of each in that list: [B, L]."""
    known: dict[Prefix, int] = {}
    place = [[known.setdefault(tuple(row[:t]), len(known)) for t in range(len(row))] for row in ids.tolist()]
    return list(known), torch.tensor(place)
