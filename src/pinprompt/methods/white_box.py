"""What methods that use gradients share: the task's differentiable view, training rows in rounds, paid gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import ModelError
from pinprompt.methods.protocol import Search
from pinprompt.tasks.protocol import Differentiable

BLACK_BOX_METHODS = "pin, rlprompt and their variants, random, beam, grips, or a hand-written prompt"


def view_of(search: Search, method: str) -> Differentiable:
    """The task's differentiable view, or a sentence that names the methods that can do without."""
    make = getattr(search.task, "differentiable", None)
    if make is None:
        raise ModelError(
            f"the method '{method}' needs gradients of the task model, and the task '{search.task.name}' can only be "
            f"called; use one that needs none: {BLACK_BOX_METHODS}"
        )
    view: Differentiable = make()
    return view


def rounds(count: int, batch: int, random: torch.Generator) -> Iterator[list[int]]:
    """One round over `count` training rows in a random order, in minibatches; the last one may be smaller."""
    order: list[int] = torch.randperm(count, generator=random).tolist()
    for first in range(0, count, batch):
        yield order[first : first + batch]


class Gradients:
    """Losses with their gradients, charged before they are made: 1 call a row forward, 2 backward."""

    def __init__(self, search: Search, view: Differentiable) -> None:
        self.search, self.view = search, view

    def __call__(self, vectors: Tensor, rows: list[int]) -> tuple[float, Tensor]:
        """The mean loss over training rows and its gradient [n, d] at the given vectors."""
        self.search.evaluator.charge(3 * len(rows))
        point = vectors.detach().clone().requires_grad_(True)
        loss = self.view.loss(point, rows)
        (gradient,) = torch.autograd.grad(loss, point)
        return float(loss.detach()), gradient


def finite(loss: float, gradient: Tensor) -> bool:
    """True where a step may be taken on this."""
    return loss == loss and abs(loss) != float("inf") and bool(torch.isfinite(gradient).all())


def runaway(method: str, step: int, learning_rate: float | None) -> str:
    """What to say when a loss is no number any more."""
    advice = "" if learning_rate is None else f" Lower {method}.learning_rate, which is {learning_rate:g}."
    return f"the loss or its gradient was not a finite number at step {step}, so the search ended there.{advice}"


def optimiser_state(optimiser: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What an optimiser knows of its one parameter, as tensors for a checkpoint."""
    return {f"optimiser.{name}": torch.as_tensor(value) for name, value in optimiser.state[parameter].items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, parameter: Tensor, tensors: dict[str, Tensor]) -> None:
    """Take up what `optimiser_state` gave."""
    known: dict[str, Any] = {
        # Step counts stay on the CPU, where torch's optimisers keep them.
        name.removeprefix("optimiser."): tensor.to(parameter.device) if tensor.ndim else tensor
        for name, tensor in tensors.items()
        if name.startswith("optimiser.")
    }
    if known:
        optimiser.state[parameter] = known
