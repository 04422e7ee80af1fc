"""The journal of a run: every score that was obtained, one JSON line each, so that a killed run pays for nothing twice.

Two files, both append-only while the run works. `scores.jsonl` holds the rows in the order in which the run obtained
them; a checkpoint remembers how many there were. `scores.spare.jsonl` holds rows that a kill left *after* the last
checkpoint: paid for, but not yet part of the resumed run's history. On resuming such rows are first copied to the spare
file and synced, and only then cut off the journal; a kill between the two leaves them in both, which does no harm,
since spare rows are only ever looked up. So no sequence of kills loses a row, or counts one twice.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pinprompt.errors import RunError, TaskError
from pinprompt.files import opener
from pinprompt.values import Evaluation, Score, pack_outcomes

# Scores and evaluations as plain JSON values, and back: what the journal and the memo keep.


def clean(score: Any, task: str, text: str) -> Score:
    """The task's score as plain Python values; a TaskError where the task broke its contract.

    A value that is no number stands for "could not be scored" if the score has failures to show for it (it is kept
    as NaN here; the evaluator decides what it counts as); without failures it is the task's mistake. Details that are
    not finite say nothing and are left out.
    """
    if not isinstance(score, Score):
        raise TaskError(f"the task '{task}' gave {type(score).__name__} where a Score is due, for the prompt {text!r}")
    try:
        value, calls = float(score.value), int(score.calls)
        details = {str(name): float(number) for name, number in score.details.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise TaskError(
            f"the task '{task}' gave a score that is not a number ({score.value!r}) for the prompt {text!r}; "
            "a score's value, calls and details must be numbers"
        ) from error
    failures = tuple(str(failure) for failure in score.failures)
    if not math.isfinite(value):
        if not failures:
            raise TaskError(
                f"the task '{task}' gave the score {value} for the prompt {text!r}; a score must be a finite number, "
                "or the score must name its failures"
            )
        value = math.nan
    if calls < 0:
        raise TaskError(f"the task '{task}' says that the prompt {text!r} took {calls} calls")
    finite = {name: details[name] for name in sorted(details) if math.isfinite(details[name])}
    offsets = tuple(float(offset) for offset in score.offsets)
    return Score(value, calls, str(score.group), finite, failures, str(score.rows), bytes(score.answers), offsets)


def pack_score(score: Score) -> dict[str, Any]:
    """A score as JSON values; NaN (could not be scored) is null, answers are base64."""
    packed: dict[str, Any] = {
        "value": None if math.isnan(score.value) else score.value,
        "calls": score.calls,
        "group": score.group,
        "details": dict(score.details),
        "failures": list(score.failures),
        **({"rows": score.rows} if score.rows else {}),
    }
    if score.answers:
        packed["answers"] = base64.b64encode(score.answers).decode("ascii")
    if score.offsets:
        packed["offsets"] = list(score.offsets)
    return packed


def unpack_score(row: Mapping[str, Any]) -> Score:
    """The score of `pack_score`; ValueError where the values are not those of a score."""
    try:
        value = math.nan if row["value"] is None else float(row["value"])
        failures = tuple(str(failure) for failure in row["failures"])
        details = {str(name): float(number) for name, number in row["details"].items()}
        answers = base64.b64decode(row.get("answers", ""), validate=True)
        offsets = tuple(float(offset) for offset in row.get("offsets", ()))
        rows = str(row.get("rows", ""))
        score = Score(value, int(row["calls"]), str(row["group"]), details, failures, rows, answers, offsets)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a score: {error}") from error
    if not math.isfinite(score.value) and (not failures or row["value"] is not None):
        raise ValueError("not a score: its value is not finite")
    if not all(map(math.isfinite, offsets)):
        raise ValueError("not a score: an offset is not finite")
    return score


def pack_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON values."""
    return {
        "split": evaluation.split,
        "metrics": {str(name): float(number) for name, number in evaluation.metrics.items()},
        "rows": int(evaluation.rows),
        "calls": int(evaluation.calls),
        "intervals": {str(name): [float(low), float(high)] for name, (low, high) in evaluation.intervals.items()},
        "tables": dict(evaluation.tables),
        "outcomes": pack_outcomes(evaluation.outcomes),
    }


