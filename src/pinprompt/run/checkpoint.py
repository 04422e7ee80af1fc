"""What a run goes on from after being killed: JSON, safetensors and append-only streams, switched over atomically."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import AppendOnly, opener, read_lines, write_atomically, write_tensors

SHARE = 0.04
"""The most of a run's time that saving may take."""
LARGEST = 256 << 20
"""The most that is read of state.json."""


class Checkpoint:
    """The `checkpoint/` folder of a run.

    `state.json` is the switch: it names the tensors' file and says how many bytes of each growing file count. Until it
    is renamed into place, the checkpoint before it stands. The replay is a stream, so that saving costs the same
    whether it holds ten episodes or sixty thousand.
    """

    def __init__(self, folder: Path, least_seconds: float = 5.0) -> None:
        self.folder = folder
        self.providers: dict[str, Callable[[], Any]] = {}
        """Further state to keep, by name: the evaluator's position, the budget's."""
        self.growing: dict[str, AppendOnly] = {}
        """Files outside this folder that grow with the run (events, costs), by name."""
        self._streams: dict[str, AppendOnly] = {}
        self._least_seconds = least_seconds
        self._saved_at = time.monotonic()
        self._cost = 0.0
        self._read = self._read_state()

    def _read_state(self) -> dict[str, Any] | None:
        path = self.folder / "state.json"
        if self.folder.is_symlink():
            raise RunError(f"{self.folder} is a link, and a run is kept where it stands; copy what it leads to")
        try:
            with open(path, "rb", opener=opener) as file:
                state = json.loads(file.read(LARGEST))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}; start the run anew with --force") from None
        except (ValueError, RecursionError):
            state = None
        tables = ("sizes", "provided", "state")
        if not isinstance(state, dict) or not all(isinstance(state.get(name), dict) for name in tables):
            raise RunError(f"{path} is damaged; start the run anew with --force")
        return state

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

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Make this the checkpoint."""
        started = time.monotonic()
        self.folder.mkdir(exist_ok=True)
        sizes = {name: file.sync() for name, file in (self.growing | self._streams).items()}
        name = f"state-{step}.safetensors"
        write_tensors(self.folder / name, tensors)
        provided = {key: provider() for key, provider in self.providers.items()}
        whole = {"step": step, "tensors": name, "sizes": sizes, "provided": provided, "state": dict(state)}
        write_atomically(self.folder / "state.json", json.dumps(whole))
        for old in self.folder.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - started

    def load(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """The last checkpoint as (step, state, tensors), or None where there is none."""
        if self._read is None:
            return None
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / Path(str(self._read.get("tensors"))).name
        try:
            # The library opens the file itself, so what it would open is looked at first.
            if path.is_symlink() or not path.is_file():
                raise ValueError("it is not there, or no regular file")
            return int(self._read["step"]), dict(self._read["state"]), load_file(path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise RunError(f"the checkpoint {path} cannot be read ({error}); start the run anew with --force") from None

    def append(self, stream: str, rows: list[dict[str, Any]]) -> None:
        """Add rows to a stream; they count once the next `save` has succeeded."""
        if stream not in self._streams:
            self.folder.mkdir(exist_ok=True)
            self._streams[stream] = AppendOnly(self.folder / f"{stream}.jsonl", self.size(stream))
        self._streams[stream].append(rows)

    def stream(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a stream that count."""
        return read_lines(self.folder / f"{name}.jsonl", self.size(name))

    def close(self) -> None:
        """Close every stream."""
        for file in self._streams.values():
            file.close()
