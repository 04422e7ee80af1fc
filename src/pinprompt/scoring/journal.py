"""The journals of a run: every score it obtained and every request it sent, so that nothing is paid for twice.

Scores, one JSON line each, are in two append-only files. `scores.jsonl` has the rows in the order in which the run
obtained them; a checkpoint stores how many there were. `scores.spare.jsonl` has rows that a killed run wrote *after*
its last checkpoint: paid for, but not yet part of the resumed run's history. On resuming, such rows are first copied to
the spare file and synced, and only then removed from the journal. A kill between the two leaves them in both, which is
harmless, since spare rows are only looked up. So no sequence of kills loses a row or counts one twice.

`answers.jsonl` records every request to a remote model. A row `send` is written before the request, with the maximum it
can use; a row `took` after it, with what it used; a row `answer` has the answer, by a hash of its question. A killed
process leaves requests without a `took`, which count at their maximum. The whole file counts, whatever the checkpoint
says; and an answer in it is never requested again in the run.
"""

from __future__ import annotations

import base64
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError, TaskError
from pinprompt.files import AppendOnly, checksum, dumps, object_of, sealed_line, unsealed, whole_lines
from pinprompt.scoring.budget import Amounts, Budget
from pinprompt.values import Evaluation, Score, pack_outcomes

# Scores and evaluations as plain JSON values and back, for the journal and the memo.


def clean(score: Any, task: str, text: str) -> Score:
    """The task's score as plain Python values; a TaskError if the task violated its protocol.

    A non-finite value means "could not be scored" if the score has failures (stored as NaN here; the evaluator decides
    what it counts as); without failures it is an error of the task. Non-finite details are left out.
    """
    if not isinstance(score, Score):
        raise TaskError(f"the task '{task}' gave {type(score).__name__} instead of a Score, for the prompt {text!r}")
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
    """The inverse of `pack_score`; ValueError if the values are not a score."""
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
    """The inverse of `pack_evaluation`; ValueError if the values are not an evaluation."""
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


SYNC_SECONDS = 1.0
NAMED = 20
"""Maximum number of bad rows that are reported individually."""
Row = dict[str, Any]


class Journal:
    """Rows on disk: `append` while the run works, `split_at` when it is resumed.

    Every row carries the id of its run and a checksum. A row that was changed or belongs to another run is ignored and
    listed in `problems`; its prompt is scored again.
    """

    def __init__(self, path: Path, run: str = "") -> None:
        self.path, self.run = path, run
        self.spare_path = path.with_name(f"{path.stem}.spare{path.suffix}")
        self.problems: list[str] = []
        self.rows, self.crc = 0, checksum(b"")
        for line in whole_lines(path):
            self.rows, self.crc = self.rows + 1, checksum(line, self.crc)
        self._file: AppendOnly | None = None
        self._synced = time.monotonic()

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows; they survive a killed process at once, and a power loss after about a second."""
        if not rows:
            return
        if self._file is None:
            self._file = _open_to_append(self.path)
        self._file.append(self._marked(rows))
        self.rows, self.crc = self.rows + len(rows), self._file.crc
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Sync all rows to disk; done before a checkpoint refers to them."""
        if self._file is not None:
            self._file.sync()
            self._synced = time.monotonic()

    def split_at(self, rows: int, crc: str | None = None) -> tuple[list[Row], list[Row]]:
        """Reset the run's history to the first `rows` rows; returns them, and all spare rows."""
        lines = list(whole_lines(self.path))
        damage = journal_damage(self.path, self.run, {"rows": rows, "crc": crc})
        if damage:
            raise RunError(f"{damage}; remove the checkpoint folder and resume: the scores are kept")
        history = [row for line in lines[:rows] if (row := row_of(line, self.run)) is not None]
        tail = self._good(self.path, lines[rows:], rows + 1)
        spare = self._good(self.spare_path, whole_lines(self.spare_path), 1)
        known = {_place(row) for row in spare}
        fresh = [row for row in tail if _place(row) not in known]
        self.close()
        if fresh:
            file = _open_to_append(self.spare_path)
            file.append(self._marked(fresh))
            file.sync()
            file.close()
        if len(lines) > rows or self.path.exists():
            file = AppendOnly(self.path, sum(map(len, lines[:rows])), sealed_line)
            file.sync()
            self.crc = file.crc
            file.close()
        self.rows = rows
        return history, spare + fresh

    def good_rows(self) -> list[Row]:
        """All valid rows, regardless of a checkpoint."""
        return self._good(self.path, whole_lines(self.path), 1)

    def close(self) -> None:
        """Sync and close the file."""
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def _marked(self, rows: Sequence[Row]) -> list[Row]:
        return [{**row, "run": self.run} for row in rows] if self.run else list(rows)

    def _good(self, path: Path, lines: Iterable[bytes], first: int) -> list[Row]:
        """The valid rows among lines; the others are reported."""
        found: list[Row] = []
        bad = 0
        for number, line in enumerate(lines, first):
            row = row_of(line, self.run)
            if row is not None:
                found.append(row)
                continue
            bad += 1
            if bad <= NAMED:
                what = "is of another run" if _foreign(line, self.run) else "was changed"
                self.problems.append(
                    f"{path}:{number}: the row {what}, so it is ignored, and its prompt is scored again"
                )
        if bad > NAMED:
            self.problems.append(f"{path}: {bad - NAMED:,} more rows were changed or are of another run")
        return found


def _place(row: Row) -> str:
    """The question that a row answers; as text, since a damaged row may contain anything."""
    return dumps([row.get(name) for name in ("kind", "n", "place", "split", "text")])


