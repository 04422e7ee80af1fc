"""A run in the terminal: a progress bar or lines, then tables and sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console as Rich
from rich.table import Table
from rich.text import Text

from pinprompt.cli.console import Console
from pinprompt.folder.reading import inside, mapping, number, sequence
from pinprompt.recipe.recipe import Recipe
from pinprompt.reports import trackers
from pinprompt.reports.report_parts import reading_said
from pinprompt.run.running import Result
from pinprompt.run.verdict import judge_result, value_of
from pinprompt.values import Event, counted
from pinprompt.wording import by_role, money_shown, spending, visible, where

PAUSE = 5.0
"""Seconds between two lines of progress, for output that is not a terminal."""
REWRITES = 10
"""How many texts are shown before and after rewriting."""


def shown_result(result: Result) -> Iterator[Any]:
    """A run's answer: the prompt next to hand-written ones, the cost, and the path of the report."""
    data, primary = result.data, str(result.data.get("primary", "score"))
    splits = [split for split in ("dev", "test") if mapping(data.get(split))] or ["train"]
    table = Table(title=None, show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("prompt", overflow="fold", max_width=60)
    columns: list[tuple[str, str]] = []
    for split in splits:
        measured = mapping(data.get(split))
        rows = number(measured.get("rows"))
        simpler = (f"calibrated_{primary}", f"raw_{primary}") if split == splits[-1] else ()
        for name in (primary, *simpler):
            if name == primary or name in measured:
                columns.append((split, name))
                said = f"{name.replace('_', ' ')} {where(split, data.get('task'), rows)}"
                table.add_column(said, justify="right")
    compared = {"found": {"prompt": result.prompt, **{split: data.get(split) for split in splits}}}
    for label, row in {**compared, **mapping(data.get("baselines")), **mapping(data.get("combined"))}.items():
        cells = [_metric(inside(row, split), name) for split, name in columns]
        prompt = Text(by_role(str(inside(row, "prompt") or inside(row, "about") or "")))
        table.add_row(label, prompt, *cells, style="bold" if label == "found" else "")
    guesses = [number(inside(data, split, "majority")) if name == primary else None for split, name in columns]
    if any(guess is not None for guess in guesses):
        shown = ["" if guess is None else f"{guess:.3f}" for guess in guesses]
        table.add_row("", "always the most frequent label", *shown)
    yield table
    verdict = judge_result(data, primary)
    if verdict is not None:
        advice = f"{verdict.advice}. " if verdict.advice else ""
        yield Text(f"{advice}{verdict.sentence} {verdict.details}")
    readout = mapping(data.get("readout"))
    if said := reading_said(readout, len(sequence(readout.get("words")))):
        yield Text(said)
    for warning in sequence(inside(data, "tables", "warnings")):
        yield Text(f"note: {warning}")
    if data.get("pruned"):
        yield Text(f"shortened from '{data['pruned']['from']}': it scores higher on train and dev without these words")
    known = [f"{row['word']} ({row['similarity']:.3f})" for row in data.get("known_words") or []]
    if known:
        yield "nearest single words that the model knows: " + ", ".join(known)
    yield from _shown_rewrites(data)
    calls, prompts, seconds = (number(data.get(name)) or 0.0 for name in ("calls", "prompts", "seconds"))
    spent = f"{counted(calls, 'call')}, {counted(prompts, 'prompt')}, {counted(round(seconds), 'second')}"
    yield f"searched with {data.get('method')}: {spent}; stopped: {data.get('stopped')}"
    if data.get("found_by"):
        yield f"found: {data['found_by']}"
    yield "total cost: " + "; ".join(f"{name}: {value}" for name, value in spending(data))
    if data.get("reported", True):
        yield f"report: {result.report}"
    else:
        yield f"no report was requested; `pinprompt resume {result.folder}` writes it"


def _shown_rewrites(data: Mapping[str, Any]) -> Iterator[Any]:
    """Texts before and after rewriting, with their judges; nothing for other tasks."""
    rewrites = [mapping(row) for row in sequence(inside(data, "tables", "rewrites"))]
    if not rewrites:
        return
    table = Table(title=None, show_edge=False, pad_edge=False)
    for head in ("before", "after"):
        table.add_column(head, overflow="fold", max_width=50)
    for head in ("content", "style"):
        table.add_column(head, justify="right")
    for row in rewrites[:REWRITES]:
        marks = [number(row.get(name)) for name in ("content", "style")]
        shown = ["" if mark is None else f"{mark:.0f}" for mark in marks]
        table.add_row(Text(str(row.get("source", ""))), Text(str(row.get("rewrite", ""))), *shown)
    yield table
    yield "judges: " + "; ".join(f"{what}: {who}" for what, who in mapping(data.get("judges")).items())


def _metric(facts: object, name: str) -> str:
    value, ends = value_of(mapping(facts), name)
    if value is None:
        return ""
    return f"{value:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


def shown_estimate(figures: Mapping[str, Any]) -> str:
    """What a run would cost, in one line."""
    calls, report = figures["calls"], figures["report_calls"]
    searched = "an unknown number of" if calls is None else f"at most {calls:,}"
    after = "the report" if figures["reported"] else "the evaluation of the found prompt"
    parts = [f"{searched} calls for the search"]
    parts.append(f"an unknown number for {after}" if report is None else f"about {report:,} for {after}")
    if figures.get("passes_per_call", 1) > 1:
        parts.append(f"each call of {figures['passes_per_call']} forward passes, as label words have several tokens")
    if figures.get("tokens"):
        parts.append(f"about {figures['tokens']:,} tokens (at most {figures['most_tokens']:,})")
    if "money" in figures:
        parts.append(f"money: {money_shown(figures['money'])}")
    if figures.get("minutes") is not None:
        parts.append(f"about {figures['minutes']:.1f} minutes, {figures['report_minutes']:.1f} more for {after}")
    note = figures.get("note")
    few = (figures["calls"] or 0) < figures.get("enough_calls", 0)
    more = f"; {figures['enough_calls']:,} calls are enough for {figures['method']}" if few else ""
    return "would cost " + ", ".join(parts) + (f" ({note})" if note else "") + more


class Progress:
    """Shows the progress of a run: the best prompt so far, its score, the cost."""

    def __init__(self, console: Console, recipe: Recipe) -> None:
        self._console, self._recipe = console, recipe
        self._started = time.monotonic()
        self._spoken = float("-inf")
        self._bar: Any = None
        self._line: Any = None
        self._best = float("-inf")
        self.best: str | None = None
        """The best prompt so far and its score, shown if the run has to stop."""
        if console.terminal:
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress
            from rich.table import Column

            # On a narrow terminal the prompt is cut; the clock and the bar are not.
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
        """Show an event."""
        data = event.data
        if event.kind == "step":
            self._improved(data)
            self.best = f"{by_role(data['best_prompt'])!r} ({data['score_best']:.4g})"
            words = trackers.sentence(event)
            if self._bar is not None:
                done = trackers.share(self._recipe, event, (time.monotonic() - self._started) / 60)
                self._bar.update(
                    self._line, completed=done, description=_escaped(words), phase=f"step {event.step + 1}"
                )
            elif time.monotonic() - self._spoken >= PAUSE:
                self._spoken = time.monotonic()
                self._say(f"step {event.step + 1}: {words}")
        elif event.kind == "selected":
            self._print(f"found: {by_role(data['prompt'])}")  # as soon as it is known; the report takes longer
        elif event.kind == "evaluating":
            self._phase(f"{data['name']} on {data['split']}")
        elif event.kind == "restart":
            self._phase(f"restarting: {data['reason']}")
        elif event.kind == "problem":
            self._console.note(f"note: {data['reason']}")
        elif event.kind == "headroom":
            self._print(f"so far: {data['sentence']}")
        elif event.kind == "start":
            self._phase(f"{data['method']} on {data['task']}, seed {data['seed']}")

    def _improved(self, data: Mapping[str, Any]) -> None:
        """Prompts for a picture stay on the screen as they improve."""
        if self._recipe.task.kind == "inversion" and data["score_best"] > self._best:
            self._best = data["score_best"]
            self._print(f"{data['score_best']:.3f}  {data['best_prompt']}")

    def _phase(self, words: str) -> None:
        if self._bar is not None:
            self._bar.update(self._line, description=_escaped(words))
        else:
            self._say(words)

    def _print(self, words: str) -> None:
        """Show words that stay on the screen."""
        if self._bar is not None:
            self._bar.console.print(visible(words), markup=False, highlight=False)
        else:
            self._say(words)

    def _say(self, words: str) -> None:
        self._console.note(f"[{time.monotonic() - self._started:6.1f} s] {words}")


def _escaped(words: str) -> str:
    from rich.markup import escape

    return escape(visible(words))
