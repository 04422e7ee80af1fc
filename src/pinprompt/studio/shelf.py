"""The run folders below one folder: found, summarised as cards, and followed while they grow.

Only as much is read as a card needs, and of a growing folder only what is new, whichever process writes it.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.errors import PinpromptError
from pinprompt.files import is_held, object_of
from pinprompt.records import report_parts
from pinprompt.records.reading import MARKS, RunRecord, inside, mapping, number, read_result, read_text, sequence
from pinprompt.records.wording import metric, plain, text, title
from pinprompt.studio.guard import Refused

DEPTH = 4
KEPT = 5000
TAIL = 64 * 1024
SETTING = re.compile(r'^(\w+) = "((?:[^"\\]|\\.)*)"$', re.MULTILINE)
SETTINGS = ("kind", "method", "dataset", "train", "source", "model")


@dataclass(frozen=True)
class Place:
    """A run folder: its name below the root, and when it last changed."""

    id: str
    path: Path
    when: float

    @property
    def group(self) -> str:
        """Its parent folder, '' for the root; the runs of a sweep share one."""
        return self.id.rpartition("/")[0]


@dataclass(frozen=True)
class Card:
    """The summary of a run on the first page."""

    id: str
    name: str
    when: float
    state: str
    """finished, running, stopped or broken."""
    happened: str
    task: str = ""
    data: str = ""
    method: str = ""
    prompt: str = ""
    figure: str = ""
    figure_name: str = ""
    interval: str = ""
    value: float | None = None
    rival: str = ""
    calls: str = ""
    seed: str = ""


@dataclass
class Shelf:
    """The folder that was opened."""

    root: Path
    _cards: OrderedDict[str, tuple[tuple[int, ...], Card]] = field(default_factory=OrderedDict)

    def places(self) -> list[Place]:
        """All run folders, the latest first; links are not followed."""
        return sorted(self._walk(self.root, "", 0), key=lambda place: (-place.when, place.id))

    def path(self, run: str) -> Path:
        """The folder of a run by its id; anything not below the root is an error."""
        found = self.folder(run)
        if not any((found / name).is_file() for name in MARKS):
            raise Refused(404, "There is no such run in this folder.")
        return found

    def folder(self, name: str) -> Path:
        """A folder below the root, reached through real folders only."""
        found = self.root
        if name in ("", "."):
            return found
        parts = name.split("/")
        if len(parts) > DEPTH:
            raise Refused(404, "There is no such folder here.")
        for part in parts:
            if part in ("", ".", "..") or "\\" in part or "\0" in part:
                raise Refused(404, "There is no such folder here.")
            found = found / part
            try:
                mode = os.lstat(found).st_mode
            except (OSError, ValueError):
                raise Refused(404, "There is no such folder here.") from None
            if not stat.S_ISDIR(mode):
                raise Refused(404, "There is no such folder here.")
        return found

    def card(self, place: Place) -> Card:
        """The card of a run, read again only if one of its files has changed."""
        stamp = tuple(_stamp(place.path / name) for name in ("result.json", "events.jsonl", "recipe.toml"))
        busy = is_held(place.path)
        known = self._cards.get(place.id)
        if known is not None and known[0] == (*stamp, busy):
            return known[1]
        try:
            card = _card(place, busy)
        except PinpromptError as error:
            said = text(str(error).replace(str(place.path) + os.sep, ""), 300)
            card = Card(place.id, _name(place), place.when, "broken", said)
        self._cards[place.id] = ((*stamp, busy), card)
        while len(self._cards) > KEPT:
            self._cards.popitem(last=False)
        return card

    def _walk(self, folder: Path, name: str, depth: int) -> Iterator[Place]:
        below: list[os.DirEntry[str]] = []
        when = 0.0
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name in MARKS and entry.is_file(follow_symlinks=False):
                        when = max(when, entry.stat(follow_symlinks=False).st_mtime)
                    elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        below.append(entry)
        except OSError:
            return
        if when:
            yield Place(name or ".", folder, when)
        elif depth < DEPTH:
            for entry in below:
                if "\\" not in entry.name:
                    yield from self._walk(Path(entry.path), f"{name}/{entry.name}" if name else entry.name, depth + 1)


def last_event(folder: Path) -> dict[str, Any]:
    """The last complete line of events.jsonl, without reading the rest."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(folder / "events.jsonl", flags)
    except OSError:
        return {}
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return {}
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        for line in reversed(file.read(TAIL).split(b"\n")[:-1]):
            event = object_of(line)
            if event is not None:
                return event
    return {}


