"""What a run resumes from after being killed: JSON, safetensors and append-only streams, switched over atomically."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
"""The most of a run's time that saving may take."""
LARGEST = 64 << 20
"""The most that is read of state.json."""
TENSORS = 4 << 30
"""The most that is read of its tensors."""
TABLES = ("sizes", "provided", "state")


@dataclass(frozen=True)
class _Mark:
    """A place that a run can be taken back to: how much of each growing file counts, and what the run knew then."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    provided: Mapping[str, Any] = field(default_factory=dict)


class Checkpoint:
    """The `checkpoint/` folder of a run.

    `state.json` is the switch: it names the tensors' file and says how many bytes of each growing file count, with
    their checksum. Until it is renamed into place, the checkpoint before it stands. The replay is a stream, so that
    saving costs the same whether it holds ten episodes or sixty thousand.
    """

    def __init__(self, folder: Path, least_seconds: float = 5.0, run: str = "") -> None:
        self.folder, self.run = folder, run
        self.marked: dict[str, Callable[[], Any]] = {}
        """Further state to keep, by name, as it is when `mark` is called: the evaluator's position."""
        self.providers: dict[str, Callable[[], Any]] = {}
        """Further state to keep, by name, as it is when `save` is called: time and money that were really spent."""
        self.syncs: list[Callable[[], None]] = []
        """What has to be on the disk before a checkpoint counts it."""
        self.growing: dict[str, AppendOnly] = {}
        """Files outside this folder that grow with the run (events, costs), by name."""
        self._streams: dict[str, AppendOnly] = {}
        self._least_seconds = least_seconds
        self._saved_at = time.monotonic()
        self._cost = 0.0
        self._mark: _Mark | None = None
        if folder.is_symlink():
            raise RunError(f"{folder} is a link, and a run is kept where it stands; copy what it leads to")
        self._read, self._damage = read_state(folder / "state.json", run)

    def damage(self) -> str:
        """What is wrong with the checkpoint, '' where it is whole: its state, its tensors, or a file that it counts."""
        if self._damage or self._read is None:
            return self._damage
        path = self.folder / Path(str(self._read.get("tensors"))).name
        try:
            digest = self._read.get("sha256")
            if digest is not None and digest != sha256_of(path, TENSORS):
                return f"{path} was changed"
        except FileNotFoundError:
            return f"{path} is missing"
        except ValueError:
            return f"{self.folder / 'state.json'} is damaged"  # no name of a file has such letters
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}; start the run again with --force") from None
        places = {"events": self.folder.parent}
        for name, crc in self._read.get("sums", {}).items():
            if not name.isidentifier():
                return f"{self.folder / 'state.json'} is damaged"  # a stranger's state cannot make us read elsewhere
            file = places.get(name, self.folder) / f"{name}.jsonl"
            if name != "costs" and crc != checksum_of(file, self.size(name)):
                return f"{file} was changed or cut"
        return ""

    def forget(self) -> None:
        """Continue as if there were no checkpoint: the run repeats its steps with the scores that its journal has."""
        self._read, self._damage = None, ""

    def size(self, name: str) -> int:
        """How many bytes of a growing file counted at the last checkpoint."""
        size = (self._read or {}).get("sizes", {}).get(name, 0)
        return size if isinstance(size, int) and size >= 0 else 0

    def provided(self, name: str) -> Any:
        """What a provider had said at the last checkpoint."""
        return (self._read or {}).get("provided", {}).get(name)

    def due(self) -> bool:
        """True when enough time has passed that saving again stays within its share of the run's time."""
        waited = time.monotonic() - self._saved_at
        return waited >= max(self._least_seconds, self._cost / SHARE)

    def mark(self) -> None:
        """The place that the next `save` keeps; what happens between the two is repeated by a resumed run."""
        files = self.growing | self._streams
        earlier = self._read or {}
        self._mark = _Mark(
            {**earlier.get("sizes", {}), **{name: file.size for name, file in files.items()}},
            {**earlier.get("sums", {}), **{name: file.crc for name, file in files.items()}},
            {name: provider() for name, provider in self.marked.items()},
        )

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Make this the checkpoint, at the place that was marked last."""
        started = time.monotonic()
        if self._mark is None:
            self.mark()
        assert self._mark is not None
        self.folder.mkdir(exist_ok=True)
        for file in (self.growing | self._streams).values():
            file.sync()
        for sync in self.syncs:
            sync()
        name = f"state-{step}.safetensors"
        digest = write_tensors(self.folder / name, tensors)
        whole = {
            "run": self.run,
            "step": step,
            "tensors": name,
            "sha256": digest,
            "sizes": self._mark.sizes,
            "sums": self._mark.sums,
            "provided": {**self._mark.provided, **{key: provider() for key, provider in self.providers.items()}},
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
            # The library opens the file itself, so what it would open is looked at first.
            if path.is_symlink() or not path.is_file():
                raise ValueError("it is not there, or not a regular file")
            return int(self._read["step"]), dict(self._read["state"]), load_file(path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise RunError(
                f"the checkpoint {path} cannot be read ({error}); remove {self.folder} and resume: the scores are kept"
            ) from None

    def append(self, stream: str, rows: list[dict[str, Any]]) -> None:
        """Add rows to a stream; they count once the next `save` has succeeded."""
        if stream not in self._streams:
            self.folder.mkdir(exist_ok=True)
            self._streams[stream] = AppendOnly(self.folder / f"{stream}.jsonl", self.size(stream))
        mine = {"run": self.run} if self.run else {}
        self._streams[stream].append([{**row, **mine} for row in rows])

    def stream(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a stream that count; those of another run are an error."""
        path = self.folder / f"{name}.jsonl"
        for row in read_lines(path, self.size(name)):
            if row.pop("run", "") != self.run:
                raise RunError(f"{path} has rows of another run; remove {self.folder} and resume: the scores are kept")
            yield row

    def close(self) -> None:
        """Close every stream."""
        for file in self._streams.values():
            file.close()


def read_state(path: Path, run: str) -> tuple[dict[str, Any] | None, str]:
    """What state.json holds (None where there is none that can be used), and what is wrong with it ('' if nothing)."""
    state, there = read_object(path, LARGEST, "; start the run again with --force")
    if not there:
        return None, ""
    if state is not None and (run or "crc" in state):  # earlier versions wrote none
        state = unsealed(state)
    tables = () if state is None else (*(state.get(name) for name in TABLES), state.get("sums", {}))
    if state is None or not all(isinstance(table, dict) for table in tables):
        return None, f"{path} is damaged"
    if state.get("run", "") != run:
        return None, f"{path} is of another run"
    return state, ""
