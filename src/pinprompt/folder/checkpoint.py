"""The checkpoint that a killed run resumes from: one safetensors file, replaced atomically, and logs that only grow."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pinprompt.answers.log import Log
from pinprompt.answers.table import unpack_rows
from pinprompt.errors import RunError
from pinprompt.files import checksum, loads, read_file, seal, unseal, whole_lines, write_tensors

FILE = "state.safetensors"
ANSWERS = "answers.jsonl"
"""The table of answers, beside the checkpoint."""
SHARE = 0.04
"""Maximum share of a run's time for saving."""
BESIDE = ("events", "costs")
"""Logs in the run folder itself. Their lines do not name the run: equal runs write equal events."""


class Checkpoint:
    """The `checkpoint/` folder of a run.

    Its file has the method's tensors and, as metadata, the run's state and the valid lines of each log with their
    checksum. Until a new file is renamed into place, the previous checkpoint is valid. The replay is a log, so that the
    cost of saving does not depend on its size.
    """

    def __init__(self, folder: Path, least_seconds: float = 5.0, run: str = "") -> None:
        self.folder, self.run = folder, run
        self.marked: dict[str, Callable[[], Any]] = {}
        """Further state to save, by name, as of the call to `mark`: the evaluator's position."""
        self.providers: dict[str, Callable[[], Any]] = {}
        """Further state to save, by name, as of the call to `save`: the time and money actually spent."""
        self.syncs: list[Callable[[], None]] = []
        """Called before saving, to sync what the checkpoint refers to."""
        self._logs: dict[str, Log] = {}
        self._least_seconds = least_seconds
        self._saved_at = time.monotonic()
        self._cost = 0.0
        self._mark: dict[str, dict[str, Any]] = {}
        """A point that the run can return to: the valid part of each log, and the run's state."""
        if folder.is_symlink():
            raise RunError(f"{folder} is a link, and links are not followed; copy the folder it points to")
        self._state, self._tensors, self.damage = _read(folder / FILE, run)
        """What is damaged: the checkpoint itself, or what it refers to; '' if nothing."""
        try:
            self.damage = self.damage or self._damaged_log()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.damage = f"{folder} cannot be read ({error!r})"
        if self.damage:  # it is ignored: the run repeats its steps with the answers in its table
            self._state, self._tensors, self._logs = None, {}, {}

    def _damaged_log(self) -> str:
        """What is wrong with the logs and the answers that the checkpoint refers to; '' if nothing."""
        for name, (count, crc) in ({} if self._state is None else self._state["logs"]).items():
            log = self.log(name)
            if name != "costs" and crc != log.sum_of(range(count)):
                return f"{log.path} was changed or truncated"
        position, path = self.provided("evaluator"), self.folder.parent / ANSWERS
        if position is not None and position["crc"] != Log(path, self.run).sum_of(unpack_rows(position["lines"])):
            return f"{path}: lines that the checkpoint refers to were changed, moved or removed"
        return ""

    def log(self, name: str) -> Log:
        """A log without the lines after the last checkpoint; new lines are valid once the next `save` has succeeded."""
        if name not in self._logs:
            beside = name in BESIDE
            path = (self.folder.parent if beside else self.folder) / f"{Path(name).name}.jsonl"
            log = self._logs[name] = Log(path, "" if beside else self.run)
            log.cut(self.size(name))
            log.lines = []
        return self._logs[name]

    def size(self, name: str) -> int:
        """The number of valid lines of a log at the last checkpoint."""
        return 0 if self._state is None else int(self._state["logs"].get(name, (0, ""))[0])

    def provided(self, name: str) -> Any:
        """A provider's state at the last checkpoint."""
        return None if self._state is None else self._state["provided"].get(name)

    def due(self) -> bool:
        """Whether saving now stays within its share of the run's time."""
        waited = time.monotonic() - self._saved_at
        return waited >= max(self._least_seconds, self._cost / SHARE)

    def mark(self) -> None:
        """Set the point that the next `save` stores; a resumed run repeats what comes after it."""
        self._mark = {
            "logs": {name: [log.count, log.crc] for name, log in self._logs.items()},
            "provided": {name: provider() for name, provider in self.marked.items()},
        }

    def save(self, step: int, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Save a checkpoint at the point that was marked last."""
        started = time.monotonic()
        if not self._mark:
            self.mark()
        for sync in (*(log.sync for log in self._logs.values()), *self.syncs):
            sync()
        self.folder.mkdir(exist_ok=True)
        now = {key: provider() for key, provider in self.providers.items()}
        whole = {"step": step, "tensors": _sum(tensors), **self._mark, "state": dict(state)}
        whole["provided"] = {**self._mark["provided"], **now}
        write_tensors(self.folder / FILE, tensors, {"state": seal(whole, self.run).decode()})
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - started

    def load(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """The last checkpoint as (step, state, tensors), or None where there is none."""
        return None if self._state is None else (self._state["step"], self._state["state"], self._tensors)

    def stream(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a log up to the last checkpoint."""
        for line in itertools.islice(whole_lines(self.log(name).path), self.size(name)):
            if (row := unseal(line, self.run)) is not None:
                yield row

    def close(self) -> None:
        """Close every log, and forget the providers, so that nothing keeps their models in memory."""
        for log in self._logs.values():
            log.close()
        self.providers.clear()


def _read(path: Path, run: str) -> tuple[dict[str, Any] | None, dict[str, Any], str]:
    """The state (None if there is none) and the tensors of a checkpoint, and what is wrong with it ('' if nothing)."""
    content = read_file(path)
    if content is None:
        return None, {}, ""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors, header = load(content), loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        state = unseal(header["__metadata__"]["state"].encode(), run)
        if state is not None and state["tensors"] == _sum(tensors):
            return state, tensors, ""
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        pass
    return None, {}, f"{path} is damaged or belongs to another run"


def _sum(tensors: Mapping[str, Any]) -> str:
    """One checksum of all tensors, with their names, types and shapes."""
    import torch

    crc = ""
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        about = f"{name} {tensor.dtype} {tuple(tensor.shape)} {crc}"
        crc = checksum(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()), about)
    return crc
