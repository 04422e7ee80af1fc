"""An append-only file of a run: one JSON object per line, each with the run's id, its number and a checksum.

A line survives a killed process at once, and a power loss after about a second. A line that was changed, or that
belongs to another run, is ignored and reported; nothing is ever removed from the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import AppendOnly, object_of, sealed_line, unsealed, whole_lines

SYNC_SECONDS = 1.0
REPORTED = 20
"""Maximum number of bad lines that are reported individually."""


def read_line(line: bytes, run: str) -> dict[str, Any] | None:
    """The object of a line, without id and checksum; None if it was changed or belongs to another run."""
    found = object_of(line)
    found = None if found is None else unsealed(found)
    return None if found is None or found.pop("run", None) != run else found


class Log:
    """The lines of one file; safe to append to from several threads."""

    def __init__(self, path: Path, run: str = "", check: Callable[[], None] = lambda: None) -> None:
        """`check` is called before the file is opened for writing: its folder may be another's by then."""
        self.path, self.run, self._check = path, run, check
        self.problems: list[str] = []
        """Messages about lines that cannot be used."""
        self.lines: list[dict[str, Any] | None] = [read_line(line, run) for line in whole_lines(path)]
        """What earlier sessions wrote, by line; None for a line that cannot be used. Empty once it was taken over."""
        self.count = len(self.lines)
        self.moved = {
            number for number, line in enumerate(self.lines) if line is not None and line.pop("line", None) != number
        }
        """Numbers of lines that were written as others: a line before them was removed, or they were moved."""
        bad = [number for number, line in enumerate(self.lines, 1) if line is None]
        for number in bad[:REPORTED]:
            self.problems.append(f"{path}:{number}: the line was changed or is of another run, so it is ignored")
        if len(bad) > REPORTED:
            self.problems.append(f"{path}: {len(bad) - REPORTED:,} more lines were changed or are of another run")
        self._file: AppendOnly | None = None
        self._lock = threading.Lock()
        self._synced = time.monotonic()

    def append(self, line: Mapping[str, Any]) -> int:
        """Append a line; returns its number."""
        with self._lock:
            if self._file is None:
                self._file = self._open()
            self._file.append([{**line, "line": self.count, "run": self.run}])
            self.count += 1
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                self._sync()
            return self.count - 1

    def sync(self) -> None:
        """Sync all lines to disk; done before a checkpoint refers to them."""
        with self._lock:
            self._sync()

    def close(self) -> None:
        """Sync and close the file."""
        with self._lock:
            self._sync()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _sync(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._synced = time.monotonic()

    def _open(self) -> AppendOnly:
        self._check()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}; free some space or choose another folder"
            ) from None
        return AppendOnly(self.path, line=sealed_line)
