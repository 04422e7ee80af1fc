"""Which run a folder holds: run.json, sealed at the start, completed at the end by the checksums of the run's files."""

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
"""The most that is read of run.json."""
KEPT = ("scores.jsonl", "scores.spare.jsonl")
"""The journal: its rows carry the run's id."""
FORMAT = 2
"""Of the folder: runs of earlier versions have no run.json, and their rows no id."""


@dataclass(frozen=True)
class Identity:
    """A run's id, the task that scores its prompts, its recipe as text, and once it is finished its files' SHA-256."""

    run: str
    fingerprint: str
    recipe: str
    files: Mapping[str, str] | None = None


def new(fingerprint: str, recipe: str) -> Identity:
    """A run that begins now. The end of its id tells tasks apart, so that every row says what scored it."""
    return Identity(f"{secrets.token_hex(6)}-{task_mark(fingerprint)}", fingerprint, recipe)


def task_mark(fingerprint: str) -> str:
    """A task's fingerprint in eight digits."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:8]


def write(folder: Path, identity: Identity) -> None:
    """Keep run.json."""
    write_json(folder / FILE, sealed({"format": FORMAT, **asdict(identity)}))


def read(folder: Path) -> tuple[Identity | None, str]:
    """A folder's run.json (None where there is none that can be used), and what is wrong with it ('' if nothing)."""
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
    """False for half a surrogate pair, which JSON can hold and no file can."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def restore_recipe(folder: Path) -> bool:
    """Put the run's own recipe.toml back, from run.json, where it is missing or was changed; True where it was."""
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
    """The id that the checkpoint and the journal carry, '' where they carry none or more than one."""
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
    """state.json is one line without an end."""
    with contextlib.suppress(OSError), open(folder / "checkpoint" / "state.json", "rb", opener=opener) as file:
        yield file.read(LARGEST)


def complete(folder: Path, identity: Identity, names: tuple[str, ...]) -> Identity:
    """Write down what the files of a finished run hold."""
    files = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    done = replace(identity, files=files)
    write(folder, done)
    return done


def refresh(folder: Path, *names: str) -> None:
    """Take up files of a finished run that were written again on purpose (a new report, drawings)."""
    identity, _ = read(folder)
    if identity is None or identity.files is None:
        return
    new = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    write(folder, replace(identity, files={**identity.files, **new}))


def changed_files(folder: Path, files: Mapping[str, Any]) -> list[str]:
    """The files of a finished run that are missing or hold something else now, each with what happened to it."""
    found = []
    for name, digest in files.items():
        path = folder / Path(name)
        if Path(name).is_absolute() or ".." in Path(name).parts:
            continue  # a stranger's run.json cannot make us read elsewhere
        try:
            if sha256_of(path) != digest:
                found.append(f"{name} was changed")
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except (OSError, ValueError) as error:
            found.append(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")
    return found