def what_happened(folder: Path, busy: bool) -> str:
    """One sentence about the progress of an unfinished run."""
    event = last_event(folder)
    kind, step, calls = event.get("event"), number(event.get("step")), number(event.get("calls"))
    best = text(event.get("best_prompt") or "", 200).strip()
    how_far = "" if step is None else f"step {plain(step + 1)}"
    if calls is not None:
        how_far += f", {plain(calls)} calls"
    so_far = f"; best so far: “{best}”" if best else ""
    if kind == "problem":
        return f"It could not continue: {text(event.get('reason') or 'no reason was given', 200)}"
    if busy and kind == "evaluating":
        return f"Evaluating the {text(event.get('name') or '', 40)} prompt on {text(event.get('split') or '', 20)}"
    if busy:
        return f"Searching: {how_far}{so_far}" if kind == "step" else "Searching" if kind else "Starting"
    if not kind or kind == "start":
        return "Stopped before its first step"
    if kind == "step":
        return f"Stopped after {how_far}{so_far}"
    return f"Stopped while {'evaluating' if str(kind).startswith('evaluat') else 'choosing the answer'}"


def _card(place: Place, busy: bool) -> Card:
    result = read_result(place.path)
    # Settings are found with a pattern: parsing five hundred recipes would take too long.
    settings: dict[str, str] = {}
    for name, value in SETTING.findall(read_text(place.path, "recipe.toml") or ""):
        if name in SETTINGS:
            settings.setdefault(name, value)
    record = RunRecord(place.path, result=result)
    source = next(
        (settings[name] for name in ("dataset", "train", "source") if settings.get(name, "none") != "none"), ""
    )
    state = "running" if busy else "finished" if result else "stopped"
    task = text(result.get("task") or settings.get("kind") or "", 60)
    common: dict[str, Any] = {
        "id": place.id,
        "name": _name(place),
        "when": place.when,
        "state": state,
        "happened": "" if state == "finished" else what_happened(place.path, busy),
        "task": task.replace("_", " ").replace("-", " "),
        "data": text(re.split(r"[/\\]", source)[-1], 60),
        "method": text(result.get("method") or settings.get("method") or "", 40),
    }
    if not result:
        return Card(**common)
    name, split = report_parts.primary_of(record), report_parts.split_of(record)
    measured = mapping(result.get(split)) if split else {}
    value = number(measured.get(name)) if split else number(result.get("score"))
    ends = inside(measured, "intervals", name)
    shown = [metric(name, number(end)) for end in ends] if isinstance(ends, list) and len(ends) == 2 else []
    rival = number(inside(result, "baselines", "manual", split or "", name))
    seed, calls = number(result.get("seed")), number(result.get("calls"))
    return Card(
        **common,
        prompt=text(result.get("prompt") or "", 300).strip(),
        figure=metric(name if split else "score", value),
        figure_name=f"{title(text(name, 40))} on {split}" if split else "score",
        interval=f"{shown[0]} to {shown[1]}" if shown else "",
        value=value,
        rival="" if rival is None else metric(name, rival),
        calls="" if calls is None else plain(calls),
        seed="" if seed is None else plain(seed),
    )


def _name(place: Place) -> str:
    return text(place.path.name if place.id == "." else place.id.rpartition("/")[2], 120)


def _stamp(path: Path) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_mtime_ns ^ found.st_size


CHUNK = 4 << 20
LINE = 2 << 20
CELLS = 64 << 20
"""Maximum bytes of all cells of the matrix; further prompts are listed without cells."""
PROMPTS = 50_000
BEST = 12
FOLLOWED = 8
"""Maximum number of runs kept in memory."""


