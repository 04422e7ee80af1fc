"""PEZ, Algorithm 1 of its paper: the gradient at the nearest words is applied to continuous vectors."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import BudgetSpent
from pinprompt.methods.bookkeeping import Book
from pinprompt.methods.gradients import Descent, Gradients, TokenSpace, finite, rounds, runaway, view_of
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import PezSettings
from pinprompt.values import Prompt


def pez(search: Search, settings: PezSettings) -> Outcome:
    """Optimise until the steps or the budget end; projected prompts are scored as texts, and the best are kept."""
    run = _Run(search, settings)
    book = run.book
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
            run.move(gradient, projected)
            run.remember(step + 1)
            book.save_if_due()
    except BudgetSpent:
        return run.finish("budget")
    return run.finish("finished")


def _adafactor(vectors: list[Tensor], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adafactor with a fixed learning rate, as published; torch's own version always decreases it."""
    from transformers.optimization import Adafactor

    fixed = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    optimiser: torch.optim.Optimizer = Adafactor(vectors, lr=lr, weight_decay=weight_decay, **fixed)
    return optimiser


class _Run:
    """What changes while PEZ runs."""

    def __init__(self, search: Search, settings: PezSettings) -> None:
        self.search, self.settings, policy = search, settings, search.policy
        self.view = view_of(search, "pez")
        labels: tuple[str, ...] = tuple(getattr(self.view, "label_words", ()))
        without = labels if settings.skip_label_words else ()
        self.space = TokenSpace(self.view, settings.tokens or policy.length, policy.constraints, without)
        self.book = Book(search, "pez")
        self.gradients = Gradients(search, self.view)
        self.held: Any = None
        self.least: tuple[float, list[int]] | None = None
        self.losses: list[float] = []
        self.queue: list[list[int]] = []
        start = self.space.draw(self.book.random)
        if settings.init == "labels" and labels:
            spelled = [token for word in labels for token in self.space.vocabulary.tokens.encode(" " + word)]
            start = tuple(spelled[place % len(spelled)] for place in range(self.space.length))
        optimiser = _adafactor if settings.optimiser == "adafactor" else torch.optim.AdamW
        rate, decay = settings.learning_rate, settings.weight_decay
        vectors = self.space.vectors(start).float().clone()
        self.descent = Descent(vectors, lambda vectors: optimiser(vectors, lr=rate, weight_decay=decay))

    def begin(self) -> int:
        """Resume from the last checkpoint, if there is one, and reserve the cost of the last scoring."""
        resumed = self.book.resume()
        if resumed is None:
            self.remember(0)
        else:
            state, tensors = resumed
            self.descent.restore(tensors)
            self.least, self.losses, self.queue = state["least"], list(state["losses"]), list(state["queue"])
        task = self.search.task
        price = sum(task.calls(split) for split in ("train", "dev") if split in task.splits)
        self.held = self.search.evaluator.budget.reserve(2 * price)
        return self.book.step

    def minibatch(self) -> list[int]:
        """The next training rows of an epoch; a new epoch starts when one ends."""
        if not self.queue:
            self.queue = list(rounds(self.view.rows("train"), self.settings.batch, self.book.random))
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
            known = self.book.mean_of(prompt)
            values.append(self.book.score([prompt])[0].value if known is None else known)
            self.book.score_on_dev(prompt)
        self.book.tell(step, values, loss=sum(self.losses) / len(self.losses))
        self.least, self.losses = None, []

    def move(self, gradient: Tensor, projected: Tensor) -> None:
        """One step of the optimiser on the continuous vectors, with the gradient of the projected ones."""
        if self.settings.clip is not None:
            gradient = gradient * min(1.0, self.settings.clip / (float(gradient.norm()) + 1e-6))
        if self.settings.degenerate:
            # The released code saves the projection as if it were the continuous copy: plain projected descent.
            self.descent.place(projected)
        self.descent.step(gradient)

    def remember(self, step: int) -> None:
        """The state that the next step depends on."""
        state = {"least": self.least, "losses": list(self.losses), "queue": list(self.queue)}
        self.book.remember(step, state, self.descent.state())

    def finish(self, stopped: str, problem: str = "") -> Outcome:
        """Score the prompt with the lowest loss from the reserved calls, and return the best."""
        self.book.save()
        if self.held is not None:
            self.search.evaluator.budget.release(self.held)
            if self.least is not None:
                with contextlib.suppress(BudgetSpent):
                    self.score(self.book.step)
        if problem:
            return self.book.diverged(self.settings.finalists, problem)
        return Outcome(self.book.best(self.settings.finalists), stopped, self.book.step)
