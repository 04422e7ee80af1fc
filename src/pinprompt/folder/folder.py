"""Run folders: creating, locking, writing, reopening for a resumed run or from a zip file, and verifying.

Verifying checks every checksum of a folder; nothing is changed, imported or contacted.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import secrets
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pinprompt.answers.log import Log
from pinprompt.answers.table import damage
from pinprompt.errors import RunError
from pinprompt.files import LOCK, AppendOnly, FolderLock, csv_safe, is_held, sync_folder, write_atomically, write_json
from pinprompt.folder import identity as identities
from pinprompt.folder.checkpoint import Checkpoint
from pinprompt.folder.identity import Identity
from pinprompt.folder.reading import LIMITS, MARKS, read_text
from pinprompt.values import Event

ANSWERS, REQUESTS = "answers.jsonl", "requests.jsonl"
"""The table of answers, and the requests that were sent to a server."""
OURS = ("run.json", "recipe.toml", ANSWERS, REQUESTS, "checkpoint", "events.jsonl", "costs.jsonl", "result.json",
        "prompts.csv", "environment.json", "rows.json", "judges.json", "vectors.safetensors", "judgements.json",
        "drawings", "report.html")  # fmt: skip
"""What --force deletes; anything else in the folder is the user's and stays."""
RUN = ("run.json", "recipe.toml")
"""A folder with any of these holds a run."""
REMAINS = (ANSWERS, REQUESTS, "checkpoint")
"""Files that only a run writes: a folder with only these holds the rest of a deleted run."""
ASIDE = ".removed-"
"""Name of the folder in which files of a removed run await deletion."""

FINISHED = ("recipe.toml", "events.jsonl", "costs.jsonl", ANSWERS, REQUESTS, "result.json", "prompts.csv",
            "environment.json", "rows.json", "judges.json", "vectors.safetensors", "checkpoint/state.json",
            "checkpoint/trials.jsonl", "report.html")  # fmt: skip
"""Files whose checksums are in run.json."""
FOREVER = 1e12
"""Maximum plausible seconds of a run."""


