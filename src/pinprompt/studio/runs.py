"""The run folders below one folder: found, summarised as cards, and followed while they grow.

Only as much is read as a card needs, and of a growing folder only what is new, whichever process writes it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pinprompt.answers.table import unpack_answers
from pinprompt.errors import PinpromptError
from pinprompt.files import is_held, object_of, opener
from pinprompt.folder.reading import MARKS, RunRecord, inside, mapping, number, read_json, read_text, sequence
from pinprompt.maths import labels, readout
from pinprompt.reports import report_parts
from pinprompt.reports.entries import DEPTH, walk_runs
from pinprompt.run.verdict import judge_result, reported_split
from pinprompt.studio.guard import Refused
from pinprompt.values import Answers
from pinprompt.wording import by_role, metric, plain, shown_prompt, text, title, where

MAX_CARDS = 5000
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
    picture: str = ""
    """The first target picture as a data URI."""


@dataclass
class RunList:
    """The folder that was opened."""

    root: Path
    _cards: OrderedDict[str, tuple[tuple[int, ...], Card]] = field(default_factory=OrderedDict)

    def places(self) -> list[Place]:
        """All run folders, the latest first; links are not followed."""
        found = [Place(path.relative_to(self.root).as_posix(), path, when) for path, when in walk_runs(self.root)]
        return sorted((one for one in found if "\\" not in one.id), key=lambda place: (-place.when, place.id))

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
            found = found / part
            odd = part in ("", ".", "..") or "\\" in part or "\0" in part
            if odd or os.path.islink(found) or not os.path.isdir(found):  # unlike Path's, these never raise
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
            place.id.encode()
            card = _card(place, busy)
        except UnicodeEncodeError:
            said = "The name of this folder is not UTF-8. Rename it, and the run can be opened."
            card = Card(place.id, _name(place), place.when, "broken", said)
        except PinpromptError as error:
            said = text(str(error).replace(str(place.path) + os.sep, ""), 300)
            card = Card(place.id, _name(place), place.when, "broken", said)
        self._cards[place.id] = ((*stamp, busy), card)
        while len(self._cards) > MAX_CARDS:
            self._cards.popitem(last=False)
        return card


def _opened(path: Path) -> BinaryIO | None:
    """A regular file, opened for reading; None for a link, a pipe or a missing file."""
    try:
        return open(path, "rb", opener=opener)
    except OSError:
        return None


def last_event(folder: Path) -> dict[str, Any]:
    """The last complete line of events.jsonl, without reading the rest."""
    file = _opened(folder / "events.jsonl")
    if file is None:
        return {}
    with file:
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
    best = shown_prompt(event.get("best_prompt") or "", 200)
    how_far = "" if step is None else f"step {plain(step + 1)}"
    if calls is not None:
        how_far += f", {plain(calls)} calls"
    so_far = f"; best so far: “{best}”" if best else ""
    if kind == "problem":
        return f"It could not continue: {text(event.get('reason') or 'no reason was given', 200)}"
    if busy and kind == "evaluating":
        return f"Evaluating the {text(event.get('name') or '', 40)} prompt on {text(event.get('split') or '', 20)}"
    if busy:
        begun = {"start": "Writing the first prompts", None: "Starting"}
        return f"Searching: {how_far}{so_far}" if kind == "step" else begun.get(kind, "Searching")
    if not kind or kind == "start":
        return "Stopped before its first step"
    if kind == "step":
        return f"Stopped after {how_far}{so_far}"
    return f"Stopped while {'evaluating' if str(kind).startswith('evaluat') else 'choosing the answer'}"


def _card(place: Place, busy: bool) -> Card:
    result = read_json(place.path, "result.json")
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
    name = report_parts.primary_of(record)
    split = reported_split(result, name)
    measured = mapping(result.get(split)) if split else {}
    value = number(measured.get(name)) if split else number(result.get("score"))
    ends = inside(measured, "intervals", name)
    shown = [metric(name, number(end)) for end in ends] if isinstance(ends, list) and len(ends) == 2 else []
    judged = judge_result(result, name)
    seed, calls = number(result.get("seed")), number(result.get("calls"))
    return Card(
        **common,
        prompt=shown_prompt(result.get("prompt") or "", 300),
        figure=metric(name if split else "score", value),
        figure_name=(f"{title(text(name, 40))} {where(split, result.get('task'))}" if split else "score")
        + (", not recognised" if result.get("recognised") is False else ""),
        interval=f"{shown[0]} to {shown[1]}" if shown else "",
        value=value,
        rival="" if judged is None or judged.rival is None else f"{judged.against} {metric(name, judged.rival)}",
        calls="" if calls is None else plain(calls),
        seed="" if seed is None else plain(seed),
        picture=next((one["uri"] for one in (report_parts.pictures(record) or {}).get("images", ())), ""),
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
        file = _opened(self.path)
        if file is None:
            self._begin_again(0)
            return []
        with file:
            found = os.fstat(file.fileno())
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

    def skip(self) -> None:
        """Leave out what is already there, unless it is little."""
        with contextlib.suppress(OSError):
            found = os.lstat(self.path)
            if found.st_size > CHUNK:
                self.offset, self._file = found.st_size, found.st_ino

    def _begin_again(self, file: int) -> None:
        if self.offset:
            self.cuts += 1
        self.offset, self._file = 0, file


@dataclass
class Column:
    """A prompt in the matrix: its answers so far, and what follows from them."""

    prompt: str
    answers: Answers = field(default_factory=Answers)
    score: float | None = None
    """The mean value on train; for a prompt that was asked on some rows only, on these."""
    accuracy: float | None = None
    """The same for accuracy, if the task has one."""
    dev: float | None = None
    """The mean value on dev, if all its rows were asked."""
    cells: str = ""
    """Two hex digits per row and label: the probability times 254; "--" if not known."""
    changed: int = 0
    """When it last changed, by the matrix's counter."""

    def data(self, at: int) -> dict[str, Any]:
        shown = {"prompt": by_role(self.prompt), "score": self.score, "accuracy": self.accuracy, "cells": self.cells}
        return {"at": at, **shown}


