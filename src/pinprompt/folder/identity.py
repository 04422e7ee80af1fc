"""The identity of a run: run.json, written at the start and completed at the end with the checksums of its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pinprompt.errors import RunError
from pinprompt.files import read_file, seal, sha256_of, unseal, write_atomically

FILE = "run.json"
FORMAT = 4


@dataclass(frozen=True)
class Identity:
    """A run's id, the task that scores its prompts, its recipe as text, and once it is finished its files' SHA-256."""

    run: str
    fingerprint: str
    recipe: str
    files: Mapping[str, str] | None = None


def write(folder: Path, identity: Identity) -> None:
    """Write run.json."""
    write_atomically(folder / FILE, seal({"format": FORMAT, **asdict(identity)}) + b"\n")


def read(folder: Path) -> Identity | None:
    """A folder's run.json; None if there is none, RunError if it cannot be used."""
    path = folder / FILE
    content = read_file(path)
    if content is None:
        return None
    found = unseal(content)
    if found is not None and found.get("format") != FORMAT:
        raise RunError(f"{path} was written by another version of pinprompt; start over with --force")
    texts = [] if found is None else [found.get(name) for name in ("run", "fingerprint", "recipe")]
    if found is None or not all(isinstance(text, str) for text in texts):
        raise RunError(f"{path} is damaged; put a copy of it back, or start over with --force")
    return Identity(found["run"], found["fingerprint"], found["recipe"], found.get("files"))


def restore_recipe(folder: Path) -> bool:
    """Restore recipe.toml from run.json if it is missing or was changed; returns whether it was."""
    identity, path = read(folder), folder / "recipe.toml"
    if identity is None or read_file(path) == identity.recipe.encode():
        return False
    write_atomically(path, identity.recipe)
    return True


def complete(folder: Path, identity: Identity, names: Iterable[str]) -> None:
    """Store the checksums of these files, besides those that are known."""
    new = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    write(folder, replace(identity, files={**(identity.files or {}), **new}))


def refresh(folder: Path, *names: str) -> None:
    """Update the checksums of a finished run's files that were rewritten on purpose (a new report, drawings)."""
    try:
        identity = read(folder)
    except RunError:
        return  # a report can be written about a damaged run
    if identity is not None and identity.files is not None:
        complete(folder, identity, names)


def changed_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """The files of a finished run that are missing or changed, each with a description."""
    found = []
    for name, digest in files.items():
        try:
            if sha256_of(folder / Path(name).name) != digest:  # an untrusted run.json must not name files elsewhere
                found.append(f"{name} was changed")
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except (OSError, ValueError) as error:
            found.append(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")
    return found
