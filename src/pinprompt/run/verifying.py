"""Is a run folder what its run wrote? Every checksum is looked at; nothing is changed, imported or contacted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import is_held, whole_lines
from pinprompt.records import identity as identities
from pinprompt.records.reading import MARKS, read_text
from pinprompt.run.checkpoint import Checkpoint
from pinprompt.scoring.journal import journal_damage, row_of

REPAIRED = "`pinprompt resume` repairs it from what is left"
REPORT = "`pinprompt report` writes it again"
KEPT = ("scores.jsonl", "scores.spare.jsonl", "answers.jsonl")


@dataclass(frozen=True)
class Finding:
    """Something that is not as the run left it, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Verification:
    """What was found in one run folder."""

    folder: Path
    state: str
    """finished, unfinished, or running."""
    run: str
    """The run's id; '' for a run of an earlier version, which has no checksums."""
    files: int
    """Files whose checksum was looked at."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True where nothing was found."""
        return not self.findings

    def data(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "folder": str(self.folder), "ok": self.ok}


def verify(folder: Path | str) -> Verification:
    """Look at every checksum of a run folder; RunError where it is none."""
    folder = Path(folder)
    if not any((folder / name).is_file() for name in (*MARKS, identities.FILE)):
        raise RunError(f"{folder} is not a run folder: none of {', '.join(MARKS)} is in it")
    found: list[Finding] = []
    identity, damage = identities.read(folder)
    rows_run = identities.run_of_rows(folder)
    run = rows_run if identity is None else identity.run
    if identity is None and (damage or rows_run):
        found.append(Finding(damage or f"{folder / identities.FILE} is missing", REPAIRED))
    if identity is not None and identity.recipe != read_text(folder, "recipe.toml"):
        found.append(Finding(f"{folder / 'recipe.toml'} is not what the run wrote", REPAIRED))
    running = is_held(folder)
    finished = identity is not None and identity.files is not None
    if not running:  # a run at work is ahead of its checkpoint
        found += _checkpoint(folder, run)
        found += _journal(folder, run)
    if identity is not None and identity.files is not None:
        named = {finding.what.partition(" ")[0] for finding in found}
        found += [
            Finding(f"{folder / what}", REPORT if what.startswith("report.html") else REPAIRED)
            for what in identities.changed_files(folder, identity.files)
            if str(folder / what.partition(" ")[0]) not in named
        ]
    state = "running" if running else "finished" if finished or _has_result(folder, run) else "unfinished"
    count = len(identity.files or ()) if identity is not None else 0
    return Verification(folder, state, run, count or sum((folder / name).is_file() for name in KEPT), tuple(found))


def _has_result(folder: Path, run: str) -> bool:
    return not run and (folder / "result.json").is_file()


def _checkpoint(folder: Path, run: str) -> list[Finding]:
    try:
        checkpoint = Checkpoint(folder / "checkpoint", run=run)
        damage = checkpoint.damage() or journal_damage(folder / KEPT[0], run, checkpoint.provided("evaluator"))
    except RunError as error:
        return [Finding(str(error), "remove it, then resume")]
    return [Finding(damage, REPAIRED)] if damage else []


def _journal(folder: Path, run: str) -> list[Finding]:
    """Rows that were changed or are another run's, a finding per file."""
    found = []
    for name in KEPT:
        bad = [number for number, line in enumerate(whole_lines(folder / name), 1) if row_of(line, run) is None]
        if bad:
            shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            rows = "row was" if len(bad) == 1 else "rows were"
            what = f"{folder / name} has {len(bad)} bad rows (lines {shown}): the {rows} changed or of another run"
            found.append(Finding(what, "`pinprompt resume` leaves them out and asks again"))
    return found
