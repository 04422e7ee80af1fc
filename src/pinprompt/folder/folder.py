"""Run folders: creating, locking, writing, reopening for a resumed run, and verifying."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pinprompt.answers.log import Log
from pinprompt.errors import RunError
from pinprompt.files import LOCK, FolderLock, csv_safe, is_held, write_atomically, write_json
from pinprompt.folder import identity as identities
from pinprompt.folder.checkpoint import ANSWERS, BESIDE, Checkpoint
from pinprompt.folder.identity import Identity
from pinprompt.folder.reading import MARKS, number
from pinprompt.values import Event

REQUESTS = "requests.jsonl"
"""The requests that were sent to a server."""
FINISHED = ("recipe.toml", "events.jsonl", "costs.jsonl", ANSWERS, REQUESTS, "result.json", "prompts.csv",
            "environment.json", "rows.json", "judges.json", "vectors.safetensors", "report.html")  # fmt: skip
"""Files whose checksums are in run.json."""
OURS = (identities.FILE, *FINISHED, "checkpoint", "judgements.json", "drawings")
"""What --force deletes, in this order; anything else in the folder is the user's and stays."""
RUN = (identities.FILE, "recipe.toml")
"""A folder with any of these holds a run."""
REMAINS = (ANSWERS, REQUESTS, "checkpoint")
"""Files that only a run writes: a folder with only these holds the rest of a deleted run."""