@dataclass
class ScoredPrompts:
    """Every prompt that a run's search has asked about, from its table of answers, in order of appearance."""

    folder: Path
    columns: list[Column] = field(default_factory=list)
    clock: int = 0
    _by_text: dict[str, Column] = field(default_factory=dict)
    _cuts: int = 0
    _cells: int = 0
    _rows: MatrixRows | None = None

    def __post_init__(self) -> None:
        self._tail = Tail(self.folder / "answers.jsonl")

    @property
    def edition(self) -> int:
        """Changes when the file was replaced and the columns start again."""
        return self._tail.cuts

    @property
    def rows(self) -> MatrixRows:
        """The texts that prompts are asked on."""
        if self._rows is None or not self._rows.rows:
            self._rows = matrix_rows(self.folder)
        return self._rows

    def update(self) -> None:
        """Read what the run has asked since the last call."""
        while new := self._tail.new():
            self._start_again()
            for _, line in new:
                self._enter(line)
        self._start_again()

    def best(self, most: int = BEST) -> list[Column]:
        known = [(score, column) for column in self.columns if (score := column.score) is not None]
        return [column for _, column in sorted(known, key=lambda pair: -pair[0])[:most]]

    def since(self, clock: int, most: int) -> list[tuple[int, Column]]:
        """The columns that changed after that time, with their positions, the longest unchanged first."""
        found = [(at, column) for at, column in enumerate(self.columns) if column.changed > clock]
        return sorted(found, key=lambda pair: pair[1].changed)[:most]

    def _start_again(self) -> None:
        if self._tail.cuts != self._cuts:
            self._cuts, self.columns, self._by_text, self._rows, self._cells = self._tail.cuts, [], {}, None, 0

    def _enter(self, line: dict[str, Any]) -> None:
        prompt = line.get("text")
        if not isinstance(prompt, str) or line.get("report") is not False:
            return
        try:
            answers = unpack_answers(line)
        except ValueError:
            return
        column = self._by_text.get(prompt)
        if column is None:
            if len(self.columns) >= PROMPTS:
                return
            column = self._by_text[prompt] = Column(text(prompt, 600))
            self.columns.append(column)
        new = answers.rows if line.get("draw") else column.answers.missing(answers.rows)
        if set(new) != set(answers.rows):
            return  # a line that repeats known answers
        # Of several draws of a stochastic task, the matrix shows the latest.
        column.answers = answers if line.get("draw") else column.answers.joined(answers)
        try:
            self._fill(column)
        except (ArithmeticError, LookupError, RecursionError, StopIteration, TypeError, ValueError):
            return  # not answers of these rows: the file may be untrusted
        self.clock += 1
        column.changed = self.clock

    def _fill(self, column: Column) -> None:
        rows, known = self.rows, column.answers
        if not rows.labels:
            plain_values = [plain_value(content) for content in known.contents]
            known_values = [value for value in plain_values if math.isfinite(value)]  # a failed answer has none
            column.score = sum(known_values) / len(known_values) if known_values else None
            return
        asked = [row for row in known.rows if row < len(rows.rows)]
        train = [row for row in asked if rows.splits[row] == "train"] or asked
        given = readout.said(_contents(known.on(asked)), len(rows.labels), rows.words)
        logs = given.own if given.others is None else np.concatenate([given.own, given.others], axis=1)
        width = len(rows.labels) + (0 if given.others is None else len(rows.words))
        if not asked or logs.shape != (len(asked), width) or not np.isfinite(logs).all():
            return
        at = {row: place for place, row in enumerate(asked)}
        chosen = [at[row] for row in train]
        targets = np.array([rows.targets[row] for row in asked], dtype=np.int64)
        chances = np.exp(given.own)
        if rows.measured:  # as `ClassificationTask` does on the rows of train
            whole = len(train) == rows.splits.count("train")
            taught = readout.said(_contents(known.on(train)), len(rows.labels), rows.words)
            found = readout.fit(taught, targets[chosen], np.array(rows.prior), None if whole or not rows.words else ())
            chances = found.readout.probabilities(given)
            chances[chosen] = found.left_out
        values = labels.reward_of(chances, targets, *rows.reward)
        right = labels.correct(chances, targets)
        column.score, column.accuracy = float(values[chosen].mean()), float(right[chosen].mean())
        dev = [at[row] for row in asked if rows.splits[row] == "dev"]
        whole = len(dev) == sum(split == "dev" for split in rows.splits)
        column.dev = float(values[dev].mean()) if dev and whole else None
        size = 2 * len(rows.labels) * len(rows.rows)
        if column.cells or self._cells + size <= CELLS:
            self._cells += 0 if column.cells else size
            shown = labels.packed(chances, labels.predictions(chances, targets))
            width = 2 * len(rows.labels)
            parts = ["-" * width] * len(rows.rows)
            for row, place in at.items():
                parts[row] = shown[width * place : width * (place + 1)]
            column.cells = "".join(parts)