def row_of(line: bytes, run: str = "") -> Row | None:
    """The row of a journal line, without id and checksum; None if it was changed or belongs to another run."""
    row = object_of(line)
    if row is not None and (run or "crc" in row):  # earlier versions wrote neither id nor checksum
        row = unsealed(row)
    if row is None or row.pop("run", "") != run:
        return None
    return row


def _foreign(line: bytes, run: str) -> bool:
    row = object_of(line)
    whole = None if row is None else unsealed(row)
    return whole is not None and whole.get("run", "") != run


def journal_damage(path: Path, run: str, position: Any) -> str:
    """What is wrong with the rows that a checkpoint refers to; '' if nothing."""
    rows = position.get("rows") if isinstance(position, Mapping) else 0
    if not isinstance(rows, int) or rows < 0:
        return f"the checkpoint's count of {path} cannot be read"
    seen, bad, found = 0, 0, checksum(b"")
    for line in whole_lines(path) if rows else ():
        seen, found = seen + 1, checksum(line, found)
        bad = bad or (seen if row_of(line, run) is None else 0)
        if seen == rows:
            break
    if seen < rows:
        return f"{path} has {seen} rows but the checkpoint counts {rows}"
    if bad:
        return f"{path}:{bad}: the row was changed or is of another run"
    crc = position.get("crc") if isinstance(position, Mapping) else None
    if crc is not None and crc != found:
        return f"{path} was changed"
    return ""


def read_rows(path: Path, run: str = "") -> list[Row]:
    """All valid rows of a journal."""
    return [row for line in whole_lines(path) if (row := row_of(line, run)) is not None]


def _open_to_append(path: Path) -> AppendOnly:
    """The file opened at its end, after removing an incomplete last line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror}; free some space or choose another folder"
        ) from None
    return AppendOnly(path, line=sealed_line)


class Answers:
    """Implements `values.Meter` for one run, with a budget and a file."""

    def __init__(self, journal: Journal, budget: Budget, model: str) -> None:
        self.budget, self.model = budget, model
        self.limited = True
        """False while a report is made, which has no time limit."""
        self.lost = 0
        """Calls without an answer that may be billed."""
        self.untold = 0
        """Calls whose tokens the server did not report; they count at their maximum."""
        self._journal = journal
        self._lock = threading.Lock()
        self._flights: dict[int, Amounts] = {}
        self._known: dict[str, tuple[Any, int, int]] = {}
        self._next = 0

    def restore(self) -> None:
        """Read what earlier sessions sent and received."""
        try:
            self._take(self._journal.good_rows())
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RunError(
                f"{self._journal.path} cannot be read ({error!r}); start the run again with --force"
            ) from error

    @property
    def problems(self) -> list[str]:
        """Messages about invalid rows of the file."""
        return self._journal.problems

    def recall(self, question: str) -> tuple[Any, int, int] | None:
        """The stored answer to a question in this run."""
        with self._lock:
            return self._known.get(question)

    def keep(self, question: str, answer: Any, tokens_in: int, tokens_out: int) -> None:
        """Store an answer."""
        self._write(lambda: {"kind": "answer", "key": question, "answer": answer, "tokens": [tokens_in, tokens_out]})
        with self._lock:
            self._known[question] = (answer, tokens_in, tokens_out)

    def sending(self, calls: int, tokens_in: int, tokens_out: int) -> int:
        """Record a request before it is sent; ServerDown if it would exceed a limit."""
        flight = self.budget.send(calls, tokens_in, tokens_out, self.model)

        def row() -> Row:
            number, self._next = self._next, self._next + 1
            self._flights[number] = flight
            return {"kind": "send", "number": number, "most": [calls, tokens_in, tokens_out]}

        return int(self._write(row)["number"])

    def ended(self, number: int, calls: int, tokens_in: int, tokens_out: int, how: str = "told") -> None:
        """Record what a request used, and how that is known."""
        with self._lock:
            flight = self._flights.pop(number)
        self.budget.land(flight, self._amounts(calls, tokens_in, tokens_out))
        took = [calls, tokens_in, tokens_out]
        self._write(lambda: {"kind": "took", "number": number, "took": took, "how": how})
        with self._lock:
            self._tally(how, calls)

    def seconds_left(self) -> float | None:
        """The remaining seconds, while they are limited."""
        return self.budget.seconds_left() if self.limited else None

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _amounts(self, calls: int, tokens_in: int, tokens_out: int) -> Amounts:
        return Amounts(calls, tokens_in, tokens_out, self.budget.price(self.model, tokens_in, tokens_out))

    def _tally(self, how: str, calls: int) -> None:
        self.lost += calls if how == "lost" else 0
        self.untold += calls if how == "untold" else 0

    def _write(self, row: Callable[[], Row]) -> Row:
        with self._lock:
            made = row()
            self._journal.append([made])
        return made

    def _take(self, rows: list[Row]) -> None:
        """Count an earlier session's requests and store its answers."""
        open_: dict[int, list[int]] = {}
        sent = Amounts()
        for row in rows:
            if row["kind"] == "answer":
                tokens_in, tokens_out = map(int, row["tokens"])
                self._known[str(row["key"])] = (row["answer"], tokens_in, tokens_out)
                continue
            number = int(row["number"])
            calls, tokens_in, tokens_out = map(int, row["most" if row["kind"] == "send" else "took"])
            if min(number, calls, tokens_in, tokens_out) < 0:
                raise ValueError("a negative number")
            if row["kind"] == "send":
                open_[number] = [calls, tokens_in, tokens_out]
                self._next = max(self._next, number + 1)
                continue
            open_.pop(number, None)
            sent.add(self._amounts(calls, tokens_in, tokens_out))
            self._tally(str(row["how"]), calls)
        for calls, tokens_in, tokens_out in open_.values():
            sent.add(self._amounts(calls, tokens_in, tokens_out))
            self._tally("lost", calls)
        self.budget.sent = sent
