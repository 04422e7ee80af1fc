"""A run as people watch it: a bar where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from pinprompt.cli.console import Console, Patience
from pinprompt.recipe.recipe import Recipe
from pinprompt.records.wording import visible
from pinprompt.run import progress
from pinprompt.values import Event


class Progress:
    """Listens to a run and tells what matters: the best words so far, their score, what was spent."""

    def __init__(self, console: Console, recipe: Recipe) -> None:
        self._console, self._recipe = console, recipe
        self._started = time.monotonic()
        self._patience = Patience()
        self._bar: Any = None
        self._line: Any = None
        self._words = ""
        self.best: str | None = None
        """The best words so far and their score, for a run that has to stop."""
        if console.terminal:
            from rich.console import Console as Rich
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress
            from rich.table import Column

            # On a narrow terminal the words lose their end; the clock and the bar stay whole.
            columns = (
                TextColumn("{task.fields[phase]}", table_column=Column(no_wrap=True, min_width=8)),
                BarColumn(12, table_column=Column(min_width=12)),
                TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
                TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            )
            self._bar = RichProgress(*columns, console=Rich(stderr=True), transient=True, expand=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._line = self._bar.add_task("loading models", total=1.0, phase="start")
        else:
            self._say("loading models")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Tell an event."""
        data = event.data
        if event.kind == "step":
            self._improved(data)
            self.best = f"{data['best_prompt']!r} ({data['score_best']:.4g})"
            words = progress.sentence(event)
            if self._bar is not None:
                done = progress.share(self._recipe, event, (time.monotonic() - self._started) / 60)
                self._bar.update(
                    self._line, completed=done, description=_escaped(words), phase=f"step {event.step + 1}"
                )
            elif self._patience.due():
                self._say(f"step {event.step + 1}: {words}")
        elif event.kind == "selected":
            self._found(str(data["prompt"]))
        elif event.kind == "evaluating":
            self._phase(f"{data['name']} on {data['split']}")
        elif event.kind == "restart":
            self._phase(f"starts again: {data['reason']}")
        elif event.kind == "problem":
            self._console.note(f"note: {data['reason']}")
        elif event.kind == "start":
            self._phase(f"{data['method']} on {data['task']}, seed {data['seed']}")

    def _improved(self, data: Mapping[str, Any]) -> None:
        """Words for a picture stay on the screen as they improve: each says something."""
        words = f"{data['score_best']:.3f}  {data['best_prompt']}"
        if self._recipe.task.kind != "inversion" or words == self._words:
            return
        self._words = words
        if self._bar is not None:
            self._bar.console.print(_escaped(words), highlight=False)
        else:
            self._say(words)

    def _phase(self, words: str) -> None:
        if self._bar is not None:
            self._bar.update(self._line, description=_escaped(words))
        else:
            self._say(words)

    def _found(self, prompt: str) -> None:
        """The answer, as soon as there is one: what the report says of it takes longer."""
        if self._bar is not None:
            self._bar.console.print(f"found: {prompt}", markup=False, highlight=False)
        else:
            self._say(f"found: {prompt}")

    def _say(self, words: str) -> None:
        self._console.note(f"[{time.monotonic() - self._started:6.1f} s] {words}")


def _escaped(words: str) -> str:
    from rich.markup import escape

    return escape(visible(words))
