"""The run folders below one folder, and nothing else: found, bounded, and read as little as a card needs."""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.errors import PinpromptError
from pinprompt.files import is_held, object_of
from pinprompt.records import report_parts
from pinprompt.records.reading import MARKS, RunRecord, inside, mapping, number, read_result, read_text
from pinprompt.records.wording import metric, plain, text, title
from pinprompt.studio.guard import Refused

DEPTH = 4
KEPT = 5000
TAIL = 64 * 1024
SETTING = re.compile(r'^(\w+) = "((?:[^"\\]|\\.)*)"$', re.MULTILINE)
SETTINGS = ("kind", "method", "dataset", "train", "source", "model")


@dataclass(frozen=True)
class Place:
    """A run folder on the shelf: its name below the root, and when it last changed."""

    id: str
    path: Path
    when: float

    @property
    def group(self) -> str:
        """The folder that holds it, '' for the root: the cells of a sweep share one."""
        return self.id.rpartition("/")[0]


@dataclass(frozen=True)
class Card:
    """What the first page says of a run."""

    id: str
    name: str
    when: float
    state: str
    """finished, running, stopped or broken."""
    happened: str
    task: str = ""
    data: str = ""
    method: str = ""
    prompt: str = ""
    figure: str = ""
    figure_name: str = ""
    interval: str = ""
    value: float | None = None
    rival: str = ""
    calls: str = ""
    seed: str = ""


@dataclass
class Shelf:
    """The folder that was opened."""

    root: Path
    _cards: OrderedDict[str, tuple[tuple[int, ...], Card]] = field(default_factory=OrderedDict)

    def places(self) -> list[Place]:
        """All run folders, the latest first; links are not followed."""
        return sorted(self._walk(self.root, "", 0), key=lambda place: (-place.when, place.id))

    def path(self, run: str) -> Path:
        """The folder of a run by its id; anything that does not lie below the root is refused."""
        found = self.folder(run)
        if not any((found / name).is_file() for name in MARKS):
            raise Refused(404, "There is no such run in this folder.")
        return found

    def folder(self, name: str) -> Path:
        """A folder below the root, reached through real folders only."""
        found = self.root
        if name in ("", "."):
            return found
        parts = name.split("/")
        if len(parts) > DEPTH:
            raise Refused(404, "There is no such folder here.")
        for part in parts:
            if part in ("", ".", "..") or "\\" in part or "\0" in part:
                raise Refused(404, "There is no such folder here.")
            found = found / part
            try:
                mode = os.lstat(found).st_mode
            except (OSError, ValueError):
                raise Refused(404, "There is no such folder here.") from None
            if not stat.S_ISDIR(mode):
                raise Refused(404, "There is no such folder here.")
        return found

    def card(self, place: Place) -> Card:
        """The card of a run, read again only where a file of it has changed."""
        stamp = tuple(_stamp(place.path / name) for name in ("result.json", "events.jsonl", "recipe.toml"))
        busy = is_held(place.path)
        known = self._cards.get(place.id)
        if known is not None and known[0] == (*stamp, busy):
            return known[1]
        try:
            card = _card(place, busy)
        except PinpromptError as error:
            said = text(str(error).replace(str(place.path) + os.sep, ""), 300)
            card = Card(place.id, _name(place), place.when, "broken", said)
        self._cards[place.id] = ((*stamp, busy), card)
        while len(self._cards) > KEPT:
            self._cards.popitem(last=False)
        return card

    def _walk(self, folder: Path, name: str, depth: int) -> Iterator[Place]:
        below: list[os.DirEntry[str]] = []
        when = 0.0
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name in MARKS and entry.is_file(follow_symlinks=False):
                        when = max(when, entry.stat(follow_symlinks=False).st_mtime)
                    elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        below.append(entry)
        except OSError:
            return
        if when:
            yield Place(name or ".", folder, when)
        elif depth < DEPTH:
            for entry in below:
                if "\\" not in entry.name:
                    yield from self._walk(Path(entry.path), f"{name}/{entry.name}" if name else entry.name, depth + 1)