class RunFolder:
    """The folder of one run, locked by one process at a time."""

    def __init__(self, path: Path | str, *, resume: bool = False, force: bool = False) -> None:
        self.path = Path(path)
        self._made, self._begun = not self.path.exists(), False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"the run folder {path} cannot be created: {error.strerror}; choose another with --out"
            ) from None
        self.identity: Identity | None = None
        self.notes: list[str] = []
        """Problems found and repaired on opening, for the user."""
        self._lock = FolderLock(self.path)
        self.check = self._lock.check
        """Called before files are written by their names."""
        try:
            holds, left = self._has(RUN), self._has(REMAINS)
            if holds and not resume and not force:
                raise RunError(
                    f"{path} already contains a run; continue it with --resume, or delete it and start over with "
                    "--force"
                )
            if resume and (holds or left):
                self._read_identity()
            elif holds or left:
                self._clear()
            self.checkpoint = Checkpoint(self.path / "checkpoint", run=self.run)
            if self.checkpoint.damage:
                self.notes.append(
                    f"{self.checkpoint.damage}; the run repeats its steps from the beginning, without paying again for "
                    "answers in its table"
                )
        except BaseException:
            self._lock.close()
            raise
        self.seconds_before = number(self.checkpoint.provided("seconds")) or 0.0
        self._opened = time.monotonic()
        self.checkpoint.providers["seconds"] = self.seconds
        self.checkpoint.syncs.append(self.check)

    @property
    def run(self) -> str:
        """The id of this folder's run, carried by its lines; '' if it has none yet."""
        return "" if self.identity is None else self.identity.run

    def begin(self, recipe: str, fingerprint: str = "") -> None:
        """Start or continue a run of that recipe and task in this folder; events continue from the checkpoint.

        A run of another task is an error: its scores are not comparable.
        """
        known = self.identity
        if known is not None and known.fingerprint != fingerprint:
            raise RunError(
                f"{self.path} was scored by another task ({known.fingerprint[:16]}; this one is "
                f"{fingerprint[:16]}): its data, model or function changed. Resume it with the original "
                "ones, or start over with --force"
            )
        if known is None:
            self.identity = Identity(secrets.token_hex(6), fingerprint, recipe)
        else:
            self.identity = replace(known, fingerprint=fingerprint, recipe=recipe, files=None)
        self.checkpoint.run = self.identity.run
        self.check()
        # The order matters: run.json without a recipe is not a run, and a resumed run is unfinished from here on.
        identities.write(self.path, self.identity)
        write_atomically(self.path / "recipe.toml", recipe)
        self._begun = True
        for name in BESIDE:
            self.checkpoint.log(name)  # its position is part of every checkpoint from here on

    def finish(self, reporter: Callable[[Path], object] | None = None) -> None:
        """Write report.html with the reporter, and complete run.json with the checksums of the finished run's files."""
        self.check()
        if reporter is not None:
            reporter(self.path)
            self.check()
        assert self.identity is not None
        identities.complete(self.path, self.identity, FINISHED)

    def seconds(self) -> float:
        """How long the run has taken, earlier sessions included."""
        return self.seconds_before + time.monotonic() - self._opened

    def record(self, event: Event) -> None:
        """Write an event to events.jsonl and its costs to costs.jsonl."""
        self.check()
        self.checkpoint.log("events").append({"event": event.kind, "step": event.step, **event.data})
        if event.costs:
            elapsed = {"elapsed": round(self.seconds(), 3)}
            self.checkpoint.log("costs").append({"event": event.kind, "step": event.step, **event.costs, **elapsed})

    def save_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file such as result.json."""
        self.check()
        write_json(self.path / name, value)

    def save_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write prompts.csv: every distinct prompt with its scores."""
        table = [
            {name: csv_safe(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
        ]
        columns = list(dict.fromkeys(name for row in table for name in row)) or ["prompt"]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
        self.check()
        write_atomically(self.path / "prompts.csv", text.getvalue())

    def close(self) -> None:
        """Release the folder."""
        self.checkpoint.close()
        self._lock.close()
        if self._made and not self._begun:
            # A failed start leaves no folder behind, unless it contains anything else.
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _has(self, names: Iterable[str]) -> bool:
        return any(os.path.lexists(self.path / name) for name in names)

    def _read_identity(self) -> None:
        """Open the folder's run for resuming; a damaged recipe is restored, and noted."""
        self.identity = identities.read(self.path)
        if self.identity is None:
            raise RunError(
                f"{self.path / identities.FILE} is missing; put a copy of it back, or start over with --force"
            )
        if identities.restore_recipe(self.path):
            self.notes.append(f"{self.path / 'recipe.toml'} was changed after the run wrote it; restored")

    def _clear(self) -> None:
        """Delete the run of this folder, or the rest of one; first what makes it a run.

        A kill in between leaves a complete run or none, and the next start deletes the rest.
        """
        for name in OURS:
            target = self.path / name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)


def is_run_file(path: Path) -> bool:
    """Whether a path is that of a file that a run has written, or will write, in its folder."""
    whole = path.resolve()
    return whole.name in OURS and any((whole.parent / name).is_file() for name in RUN)


@dataclass(frozen=True)
class Verification:
    """The result of checking one run folder."""

    folder: Path
    state: str
    """finished, unfinished, or running."""
    findings: tuple[str, ...]
    """What was changed or damaged."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.findings

    def data(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "folder": str(self.folder), "ok": self.ok}


def verify(folder: Path | str) -> Verification:
    """Check every checksum of a run folder without changing it; RunError if it is not a run folder."""
    folder = Path(folder)
    if not any((folder / name).is_file() for name in (*MARKS, identities.FILE)):
        raise RunError(f"{folder} is not a run folder: none of {', '.join(MARKS)} is in it")
    try:
        identity = identities.read(folder)
    except RunError as error:
        return Verification(folder, "unfinished", (str(error),))
    if identity is None:
        return Verification(folder, "unfinished", (f"{folder / identities.FILE} is missing",))
    if is_held(folder):
        return Verification(folder, "running", ())  # ahead of its checkpoint
    if identity.files is not None:
        changed = identities.changed_files(folder, identity.files)
        return Verification(folder, "finished", tuple(str(folder / what) for what in changed))
    try:
        found = [Checkpoint(folder / "checkpoint", run=identity.run).damage]
    except RunError as error:
        found = [str(error)]
    found += [Log(folder / name, identity.run).bad() for name in (ANSWERS, REQUESTS)]
    return Verification(folder, "unfinished", tuple(filter(None, found)))
