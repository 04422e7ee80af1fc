"""Opening a file where it stands: never through a link, never a pipe or a device. For folders that may be a stranger's.

A run folder can come from anywhere. A link in it would let it read or write a file outside, a pipe would make a reader
wait for ever; so both are refused, by the opening itself: between a check and an opening there is time for a change.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError

# Writing files so that a reader never sees half of one: a temporary name, synced, then renamed.


def write_atomically(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data`, or leave it as it was."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    # Not mkstemp: its files are readable by their owner alone, and a run folder is for sharing.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=opener) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}; make room or choose another folder") from None


def rename(temporary: Path, path: Path) -> None:
    """Put a finished file or folder in its place, also for a machine that loses power now: the folder is synced."""
    os.replace(temporary, path)
    if os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
                os.fsync(handle)
        finally:
            os.close(handle)


def write_tensors(path: Path, tensors: Mapping[str, Any], about: dict[str, str] | None = None) -> None:
    """Replace `path` by tensors as safetensors, or leave it as it was."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = path.with_suffix(".tmp")
    try:
        temporary.unlink(missing_ok=True)  # it may be a link that somebody put there
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary, about)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        rename(temporary, path)
    except (OSError, SafetensorError) as error:  # the library wraps what the system says in an error of its own
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"{path} cannot be written: {reason}; free some space, then run --resume") from None


def write_json(path: Path, value: Any) -> None:
    """A JSON file that a person can read."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def json_line(value: Any) -> bytes:
    """One line of JSON; the same bytes for the same value."""
    return (json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n").encode()


def read_lines(path: Path, end: int | None = None) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, up to byte `end`; a torn last line is passed over."""
    try:
        with open(path, "rb", opener=opener) as file:
            for line in file:
                if end is not None and file.tell() > end:
                    return
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


class AppendOnly:
    """A file that only grows; `size` is how much of it counts."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Open for appending; with `size`, first cut the file back to that many bytes."""
        self.path = path
        try:
            self._file = open(path, "ab", opener=opener)  # noqa: SIM115  # it stays open as long as the run
            if size is not None and size < os.fstat(self._file.fileno()).st_size:
                self._file.truncate(size)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from None

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add rows; they are safe after the next `sync`."""
        try:
            self._file.write(b"".join(map(json_line, rows)))
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}; free some space, then --resume") from None

    def sync(self) -> int:
        """Force the file to disk and return its size."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}; free some space, then --resume") from None
        return self._file.tell()

    def close(self) -> None:
        """No more rows."""
        self._file.close()


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: a regular file or a new one, else an OSError that says what it is."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(error.errno, "it is a link, and files are used where they stand", path) from None
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "it is no regular file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return handle