class RunFolder:
    """The folder of one run, locked by one process at a time."""

    def __init__(self, path: Path | str, *, resume: bool = False, force: bool = False) -> None:
        self.path = Path(path)
        self._made, self._begun = not self.path.exists(), False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"the run folder {path} cannot be created: {error.strerror}; choose another with --out"
            ) from None
        self.identity: Identity | None = None
        self.notes: list[str] = []
        """Problems found and repaired on opening, for the user."""
        self._lock = FolderLock(self.path)
        self.check = self._lock.check
        """Called before files are written by their names."""
        try:
            holds, left = self._has(RUN), self._has(REMAINS)
            taken_up = resume and (holds or left)
            if holds and not resume and not force:
                raise RunError(
                    f"{path} already contains a run; continue it with --resume, or delete it and start over with "
                    "--force"
                )
            if taken_up:
                self._read_identity()
            elif holds or left or any(self.path.glob(ASIDE + "*")):
                self._clear()
            self.checkpoint = Checkpoint(self.path / "checkpoint", run=self.run)
            if taken_up:
                self._check()
        except BaseException:
            self._lock.close()
            raise
        self._files: dict[str, AppendOnly] = {}
        before = self.checkpoint.provided("seconds")
        self.seconds_before = float(before) if isinstance(before, int | float) and 0 <= before < FOREVER else 0.0
        self._opened = time.monotonic()
        self.checkpoint.providers["seconds"] = self.seconds
        self.checkpoint.syncs.append(self.check)

    @property
    def run(self) -> str:
        """The id of this folder's run, carried by its lines; '' if it has none yet."""
        return "" if self.identity is None else self.identity.run

    def begin(self, recipe: str, fingerprint: str = "") -> None:
        """Start or continue a run of that recipe and task in this folder; events continue from the checkpoint.

        A run of another task is an error: its scores are not comparable.
        """
        known = self.identity
        if known is not None and known.fingerprint != fingerprint:
            raise RunError(
                f"{self.path} was scored by another task ({known.fingerprint[:16]}; this one is "
                f"{fingerprint[:16]}): its data, model or function changed. Resume it with the original "
                "ones, or start over with --force"
            )
        if known is None:
            self.identity = identities.new(fingerprint, recipe)
        else:
            self.identity = replace(known, fingerprint=fingerprint, recipe=recipe, files=None)
        self.checkpoint.run = self.identity.run
        self.check()
        # The order matters: run.json without a recipe is not a run, and a resumed run is unfinished from here on.
        identities.write(self.path, self.identity)
        write_atomically(self.path / "recipe.toml", recipe)
        self._begun = True
        for name in ("events", "costs"):
            self._files[name] = AppendOnly(self.path / f"{name}.jsonl", self.checkpoint.size(name))
        self.checkpoint.growing |= self._files

    def finish(self, reporter: Callable[[Path], object] | None = None) -> None:
        """Write report.html with the reporter, and complete run.json with the checksums of the finished run's files."""
        self.check()
        if reporter is not None:
            reporter(self.path)
            self.check()
        assert self.identity is not None
        self.identity = identities.complete(self.path, self.identity, FINISHED)

    def seconds(self) -> float:
        """How long the run has taken, earlier sessions included."""
        return self.seconds_before + time.monotonic() - self._opened

    def record(self, event: Event) -> None:
        """Write an event to events.jsonl and its costs to costs.jsonl."""
        self.check()
        self._files["events"].append([{"event": event.kind, "step": event.step, **event.data}])
        if event.costs:
            elapsed = {"elapsed": round(self.seconds(), 3)}
            self._files["costs"].append([{"event": event.kind, "step": event.step, **event.costs, **elapsed}])

    def save_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file such as result.json."""
        self.check()
        write_json(self.path / name, value)

    def save_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write prompts.csv: every distinct prompt with its scores."""
        table = [
            {name: csv_safe(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
        ]
        columns = list(dict.fromkeys(name for row in table for name in row)) or ["prompt"]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
        self.check()
        write_atomically(self.path / "prompts.csv", text.getvalue())

    def close(self) -> None:
        """Release the folder."""
        self.checkpoint.close()
        for file in self._files.values():
            file.close()
        self._lock.close()
        if self._made and not self._begun:
            # A failed start leaves no folder behind, unless it contains anything else.
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink(missing_ok=True)
                if (self.path / "checkpoint").is_dir():
                    (self.path / "checkpoint").rmdir()
                self.path.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _has(self, names: Iterable[str]) -> bool:
        return any(os.path.lexists(self.path / name) for name in names)

    def _read_identity(self) -> None:
        """Open the folder's run for resuming; a damaged recipe is restored, and noted."""
        found, damage = identities.read(self.path)
        if found is None:
            raise RunError(
                f"{damage or f'{self.path / identities.FILE} is missing'}; put a copy of it back, or start over with "
                "--force"
            )
        if identities.restore_recipe(self.path):
            self.notes.append(f"{self.path / 'recipe.toml'} was changed after the run wrote it; restored")
        self.identity = found

    def _check(self) -> None:
        """Check everything that a resumed run starts from; a damaged checkpoint is ignored, and noted."""
        damage = self.checkpoint.damage() or _table_damage(self.path, self.run, self.checkpoint)
        if damage:
            self.checkpoint.forget()
            self.notes.append(
                f"{damage}; the run repeats its steps from the beginning, without paying again for answers in its table"
            )

    def _clear(self) -> None:
        """Delete the run of this folder, or the rest of one.

        Its files are first moved aside, those that make it a run before the others, and then deleted: a kill in between
        leaves a complete run or none, and the next start deletes the rest.
        """
        aside = self.path / f"{ASIDE}{secrets.token_hex(4)}"
        for name in OURS:
            target = self.path / name
            if os.path.lexists(target):
                aside.mkdir(exist_ok=True)
                os.replace(target, aside / name)
        sync_folder(self.path)
        for left in self.path.glob(f"{ASIDE}*"):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)


def is_run_file(path: Path) -> bool:
    """Whether a path is that of a file that a run has written, or will write, in its folder."""
    whole = path.resolve()
    return whole.name in OURS and any((whole.parent / name).is_file() for name in RUN)


def _table_damage(folder: Path, run: str, checkpoint: Checkpoint) -> str:
    """What is wrong with the answers that a checkpoint refers to; '' if nothing."""
    position = checkpoint.provided("evaluator")
    return damage(Log(folder / ANSWERS, run), position.get("lines")) if isinstance(position, Mapping) else ""


# Zipped run folders: only recipe, result and judges are extracted, into a temporary folder.


_NEEDED = ("recipe.toml", "result.json", "judges.json")
_MOST_MEMBERS = 100_000


@contextmanager
def opened(run: Path | str) -> Iterator[Path]:
    """The folder of a run; for a zip file, a temporary folder that exists as long as the context."""
    path = Path(run)
    if path.suffix.lower() != ".zip" or not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="pinprompt-") as place:
        folder = Path(place) / "run"
        folder.mkdir()
        for name, content in _contents(path).items():
            (folder / name).write_bytes(content)
        yield folder


