"""Reads run folders, including those of killed runs and untrusted ones.

Nothing in a folder is trusted: sizes are bounded, links are not followed, no code runs, and arbitrary bytes give either
a record or a RunError.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import MAX_DEPTH, MEBI, is_deep, loads, opener
from pinprompt.folder import identity as identities
from pinprompt.recipe.recipe import parse_toml

LIMITS = {  # maximum size in bytes; result.json may contain pictures
    "recipe.toml": 1 * MEBI,
    "result.json": 64 * MEBI,
    "environment.json": 1 * MEBI,
    "events.jsonl": 128 * MEBI,
    "costs.jsonl": 128 * MEBI,
    "prompts.csv": 64 * MEBI,
    "judgements.json": 8 * MEBI,
    "rows.json": 8 * MEBI,
    "judges.json": 8 * MEBI,
}
MAX_VALUE = 1e100  # no measured value is larger, and sums and differences of larger ones could overflow
LINE_LIMIT = 2 * MEBI
PROMPT_ROWS = 250_000
PROMPT_CELLS = 5_000_000  # of all rows together: the number of columns may be large
EVENT_VALUES = 3_000_000  # of all lines together: in memory each takes up to a hundred times its size in the file
WITH_TEXTS = ("examples", "rewrites", "pictures")
"""Tables of a result that contain texts or file names of the data; a private run has none of them."""
MARKS = ("recipe.toml", "events.jsonl", "result.json")  # a folder with none of these is not a run folder


@dataclass(frozen=True)
class RunRecord:
    """The files of a run; missing parts are empty, and `notes` list what could not be read."""

    folder: Path
    recipe: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    costs: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    judgements: list[dict[str, Any]] = field(default_factory=list)
    recipe_text: str = ""
    notes: tuple[str, ...] = ()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.get("event") == kind]

    def setting(self, *path: str) -> Any:
        """A value of the recipe by its path, or None if it is missing or empty."""
        found = inside(self.recipe, *path)
        return None if found == "none" else found  # TOML has no null


def read_run(folder: Path | str, *, prompts: bool = True, events: bool = True) -> RunRecord:
    """The record of one run folder; `prompts=False` and `events=False` leave those long files unread.

    Files of a finished run are checked against their checksums, and a note lists those that were changed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"There is no run folder at {folder}. Name the folder that `pinprompt tune` wrote.")
    if not any((folder / name).is_file() for name in MARKS):
        raise RunError(f"{folder} is not a run folder: none of {', '.join(MARKS)} is in it.")
    notes: list[str] = []
    recipe_text = read_text(folder, "recipe.toml") or ""
    long = (("events.jsonl", "costs.jsonl") if events else ()) + (("prompts.csv",) if prompts else ())
    notes += changed_since(folder, ("recipe.toml", "result.json", "environment.json", *long))
    return RunRecord(
        folder=folder,
        recipe=_toml(folder, recipe_text),
        events=_lines(folder, "events.jsonl", notes) if events else [],
        costs=_lines(folder, "costs.jsonl", notes) if events else [],
        result=_json(folder, "result.json"),
        prompts=_rows(folder, "prompts.csv", notes) if prompts else [],
        environment=_json(folder, "environment.json"),
        judgements=[
            one for one in sequence(_json(folder, "judgements.json").get("judgements")) if isinstance(one, dict)
        ],
        recipe_text=recipe_text,
        notes=tuple(notes),
    )


def changed_since(folder: Path, names: Collection[str]) -> list[str]:
    """A sentence for each of these files that was changed after the run finished."""
    try:
        identity, _ = identities.read(folder)
    except RunError:
        return []  # of a newer version; read what can be read
    files = {} if identity is None or identity.files is None else identity.files
    found = identities.changed_files(folder, {name: files[name] for name in sorted(names) if name in files})
    return [f"{what} since the run wrote it: see `pinprompt verify`." for what in found]


def read_result(folder: Path) -> dict[str, Any]:
    """A run's result.json; empty if the run has none yet."""
    return _json(folder, "result.json")


def read_environment(folder: Path) -> dict[str, Any]:
    """A run's environment.json; empty if there is none."""
    return _json(folder, "environment.json")


def read_judges(folder: Path) -> dict[str, Any]:
    """A style run's judges.json; empty if the run has none."""
    return _json(folder, "judges.json")


