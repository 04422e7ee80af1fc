"""The record (`Book`) that every search keeps: prompts tried, random streams, position and time."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.methods.selection import Heats, Raced, score_whole
from pinprompt.values import Event, Prompt, Score, derive

Tensors = Mapping[str, Tensor]
TRIALS = "trials"
"""The checkpoint's stream of scored prompts, in order."""


@dataclass
class Trial:
    """A scored prompt; with a stochastic task, its value is the mean of its scores."""

    prompt: Prompt
    total: float
    count: int
    order: int
    dev: float | None = None
    merit: float | None = None
    """The method's own ranking value, if that is not the task's score."""
    heats: int = 0
    """Number of blocks of rows that it was scored on, in a race: prompts with more rows rank first."""

    @property
    def mean(self) -> float:
        return self.total / self.count


class Book:
    """The trials and the position of one search.

    A step counts as a whole or not at all: `save` writes the state of the last `remember`, with the events and scores
    up to then, so a resumed run repeats a step that the budget cut short. Prompts scored in such a step are still
    candidates.

    `source` names the candidates; `streams` names the random streams, by default one named like the source.
    """

    def __init__(self, search: Search, source: str, streams: Sequence[str] = ()) -> None:
        self.search, self.source = search, source
        self.streams = {name: torch.Generator().manual_seed(derive(search.seed, name)) for name in streams or (source,)}
        self.step = 0
        self.new = 0
        """How many prompts of the last scoring were new."""
        self._trials: dict[str, Trial] = {}
        self._last: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []
        self._state: Mapping[str, Any] = {}
        self._tensors: Tensors | Callable[[], Tensors] = {}
        self._places = self._stream_places()
        self._heats = Heats(search.task, search.evaluator, search.scoring.race) if search.scoring.race else None
        self._since = time.perf_counter()
        self._phases: dict[str, float] = {}
        search.checkpoint.mark()

    def __len__(self) -> int:
        return len(self._trials)

    @property
    def random(self) -> torch.Generator:
        """The first random stream; most methods have only one."""
        return next(iter(self.streams.values()))

    # From prompts to trials.

    def score(self, prompts: Sequence[Prompt]) -> list[Score]:
        """Score prompts on train and record them, including those scored before the budget was spent."""
        try:
            raced = self._raced(prompts)
        except BudgetSpent as spent:
            for prompt, one in zip(prompts, spent.scores, strict=False):
                self._enter(prompt, one.score.value, heats=len(one.means))
            raise BudgetSpent(str(spent), scores=[one.score for one in spent.scores]) from None
        known = len(self._trials)
        for prompt, one in zip(prompts, raced, strict=True):
            self._enter(prompt, one.score.value, heats=len(one.means))
        self.new = len(self._trials) - known
        self._last = [
            {"text": prompt.text, "ids": prompt.ids, "score": one.score.value}
            | ({"heats": one.means} if one.means else {})
            for prompt, one in zip(prompts, raced, strict=True)
        ]
        self._pending += self._last
        return [one.score for one in raced]

    def score_whole(self, prompt: Prompt) -> float:
        """The score of a prompt on all of train, without recording it as a trial."""
        if self._heats is not None:
            score_whole(self.search.task, self.search.evaluator, [prompt])
        return self.search.evaluator.score([prompt])[0].value

    def _raced(self, prompts: Sequence[Prompt]) -> list[Raced]:
        if self._heats is not None:
            return self._heats.score(prompts)
        try:
            return [Raced(score) for score in self.search.evaluator.score(list(prompts))]
        except BudgetSpent as spent:
            raise BudgetSpent(str(spent), scores=[Raced(score) for score in spent.scores]) from None

    def annotate(self, notes: Sequence[Mapping[str, Any]]) -> None:
        """Store further facts with each prompt of the last scoring; `rows` returns them to a resumed run."""
        for row, note in zip(self._last, notes, strict=True):
            row.update(note)

    def rank(self, prompt: Prompt, merit: float) -> None:
        """Rank a scored prompt by the method's own measure."""
        self._trials[prompt.text].merit = merit
        for row in self._pending:
            if row["text"] == prompt.text and "score" in row:
                row["merit"] = merit

    def score_on_dev(self, prompt: Prompt) -> float | None:
        """The dev score of a prompt that was tried on train; None if the task has no dev split."""
        if "dev" not in self.search.task.splits:
            return None
        trial = self._trials[prompt.text]
        if trial.dev is None:
            if self._heats is not None:
                score_whole(self.search.task, self.search.evaluator, [prompt])
            trial.dev = self.search.evaluator.score([prompt], "dev")[0].value
            self._pending.append({"text": prompt.text, "dev": trial.dev})
        return trial.dev

    def mean_of(self, prompt: Prompt) -> float | None:
        """The mean training score of a text so far; None if it was not tried."""
        trial = self._trials.get(prompt.text)
        return None if trial is None else trial.mean

    def best(self, count: int) -> list[Candidate]:
        """The best prompts: those with most rows, by dev score if any has one, by merit or training score."""
        worst = float("-inf")

        def key(trial: Trial) -> tuple[int, float, float, int]:
            merit = trial.mean if trial.merit is None else trial.merit
            return -trial.heats, -(worst if trial.dev is None else trial.dev), -merit, trial.order

        return [
            Candidate(trial.prompt, self.source, trial.mean)
            for trial in heapq.nsmallest(count, self._trials.values(), key=key)
        ]

    # Position: remembered after every step, saved from time to time, restored on resuming.

    def remember(
        self,
        step: int,
        state: Mapping[str, Any] | None = None,
        tensors: Tensors | Callable[[], Tensors] | None = None,
    ) -> None:
        """Remember the position: the next step; all earlier ones are done.

        Tensors are copied now. A function is called on saving instead: for large tensors that a step only changes
        after its last scoring, so that a step that was cut short does not change them.
        """
        self.step, self._state = step, dict(state or {})
        if callable(tensors):
            self._tensors = tensors
        else:
            self._tensors = {name: tensor.detach().clone() for name, tensor in (tensors or {}).items()}
        self._places = self._stream_places()
        self.search.checkpoint.append(TRIALS, self._pending)
        self._pending = []
        self.search.checkpoint.mark()

    def save_if_due(self) -> None:
        """Save if enough time has passed."""
        if self.search.checkpoint.due():
            self.save()

    def save(self) -> None:
        """Save the remembered position as a checkpoint."""
        tensors = self._tensors() if callable(self._tensors) else self._tensors
        self.search.checkpoint.save(self.step, self._state, {**tensors, **self._places})

    def resume(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The method's own state and tensors at the last checkpoint; None in a fresh run."""
        loaded = self.search.checkpoint.load()
        if loaded is None:
            return None
        self.step, state, tensors = loaded
        for name, stream in self.streams.items():
            stream.set_state(tensors[f"rng.{name}"])
        for row in self.search.checkpoint.stream(TRIALS):
            if "score" in row:
                means = row.get("heats", ())
                self._enter(Prompt(row["text"], tuple(row["ids"])), row["score"], row.get("merit"), len(means))
                if self._heats is not None:
                    self._heats.enter(row["text"], means)
            else:
                self._trials[row["text"]].dev = row["dev"]
        self._state, self._tensors, self._places = state, tensors, self._stream_places()
        return state, tensors

    def rows(self) -> Iterator[dict[str, Any]]:
        """The scored prompts up to the last checkpoint, with the facts from `annotate`."""
        return (row for row in self.search.checkpoint.stream(TRIALS) if "score" in row)

    def finish(self, stopped: str, finalists: int, extras: Mapping[str, Any] | None = None) -> Outcome:
        """Save the end of the search and return the candidates."""
        self.save()
        return Outcome(self.best(finalists), stopped, self.step, dict(extras or {}))

    def diverged(self, finalists: int, sentence: str) -> Outcome:
        """End a search that cannot continue: an error if nothing was found, else the best so far and the reason."""
        if not self._trials:
            raise SettingError(sentence)
        self.search.emit(Event("problem", self.step, {"reason": sentence}))
        return Outcome(self.best(finalists), "diverged", self.step, {"problem": sentence})

    # Events and costs of a step.

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of a phase to the step's costs."""
        started = time.perf_counter()
        yield
        self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - started

    def tell(self, step: int, values: Sequence[float], costs: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Emit the event of a step: its scores, the best so far, and further facts from the method."""
        best = max(self._trials.values(), key=lambda trial: (trial.heats, trial.mean, -trial.order), default=None)
        data: dict[str, Any] = {
            "score_mean": round(sum(values) / len(values), 6) if values else None,
            "score_best": None if best is None else round(best.mean, 6),
            "best_prompt": "" if best is None else best.prompt.text,
            "distinct": len(self._trials),
            **({} if "loss" in more else {"loss": None}),
            **more,
            "calls": self.search.evaluator.charged_calls,
        }
        if data["loss"] is not None:
            data["loss"] = round(data["loss"], 6)
        self.search.emit(Event("step", step, data, {**self._costs(), **(costs or {})}))

    def _enter(self, prompt: Prompt, value: float, merit: float | None = None, heats: int = 0) -> None:
        trial = self._trials.get(prompt.text)
        if trial is None:
            # Equal texts count as one prompt.
            order = len(self._trials)
            self._trials[prompt.text] = Trial(replace(prompt, draw=None), value, 1, order, merit=merit, heats=heats)
        elif not trial.heats:  # a raced prompt has the score of its rows, and a repeat is scored on no others
            trial.total += value
            trial.count += 1

    def _stream_places(self) -> dict[str, Tensor]:
        return {f"rng.{name}": stream.get_state() for name, stream in self.streams.items()}

    def _costs(self) -> dict[str, Any]:
        now = time.perf_counter()
        costs: dict[str, Any] = {name: round(seconds, 4) for name, seconds in self._phases.items()}
        costs["seconds"] = round(now - self._since, 4)
        self._since, self._phases = now, {}
        evaluator = self.search.evaluator
        return {**costs, "paid_calls": evaluator.paid_calls, "memo_hits": evaluator.memo_hits}
