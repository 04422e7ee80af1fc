"""The identity of a run: run.json, written at the start and completed at the end with the checksums of its files."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import opener, read_object, sealed, sha256_of, unsealed, write_atomically, write_json

FILE = "run.json"
MAX_BYTES = 8 << 20
"""Maximum size of run.json."""
FORMAT = 3


@dataclass(frozen=True)
class Identity:
    """A run's id, the task that scores its prompts, its recipe as text, and once it is finished its files' SHA-256."""

    run: str
    fingerprint: str
    recipe: str
    files: Mapping[str, str] | None = None


def new(fingerprint: str, recipe: str) -> Identity:
    """The identity of a new run."""
    return Identity(secrets.token_hex(6), fingerprint, recipe)


def write(folder: Path, identity: Identity) -> None:
    """Write run.json."""
    write_json(folder / FILE, sealed({"format": FORMAT, **asdict(identity)}))


def read(folder: Path) -> tuple[Identity | None, str]:
    """A folder's run.json (None if it cannot be used), and what is wrong with it ('' if nothing)."""
    path = folder / FILE
    found, there = read_object(path, MAX_BYTES)
    if not there:
        return None, ""
    found = unsealed(found) if found is not None else None
    if found is None:
        return None, f"{path} is damaged"
    if found.get("format") != FORMAT:
        given = found.get("format")
        if isinstance(given, int) and given < FORMAT:
            raise RunError(f"{path} was written by an earlier pinprompt (format {given}); start again with --force")
        raise RunError(f"{path} was written by a newer pinprompt (format {str(given)[:40]}); upgrade pinprompt")
    files = found.get("files")
    known = files if isinstance(files, dict) else {}
    texts = [*map(found.get, ("run", "fingerprint", "recipe")), *known, *known.values()]
    if not isinstance(files, dict | None) or not all(isinstance(one, str) and _is_text(one) for one in texts):
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
            if file.read(MAX_BYTES) == identity.recipe.encode():
                return False
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    write_atomically(path, identity.recipe)
    return True


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
