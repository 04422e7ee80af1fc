"""An append-only file: one JSON object per line, sealed with a checksum of the line and of the run it belongs to.

A line survives a killed process at once, and a power loss after about a second. A line that was changed, or that
belongs to another run, is ignored and reported. A checkpoint names the lines it refers to, with one checksum of all.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import checksum, opener, seal, unseal, whole_lines

SYNC_SECONDS = 1.0


class Log:
    """The lines of one file; safe to append to from several threads."""

    def __init__(self, path: Path, run: str = "", check: Callable[[], None] = lambda: None) -> None:
        """`check` is called before the file is opened for writing: its folder may be another's by then."""
        self.path, self.run, self._check = path, run, check
        self.lines: list[dict[str, Any] | None] = []
        """What earlier sessions wrote, by line; None for a line that cannot be used. Empty once it was taken over."""
        self._sums: list[str] = []
        """The checksum of every line."""
        self._size = 0
        for line in whole_lines(path):
            self.lines.append(unseal(line, run))
            self._sums.append(checksum(line))
            self._size += len(line)
        self.crc = self.sum_of(range(self.count))
        """One checksum of all lines."""
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()
        self._synced = time.monotonic()

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self._sums)

    def bad(self) -> str:
        """Which lines cannot be used, as a sentence; '' if all can."""
        bad = [str(number) for number, line in enumerate(self.lines, 1) if line is None]
        if not bad:
            return ""
        named = ", ".join(bad[:5]) + (", ..." if len(bad) > 5 else "")
        return f"{self.path} has {len(bad):,} lines that were changed or belong to another run (lines {named})"

    def sum_of(self, numbers: Iterable[int], before: str = "") -> str:
        """One checksum of these lines in order, continuing that of earlier ones; '' if one of them is missing."""
        for number in numbers:
            if not 0 <= number < self.count:
                return ""
            before = checksum(self._sums[number].encode(), before)
        return before

    def cut(self, count: int) -> None:
        """Drop the lines after the first `count`; the file is truncated when the next line is appended."""
        self.lines, self._sums = self.lines[:count], self._sums[:count]
        self._size = sum(map(len, itertools.islice(whole_lines(self.path), count)))
        self.crc = self.sum_of(range(self.count))

    def append(self, *lines: Mapping[str, Any]) -> int:
        """Append lines, all or none; returns the number of the first."""
        sealed = [seal(line, self.run) + b"\n" for line in lines]
        with self._lock:
            first = self.count
            self._write(b"".join(sealed))
            self._sums += map(checksum, sealed)
            self.crc = self.sum_of(range(first, self.count), self.crc)
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                self._sync()
            return first

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

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        if self._file is None:
            self._check()
        with self._refusing():
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # Unbuffered: data that could not be written must not be written later from a buffer.
                self._file = open(self.path, "ab", buffering=0, opener=opener)  # noqa: SIM115
                self._file.truncate(self._size)
            try:
                while left:
                    left = left[self._file.write(left) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._size)
                raise
        self._size += len(data)

    def _sync(self) -> None:
        if self._file is not None:
            with self._refusing():
                os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}; free some space or make it writable, then resume "
                "the run; nothing in it is lost"
            ) from None
