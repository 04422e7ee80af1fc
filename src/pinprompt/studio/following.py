"""A run folder followed while it grows: only what is new is read, whichever process writes it."""

from __future__ import annotations

import math
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.files import object_of
from pinprompt.records.reading import inside, mapping, number, read_text, sequence
from pinprompt.records.wording import text

CHUNK = 4 << 20
LINE = 2 << 20
CELLS = 64 << 20
"""Bytes of all cells of the matrix; prompts beyond them are listed without cells."""
PROMPTS = 50_000
BEST = 12
FOLLOWED = 8
"""Runs whose files are kept in memory."""


@dataclass
class Tail:
    """The new lines of a JSON-lines file since the last look; a file that was cut back begins again."""

    path: Path
    offset: int = 0
    cuts: int = 0
    """How often the file became shorter: what was read before then no longer counts."""
    _file: int = 0

    def new(self) -> list[tuple[int, dict[str, Any]]]:
        """Whole new lines as (offset after the line, object), at most a few megabytes at a time."""
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
            self.offset += CHUNK  # one line longer than a chunk is no line of ours
        return rows

    def _begin_again(self, file: int) -> None:
        if self.offset:
            self.cuts += 1
        self.offset, self._file = 0, file


@dataclass
class Column:
    """A prompt in the matrix: its text, scores, and two hex digits per row and label ("--" where not known)."""

    prompt: str
    parts: dict[str, tuple[float | None, float | None, int]] = field(default_factory=dict)
    """Value, accuracy and number of rows, by the split or block of rows that was scored."""
    cells: str = ""
    changed: int = 0
    """When it last changed, by the book's clock."""

    @property
    def score(self) -> float | None:
        """The score on train; of a prompt that was scored on blocks of rows only, the mean over their rows."""
        return self._mean(0)

    @property
    def accuracy(self) -> float | None:
        """The same of accuracy, where the task has one."""
        return self._mean(1)

    @property
    def dev(self) -> float | None:
        """The score on dev."""
        return self.parts["dev"][0] if "dev" in self.parts else None

    def data(self, at: int) -> dict[str, Any]:
        """As the page has it."""
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
        """Changes when the journal was cut back and the columns begin again."""
        return self._tail.cuts

    @property
    def rows(self) -> dict[str, Any]:
        """The texts that prompts are scored on."""
        if self._rows is None or not self._rows["rows"]:
            self._rows = matrix_rows(self.folder)
        return self._rows

    def update(self) -> None:
        """Take in what the run has scored since the last look."""
        while new := self._tail.new():
            self._forget()
            for _, row in new:
                self._enter(row)
        self._forget()

    def best(self, most: int = BEST) -> list[Column]:
        """The prompts of the highest score, best first."""
        known = [(score, column) for column in self.columns if (score := column.score) is not None]
        return [column for _, column in sorted(known, key=lambda pair: -pair[0])[:most]]

    def since(self, clock: int, most: int) -> list[tuple[int, Column]]:
        """The columns that changed after that time, with their places, the longest unchanged first."""
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
    """The books of the runs that are looked at, the least recently used put away."""

    _books: OrderedDict[Path, ScoredPrompts] = field(default_factory=OrderedDict)
    perplexities: dict[tuple[str, str], float] = field(default_factory=dict)
    """Measured by the worker on request, by writer and prompt."""

    def book(self, folder: Path) -> ScoredPrompts:
        """The book of a run, up to date."""
        book = self._books.pop(folder, None) or ScoredPrompts(folder)
        self._books[folder] = book
        while len(self._books) > FOLLOWED:
            self._books.popitem(last=False)
        book.update()
        return book


def matrix_rows(folder: Path) -> dict[str, Any]:
    """The texts that prompts are scored on, with their labels, as the run wrote them down (rows.json)."""
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
    """(perplexity, figure) of prompts whose perplexity is known: from the result's `top`, or measured on request."""
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