def last_event(folder: Path) -> dict[str, Any]:
    """The last whole line of events.jsonl, without reading the rest."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(folder / "events.jsonl", flags)
    except OSError:
        return {}
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return {}
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        for line in reversed(file.read(TAIL).split(b"\n")[:-1]):
            event = object_of(line)
            if event is not None:
                return event
    return {}


def what_happened(folder: Path, busy: bool) -> str:
    """One sentence on how far an unfinished run came."""
    event = last_event(folder)
    kind, step, calls = event.get("event"), number(event.get("step")), number(event.get("calls"))
    best = text(event.get("best_prompt") or "", 200).strip()
    how_far = "" if step is None else f"step {plain(step + 1)}"
    if calls is not None:
        how_far += f", {plain(calls)} calls"
    so_far = f"; best so far: “{best}”" if best else ""
    if kind == "problem":
        return f"It could not continue: {text(event.get('reason') or 'no reason was given', 200)}"
    if busy and kind == "evaluating":
        return f"Evaluating the {text(event.get('name') or '', 40)} prompt on {text(event.get('split') or '', 20)}"
    if busy:
        return f"Searching: {how_far}{so_far}" if kind == "step" else "Searching" if kind else "Starting"
    if not kind or kind == "start":
        return "Stopped before its first step"
    if kind == "step":
        return f"Stopped after {how_far}{so_far}"
    return f"Stopped while {'evaluating' if str(kind).startswith('evaluat') else 'choosing the answer'}"


def _card(place: Place, busy: bool) -> Card:
    result = read_result(place.path)
    # Settings are picked out by a pattern: parsing five hundred recipes would take longer than the whole page may.
    settings: dict[str, str] = {}
    for name, value in SETTING.findall(read_text(place.path, "recipe.toml") or ""):
        if name in SETTINGS:
            settings.setdefault(name, value)
    record = RunRecord(place.path, result=result)
    source = next(
        (settings[name] for name in ("dataset", "train", "source") if settings.get(name, "none") != "none"), ""
    )
    state = "running" if busy else "finished" if result else "stopped"
    task = text(result.get("task") or settings.get("kind") or "", 60)
    common: dict[str, Any] = {
        "id": place.id,
        "name": _name(place),
        "when": place.when,
        "state": state,
        "happened": "" if state == "finished" else what_happened(place.path, busy),
        "task": task.replace("_", " ").replace("-", " "),
        "data": text(re.split(r"[/\\]", source)[-1], 60),
        "method": text(result.get("method") or settings.get("method") or "", 40),
    }
    if not result:
        return Card(**common)
    name, split = report_parts.primary_of(record), report_parts.split_of(record)
    measured = mapping(result.get(split)) if split else {}
    value = number(measured.get(name)) if split else number(result.get("score"))
    ends = inside(measured, "intervals", name)
    shown = [metric(name, number(end)) for end in ends] if isinstance(ends, list) and len(ends) == 2 else []
    rival = number(inside(result, "baselines", "manual", split or "", name))
    seed, calls = number(result.get("seed")), number(result.get("calls"))
    return Card(
        **common,
        prompt=text(result.get("prompt") or "", 300).strip(),
        figure=metric(name if split else "score", value),
        figure_name=f"{title(text(name, 40))} on {split}" if split else "score",
        interval=f"{shown[0]} to {shown[1]}" if shown else "",
        value=value,
        rival="" if rival is None else metric(name, rival),
        calls="" if calls is None else plain(calls),
        seed="" if seed is None else plain(seed),
    )


def _name(place: Place) -> str:
    return text(place.path.name if place.id == "." else place.id.rpartition("/")[2], 120)


def _stamp(path: Path) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_mtime_ns ^ found.st_size
