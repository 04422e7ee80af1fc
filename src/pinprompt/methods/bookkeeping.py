"""What a search keeps beside its own idea: prompts tried, random stream, place; kept, resumed and told alike."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.seeds import derive
from pinprompt.values import Event, Prompt, Score


@dataclass
class Trial:
    """A prompt that was scored; a stochastic task's prompt counts with the mean of its scores."""

    prompt: Prompt
    total: float
    count: int
    order: int
    dev: float | None = None
    merit: float | None = None
    """What the method itself ranks by, where that is not the task's score."""

    @property
    def mean(self) -> float:
        return self.total / self.count


class Progress:
    """The trials and the place of one search.

    A step is done wholly or not at all: what `remember` was told last is what `save` writes, so a step that the budget
    cut short is done again by a resumed run. What it paid for still counts among the candidates.
    """

    def __init__(self, search: Search, source: str) -> None:
        self.search, self.source = search, source
        self.random = torch.Generator().manual_seed(derive(search.seed, source))
        self.step = 0
        self._trials: dict[str, Trial] = {}
        self._pending: list[dict[str, Any]] = []
        self._state: Mapping[str, Any] = {}
        self._tensors: dict[str, Tensor] = {"rng": self.random.get_state()}
        self._since = time.perf_counter()

    def __len__(self) -> int:
        return len(self._trials)

    def mean_of(self, prompt: Prompt) -> float | None:
        """The mean training score of a text so far; None where it was not tried."""
        trial = self._trials.get(prompt.text)
        return None if trial is None else trial.mean

    def resume(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The method's own state and tensors at the last checkpoint; None in a fresh run."""
        loaded = self.search.checkpoint.load()
        if loaded is None:
            return None
        step, state, tensors = loaded
        self.random.set_state(tensors["rng"])
        for row in self.search.checkpoint.stream("trials"):
            prompt = Prompt(row["text"], tuple(row["ids"]))
            if row["score"] is not None:
                self._enter(prompt, row["score"], row["merit"])
            else:
                self._trials[prompt.text].dev = row["dev"]
        self.step, self._state, self._tensors = step, state, tensors
        return state, tensors

    def remember(
        self, step: int, state: Mapping[str, Any] | None = None, tensors: Mapping[str, Tensor] | None = None
    ) -> None:
        """The search stands before this step, with all earlier ones done."""
        self.step, self._state = step, dict(state or {})
        self._tensors = {name: tensor.detach().clone() for name, tensor in (tensors or {}).items()}
        self._tensors["rng"] = self.random.get_state()
        self.search.checkpoint.append("trials", self._pending)
        self._pending = []

    def save_if_due(self) -> None:
        """Save where enough time has passed."""
        if self.search.checkpoint.due():
            self.save()

    def save(self) -> None:
        """Make what was remembered last the checkpoint."""
        self.search.checkpoint.save(self.step, self._state, self._tensors)

    def score(self, prompts: Sequence[Prompt]) -> list[Score]:
        """Scores on train, booked; what a spent budget still paid for is booked too."""
        try:
            scores = self.search.evaluator.score(list(prompts))
        except BudgetSpent as spent:
            for prompt, score in zip(prompts, spent.scores, strict=False):
                self._enter(prompt, score.value)
            raise
        for prompt, score in zip(prompts, scores, strict=True):
            self._enter(prompt, score.value)
            row = {"text": prompt.text, "ids": prompt.ids, "score": score.value, "merit": None}
            self._pending.append(row)
        return scores

    def rank(self, prompt: Prompt, merit: float) -> None:
        """Let a scored prompt count by the method's own measure."""
        self._trials[prompt.text].merit = merit
        for row in self._pending:
            if row["text"] == prompt.text and row["score"] is not None:
                row["merit"] = merit

    def score_on_dev(self, prompt: Prompt) -> float | None:
        """The dev score of a prompt that was tried on train, booked; None where the task has no dev split."""
        if "dev" not in self.search.task.splits:
            return None
        trial = self._trials[prompt.text]
        if trial.dev is None:
            trial.dev = self.search.evaluator.score([prompt], "dev")[0].value
            self._pending.append({"text": prompt.text, "ids": prompt.ids, "score": None, "dev": trial.dev})
        return trial.dev

    def best(self, count: int) -> list[Candidate]:
        """The best prompts: by dev where any was tried there, then by merit or training score, then the earlier."""
        worst = float("-inf")

        def key(trial: Trial) -> tuple[float, float, int]:
            merit = trial.mean if trial.merit is None else trial.merit
            return -(worst if trial.dev is None else trial.dev), -merit, trial.order

        return [
            Candidate(trial.prompt, self.source, trial.mean)
            for trial in heapq.nsmallest(count, self._trials.values(), key=key)
        ]

    def tell(self, step: int, values: Sequence[float], loss: float | None = None, **more: Any) -> None:
        """What a step showed, to whoever listens."""
        best = max(self._trials.values(), key=lambda trial: (trial.mean, -trial.order), default=None)
        data: dict[str, Any] = {
            "score_mean": round(sum(values) / len(values), 6) if values else None,
            "score_best": None if best is None else round(best.mean, 6),
            "best_prompt": "" if best is None else best.prompt.text,
            "distinct": len(self._trials),
            "loss": None if loss is None else round(loss, 6),
            **more,
            "calls": self.search.evaluator.charged_calls,
        }
        self.search.emit(Event("step", step, data, self._costs()))

    def finish(self, stopped: str, finalists: int, extras: Mapping[str, Any] | None = None) -> Outcome:
        """Keep the end of the search, and hand over the candidates."""
        self.save()
        return Outcome(self.best(finalists), stopped, self.step, dict(extras or {}))

    def diverged(self, finalists: int, sentence: str) -> Outcome:
        """The search cannot go on: an error where nothing was found yet, else the best so far and why it stopped."""
        if not self._trials:
            raise SettingError(sentence)
        self.search.emit(Event("problem", self.step, {"reason": sentence}))
        return Outcome(self.best(finalists), "diverged", self.step, {"problem": sentence})

    def _enter(self, prompt: Prompt, value: float, merit: float | None = None) -> None:
        trial = self._trials.get(prompt.text)
        if trial is None:
            self._trials[prompt.text] = Trial(prompt, value, 1, len(self._trials), merit=merit)
        else:
            trial.total += value
            trial.count += 1

    def _costs(self) -> dict[str, Any]:
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        evaluator = self.search.evaluator
        return {"seconds": round(seconds, 4), "paid_calls": evaluator.paid_calls, "memo_hits": evaluator.memo_hits}