def _contents(contents: Any) -> Any:
    """Answers with log-probabilities of labels; for a free answer those of wrong and right that have its value."""
    if not len(contents) or not isinstance(contents[0], dict) or "value" not in contents[0]:
        return contents
    right = np.clip([float(content["value"]) for content in contents], 0.0, 1.0)
    return np.log(np.maximum(np.stack([1 - right, right], axis=1), 1e-9))


def plain_value(content: Any) -> float:
    """The value of an answer that is a number, or begins with one; the mean of several draws."""
    if isinstance(content, int | float):
        return float(content)
    first = next(iter(content))
    return float(first) if isinstance(first, int | float) else sum(map(plain_value, content)) / len(content)


@dataclass
class Library:
    """The scored prompts of recently viewed runs; the least recently used are dropped."""

    _scored: OrderedDict[Path, ScoredPrompts] = field(default_factory=OrderedDict)

    def prompts_of(self, folder: Path) -> ScoredPrompts:
        scored = self._scored.pop(folder, None) or ScoredPrompts(folder)
        self._scored[folder] = scored
        while len(self._scored) > FOLLOWED:
            self._scored.popitem(last=False)
        scored.update()
        return scored


@dataclass(frozen=True)
class MatrixRows:
    """The texts that prompts are asked on, and how their answers are valued (rows.json)."""

    labels: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    words: tuple[str, ...] = ()
    """Other words whose log-probabilities are in the answers."""
    measured: bool = False
    """Whether labels are calibrated or learnt."""
    prior: tuple[float, ...] = ()
    reward: tuple[str, float, float] = ("accuracy", 1.0, 1.0)


def matrix_rows(folder: Path) -> MatrixRows:
    """The content of rows.json; no rows if it is missing or not as a run writes it."""
    content = read_text(folder, "rows.json")
    found = (object_of(content.encode()) if content else None) or {}
    names = [text(label, 60) for label in sequence(found.get("labels"))[:256]]
    rows, splits, targets = [], [], []
    for row in map(mapping, sequence(found.get("rows"))[:5000]):
        label = row.get("label")
        if not (isinstance(label, int) and 0 <= label < len(names)) or row.get("split") not in ("train", "dev"):
            return MatrixRows()
        rows.append({"text": text(row.get("text", ""), 500), "label": label})
        splits.append(str(row["split"]))
        targets.append(label)
    prior = tuple(share for share in map(number, sequence(found.get("prior"))) if share is not None and share > 0)
    kind, *weights = [*sequence(found.get("reward")), None, None, None][:3]
    wrong, right = (number(weight) or 1.0 for weight in weights)
    measured = found.get("reading") in ("calibrated", "learnt") and len(prior) == len(names)
    words = tuple(map(str, sequence(found.get("words"))[:5000]))
    return MatrixRows(names, rows, splits, targets, words, measured, prior, (str(kind), wrong, right))
