"""Reads run folders, including those of killed runs and untrusted ones.

Nothing in a folder is trusted: sizes are bounded, links are not followed, no code runs, and arbitrary bytes give either
a record or a RunError.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import MEBI, loads, object_of, read_file
from pinprompt.folder import identity as identities

MAX_BYTES = 128 * MEBI
"""Maximum size of a file that is read as a whole; no real run has a larger one."""
MAX_VALUE = 1e100  # no measured value is larger, and sums and differences of larger ones could overflow
WITH_TEXTS = ("examples", "rewrites", "answers", "pictures")
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


def read_run(folder: Path | str, *, events: bool = True) -> RunRecord:
    """The record of one run folder; `events=False` leaves these long files unread.

    Files of a finished run are checked against their checksums, and a note lists those that were changed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"There is no run folder at {folder}. Name the folder that `pinprompt tune` wrote.")
    if not any((folder / name).is_file() for name in MARKS):
        raise RunError(f"{folder} is not a run folder: none of {', '.join(MARKS)} is in it.")
    notes: list[str] = []
    recipe_text = read_text(folder, "recipe.toml") or ""
    long = ("events.jsonl", "costs.jsonl") if events else ()
    notes += changed_since(folder, ("recipe.toml", "result.json", "environment.json", *long))
    return RunRecord(
        folder=folder,
        recipe=_toml(folder, recipe_text),
        events=_lines(folder, "events.jsonl", notes) if events else [],
        costs=_lines(folder, "costs.jsonl", notes) if events else [],
        result=read_json(folder, "result.json"),
        environment=read_json(folder, "environment.json"),
        judgements=[
            one for one in sequence(read_json(folder, "judgements.json").get("judgements")) if isinstance(one, dict)
        ],
        recipe_text=recipe_text,
        notes=tuple(notes),
    )


def changed_since(folder: Path, names: Collection[str]) -> list[str]:
    """A sentence for each of these files that was changed after the run finished."""
    try:
        identity = identities.read(folder)
    except RunError:
        return []  # damaged or of another version; read what can be read
    files = {} if identity is None or identity.files is None else identity.files
    found = identities.changed_files(folder, {name: files[name] for name in sorted(names) if name in files})
    return [f"{what} since the run wrote it: see `pinprompt verify`." for what in found]


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


def read_text(folder: Path, name: str) -> str | None:
    """The text of one file of a run folder; None if it does not exist, RunError if it is a link, a pipe or too large.

    Bytes that are not UTF-8 become replacement characters.
    """
    raw = read_file(folder / name, MAX_BYTES)
    return None if raw is None else raw.decode("utf-8", "replace")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a run folder; empty if there is no such file."""
    text = read_text(folder, name)
    if text is None:
        return {}
    try:
        value = loads(text)
    except ValueError as error:
        raise RunError(
            f"{folder / name} is not JSON ({str(error)[:200]}). Resume the run, or run it again, to restore it."
        ) from None
    if not isinstance(value, dict):
        raise RunError(f"{folder / name} holds a {type(value).__name__}, where a JSON object was expected.")
    return value


def _toml(folder: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        what = str(error)[:200] or type(error).__name__
        raise RunError(f"{folder / 'recipe.toml'} is not a recipe ({what}).") from None


def _lines(folder: Path, name: str, notes: list[str]) -> list[dict[str, Any]]:
    """The objects of a log. An incomplete last line, as a killed run leaves it, is skipped."""
    lines = (read_text(folder, name) or "").split("\n")[:-1]
    found = [line for line in (object_of(line.encode()) for line in lines) if line is not None]
    if len(found) < len(lines):
        notes.append(f"{len(lines) - len(found)} lines were left out of {name}: not JSON objects.")
    return [{key: value for key, value in line.items() if key != "crc"} for line in found]
