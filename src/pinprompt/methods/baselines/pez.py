"""PEZ, Algorithm 1 of its paper: the gradient at the nearest words is applied to continuous vectors."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import BudgetSpent
from pinprompt.methods.gradients import Descent, Gradients, TokenSpace, finite, rounds, runaway, view_of
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.methods.trials import Trials
from pinprompt.recipe.sections import PezSettings
from pinprompt.values import Prompt


def pez(search: Search, settings: PezSettings) -> Outcome:
    """Optimise until the steps or the budget end; projected prompts are scored as texts, and the best are kept."""
    run = _Projected(search, settings)
    trials = run.trials
    try:
        for step in range(run.begin(), settings.steps):
            # P' = Proj_E(P): the nearest words, from left to right if the constraints couple them.
            ids = run.space.project(run.descent.vectors)
            projected = run.space.vectors(ids)
            # g = grad_P' L(P', minibatch).
            loss, gradient = run.gradients(projected, run.minibatch())
            if not finite(loss, gradient):
                return run.finish("diverged", runaway("pez", step, settings.learning_rate))
            run.note(ids, loss)
            if step % settings.eval_every == 0 or step + 1 == settings.steps:
                run.score(step, ids)
            # P = P - rate * g, by way of the optimiser; the continuous P is kept.
            run.move(gradient)
            run.remember(step + 1)
            trials.save_if_due()
    except BudgetSpent:
        return run.finish("budget")
    return run.finish("finished")


CLIP = 1.0
"""Maximum norm of a gradient for Adafactor, as published for language models."""


def _adafactor(vectors: list[Tensor], lr: float) -> torch.optim.Optimizer:
    """Adafactor with a fixed learning rate, as published; torch's own version always decreases it."""
    from transformers.optimization import Adafactor

    fixed = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    optimiser: torch.optim.Optimizer = Adafactor(vectors, lr=lr, weight_decay=0.0, **fixed)
    return optimiser


def _adamw(vectors: list[Tensor], lr: float) -> torch.optim.Optimizer:
    """AdamW with the weight decay that was published for CLIP, where gradients are not clipped."""
    return torch.optim.AdamW(vectors, lr=lr, weight_decay=0.1)


OPTIMISERS = {"adafactor": _adafactor, "adamw": _adamw}


class _Projected:
    """What changes while PEZ runs."""

    def __init__(self, search: Search, settings: PezSettings) -> None:
        self.search, self.settings, policy = search, settings, search.policy
        self.view = view_of(search, "pez")
        labels: tuple[str, ...] = tuple(getattr(self.view, "label_words", ()))
        self.space = TokenSpace(self.view, policy.length, policy.constraints)
        self.trials = Trials(search, "pez")
        self.gradients = Gradients(search, self.view)
        self.held: Any = None
        self.least: tuple[float, list[int]] | None = None
        self.losses: list[float] = []
        self.queue: list[list[int]] = []
        start = self.space.draw(self.trials.random)
        if labels:  # as published for language models; random words otherwise
            spelled = [token for word in labels for token in self.space.vocabulary.tokens.encode(" " + word)]
            start = tuple(spelled[place % len(spelled)] for place in range(self.space.length))
        vectors = self.space.vectors(start).float().clone()
        self.descent = Descent(vectors, partial(OPTIMISERS[settings.optimiser], lr=settings.learning_rate))

    def begin(self) -> int:
        """Resume from the last checkpoint, if there is one, and reserve the cost of the last scoring."""
        resumed = self.trials.resume()
        if resumed is None:
            self.remember(0)
        else:
            state, tensors = resumed
            self.descent.restore(tensors)
            self.least, self.losses, self.queue = state["least"], list(state["losses"]), list(state["queue"])
        price = sum(self.search.calls(split) for split in ("train", "dev") if split in self.search.splits)
        self.held = self.search.evaluator.budget.reserve(2 * price)
        return self.trials.step

    def minibatch(self) -> list[int]:
        """The next training rows of an epoch; a new epoch starts when one ends."""
        if not self.queue:
            self.queue = list(rounds(self.search.rows(), self.trials.random))
        rows, self.queue = self.queue[0], self.queue[1:]
        return rows

    def note(self, ids: tuple[int, ...], loss: float) -> None:
        """Keep the prompt with the lowest loss since the last scoring, to be scored too."""
        self.losses.append(loss)
        if self.least is None or loss < self.least[0]:
            self.least = (loss, list(ids))

    def score(self, step: int, ids: tuple[int, ...] = ()) -> None:
        """Score the projected prompt and the one with the lowest loss as texts, also on dev if there is one."""
        waiting = [tuple(self.least[1])] if self.least else []
        texts = dict.fromkeys(self.space.text(some) for some in (ids, *waiting) if some)
        values: list[float] = []
        for prompt in map(Prompt, texts):
            # Texts that were scored before are not scored again.
            known = self.trials.mean_of(prompt)
            values.append(self.trials.score([prompt])[0].value if known is None else known)
            self.trials.score_on_dev(prompt)
        self.trials.tell(step, values, loss=sum(self.losses) / len(self.losses))
        self.least, self.losses = None, []

    def move(self, gradient: Tensor) -> None:
        """One step of the optimiser on the continuous vectors, with the gradient of the projected ones."""
        if self.settings.optimiser == "adafactor":
            gradient = gradient * min(1.0, CLIP / (float(gradient.norm()) + 1e-6))
        self.descent.step(gradient)

    def remember(self, step: int) -> None:
        """The state that the next step depends on."""
        state = {"least": self.least, "losses": list(self.losses), "queue": list(self.queue)}
        self.trials.remember(step, state, self.descent.state())

    def finish(self, stopped: str, problem: str = "") -> Outcome:
        """Score the prompt with the lowest loss from the reserved calls, and return the best."""
        self.trials.save()
        if self.held is not None:
            self.search.evaluator.budget.release(self.held)
            if self.least is not None:
                with contextlib.suppress(BudgetSpent):
                    self.score(self.trials.step)
        if problem:
            return self.trials.diverged(problem)
        return Outcome(self.trials.best(), stopped, self.trials.step)