@dataclass
class Tail:
    """The new lines of a JSON-lines file since the last read; a truncated file is read from the start."""

    path: Path
    offset: int = 0
    cuts: int = 0
    """How often the file was truncated: lines read before are then no longer valid."""
    _file: int = 0

    def new(self) -> list[tuple[int, dict[str, Any]]]:
        """Complete new lines as (offset after the line, object), at most a few megabytes at a time."""
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            handle = os.open(self.path, flags)
        except OSError:
            self._begin_again(0)
            return []
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return []
            if found.st_size < self.offset or (self._file and found.st_ino != self._file):
                self._begin_again(found.st_ino)
            self._file = found.st_ino
            if found.st_size == self.offset:
                return []
            file.seek(self.offset)
            data = file.read(CHUNK)
        lines = data.split(b"\n")
        rows: list[tuple[int, dict[str, Any]]] = []
        for line in lines[:-1]:
            self.offset += len(line) + 1
            row = object_of(line) if len(line) <= LINE else None
            if row is not None:
                rows.append((self.offset, row))
        if len(lines) == 1 and len(data) == CHUNK:
            self.offset += CHUNK  # pinprompt never writes a line longer than a chunk
        return rows

    def _begin_again(self, file: int) -> None:
        if self.offset:
            self.cuts += 1
        self.offset, self._file = 0, file


@dataclass
class Column:
    """A prompt in the matrix: its text, scores, and two hex digits per row and label ("--" if not known)."""

    prompt: str
    parts: dict[str, tuple[float | None, float | None, int]] = field(default_factory=dict)
    """Value, accuracy and number of rows, by split or block of rows."""
    cells: str = ""
    changed: int = 0
    """When it last changed, by the matrix's counter."""

    @property
    def score(self) -> float | None:
        """The score on train; for a prompt scored only on blocks of rows, the mean over their rows."""
        return self._mean(0)

    @property
    def accuracy(self) -> float | None:
        """The same for accuracy, if the task has one."""
        return self._mean(1)

    @property
    def dev(self) -> float | None:
        """The score on dev."""
        return self.parts["dev"][0] if "dev" in self.parts else None

    def data(self, at: int) -> dict[str, Any]:
        """As JSON values for the page."""
        return {
            "at": at, "prompt": self.prompt, "score": self.score, "accuracy": self.accuracy, "cells": self.cells,
        }  # fmt: skip

    def _mean(self, which: int) -> float | None:
        if "train" in self.parts:
            return self.parts["train"][which]
        known = [(part[which], part[2]) for name, part in self.parts.items() if name != "dev"]
        total = sum(rows for value, rows in known if value is not None)
        return sum(value * rows for value, rows in known if value is not None) / total if total else None


@dataclass
class ScoredPrompts:
    """Every prompt that a run has scored, from its journal (scores.jsonl), in order of appearance."""

    folder: Path
    columns: list[Column] = field(default_factory=list)
    clock: int = 0
    _by_text: dict[str, Column] = field(default_factory=dict)
    _cuts: int = 0
    _cells: int = 0
    _rows: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._tail = Tail(self.folder / "scores.jsonl")

    @property
    def edition(self) -> int:
        """Changes when the journal was truncated and the columns start again."""
        return self._tail.cuts

    @property
    def rows(self) -> dict[str, Any]:
        """The texts that prompts are scored on."""
        if self._rows is None or not self._rows["rows"]:
            self._rows = matrix_rows(self.folder)
        return self._rows

    def update(self) -> None:
        """Read what the run has scored since the last call."""
        while new := self._tail.new():
            self._forget()
            for _, row in new:
                self._enter(row)
        self._forget()

    def best(self, most: int = BEST) -> list[Column]:
        """The prompts with the highest scores, best first."""
        known = [(score, column) for column in self.columns if (score := column.score) is not None]
        return [column for _, column in sorted(known, key=lambda pair: -pair[0])[:most]]

    def since(self, clock: int, most: int) -> list[tuple[int, Column]]:
        """The columns that changed after that time, with their positions, the longest unchanged first."""
        found = [(at, column) for at, column in enumerate(self.columns) if column.changed > clock]
        return sorted(found, key=lambda pair: pair[1].changed)[:most]

    def _forget(self) -> None:
        if self._tail.cuts != self._cuts:
            self._cuts, self.columns, self._by_text, self._rows, self._cells = self._tail.cuts, [], {}, None, 0

    def _enter(self, row: dict[str, Any]) -> None:
        prompt, split = row.get("text"), row.get("split")
        if row.get("kind") != "score" or not isinstance(prompt, str) or not isinstance(split, str):
            return
        column = self._by_text.get(prompt)
        if column is None:
            if split == "dev" or len(self.columns) >= PROMPTS:
                return
            column = self._by_text[prompt] = Column(text(prompt, 600))
            self.columns.append(column)
        cells = row.get("rows")
        cells = cells if isinstance(cells, str) and len(cells) <= 1 << 16 else ""
        width = 2 * len(self.rows["labels"])
        places = self.rows["splits"].get(split, [])
        rows = len(cells) // width if width else 0
        column.parts[split] = (number(row.get("value")), number(inside(row, "details", "accuracy")), rows or 1)
        size = width * len(self.rows["rows"])
        if rows and rows == len(places) and (column.cells or self._cells + size <= CELLS):
            self._cells += 0 if column.cells else size
            whole = column.cells or "-" * size
            parts = [whole[begin : begin + width] for begin in range(0, len(whole), width)]
            for number_of, place in enumerate(places):
                parts[place] = cells[width * number_of : width * (number_of + 1)]
            column.cells = "".join(parts)
        self.clock += 1
        column.changed = self.clock


