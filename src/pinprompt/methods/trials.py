"""The record (`Trials`) that every search keeps: prompts tried, random streams, position and time."""

from __future__ import annotations

import contextlib
import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pinprompt.answers.table import pack_rows, unpack_rows
from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.tasks.protocol import DrawsRows
from pinprompt.values import Event, Prompt, Score, derive

Tensors = Mapping[str, Tensor]
TRIALS = "trials"
"""The checkpoint's stream of the prompts that were tried, in order; their scores follow from the table."""
TIED, TIED_ROWS = 64, 8
"""If this many prompts have the very same score, and it is the mean of at least so many rows, the search ends."""


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

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def worth(self) -> float:
        """What it is ranked by."""
        return self.mean if self.merit is None else self.merit


class Trials:
    """The trials and the position of one search.

    A step counts as a whole or not at all: `save` writes the state of the last `remember`, with the events and scores
    up to then, so a resumed run repeats a step that the budget cut short. Prompts scored in such a step are still
    candidates.

    `source` names the candidates; `streams` names the random streams, by default one named like the source. `merit`
    ranks prompts, if that is not the task's score.
    """

    def __init__(
        self,
        search: Search,
        source: str,
        streams: Sequence[str] = (),
        merit: Callable[[Prompt, Score], float] | None = None,
    ) -> None:
        self.search, self.source, self._merit = search, source, merit
        self.streams = {name: torch.Generator().manual_seed(derive(search.seed, name)) for name in streams or (source,)}
        self.step = 0
        self.new = 0
        """How many prompts of the last scoring were new."""
        self._trials: dict[str, Trial] = {}
        self._scores: set[float] = set()
        """The first two different scores, if there are two."""
        self._pending: list[dict[str, Any]] = []
        self._state: Mapping[str, Any] = {}
        self._tensors: Tensors | Callable[[], Tensors] = {}
        self._places = self._stream_places()
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

    def score(self, prompts: Sequence[Prompt], step: int | None = None) -> list[Score]:
        """Score prompts on train and record them, including those scored before the budget was spent.

        With a `step`, a task that draws new rows at each step scores every prompt on those drawn for it.
        """
        rows = [self._rows_for(step, place) for place in range(len(prompts))]
        if len(self._scores) == 1 and len(self) >= TIED and len(rows[0]) >= TIED_ROWS:
            self.search.problem = (
                f"all {len(self)} prompts have the same score ({next(iter(self._scores)):g}) on {len(rows[0])} rows, "
                "so the search stops: look at the model's answers, and check that the labels or references can be "
                "answered"
            )
            self.search.emit(Event("problem", self.step, {"reason": self.search.problem}))
            raise BudgetSpent(self.search.problem)
        try:
            scores = self.search.evaluator.score_each(prompts, rows)
        except BudgetSpent as spent:
            for prompt, score in zip(prompts, spent.scores, strict=False):
                self._enter(prompt, score)
            raise
        self._record(prompts, scores)
        return scores

    def _rows_for(self, step: int | None, place: int) -> tuple[int, ...]:
        task = self.search.task
        drawn = task.rows_of_step(step, place) if step is not None and isinstance(task, DrawsRows) else ()
        return drawn or self.search.rows()

    def _record(self, prompts: Sequence[Prompt], scores: Sequence[Score]) -> None:
        known = len(self._trials)
        for prompt, score in zip(prompts, scores, strict=True):
            self._enter(prompt, score)
        self.new = len(self._trials) - known
        # Only what was asked: the scores follow from the table.
        tried = [[prompt.text, list(prompt.ids), pack_rows(score.rows), score.draw]
                 for prompt, score in zip(prompts, scores, strict=True)]  # fmt: skip
        self._pending.append({"tried": tried})

    def score_on_dev(self, prompt: Prompt) -> float | None:
        """The dev score of a prompt that was tried on train; None if the task has no dev split."""
        if "dev" not in self.search.splits:
            return None
        trial = self._trials[prompt.text]
        if trial.dev is None:
            score = self.search.evaluator.score([prompt], "dev")[0]
            trial.dev = score.value
            self._pending.append({"dev": [prompt.text, score.draw]})
        return trial.dev

    def merit_of(self, prompt: Prompt) -> float:
        return self._trials[prompt.text].worth

    def mean_of(self, prompt: Prompt) -> float | None:
        """The mean training score of a text so far; None if it was not tried."""
        trial = self._trials.get(prompt.text)
        return None if trial is None else trial.mean

    def best(self, count: int | None = None) -> list[Candidate]:
        """The finalists, or the `count` best prompts: by dev score if any has one, then by merit or training score."""
        count = self.search.scoring.finalists if count is None else count

        def key(trial: Trial) -> tuple[float, float, int]:
            return (math.inf if trial.dev is None else -trial.dev), -trial.worth, trial.order

        return [
            Candidate(trial.prompt, self.source, trial.mean)
            for trial in heapq.nsmallest(count, self._trials.values(), key=key)
        ]

    # Position: remembered after every step, saved from time to time, restored on resuming.

    def remember(
        self, step: int, state: Mapping[str, Any] | None = None, tensors: Tensors | Callable[[], Tensors] | None = None
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
        self.search.checkpoint.log(TRIALS).append(*self._pending)
        self._pending = []
        self.search.checkpoint.mark()

    def save_if_due(self) -> None:
        if self.search.checkpoint.due():
            self.save()

    def save(self) -> None:
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
            if "dev" in row:
                text, draw = row["dev"]
                trial = self._trials[text]
                trial.dev = self.search.evaluator.recall(trial.prompt, "dev", draw).value
            else:
                for prompt, score in self._recalled(row):
                    self._enter(prompt, score)
        self._state, self._tensors, self._places = state, tensors, self._stream_places()
        return state, tensors

    def batches(self) -> Iterator[list[tuple[Prompt, Score]]]:
        """The prompts of each scoring up to the last checkpoint, with their scores."""
        return (self._recalled(row) for row in self.search.checkpoint.stream(TRIALS) if "tried" in row)

    def _recalled(self, row: Mapping[str, Any]) -> list[tuple[Prompt, Score]]:
        prompts = [(Prompt(text, tuple(ids)), unpack_rows(rows), draw) for text, ids, rows, draw in row["tried"]]
        return [(one[0], self.search.evaluator.recall(*one)) for one in prompts]

    def finish(self, stopped: str) -> Outcome:
        """Save the end of the search and return the candidates."""
        self.save()
        return Outcome(self.best(), stopped, self.step)

    def diverged(self, sentence: str) -> Outcome:
        """End a search that cannot continue: an error if nothing was found, else the best so far and the reason."""
        if not self._trials:
            raise SettingError(sentence)
        self.search.emit(Event("problem", self.step, {"reason": sentence}))
        return Outcome(self.best(), "diverged", self.step, {"problem": sentence})

    # Events and costs of a step.

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of a phase to the step's costs."""
        started = time.perf_counter()
        yield
        self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - started

    def tell(self, step: int, values: Sequence[float], costs: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Emit the event of a step: its scores, the best so far, and further facts from the method."""
        best = max(self._trials.values(), key=lambda trial: (trial.mean, -trial.order), default=None)
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

    def _enter(self, prompt: Prompt, score: Score) -> None:
        if len(self._scores) < 2:
            self._scores.add(score.value)
        trial = self._trials.get(prompt.text)
        if trial is None:  # equal texts count as one prompt
            merit = None if self._merit is None else self._merit(prompt, score)
            self._trials[prompt.text] = Trial(prompt, score.value, 1, len(self._trials), merit=merit)
        else:
            trial.total += score.value
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
