"""A whole search end to end: where the time goes, and how close scoring is to the machine's matrix-product limit."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pinprompt.recipe.recipe import Recipe
from pinprompt.values import Event

PARTS = (
    ("start", "pinprompt.run.build", "build_task"),
    ("start", "pinprompt.run.build", "build_writer"),
    ("score", "pinprompt.models.labels.CausalLabels", "log_probs"),
    ("write", "pinprompt.policy.writer.Writer", "_write"),
    ("write", "pinprompt.policy.writer.Writer", "states"),
    ("perplexity", "pinprompt.policy.backbone.Backbone", "perplexities"),
    ("learn", "pinprompt.methods.pin.learner.Learner", "update"),
)
"""What is timed: phase, owner, function. Of nested calls, only the outermost is counted."""


def measure(subject: Recipe | None = None) -> dict[str, Any]:
    """The seconds and shares of a default search's phases, its calls per second, and its scoring against the limit.

    `score_share_of_limit` is the operations per second of scoring (two for each weight and each token, including
    padding) as a share of `limit_gflops`: a product of 512 rows with a matrix of the model's shape, measured after the
    run with the same number of threads. `score_useful_share` excludes the padding. `end_share` is the time after the
    prompt is found, as a share of the whole run.
    """
    from pinprompt.recipe import recipe as recipes
    from pinprompt.run.running import run

    task = {"kind": "classification", "dataset": "rotten-tomatoes", "model": "smollm2"}
    recipe = subject or recipes.resolve({"profile": "quick", "task": task})
    alone = recipe.model_copy(update={"scoring": recipe.scoring.model_copy(update={"memo": False})})
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder, clock.watching():
        found = run(alone, Path(folder) / "run", listeners=[clock])
        clock.stop()
    return {**clock.facts(found.calls), "threads": torch.get_num_threads()}


class _Clock:
    """Listens to a run and times its parts."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.found: float | None = None
        self.ended = 0.0
        self.seconds: dict[str, float] = defaultdict(float)
        self.executed = self.useful = 0
        self.model: Any = None
        self._inside = False
        self._counting = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Note the time of the `selected` event: the prompt has been found."""
        if event.kind == "selected":
            self.found = time.perf_counter()

    def stop(self) -> None:
        """Note the end of the run."""
        self.ended = time.perf_counter()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside this context, the parts are timed and the tokens of scoring are counted."""

        with contextlib.ExitStack() as stack:
            for phase, owner, name in PARTS:
                stack.enter_context(_wrapped(owner, name, partial(self._timed, phase)))
            stack.enter_context(_wrapped("pinprompt.models.continuations.WholePrompts", "_pass", self._pass))
            stack.enter_context(_wrapped("pinprompt.models.continuations", "read_many", self._texts))
            stack.enter_context(_wrapped("pinprompt.models.labels", "padded", self._strings))
            yield

    def _timed(self, phase: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            if self._inside or self.found is not None:
                return run(*given, **named)
            self._inside, began = True, time.perf_counter()
            try:
                return run(*given, **named)
            finally:
                self._inside = False
                self.seconds[phase] += time.perf_counter() - began

        return timed

    def _pass(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(behind: Any, paths: Any, *more: Any) -> Any:
            if self.found is None:
                depth = len(paths[0])
                with self._counting:  # passes run in parallel
                    self.executed += behind.groups(depth) * behind.rows * depth
                    self.useful += behind.rows * depth * len(paths)
            return run(behind, paths, *more)

        return counted

    def _strings(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(rows: Any, *more: Any) -> Any:
            if self.found is None:
                sizes = [len(row) for row in rows]
                with self._counting:
                    self.executed += max(sizes) * len(sizes)
                    self.useful += sum(sizes)
            return run(rows, *more)

        return counted

    def _texts(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(model: Any, texts: Any) -> Any:
            self.model = model
            if self.found is None:
                self.executed += sum(map(len, texts))
                self.useful += sum(map(len, texts))
            return run(model, texts)

        return counted

    def facts(self, calls: int) -> dict[str, Any]:
        """The measurements, as a dictionary."""
        total = self.ended - self.began
        found = self.found or self.ended
        parts = {**self.seconds, "end": self.ended - found}
        parts["other"] = total - sum(parts.values())
        facts: dict[str, Any] = {
            "seconds": total,
            "phases": parts,
            "shares": {name: part / total for name, part in parts.items()},
            "end_share": parts["end"] / total,
            "calls": calls,
            "calls_per_second": calls / self.seconds["score"] if self.seconds["score"] else None,
        }
        if self.model is not None and self.seconds["score"]:
            limit = product_limit(self.model)
            work = 2 * weights(self.model) / self.seconds["score"] / 1e9
            facts |= {
                "limit_gflops": limit,
                "score_gflops": work * self.executed,
                "score_share_of_limit": work * self.executed / limit,
                "score_useful_share": work * self.useful / limit,
            }
        return facts


def product_limit(model: Any, rows: int = 512, seconds: float = 1.0) -> float:
    """The best rate, in GFLOP per second, of products of `rows` rows with the weight of the model's largest layer."""
    layers = [part for part in model.base_model.modules() if isinstance(part, torch.nn.Linear)]
    weight = max((layer.weight for layer in layers), key=lambda weight: weight.numel())
    given = torch.randn(rows, weight.shape[1], dtype=weight.dtype, device=weight.device)
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        for _ in range(4):
            torch.nn.functional.linear(given, weight)
        best = min(best, (time.perf_counter() - began) / 4)
    return 2 * rows * weight.numel() / best / 1e9


def weights(model: Any) -> int:
    """The number of weights applied to every token: all linear layers, without embeddings and head."""
    return sum(part.weight.numel() for part in model.base_model.modules() if isinstance(part, torch.nn.Linear))


@contextlib.contextmanager
def _wrapped(owner: str, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Inside this context, a function of a module or class is wrapped."""
    from pydoc import locate

    place: Any = locate(owner)
    before = getattr(place, name)
    setattr(place, name, wrap(before))
    try:
        yield
    finally:
        setattr(place, name, before)
