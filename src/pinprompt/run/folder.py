"""A run folder: made, locked, written to while the run goes, and opened again to resume."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from pinprompt.errors import FolderInUse, RunError
from pinprompt.files import AppendOnly, opener, write_atomically, write_json
from pinprompt.run.checkpoint import Checkpoint
from pinprompt.values import Event

OURS = ("recipe.toml", "events.jsonl", "costs.jsonl", "prompts.csv", "result.json", "report.html", "environment.json",
        "scores.jsonl", "rows.json", "checkpoint", "vectors.safetensors", "drawings")  # fmt: skip
"""What --force removes; anything else in the folder is the user's and stays."""

FOREVER = 1e12
"""More seconds than any run has taken: a number beyond it was not measured."""


class RunFolder:
    """The folder of one run, held by one process at a time."""

    def __init__(self, path: Path | str, *, resume: bool = False, force: bool = False) -> None:
        self.path = Path(path)
        self._made, self._begun = not self.path.exists(), False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"the run folder {path} cannot be made: {error.strerror}; choose another with --out"
            ) from None
        self._lock = _hold(self.path)
        try:
            if (self.path / "recipe.toml").exists() and not resume:
                if not force:
                    raise RunError(
                        f"{path} holds a run already; go on with it by --resume, or start anew by --force (removes it)"
                    )
                self._clear()
            self.checkpoint = Checkpoint(self.path / "checkpoint")
        except BaseException:
            self._lock.close()
            raise
        self._files: dict[str, AppendOnly] = {}
        before = self.checkpoint.provided("seconds")
        self.seconds_before = float(before) if isinstance(before, int | float) and 0 <= before < FOREVER else 0.0
        self._opened = time.monotonic()
        self.checkpoint.providers["seconds"] = self.seconds

    def begin(self, recipe: str) -> None:
        """Make this folder hold a run of that recipe: events and costs go on from where the checkpoint left them."""
        write_atomically(self.path / "recipe.toml", recipe)
        self._begun = True
        for name in ("events", "costs"):
            self._files[name] = AppendOnly(self.path / f"{name}.jsonl", self.checkpoint.size(name))
        self.checkpoint.growing |= self._files

    def seconds(self) -> float:
        """How long the run has taken, earlier sessions included."""
        return self.seconds_before + time.monotonic() - self._opened

    def record(self, event: Event) -> None:
        """Listen to a run: the event to events.jsonl, what it cost to costs.jsonl."""
        self._files["events"].append([{"event": event.kind, "step": event.step, **event.data}])
        if event.costs:
            elapsed = {"elapsed": round(self.seconds(), 3)}
            self._files["costs"].append([{"event": event.kind, "step": event.step, **event.costs, **elapsed}])

    def save_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Keep a JSON file such as result.json."""
        write_json(self.path / name, value)

    def save_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep prompts.csv: every distinct prompt with its scores."""
        table = list(rows)
        columns = list(dict.fromkeys(name for row in table for name in row)) or ["prompt"]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
        write_atomically(self.path / "prompts.csv", text.getvalue())

    def close(self) -> None:
        """Let go of the folder."""
        self.checkpoint.close()
        for file in self._files.values():
            file.close()
        self._lock.close()
        if self._made and not self._begun:
            # A start that failed leaves nothing; a folder that has anything else in it stays.
            with contextlib.suppress(OSError):
                (self.path / ".lock").unlink(missing_ok=True)
                if (self.path / "checkpoint").is_dir():
                    (self.path / "checkpoint").rmdir()
                self.path.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _clear(self) -> None:
        for name in OURS:
            target = self.path / name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)


def _hold(folder: Path) -> IO[str]:
    """Lock the folder for this process; the second to ask is told which process has it."""
    path = folder / ".lock"
    try:
        file = open(path, "a+", opener=opener)  # noqa: SIM115  # held as long as the run
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}; choose another folder with --out") from None
    try:
        _lock(file)
    except OSError:
        file.seek(0)
        owner = file.read(40).strip() or "another process"
        file.close()
        raise FolderInUse(
            f"{folder} is in use by {owner}; wait for it to end, or choose another folder with --out"
        ) from None
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()}")
    file.flush()
    return file


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:
        import msvcrt  # Windows

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