def _contents(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > _MOST_MEMBERS:
                raise RunError(f"{path} has more than {_MOST_MEMBERS:,} files; zip one run folder")
            recipes = [one.filename for one in members if one.filename.split("/")[-1] == "recipe.toml"]
            if len(recipes) != 1:
                raise RunError(f"{path} holds {len(recipes)} recipe.toml files; zip one run folder")
            base = recipes[0].removesuffix("recipe.toml")
            names = {one.filename for one in members}
            # Names are only compared, never used as paths, so that no file can be written elsewhere.
            return {name: _read(archive, base + name, name, path) for name in _NEEDED if base + name in names}
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise RunError(f"{path} cannot be read as a zip file: {error}") from None


def _read(archive: zipfile.ZipFile, member: str, name: str, path: Path) -> bytes:
    with archive.open(member) as file:
        content = file.read(LIMITS[name] + 1)
    if len(content) > LIMITS[name]:
        raise RunError(f"{name} in {path} is larger than {LIMITS[name] >> 20} MiB")
    return content


REPAIRED = "`pinprompt resume` repairs it"
REPORT = "`pinprompt report` restores it"
LOGS = (ANSWERS, REQUESTS)


@dataclass(frozen=True)
class Finding:
    """A changed or damaged file, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Verification:
    """The result of checking one run folder."""

    folder: Path
    state: str
    """finished, unfinished, or running."""
    run: str
    """The run's id; '' if it is not known."""
    files: int
    """Files whose checksum was checked."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.findings

    def data(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "folder": str(self.folder), "ok": self.ok}


def verify(folder: Path | str) -> Verification:
    """Check every checksum of a run folder; RunError if it is not a run folder."""
    folder = Path(folder)
    if not any((folder / name).is_file() for name in (*MARKS, identities.FILE)):
        raise RunError(f"{folder} is not a run folder: none of {', '.join(MARKS)} is in it")
    identity, damage = identities.read(folder)
    if identity is None:
        what = damage or f"{folder / identities.FILE} is missing"
        return Verification(folder, "unfinished", "", 0, (Finding(what, "put a copy of it back"),))
    found: list[Finding] = []
    if identity.recipe != read_text(folder, "recipe.toml"):
        found.append(Finding(f"{folder / 'recipe.toml'} was changed after the run wrote it", REPAIRED))
    running, files = is_held(folder), identity.files or {}
    changed = identities.changed_files(folder, files)
    if not running:  # a running run is ahead of its checkpoint
        found += _checkpoint(folder, identity.run)
        # A run that is resumed after damage leaves the bad lines in its files, and knows their checksums at its end.
        as_left = set(files) - {what.partition(" ")[0] for what in changed}
        found += _bad_lines(folder, identity.run, [name for name in LOGS if name not in as_left])
    named = {finding.what.partition(" ")[0] for finding in found}
    found += [
        Finding(f"{folder / what}", REPORT if what.startswith("report.html") else REPAIRED)
        for what in changed
        if str(folder / what.partition(" ")[0]) not in named
    ]
    state = "running" if running else "unfinished" if identity.files is None else "finished"
    checked = len(files) or sum((folder / name).is_file() for name in LOGS)
    return Verification(folder, state, identity.run, checked, tuple(found))


def _checkpoint(folder: Path, run: str) -> list[Finding]:
    try:
        checkpoint = Checkpoint(folder / "checkpoint", run=run)
        damage = checkpoint.damage() or _table_damage(folder, run, checkpoint)
    except RunError as error:
        return [Finding(str(error), "remove it, then resume")]
    return [Finding(damage, REPAIRED)] if damage else []


def _bad_lines(folder: Path, run: str, names: Iterable[str]) -> list[Finding]:
    """Lines that were changed or belong to another run, one finding per file."""
    found = []
    for name in names:
        bad = [number for number, line in enumerate(Log(folder / name, run).lines, 1) if line is None]
        if bad:
            shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            what = f"{folder / name} has {len(bad)} lines that were changed or belong to another run (lines {shown})"
            found.append(Finding(what, "`pinprompt resume` ignores them and asks these questions again"))
    return found
