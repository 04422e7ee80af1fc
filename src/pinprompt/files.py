"""Files of a run: safe opening, atomic writes, lines with checksums, and locks.

A run folder may be untrusted. A link in it could point to a file outside, and a pipe would block a reader forever, so
both are rejected by the call that opens them: a check before opening could be outdated by then.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import FolderInUse, RunError

MEBI = 1 << 20
MAX_DIGITS = 40
"""Maximum number of digits of an integer in JSON."""
MAX_FILE_BYTES = 1024 * MEBI
"""Maximum size of a file that is read, in bytes; no real run comes close to it."""


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: opens a regular or new file; raises an OSError for anything else."""
    try:
        handle = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(error.errno, "it is a link, and links are not followed", path) from None
        raise
    found = os.fstat(handle)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "it is not a regular file"
    elif found.st_size > MAX_FILE_BYTES:
        problem = "it is too large to be from pinprompt"
    elif found.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
        problem = "it has a second name elsewhere (a hard link); work on a copy of the folder"
    if problem:
        os.close(handle)
        raise OSError(errno.EINVAL, problem, path)
    return handle


def read_file(path: Path, most: int = MAX_FILE_BYTES) -> bytes | None:
    """The content of a file; None if there is none, RunError if it is not a regular file or has more bytes."""
    try:
        with open(path, "rb", opener=opener) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise RunError(f"{path} has more than the {most // MEBI} MiB that are read; is it from pinprompt?")
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


# Atomic writes: to a temporary name, synced, then renamed.


def write_atomically(path: Path, data: bytes | str) -> None:
    """Replace the content of `path` by `data`, or leave it unchanged on failure."""
    content = data.encode("utf-8", "replace") if isinstance(data, str) else data
    # Not mkstemp, whose files only their owner can read: run folders are meant to be shared.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # it may be a link to another file
        with open(temporary, "xb", opener=opener) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path} cannot be written: {error.strerror}; free some space or choose another folder"
        ) from None


def rename(temporary: Path, path: Path) -> None:
    """Rename a finished file or folder to its final name and sync the folder, so that it survives a power loss."""
    os.replace(temporary, path)
    if os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
                os.fsync(handle)
        finally:
            os.close(handle)


def write_tensors(path: Path, tensors: Mapping[str, Any], about: dict[str, str] | None = None) -> None:
    """Replace `path` by tensors as safetensors, or leave it unchanged on failure."""
    from safetensors.torch import save

    write_atomically(path, save({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, about))


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def csv_safe(value: str) -> str:
    """A CSV cell that no spreadsheet reads as a formula."""
    return "'" + value if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


# Checksums: each line carries its own, so that a changed byte is detected before its value is used.


def checksum(data: bytes | memoryview, owner: str = "") -> str:
    """CRC-32 of bytes and of what they belong to (a run, a question), in hexadecimal."""
    return f"{zlib.crc32(data, zlib.crc32(owner.encode())):08x}"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal; OSError if it is not a regular file."""
    with open(path, "rb", opener=opener) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(value: Mapping[str, Any], owner: str = "") -> bytes:
    """A JSON object on one line whose last field, `crc`, is the checksum of the others and of the owner.

    ASCII only, so that lone surrogates and line separators in prompts cannot break the line.
    """
    data = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return data[:-1] + _crc(data, owner)


def unseal(line: bytes, owner: str = "") -> dict[str, Any] | None:
    """The object of a sealed line; None if it was changed or belongs to another owner."""
    line = line.rstrip(b"\n")
    data = line[: -len(_crc(b""))] + b"}"
    return object_of(data) if line[len(data) - 1 :] == _crc(data, owner) else None


def _crc(data: bytes, owner: str = "") -> bytes:
    return f',"crc":"{checksum(data, owner)}"}}'.encode()


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError if it is invalid, nested too deeply, or has an absurdly long number."""
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:  # with a sign; converting more takes long, and no float can hold it
        raise ValueError(f"an integer of more than {MAX_DIGITS} digits")
    return int(digits)


def object_of(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None if it holds anything else."""
    try:
        value = loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file with their newlines; an incomplete last line is left out, a missing file has none."""
    try:
        with open(path, "rb", opener=opener) as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


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
        self._path = folder / LOCK
        for _ in range(_TRIES):
            if _lock(self._file.fileno()):
                break
            time.sleep(_PAUSE)
        else:
            self._file.seek(0)
            owner = self._file.read(40).strip() or "another process"
            self.close()
            raise FolderInUse(f"{folder} is in use by {owner}; wait for it to end, or choose another folder with --out")
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"process {os.getpid()}")
        self._file.flush()

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
