"""The user's cache: its location, and adding folders to it atomically."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from pinprompt.errors import ModelError, RunError, errno_of
from pinprompt.files import rename, write_atomically, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

HASHES = ".hashes.json"
"""In each folder of the cache: the SHA-256 of its files; its modification time is the time of the last check."""
DAY = 86400.0


def home() -> Path:
    """The cache folder: PINPROMPT_HOME, else `pinprompt` in the platform's cache folder. It may not exist yet."""
    given = os.environ.get("PINPROMPT_HOME")
    if given:
        return Path(given).expanduser().absolute()
    return _platform_cache() / "pinprompt"


def _platform_cache() -> Path:
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():  # the XDG specification says to ignore relative paths
        return Path(xdg)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ".cache"


_fetching = True


@contextlib.contextmanager
def fetching_nothing() -> Iterator[None]:
    """Contact no index and no hub in this context: what is not on this machine is a NotFetched error."""
    global _fetching
    before, _fetching = _fetching, False
    try:
        yield
    finally:
        _fetching = before


def may_fetch() -> bool:
    return _fetching


@contextlib.contextmanager
def place(target: Path, what: str) -> Iterator[Path | None]:
    """Fill `target` (a folder in the cache) once: yields a folder to fill, or None if it exists.

    One process at a time fills a target; the others wait for it. The yielded folder is renamed to `target` at the end
    and removed on errors, so that a target that exists is always complete.
    """
    if target.is_dir():
        # Before any lock, so that a read-only shared cache can be used.
        check(target)
        yield None
        return
    staging, locks = home() / "tmp", home() / "locks"
    with translated(what), contextlib.ExitStack() as stack:
        for needed in (locks, target.parent, staging):
            needed.mkdir(parents=True, exist_ok=True)
        stack.enter_context(FileLock(locks / f"{target.name}.lock"))  # released by the system if a process dies
        if target.is_dir():
            yield None
            return
        _clean(staging, locks, target.name)
        folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=staging))
        try:
            yield folder
            _seal(folder)
            folder.chmod(0o755)
            rename(folder, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _clean(staging: Path, locks: Path, held: str) -> None:
    """Delete what killed processes left: folders whose lock nobody holds, or we do (`held`)."""
    for left in staging.iterdir():
        name = left.name.rpartition(".")[0]
        with contextlib.suppress(Timeout, OSError), contextlib.ExitStack() as stack:
            if name != held:
                stack.enter_context(FileLock(locks / f"{name}.lock", timeout=0))
            shutil.rmtree(left, ignore_errors=True)


def check(target: Path, deep: bool = False) -> None:
    """Check the hashes of a folder in the cache, if it has any: at most once a day, or now with `deep`."""
    note = target / HASHES
    try:
        if not deep and 0 <= time.time() - note.stat().st_mtime < DAY:  # a time in the future would count forever
            return
        known = json.loads(note.read_text("utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        known = None
    changed = [HASHES] if not isinstance(known, dict) else [
        name for name, digest in known.items() if not (target / name).is_file() or sha256_of(target / name) != digest
    ]  # fmt: skip
    if changed:
        raise ModelError(
            f"{target} was changed since it was cached ({', '.join(changed[:3])} changed); remove the folder, and "
            "it is fetched again"
        )
    with contextlib.suppress(OSError):
        os.utime(note)


def damaged_folders() -> list[str]:
    """A sentence for each folder of weights or data in the cache that was changed."""
    found = []
    for target in sorted(path for kind in ("models", "data") for path in (home() / kind).glob("*") if path.is_dir()):
        try:
            check(target, deep=True)
        except ModelError as error:
            found.append(str(error))
    return found


def _seal(folder: Path) -> None:
    """Store the hashes of a folder's files."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != HASHES)
    digests = {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}
    write_atomically(folder / HASHES, json.dumps(digests, indent=0))


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn file system errors into clear messages: full disk, read-only cache, and others."""
    try:
        yield
    except Exception as error:
        number = errno_of(error)
        if number is None:
            raise
        if number in (errno.ENOSPC, errno.EDQUOT):
            sentence = (
                f"the disk is full: {what} does not fit into the cache {home()}. Nothing incomplete was left "
                "behind. Free some space, or set PINPROMPT_HOME to a folder on another disk."
            )
        elif number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            sentence = (
                f"cannot write {what} into the cache {home()} ({os.strerror(number)}). "
                "Set PINPROMPT_HOME to a folder that you may write to."
            )
        else:
            sentence = (
                f"cannot put {what} into the cache {home()}: {error}. "
                "Set PINPROMPT_HOME to another folder if this persists."
            )
        raise ModelError(sentence) from error


def sha256_of(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def known_sha256_of(path: Path) -> str:
    """Like `sha256_of`, but cached by path, size and modification time, since weights can be gigabytes."""
    path = path.resolve()
    stat = path.stat()
    key = hashlib.sha256(f"{path}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()
    note = home() / "hashes" / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if stat.st_mtime <= time.time():  # a clock that was wrong may give two versions the same time
            return str(json.loads(note.read_text())["sha256"])
    digest = sha256_of(path)
    # Only an optimisation: a read-only cache costs time, nothing else.
    with contextlib.suppress(OSError, RunError):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps({"path": str(path), "sha256": digest}))
    return digest


def kept_tensor(key: str, what: str, compute: Callable[[], Tensor]) -> Tensor:
    """A tensor that is computed once per key and kept in the cache; a cache that cannot be written only costs time."""
    from safetensors.torch import load_file

    target = home() / "tensors" / key[:32]
    with contextlib.suppress(ModelError, RunError), place(target, what) as folder:
        if folder is not None:
            write_tensors(folder / "tensor.safetensors", {"kept": compute()})
    return load_file(target / "tensor.safetensors")["kept"] if target.is_dir() else compute()


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