def number(value: object) -> float | None:
    """A float, from a number or its text; None for anything else, including booleans, NaN and implausible values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > 64:
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) <= MAX_VALUE else None


def inside(tree: object, *path: str) -> Any:
    """The value at a path of nested mappings, or None."""
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return None
        tree = tree[name]
    return tree


def mapping(value: object) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one: untrusted files may have any structure."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _bytes(folder: Path, name: str) -> bytes | None:
    """A regular file of the folder, or None if there is none; a link or a pipe is an error."""
    path, limit = folder / name, LIMITS[name]
    try:
        with open(path, "rb", opener=opener) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= limit:
                return file.read(limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    raise RunError(
        f"{path} has {size / MEBI:.0f} MiB, more than the {limit // MEBI} MiB that are read. Is it from pinprompt?"
    )


def read_text(folder: Path, name: str) -> str | None:
    """The text of one file of a run folder, with the limits of `read_run`; None if it does not exist.

    Bytes that are not UTF-8 become replacement characters.
    """
    raw = _bytes(folder, name)
    return None if raw is None else raw.decode("utf-8", "replace")


def _loads(text: str) -> Any:
    """JSON with one kind of error, and without lone surrogates, which could not be written again."""
    try:
        value = loads(text)
    except ValueError as error:
        raise ValueError(str(error)[:200]) from None
    return _whole(value) if "\\u" in text else value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def _json(folder: Path, name: str) -> dict[str, Any]:
    text = read_text(folder, name)
    if text is None:
        return {}
    try:
        value = _loads(text)
    except ValueError as error:
        raise RunError(
            f"{folder / name} is not JSON ({error}). Resume the run, or run it again, to restore it."
        ) from None
    if not isinstance(value, dict):
        raise RunError(f"{folder / name} holds a {type(value).__name__}, where a JSON object was expected.")
    return value


def _toml(folder: Path, text: str) -> dict[str, Any]:
    try:
        value = parse_toml(text)
    except (ValueError, RecursionError) as error:
        what = str(error)[:200] or type(error).__name__
        raise RunError(f"{folder / 'recipe.toml'} is not a recipe ({what}).") from None
    if is_deep(value):
        raise RunError(f"{folder / 'recipe.toml'} is not a recipe (nested deeper than {MAX_DEPTH} levels).")
    return value


def _lines(folder: Path, name: str, notes: list[str]) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. An incomplete last line, as a killed run leaves it, is skipped."""
    text = read_text(folder, name)
    if not text:
        return []
    if text.count(",") + text.count("{") + text.count("[") > EVENT_VALUES:
        raise RunError(f"{folder / name} has more than {EVENT_VALUES:,} values. Is it from pinprompt?")
    lines = text.split("\n")
    found: list[dict[str, Any]] = []
    broken = 0
    for place, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            value = _loads(line) if len(line) <= LINE_LIMIT else None
        except ValueError:
            value = None
        if isinstance(value, dict):
            found.append(value)
        elif place < len(lines) - 1:
            broken += 1
    if broken:
        lines_were = "line was" if broken == 1 else "lines were"
        notes.append(f"{broken} {lines_were} left out of {name}: not JSON objects.")
    return found


def _table_lines(text: str) -> Iterator[str]:
    """The lines of a table, up to a line that exceeds the limit, which may have millions of cells."""
    for line in io.StringIO(text, newline=""):
        if len(line) > LINE_LIMIT:
            raise csv.Error(f"a line is longer than {LINE_LIMIT // MEBI} MiB")
        yield line


def _rows(folder: Path, name: str, notes: list[str]) -> list[dict[str, Any]]:
    text = read_text(folder, name)
    if not text:
        return []
    found: list[dict[str, Any]] = []
    try:
        table = csv.DictReader(_table_lines(text))
        most = min(PROMPT_ROWS, PROMPT_CELLS // max(1, len(table.fieldnames or ())))
        for row in table:
            if len(found) >= most:
                notes.append(f"Only the first {most} rows of {name} were read.")
                break
            found.append({key: value for key, value in row.items() if isinstance(key, str)})
    except csv.Error as error:
        notes.append(f"{name} could only be read up to row {len(found)} ({error}).")
    return found
