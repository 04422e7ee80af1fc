"""Files of a run: safe opening, atomic writes, checksums, JSON lines and locks.

A run folder may be untrusted. A link in it could point to a file outside, and a pipe would block a reader for ever, so
both are rejected by the call that opens them: a check before opening could be outdated by then.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import FolderInUse, RunError

CHUNK = 1 << 20
MEBI = 1 << 20

# Limits for reading untrusted files; no real run comes close to them.
MAX_FILE_BYTES = 1024 * MEBI
"""Maximum size of a file that grows with a run, in bytes."""
MAX_LINE_BYTES = 64 * MEBI
"""Maximum size of one of its lines, in bytes."""
MAX_LINES = 5_000_000
MAX_VALUES = 2_000_000
"""Maximum number of values in a JSON text: in memory each takes up to a hundred times its size in the file."""
MAX_DEPTH = 64
"""Maximum depth of a JSON text: traversing more could exhaust the stack."""
MAX_DIGITS = 40
"""Maximum digits of an integer: Python reads more, but fails later when it prints them or converts them to float."""


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: opens a regular or new file; raises an OSError for anything else."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(error.errno, "it is a link, and links are not followed", path) from None
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "it is not a regular file", path) from None
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    if found.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
        os.close(handle)
        raise OSError(errno.EMLINK, "it has a second name elsewhere (a hard link); work on a copy of the folder", path)
    return handle


def errno_of(error: BaseException) -> int | None:
    """The system's number of an error; safetensors wraps the system's errors in its own."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return None if found is None else int(found[1])


# Atomic writes: to a temporary name, synced, then renamed.


def write_atomically(path: Path, data: bytes | str) -> None:
    """Replace the content of `path` by `data`, or leave it unchanged on failure."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    # Not mkstemp, whose files only their owner can read: run folders are meant to be shared.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _replacing(path, temporary, "free some space or choose another folder"):
        with open(temporary, "xb", opener=opener) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(temporary, path)


@contextlib.contextmanager
def _replacing(
    path: Path, temporary: Path, remedy: str, failures: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Turn a failure to write `path` by way of a temporary file into a RunError, and delete that file."""
    try:
        temporary.unlink(missing_ok=True)  # it may be a link to another file
        yield
    except failures as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"{path} cannot be written: {reason}; {remedy}") from None


def rename(temporary: Path, path: Path) -> None:
    """Rename a finished file or folder to its final name and sync the folder, so that it survives a power loss."""
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries (new names, renames, removals) to disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
                os.fsync(handle)
        finally:
            os.close(handle)


def write_tensors(path: Path, tensors: Mapping[str, Any], about: dict[str, str] | None = None) -> str:
    """Replace `path` by tensors as safetensors, or leave it unchanged on failure; returns the file's SHA-256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = path.with_suffix(".tmp")
    # The library wraps the system's error in its own.
    with _replacing(path, temporary, "free some space, then run --resume", (OSError, SafetensorError)):
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary, about)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        rename(temporary, path)
    return digest


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


# Checksums: each row carries its own, so that a changed byte is detected before its value is used.


def dumps(value: Any) -> str:
    """JSON on one line: ASCII only, so that lone surrogates and line separators in prompts cannot break it."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def checksum(data: bytes, before: str = "") -> str:
    """CRC-32 of bytes in hexadecimal; `before` is the CRC-32 of the preceding bytes."""
    return f"{zlib.crc32(data, int(before, 16) if before else 0):08x}"


def sealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its checksum as its last field, `crc`."""
    return {**row, "crc": checksum(dumps(row).encode())}


def unsealed(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row without its checksum; None if the checksum is missing or does not match."""
    plain = {name: value for name, value in row.items() if name != "crc"}
    return plain if row.get("crc") == checksum(dumps(plain).encode()) else None


def sha256_of(path: Path, most: int = MAX_FILE_BYTES) -> str:
    """SHA-256 of a file in hexadecimal; OSError if it is not a regular file or has more than `most` bytes."""
    with open(path, "rb", opener=opener) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, most)
        return hashlib.file_digest(file, "sha256").hexdigest()


def csv_safe(value: str) -> str:
    """A CSV cell that no spreadsheet reads as a formula."""
    return "'" + value if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


# Untrusted JSON, read in bounded time and memory.

