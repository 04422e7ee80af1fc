"""The checkpoint that a killed run resumes from: JSON, safetensors and append-only streams, replaced atomically."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import (
    AppendOnly,
    checksum_of,
    dumps,
    read_lines,
    read_object,
    sealed,
    sha256_of,
    unsealed,
    write_atomically,
    write_tensors,
)

SHARE = 0.04
"""Maximum share of a run's time for saving."""
MAX_STATE_BYTES = 64 << 20
"""Maximum size of state.json."""
MAX_TENSOR_BYTES = 4 << 30
"""Maximum size of its tensors."""
TABLES = ("sizes", "provided", "state")


class Checkpoint:
    """The `checkpoint/` folder of a run.

    `state.json` names the tensors' file and the valid bytes of each growing file, with their checksum. Until it is
    renamed into place, the previous checkpoint is valid. The replay is a stream, so that the cost of saving does not
    depend on its size.
    """

    def __init__(self, folder: Path, least_seconds: float = 5.0, run: str = "") -> None:
        self.folder, self.run = folder, run
        self.marked: dict[str, Callable[[], Any]] = {}
        """Further state to save, by name, as of the call to `mark`: the evaluator's position."""
        self.providers: dict[str, Callable[[], Any]] = {}
        """Further state to save, by name, as of the call to `save`: the time and money actually spent."""
        self.syncs: list[Callable[[], None]] = []
        """Called before saving, to sync what the checkpoint refers to."""
        self.growing: dict[str, AppendOnly] = {}
        """Files outside this folder that grow with the run (events, costs), by name."""
        self._streams: dict[str, AppendOnly] = {}
        self._least_seconds = least_seconds
        self._saved_at = time.monotonic()
        self._cost = 0.0
        self._mark: dict[str, dict[str, Any]] = {}
        """A point that the run can return to: the valid part of each growing file, and the run's state."""
        if folder.is_symlink():
            raise RunError(f"{folder} is a link, and links are not followed; copy the folder it points to")
        self._read, self._damage = read_state(folder / "state.json", run)

    def damage(self) -> str:
        """What is damaged: the checkpoint's state, its tensors, or a file it refers to; '' if nothing."""
        if self._damage or self._read is None:
            return self._damage
        path = self.folder / Path(str(self._read.get("tensors"))).name
        try:
            digest = self._read.get("sha256")
            if digest is not None and digest != sha256_of(path, MAX_TENSOR_BYTES):
                return f"{path} was changed"
        except FileNotFoundError:
            return f"{path} is missing"
        except ValueError:
            return f"{self.folder / 'state.json'} is damaged"  # not a valid file name
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}; start the run again with --force") from None
        places = {"events": self.folder.parent}
        for name, crc in self._read.get("sums", {}).items():
            if not name.isidentifier():
                return f"{self.folder / 'state.json'} is damaged"  # an untrusted state must not name files elsewhere
            file = places.get(name, self.folder) / f"{name}.jsonl"
            if name != "costs" and crc != checksum_of(file, self.size(name)):
                return f"{file} was changed or truncated"
        return ""

    def forget(self) -> None:
        """Ignore the checkpoint: the run repeats its steps with the answers in its table."""
        self._read, self._damage = None, ""

    def size(self, name: str) -> int:
        """The valid bytes of a growing file at the last checkpoint."""
        size = (self._read or {}).get("sizes", {}).get(name, 0)
        return size if isinstance(size, int) and size >= 0 else 0

    def provided(self, name: str) -> Any:
        """A provider's state at the last checkpoint."""
        return (self._read or {}).get("provided", {}).get(name)

    def due(self) -> bool:
        """Whether saving now stays within its share of the run's time."""
        waited = time.monotonic() - self._saved_at
        return waited >= max(self._least_seconds, self._cost / SHARE)

    def mark(self) -> None:
        """Set the point that the next `save` stores; a resumed run repeats what comes after it."""
        files = self.growing | self._streams
        earlier = self._read or {}
        self._mark = {
            "sizes": {**earlier.get("sizes", {}), **{name: file.size for name, file in files.items()}},
            "sums": {**earlier.get("sums", {}), **{name: file.crc for name, file in files.items()}},
            "provided": {name: provider() for name, provider in self.marked.items()},
        }

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Save a checkpoint at the point that was marked last."""
        started = time.monotonic()
        if not self._mark:
            self.mark()
        for file in (self.growing | self._streams).values():
            file.sync()
        for sync in self.syncs:
            sync()
        self.folder.mkdir(exist_ok=True)
        name = f"state-{step}.safetensors"
        digest = write_tensors(self.folder / name, tensors)
        whole = {
            "run": self.run,
            "step": step,
            "tensors": name,
            "sha256": digest,
            **self._mark,
            "provided": self._mark["provided"] | {key: provider() for key, provider in self.providers.items()},
            "state": dict(state),
        }
        write_atomically(self.folder / "state.json", dumps(sealed(whole)))
        for old in self.folder.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - started

    def load(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """The last checkpoint as (step, state, tensors), or None where there is none."""
        if self._damage:
            raise RunError(self._damage)
        if self._read is None:
            return None
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / Path(str(self._read.get("tensors"))).name
        try:
            # The library opens the file itself, so the file is checked first.
            if path.is_symlink() or not path.is_file():
                raise ValueError("it is missing or not a regular file")
            return int(self._read["step"]), dict(self._read["state"]), load_file(path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise RunError(
                f"the checkpoint {path} cannot be read ({error}); remove {self.folder} and resume: the answers are kept"
            ) from None

    def append(self, stream: str, rows: list[dict[str, Any]]) -> None:
        """Append rows to a stream; they are valid once the next `save` has succeeded."""
        if stream not in self._streams:
            self.folder.mkdir(exist_ok=True)
            self._streams[stream] = AppendOnly(self.folder / f"{stream}.jsonl", self.size(stream))
        mine = {"run": self.run} if self.run else {}
        self._streams[stream].append([{**row, **mine} for row in rows])

    def stream(self, name: str) -> Iterator[dict[str, Any]]:
        """The valid rows of a stream; rows of another run are an error."""
        path = self.folder / f"{name}.jsonl"
        for row in read_lines(path, self.size(name)):
            if row.pop("run", "") != self.run:
                raise RunError(f"{path} has rows of another run; remove {self.folder} and resume: the answers are kept")
            yield row

    def close(self) -> None:
        """Close every stream, and forget the providers, so that nothing keeps their models in memory."""
        for file in self._streams.values():
            file.close()
        self.providers.clear()


def read_state(path: Path, run: str) -> tuple[dict[str, Any] | None, str]:
    """The content of state.json (None if it cannot be used), and what is wrong with it ('' if nothing)."""
    state, there = read_object(path, MAX_STATE_BYTES, "; start the run again with --force")
    if not there:
        return None, ""
    state = None if state is None else unsealed(state)
    tables = () if state is None else (*(state.get(name) for name in TABLES), state.get("sums", {}))
    if state is None or not all(isinstance(table, dict) for table in tables):
        return None, f"{path} is damaged"
    if state.get("run", "") != run:
        return None, f"{path} belongs to another run"
    return state, ""
