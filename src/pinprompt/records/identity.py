"""The identity of a run: run.json, written at the start and completed at the end with the checksums of its files."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import (
    object_of,
    opener,
    read_object,
    sealed,
    sha256_of,
    unsealed,
    whole_lines,
    write_atomically,
    write_json,
)

FILE = "run.json"
LARGEST = 8 << 20
"""Maximum size of run.json."""
KEPT = ("scores.jsonl", "scores.spare.jsonl")
"""The journal: its rows carry the run's id."""
FORMAT = 2
"""Folder names: runs of earlier versions have no run.json, and their rows have no id."""


@dataclass(frozen=True)
class Identity:
    """A run's id, the task that scores its prompts, its recipe as text, and once it is finished its files' SHA-256."""

    run: str
    fingerprint: str
    recipe: str
    files: Mapping[str, str] | None = None


def new(fingerprint: str, recipe: str) -> Identity:
    """The identity of a new run. Its id ends with the task's short fingerprint, so that every row names its task."""
    return Identity(f"{secrets.token_hex(6)}-{task_mark(fingerprint)}", fingerprint, recipe)


def task_mark(fingerprint: str) -> str:
    """A task's fingerprint in eight digits."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:8]


def write(folder: Path, identity: Identity) -> None:
    """Write run.json."""
    write_json(folder / FILE, sealed({"format": FORMAT, **asdict(identity)}))


def read(folder: Path) -> tuple[Identity | None, str]:
    """A folder's run.json (None if it cannot be used), and what is wrong with it ('' if nothing)."""
    path = folder / FILE
    found, there = read_object(path, LARGEST)
    if not there:
        return None, ""
    found = unsealed(found) if found is not None else None
    if found is None:
        return None, f"{path} is damaged"
    if found.get("format") != FORMAT:
        raise RunError(
            f"{path} was written by a newer pinprompt (format {str(found.get('format'))[:40]}); upgrade pinprompt"
        )
    names = ("run", "fingerprint", "recipe")
    files = found.get("files")
    if not isinstance(files, dict | None):
        return None, f"{path} is damaged"
    texts = [*map(found.get, names), *(files or {}), *(files or {}).values()]
    if not all(isinstance(one, str) and _is_text(one) for one in texts):
        return None, f"{path} is damaged"
    return Identity(found["run"], found["fingerprint"], found["recipe"], files), ""


def _is_text(value: str) -> bool:
    """False for a lone surrogate, which JSON can contain but a file cannot."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def restore_recipe(folder: Path) -> bool:
    """Restore recipe.toml from run.json if it is missing or was changed; returns whether it was."""
    identity, _ = read(folder)
    path = folder / "recipe.toml"
    if identity is None or not identity.recipe:
        return False
    try:
        with open(path, "rb", opener=opener) as file:
            if file.read(LARGEST) == identity.recipe.encode():
                return False
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    write_atomically(path, identity.recipe)
    return True


def run_of_rows(folder: Path) -> str:
    """The id in the checkpoint and the journal; '' if there is none or more than one."""
    ids: set[str] = set()
    for line in chain(_state(folder), *(whole_lines(folder / name) for name in KEPT)):
        row = object_of(line)
        whole = None if row is None else unsealed(row)
        if whole is not None:
            ids.add(str(whole.get("run", ""))[:200])
        if len(ids) > 1:
            return ""
    return ids.pop() if ids else ""


def _state(folder: Path) -> Iterator[bytes]:
    """state.json is one line without a newline."""
    with contextlib.suppress(OSError), open(folder / "checkpoint" / "state.json", "rb", opener=opener) as file:
        yield file.read(LARGEST)


def complete(folder: Path, identity: Identity, names: tuple[str, ...]) -> Identity:
    """Store the checksums of a finished run's files."""
    files = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    done = replace(identity, files=files)
    write(folder, done)
    return done


def refresh(folder: Path, *names: str) -> None:
    """Update the checksums of files that were rewritten on purpose (a new report, drawings)."""
    identity, _ = read(folder)
    if identity is None or identity.files is None:
        return
    new = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    write(folder, replace(identity, files={**identity.files, **new}))


def changed_files(folder: Path, files: Mapping[str, Any]) -> list[str]:
    """The files of a finished run that are missing or changed, each with a description."""
    found = []
    for name, digest in files.items():
        path = folder / Path(name)
        if Path(name).is_absolute() or ".." in Path(name).parts:
            continue  # an untrusted run.json must not name files elsewhere
        try:
            if sha256_of(path) != digest:
                found.append(f"{name} was changed")
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except (OSError, ValueError) as error:
            found.append(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")
    return found
