"""The rows of a task with free answers: inputs with reference answers, read from files and split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinprompt.data.tables import read_table
from pinprompt.errors import DataError, SettingError, did_you_mean
from pinprompt.recipe.task_sections import AnswerSettings
from pinprompt.tasks.metrics import NEEDS_TARGET, check_targets
from pinprompt.values import derive

FEWEST_FOR_TEST = 15
"""With fewer rows, none are kept for a test: its interval would say nothing."""


@dataclass(frozen=True)
class Asked:
    """A row: the input, the reference ('' if there is none), and all columns."""

    input: str
    target: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True)
class AnswerData:
    """The rows by split, those set aside as examples, and notes about the data."""

    splits: Mapping[str, list[Asked]]
    examples: list[Asked]
    notes: tuple[str, ...] = ()


def answer_data(settings: AnswerSettings) -> AnswerData:
    """Read and split the rows of a task."""
    if settings.train is None:
        raise SettingError("there are no rows: name a file with inputs and reference answers (task.train, --train)")
    notes: list[str] = []
    pool = _rows(settings.train, settings, notes)
    order = sorted(pool, key=lambda row: derive(settings.split, "answers", row.input, row.target))
    given = {name: _rows(path, settings, notes) for name in ("dev", "test") if (path := getattr(settings, name))}
    taken: dict[str, list[Asked]] = {}
    parts = 1 + ("dev" not in given) + ("test" not in given and len(pool) >= FEWEST_FOR_TEST)
    for name in ("test", "dev"):
        if name in given:
            taken[name] = given[name]
        elif name == "dev" or len(pool) >= FEWEST_FOR_TEST:
            size = len(pool) // parts
            taken[name], order = order[:size], order[size:]
    if "test" in taken and settings.test_rows is not None:
        known = sorted(taken["test"], key=lambda row: derive(settings.split, "test rows", row.input, row.target))
        taken["test"] = known[: settings.test_rows]
    # At least half of the training rows are scored.
    spare = min(settings.examples, len(order) // 2)
    examples, train = order[:spare], order[spare:]
    splits = {"train": train, **{name: taken[name] for name in ("dev", "test") if taken.get(name)}}
    uses = {"train": "training", "dev": "choosing", "test": "the report"}
    counts = ", ".join(f"{len(rows)} for {uses[name]}" for name, rows in splits.items())
    notes.append(f"rows: {counts}, {len(examples)} as examples that a prompt may show")
    return AnswerData(splits, examples, tuple(notes))


def _rows(path: str, settings: AnswerSettings, notes: list[str]) -> list[Asked]:
    """The rows of a file; those without an input, or without a reference that is needed, are left out and noted."""
    table = read_table(path, settings.input_column)
    needed, name = settings.metric in NEEDS_TARGET, settings.target_column
    if needed and name not in table.columns:
        raise DataError(
            f"there is no column '{name}'; {did_you_mean(name, table.columns)} (--target-column, or target_column= in "
            "Python, names the one with the reference answers)",
            path=path,
        )
    found, blank = [], []
    for row, text, place in zip(table.rows, table.texts, table.places, strict=True):
        target = _text(row.get(name))
        if not text or (needed and not target):
            blank.append(place)
        else:
            found.append(Asked(text, target, row, f"{path}, {place}"))
    if blank:
        shown = ", ".join(blank[:10]) + (", ..." if len(blank) > 10 else "")
        notes.append(f"{path}: {len(blank)} rows without an input or a reference were left out ({shown})")
    if len(found) < 2:
        few = f"too few of the {len(table.rows)} rows have both an input and a reference"
        raise DataError(f"{few}; at least two rows are needed", path=path)
    check_targets(settings, [(row.place, row.target) for row in found])
    return found


def _text(value: Any) -> str:
    """A reference as text; objects as JSON."""
    if value is None:
        return ""
    return (json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else str(value)).strip()


RUN = 6
"""A prompt with this many words in a row that stand in an input like that was copied from it."""
SHORTEST = 4
"""The same for a whole input with fewer words, down to this many."""


def copied(text: str, rows: Sequence[Asked]) -> str | None:
    """What a prompt copied from rows: some words in a row of an input, or a reference that only one row has."""
    own = f" {' '.join(text.casefold().split())} "
    targets = [row.target.casefold() for row in rows]
    for row in rows:
        words = row.input.casefold().split()
        size = min(RUN, max(SHORTEST, len(words)))
        for start in range(len(words) - size + 1):
            part = " ".join(words[start : start + size])
            if f" {part} " in own:
                return part
        target = row.target.casefold()
        if len(target) > 3 and targets.count(target) == 1 and f" {target} " in own:
            return row.target
    return None