@dataclass
class Library:
    """The scored prompts of recently viewed runs; the least recently used are dropped."""

    _books: OrderedDict[Path, ScoredPrompts] = field(default_factory=OrderedDict)
    perplexities: dict[tuple[str, str], float] = field(default_factory=dict)
    """Perplexities measured on request, by writer and prompt."""

    def book(self, folder: Path) -> ScoredPrompts:
        """The scored prompts of a run, up to date."""
        book = self._books.pop(folder, None) or ScoredPrompts(folder)
        self._books[folder] = book
        while len(self._books) > FOLLOWED:
            self._books.popitem(last=False)
        book.update()
        return book


def matrix_rows(folder: Path) -> dict[str, Any]:
    """The texts that prompts are scored on, with their labels (rows.json)."""
    content = read_text(folder, "rows.json")
    found = (object_of(content.encode()) if content else None) or {}
    labels = [text(label, 60) for label in sequence(found.get("labels"))[:256]]
    rows = []
    for row in map(mapping, sequence(found.get("rows"))[:5000]):
        label = row.get("label")
        known = isinstance(label, int) and 0 <= label < len(labels)
        rows.append({"text": text(row.get("text", ""), 500), "label": label if known else -1})
    splits = {}
    for name, places in list(mapping(found.get("splits")).items())[:200]:
        inside_rows = [place for place in sequence(places) if type(place) is int and 0 <= place < len(rows)]
        if len(inside_rows) == len(sequence(places)):
            splits[str(name)] = inside_rows
    return {"labels": labels, "rows": rows, "splits": splits or {"train": list(range(len(rows)))}}


def readable_points(
    top: Any, book: ScoredPrompts, writer: str, known: dict[tuple[str, str], float]
) -> list[dict[str, Any]]:
    """(perplexity, metric) of prompts whose perplexity is known: from the result's `top`, or measured on request."""
    points: dict[str, dict[str, Any]] = {}
    for column in book.best(200):
        measured = known.get((writer, column.prompt))
        value = column.score if column.accuracy is None else column.accuracy
        if measured is not None and value is not None:
            points[column.prompt] = {"prompt": column.prompt, "perplexity": measured, "value": value}
    by_text = {column.prompt: column for column in book.columns}
    for row in sequence(top):
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            continue
        prompt, perplexity = text(row["prompt"], 600), number(row.get("perplexity"))
        scored = by_text.get(prompt)
        value = number(row.get("score")) if scored is None or scored.accuracy is None else scored.accuracy
        if perplexity is not None and 0 < perplexity < math.inf and value is not None:
            points[prompt] = {"prompt": prompt, "perplexity": perplexity, "value": value}
    return list(points.values())
