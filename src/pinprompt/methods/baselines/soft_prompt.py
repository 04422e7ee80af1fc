"""Soft prompt tuning: vectors in the prompt's place, trained by gradient descent. The answer is a tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.files import write_tensors
from pinprompt.methods.gradients import Descent, Gradients, TokenSpace, finite, rounds, runaway, view_of
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.methods.trials import Trials
from pinprompt.recipe.sections import Constraints, SoftPromptSettings
from pinprompt.tasks.protocol import Differentiable, report_fit_rows
from pinprompt.values import Event, derive

FILE = "vectors.safetensors"


def soft_prompt(search: Search, settings: SoftPromptSettings) -> Outcome:
    """Train until the epochs or the budget end; the best vectors on dev are saved in the run folder."""
    run = _Tuning(search, settings, search.policy.length)
    stopped, problem = "finished", ""
    try:
        run.begin()
        for epoch in range(run.trials.step, settings.epochs):
            if not run.train():
                stopped, problem = "diverged", runaway("soft_prompt", epoch, settings.learning_rate)
                break
            if (epoch + 1) % settings.eval_every == 0 or epoch + 1 == settings.epochs:
                run.measure(epoch + 1)
            run.remember(epoch + 1)
            run.trials.save_if_due()
    except BudgetSpent:
        stopped = "budget"
    return run.finish(stopped, problem)


@dataclass
class _Best:
    """The best vectors so far, with their scores."""

    vectors: Tensor
    epoch: int
    score: float
    dev: float | None

    @property
    def rank(self) -> tuple[float, float]:
        return (self.score if self.dev is None else self.dev), self.score


class _Tuning:
    """What changes while vectors are trained."""

    def __init__(self, search: Search, settings: SoftPromptSettings, count: int) -> None:
        self.search, self.settings, self.count = search, settings, count
        self.view = view_of(search, "soft-prompt")
        self.gradients = Gradients(search, self.view)
        self.trials = Trials(search, "soft-prompt")
        self.best: _Best | None = None
        self.losses: list[float] = []
        self.held: Any = None
        vectors = start(self.view, count, self.trials.random)
        self.descent = Descent(vectors, lambda vectors: torch.optim.Adam(vectors, lr=settings.learning_rate))
        self._whole = (self.now(), self.losses)

    def now(self) -> Tensor:
        return self.descent.vectors.detach().clone()

    def begin(self) -> None:
        """Resume from a checkpoint, or score the initial vectors; reserve the cost of the final scoring."""
        resumed = self.trials.resume()
        if resumed is not None:
            state, tensors = resumed
            self.descent.restore(tensors)
            self.losses = list(state["losses"])
            self._whole = (self.now(), self.losses)
            if state["best"] is not None:
                self.best = _Best(tensors["best"].to(self.descent.vectors.device), **state["best"])
        else:
            self.measure(0)
            self.remember(0)
        self.held = self.search.evaluator.budget.reserve(self._price())

    def train(self) -> bool:
        """One epoch; returns False if the loss is no longer finite."""
        for rows in rounds(self.search.rows(), self.trials.random):
            loss, gradient = self.gradients(self.descent.vectors, rows)
            if not finite(loss, gradient):
                return False
            self.descent.step(gradient)
            self.losses.append(loss)
        return True

    def measure(self, epoch: int) -> None:
        """Score the current vectors on the task; the best on dev are kept."""
        self.search.evaluator.charge(self._price())
        score = self._score("train")
        dev = self._score("dev") if "dev" in self.search.splits else None
        now = _Best(self.now(), epoch, score, dev)
        if self.best is None or now.rank > self.best.rank:
            self.best = now
        loss = sum(self.losses) / len(self.losses) if self.losses else None
        self.losses = []
        self.trials.tell(epoch, [score], loss=loss, score_best=round(self.best.score, 6), dev=dev)

    def remember(self, epoch: int) -> None:
        """The state that the next epoch depends on."""
        best = self.best
        state = {
            "losses": list(self.losses),
            "best": None if best is None else {"epoch": best.epoch, "score": best.score, "dev": best.dev},
        }
        tensors = self.descent.state()
        if best is not None:
            tensors["best"] = best.vectors
        self.trials.remember(epoch, state, tensors)
        self._whole = (self.now(), list(self.losses))

    def finish(self, stopped: str, problem: str) -> Outcome:
        """Score the vectors after the last complete epoch, save the best vectors, and evaluate them for the report."""
        self.trials.save()
        if self.held is not None:
            self.search.evaluator.budget.release(self.held)
        steps = self.trials.step
        vectors, losses = self._whole
        if losses:  # epochs that are not scored yet; not possible once the minutes are used up
            with contextlib.suppress(BudgetSpent):
                self.descent.place(vectors)
                self.losses = losses
                self.measure(steps)
        if problem:
            self.search.emit(Event("problem", steps, {"reason": problem}))
        if self.best is None:
            sentence = f"the budget does not cover scoring the first vectors, which takes {self._price()} calls"
            raise SettingError(problem or f"{sentence}; raise budget.calls")
        extras: dict[str, Any] = {"output": "tensor", "tensor": FILE, "vectors": list(self.best.vectors.shape)}
        extras |= {"score": self.best.score, "best_epoch": self.best.epoch, **({"problem": problem} if problem else {})}
        about = {"what": "prompt vectors [n, d] in the task model's input space",
                 "task": self.search.task.info.fingerprint}  # fmt: skip
        write_tensors(self.search.folder / FILE, {"prompt": self.best.vectors}, about)
        space = TokenSpace(self.view, self.count, Constraints())
        nearest = space.project(self.best.vectors)
        cosines = space.cosines(self.best.vectors)
        extras["nearest_words"] = [space.word(token) for token in nearest]
        extras["nearest_cosines"] = [round(float(row[token]), 4) for row, token in zip(cosines, nearest, strict=True)]
        return Outcome([], stopped, steps, extras | self._report(steps))

    def _report(self, step: int) -> dict[str, Any]:
        """The metrics for the report, charged to the report as for text prompts, with labels read as theirs are."""
        assert self.best is not None
        task, budget = self.search.task, self.search.evaluator.budget
        found: dict[str, Any] = {}
        held_out = [split for split in self.search.splits if split in ("dev", "test")] or ["train"]
        fit, shown = report_fit_rows(task), [row for split in held_out for row in self.search.rows(split)]
        asked = tuple(dict.fromkeys((*fit, *shown)))
        budget.settle(budget.reserve(len(asked), report=True))
        answers = self.view.answers(self.best.vectors, asked)
        for split in held_out:
            rows, seed = self.search.rows(split), derive(self.search.seed, "task", "evaluation", split)
            evaluation = task.metrics(answers, rows, fit, seed)
            intervals = {name: list(ends) for name, ends in evaluation.intervals.items()}
            facts: Mapping[str, Any] = {"metrics": dict(evaluation.metrics), "intervals": intervals}
            about = {"name": "found", "prompt": "", "split": split, **facts, "rows": evaluation.rows}
            self.search.emit(Event("evaluation", step, about))
            found[split] = evaluation.facts()
            found["tables"] = dict(evaluation.tables)
        return found

    def _score(self, split: str) -> float:
        """The task's own score of the vectors on a split, without calibration."""
        rows = self.search.rows(split)
        return float(np.mean(self.search.task.values(self.view.answers(self.descent.vectors, rows), rows)))

    def _price(self) -> int:
        return sum(len(self.search.rows(split)) for split in ("train", "dev") if split in self.search.splits)


def start(view: Differentiable, count: int, random: torch.Generator) -> Tensor:
    """Initial vectors [n, d]: those of random tokens."""
    embeddings: Tensor = view.embeddings.detach().float()
    known = min(len(embeddings), len(view.tokenizer))
    chosen = torch.randint(known, (count,), generator=random)
    return embeddings[chosen.to(embeddings.device)].clone()