_LONG_INTEGER = re.compile(rf"(?<!\d)\d{{{MAX_DIGITS + 1}}}")


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError if it is invalid or exceeds the limits."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    nested = text.count("[") + text.count("{")
    if nested + text.count(",") > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        value = json.loads(text, parse_int=_integer) if _LONG_INTEGER.search(text) else json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    if nested > MAX_DEPTH and is_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:  # with a sign
        raise ValueError(f"an integer of more than {MAX_DIGITS} digits")
    return int(digits)


def is_deep(value: Any) -> bool:
    """Whether values are nested beyond the limit; level by level, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


# JSON lines: append-only files.


def json_line(value: Any) -> bytes:
    """One line of JSON; the same bytes for the same value."""
    return (json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n").encode()


def sealed_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON with a checksum."""
    return (dumps(sealed(row)) + "\n").encode("ascii")


def read_lines(path: Path, end: int | None = None) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, up to byte `end`; an incomplete last line is skipped."""
    size = 0
    for line in whole_lines(path):
        size += len(line)
        if end is not None and size > end:
            return
        row = object_of(line)
        if row is not None:
            yield row


def read_object(path: Path, largest: int, remedy: str = "") -> tuple[dict[str, Any] | None, bool]:
    """The JSON object in a file, or None if it holds anything else; and whether the file exists."""
    try:
        with open(path, "rb", opener=opener) as file:
            return object_of(file.read(largest)), True
    except FileNotFoundError:
        return None, False
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}{remedy}") from None


def object_of(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None if it holds anything else."""
    try:
        row = loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file with their newlines; an incomplete last line is left out, a missing file has none."""
    try:
        with open(path, "rb", opener=opener) as file:
            _check_size(path, os.fstat(file.fileno()).st_size, MAX_FILE_BYTES)
            for number in range(1, MAX_LINES + 2):
                line = file.readline(MAX_LINE_BYTES + 1)
                if number > MAX_LINES and line:
                    raise OSError(errno.EFBIG, f"it has more than {MAX_LINES:,} lines{_NOT_OURS}", path)
                if len(line) > MAX_LINE_BYTES:
                    said = f"line {number} is longer than {MAX_LINE_BYTES // MEBI} MiB{_NOT_OURS}"
                    raise OSError(errno.EFBIG, said, path)
                if not line.endswith(b"\n"):
                    return
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


def _check_size(path: Path, size: int, most: int) -> None:
    if size > most:
        said = f"it has {size // MEBI:,} MiB, more than the limit of {most // MEBI:,} MiB{_NOT_OURS}"
        raise OSError(errno.EFBIG, said, path)


_NOT_OURS = "; no run writes such a file: move it away"


class AppendOnly:
    """An append-only file of JSON lines; `size` and `crc` are those of its valid part."""

    def __init__(
        self, path: Path, size: int | None = None, line: Callable[[dict[str, Any]], bytes] = json_line
    ) -> None:
        """Open for appending, truncated to `size` bytes; without a size, to the end of the last complete line."""
        self.path, self._line = path, line
        try:
            # Unbuffered: data that could not be written must not be written later from a buffer.
            self._file = open(path, "ab", buffering=0, opener=opener)  # noqa: SIM115  # open as long as the run
            self.size, self.crc = _measure(path, size)
            if self.size < os.fstat(self._file.fileno()).st_size:
                self._file.truncate(self.size)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from None

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows, all or none; they survive a killed process, and after the next `sync` a power loss."""
        data = b"".join(map(self._line, rows))
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self.size)
            raise self._refusal(error) from None
        self.size += len(data)
        self.crc = checksum(data, self.crc)

    def sync(self) -> None:
        """Force the file to disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refusal(error) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _refusal(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path} cannot be written: {error.strerror}; free some space or make it writable, then resume "
            "the run; nothing in it is lost"
        )


def _measure(path: Path, size: int | None) -> tuple[int, str]:
    """How many bytes of a file are valid (at most `size`, or all complete lines), and their checksum."""
    crc, seen, whole, whole_crc = checksum(b""), 0, 0, checksum(b"")
    with open(path, "rb", opener=opener) as file:
        there = os.fstat(file.fileno()).st_size
        _check_size(path, there if size is None else min(there, size), MAX_FILE_BYTES)
        while size is None or seen < size:
            block = file.read(CHUNK if size is None else min(CHUNK, size - seen))
            if not block:
                break
            end = block.rfind(b"\n") + 1
            if end:
                whole, whole_crc = seen + end, checksum(block[:end], crc)
            seen, crc = seen + len(block), checksum(block, crc)
    return (seen, crc) if size is not None else (whole, whole_crc)


def checksum_of(path: Path, size: int) -> str | None:
    """The checksum of a file's first bytes; None if it has fewer."""
    try:
        seen, crc = _measure(path, size)
    except FileNotFoundError:
        seen, crc = 0, checksum(b"")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    return crc if seen == size else None


# Locking a folder for one process.

LOCK = ".lock"
_TRIES, _PAUSE = 10, 0.02  # checking whether a folder is locked takes its lock for a moment


class FolderLock:
    """A folder locked by this process through `.lock`; a second process gets an error that names this one."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file = open(folder / LOCK, "a+", opener=opener)  # noqa: SIM115  # held as long as the run
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}; choose another folder with --out") from None
        tries = 1
        while not _lock(self._file.fileno()):
            if tries == _TRIES:
                self._file.seek(0)
                owner = self._file.read(40).strip() or "another process"
                self.close()
                raise FolderInUse(
                    f"{folder} is in use by {owner}; wait for it to end, or choose another folder with --out"
                )
            tries += 1
            time.sleep(_PAUSE)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"process {os.getpid()}")
        self._file.flush()
        self._path = folder / LOCK

    def check(self) -> None:
        """Raise a RunError if the folder is no longer the one that was locked: it may be another's by now."""
        ours = os.fstat(self._file.fileno())
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise RunError(
                f"{self._path.parent} was removed, moved or replaced while the run was writing to it; nothing more is "
                "written. If it was moved, resume it in its new place"
            )

    def close(self) -> None:
        """Release the folder."""
        self._file.close()


def is_held(folder: Path) -> bool:
    """Whether a running process has locked the folder."""
    try:
        with open(folder / LOCK, "rb", opener=opener) as file:
            return not _lock(file.fileno(), shared=True)
    except OSError:
        return False


def _lock(handle: int, shared: bool = False) -> bool:
    """Lock an open file; False if another process has locked it. Windows has no such locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