def unpack_evaluation(row: Mapping[str, Any]) -> Evaluation:
    """The evaluation of `pack_evaluation`; ValueError where the values are not those of an evaluation."""
    try:
        return Evaluation(
            split=str(row["split"]),
            metrics={str(name): float(number) for name, number in row["metrics"].items()},
            rows=int(row["rows"]),
            calls=int(row["calls"]),
            intervals={str(name): (float(low), float(high)) for name, (low, high) in row["intervals"].items()},
            tables=dict(row["tables"]),
            outcomes={str(name): tuple(map(float, values)) for name, values in row.get("outcomes", {}).items()},
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not an evaluation: {error}") from error


def dumps(value: Any) -> str:
    """JSON on one line: ASCII only, so that lone surrogates and line separators of strange prompts cannot break it."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


SYNC_SECONDS = 1.0
Row = dict[str, Any]


class Journal:
    """Rows on disk: `append` while the run works, `split_at` when it is resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spare_path = path.with_name(f"{path.stem}.spare{path.suffix}")
        self.rows = count_rows(path)
        self._file: IO[bytes] | None = None
        self._synced = time.monotonic()

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows at the end; they survive a killed process at once, and a dead machine within about a second."""
        if not rows:
            return
        data = "".join(dumps(row) + "\n" for row in rows).encode("ascii")
        try:
            if self._file is None:
                self._file = _open_to_append(self.path)
            self._file.write(data)
            self._file.flush()
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                self.sync()
        except OSError as error:
            self._repair()
            raise RunError(
                f"cannot write {self.path}: {error.strerror or error}; make room or make it writable, then resume the "
                "run: nothing that stood in it is lost"
            ) from error
        self.rows += len(rows)

    def sync(self) -> None:
        """Make sure that every row is on the disk itself; done before a checkpoint counts them."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def split_at(self, rows: int) -> tuple[list[Row], list[Row]]:
        """Make the first `rows` rows the run's history again; gives them, and all rows that are spare."""
        history = read_rows(self.path)
        if len(history) < rows:
            raise RunError(
                f"{self.path} has {len(history)} rows but the checkpoint counts {rows}; it was cut or replaced, and "
                "the run cannot go on from it: start it anew in another folder"
            )
        history, tail = history[:rows], history[rows:]
        spare = read_rows(self.spare_path)
        known = {_place(row) for row in spare}
        fresh = [row for row in tail if _place(row) not in known]
        try:
            if fresh:
                with _open_to_append(self.spare_path) as file:
                    file.write("".join(dumps(row) + "\n" for row in fresh).encode("ascii"))
                    file.flush()
                    os.fsync(file.fileno())
            self.close()
            if tail or self.path.exists():
                _cut(self.path, rows)
        except OSError as error:
            raise RunError(
                f"cannot write {self.path}: {error.strerror or error}; the run was left as it was"
            ) from error
        self.rows = rows
        return history, spare + fresh

    def close(self) -> None:
        """Sync and let go of the file."""
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def _repair(self) -> None:
        """After a failed write: drop what was half written, so that the file ends with a whole row again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        with contextlib.suppress(OSError):
            _cut(self.path, self.rows)


def _place(row: Row) -> str:
    """Which question a row answers; as text, since a damaged row may hold anything."""
    return dumps([row.get(name) for name in ("kind", "n", "place", "split", "text")])


def read_rows(path: Path) -> list[Row]:
    """All rows of a journal; a last line that a kill tore is left out, any other damage is a RunError."""
    try:
        with open(path, "rb", opener=opener) as file:
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    lines = data.split(b"\n")
    # What follows the last newline is empty, or was being written when the process died.
    rows: list[Row] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"{path}:{number}: not a line of JSON; the journal was damaged, start the run anew"
            ) from error
        if not isinstance(row, dict):
            raise RunError(f"{path}:{number}: not a JSON object; the journal was damaged, start the run anew")
        rows.append(row)
    return rows


def count_rows(path: Path) -> int:
    """How many whole lines a file has; 0 where there is none."""
    try:
        with open(path, "rb", opener=opener) as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error


def _open_to_append(path: Path) -> IO[bytes]:
    """The file opened at its end, after any torn last line was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        _cut(path, count_rows(path))
    return open(path, "ab", opener=opener)


def _cut(path: Path, rows: int) -> None:
    """Keep the first `rows` lines of a file and drop the rest, durably."""
    with open(path, "r+b", opener=opener) as file:
        end = 0
        for _ in range(rows):
            end += len(file.readline())
        if end != os.fstat(file.fileno()).st_size:
            file.truncate(end)
            file.flush()
            os.fsync(file.fileno())
