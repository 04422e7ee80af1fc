"""A run folder followed while it grows: only what is new is read, whoever writes it."""

from __future__ import annotations

import json
import math
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.records.reading import inside, mapping, number, read_text, sequence
from pinprompt.records.wording import text

CHUNK = 4 << 20
LINE = 2 << 20
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
        """Whole new lines as (offset behind the line, object), at most a few megabytes at a time."""
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
            try:
                row = json.loads(line) if len(line) <= LINE else None
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
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
    """A prompt in the matrix: its text, scores, and two hex digits per row and label."""

    prompt: str
    score: float | None
    accuracy: float | None
    cells: str
    dev: float | None = None

    def data(self) -> dict[str, Any]:
        """As the page has it."""
        return {"prompt": self.prompt, "score": self.score, "accuracy": self.accuracy, "cells": self.cells}


@dataclass
class Book:
    """Every prompt that a run has scored, from its journal (scores.jsonl), in order of appearance."""

    folder: Path
    columns: list[Column] = field(default_factory=list)
    _by_text: dict[str, Column] = field(default_factory=dict)
    _cuts: int = 0

    def __post_init__(self) -> None:
        self._tail = Tail(self.folder / "scores.jsonl")

    @property
    def edition(self) -> int:
        """Changes when the journal was cut back and the columns begin again."""
        return self._tail.cuts

    def update(self) -> None:
        """Take in what the run has scored since the last look."""
        while rows := self._tail.new():
            if self._tail.cuts != self._cuts:
                self._cuts = self._tail.cuts
                self.columns, self._by_text = [], {}
            for _, row in rows:
                self._enter(row)
        if self._tail.cuts != self._cuts:
            self._cuts, self.columns, self._by_text = self._tail.cuts, [], {}

    def best(self, most: int = BEST) -> list[Column]:
        """The prompts of the highest score, best first."""
        known = [column for column in self.columns if column.score is not None]
        return sorted(known, key=lambda column: -(column.score or 0.0))[:most]

    def _enter(self, row: dict[str, Any]) -> None:
        prompt, split = row.get("text"), row.get("split")
        if row.get("kind") != "score" or not isinstance(prompt, str) or len(self.columns) >= PROMPTS:
            return
        column = self._by_text.get(prompt)
        value = number(row.get("value"))
        if split != "train":
            if column is not None and split == "dev":
                column.dev = value
            return
        cells = row.get("rows")
        cells = cells if isinstance(cells, str) and len(cells) <= 1 << 16 else ""
        accuracy = number(inside(row, "details", "accuracy"))
        if column is None:
            column = Column(text(prompt, 600), value, accuracy, cells)
            self._by_text[prompt] = column
            self.columns.append(column)
        else:
            column.score, column.accuracy, column.cells = value, accuracy, cells or column.cells


@dataclass
class Library:
    """The books of the runs that are looked at, the least recently used put away."""

    _books: OrderedDict[Path, Book] = field(default_factory=OrderedDict)
    perplexities: dict[tuple[str, str], float] = field(default_factory=dict)
    """Measured by the worker on request, by writer and prompt."""

    def book(self, folder: Path) -> Book:
        """The book of a run, up to date."""
        book = self._books.pop(folder, None) or Book(folder)
        self._books[folder] = book
        while len(self._books) > FOLLOWED:
            self._books.popitem(last=False)
        book.update()
        return book


def matrix_rows(folder: Path) -> dict[str, Any]:
    """The texts that prompts are scored on, with their labels, as the run wrote them down (rows.json)."""
    content = read_text(folder, "rows.json")
    try:
        found = mapping(json.loads(content)) if content else {}
    except (ValueError, RecursionError):
        found = {}
    labels = [text(label, 60) for label in sequence(found.get("labels"))[:256]]
    rows = []
    for row in map(mapping, sequence(found.get("rows"))[:5000]):
        label = row.get("label")
        known = isinstance(label, int) and 0 <= label < len(labels)
        rows.append({"text": text(row.get("text", ""), 500), "label": label if known else -1})
    return {"labels": labels, "rows": rows}


def readable_points(top: Any, book: Book, writer: str, known: dict[tuple[str, str], float]) -> list[dict[str, Any]]:
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
