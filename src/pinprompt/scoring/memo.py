"""The memo: scores of deterministic tasks kept across runs and processes, in one SQLite file (WAL mode, JSON values).

The memo is optional. If its disk is full or read-only, the run prints a note and continues without it; a file of
another program or of a newer pinprompt is a RunError, for the user to resolve.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import checksum, dumps, loads

APPLICATION = 0x50494E31
"""SQLite's application_id of our files ('PIN1'), so that no other database is written to."""
SCHEMA = 1
BUSY_SECONDS = 20.0
LONGEST = 64 << 20
"""Maximum size of a value in bytes: the file may be untrusted."""
BATCH = 500
"""Keys per query; SQLite allows 999 variables in old builds."""

_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, value TEXT NOT NULL, calls INTEGER NOT NULL, money REAL NOT NULL,
    used REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, number REAL NOT NULL) WITHOUT ROWID;
"""
OBJECTS = {("table", "answers"), ("table", "totals")}


def memo_key(fingerprint: str, kind: str, split: str, text: str) -> str:
    """The key of an answer: SHA-256 of task fingerprint, kind of answer, split and prompt text."""
    joined = json.dumps([fingerprint, kind, split, text], ensure_ascii=True)
    return hashlib.sha256(joined.encode("ascii")).hexdigest()


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


@dataclass(frozen=True)
class MemoStats:
    """The size of a memo, and what it has saved since it was created."""

    entries: int
    bytes: int
    hits: int
    calls_saved: int
    money_saved: float


class Memo:
    """The memo file; safe for several processes and threads at once."""

    def __init__(self, path: Path, warn: Callable[[str], None] = _warn, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path, self._warn, self._busy = Path(path), warn, busy_seconds
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._readable_only = False
        self._hits: dict[str, float] = {}
        """Keys that were used since the last write, with the time."""
        self._costs: dict[str, tuple[float, float]] = {}
        """Calls and money of the answers of the last lookup."""
        self._saved = {"hits": 0.0, "calls": 0.0, "money": 0.0}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
        except (sqlite3.OperationalError, OSError) as error:
            self._give_up(error)

    @property
    def working(self) -> bool:
        """False once the memo was disabled or closed."""
        return self._connection is not None

    def look_up(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The known answers among the keys; call `count` for those that are used."""
        found: dict[str, dict[str, Any]] = {}
        with self._lock:
            if self._connection is None or not keys:
                return found
            self._costs = {}
            try:
                for start in range(0, len(keys), BATCH):
                    part = list(keys[start : start + BATCH])
                    marks = ",".join("?" * len(part))
                    query = f"SELECT key, value, calls, money FROM answers WHERE key IN ({marks})"  # nosec B608
                    for key, value, calls, money in self._connection.execute(query, part):
                        answer = _answer(key, value)
                        if answer is not None:
                            found[key] = answer
                            self._costs[key] = (float(calls), float(money))
            except (sqlite3.Error, ValueError, TypeError) as error:
                self._give_up(error)
        return found

    def count(self, key: str) -> None:
        """Register that an answer of the last lookup was used, and what it saved."""
        with self._lock:
            if self._connection is None or key not in self._costs:
                return
            calls, money = self._costs.pop(key)
            self._hits[key] = time.time()
            for name, number in (("hits", 1.0), ("calls", calls), ("money", money)):
                self._saved[name] += number
            if len(self._hits) >= BATCH:
                self._note_hits()

    def keep(self, answers: Mapping[str, Mapping[str, Any]], money: float = 0.0) -> None:
        """Store answers with their cost; known ones are not changed, those with failures are left out."""
        now = time.time()
        rows = [
            (key, dumps({**value, "crc": _crc(key, value)}), int(value.get("calls", 0)), money, now)
            for key, value in answers.items()
            if not value.get("failures")
        ]
        with self._lock:
            if self._connection is None or not rows or self._readable_only:
                return
            try:
                with self._connection:
                    self._connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?)", rows)
            except sqlite3.OperationalError as error:
                self._read_only(error)
            except (sqlite3.Error, UnicodeError) as error:
                self._give_up(error)

    def stats(self) -> MemoStats:
        """Entries, size, hits, and the calls and money that they saved."""
        with self._lock:
            if self._connection is None:
                return MemoStats(0, 0, 0, 0, 0.0)
            self._note_hits()
            try:
                (entries,) = self._connection.execute("SELECT count(*) FROM answers").fetchone()
                totals = dict(self._connection.execute("SELECT name, number FROM totals").fetchall())
                hits, calls, money = (float(totals.get(name, 0)) for name in ("hits", "calls", "money"))
                size = sum(path.stat().st_size for path in self._files() if path.exists())
                return MemoStats(entries, size, int(hits), int(calls), money)
            except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
                raise RunError(f"cannot read the memo {self.path}: {error}; move it away") from error

    def prune(self, older_than_days: float | None = None, max_mb: float | None = None, everything: bool = False) -> int:
        """Delete answers not used for `days`, the least recently used above a size, or all; returns how many."""
        with self._lock:
            if self._connection is None:
                return 0
            self._note_hits()
            try:
                before = self._connection.total_changes
                with self._connection:
                    if everything:
                        self._connection.execute("DELETE FROM answers")
                    if older_than_days is not None:
                        oldest = time.time() - older_than_days * 86400
                        self._connection.execute("DELETE FROM answers WHERE used < ?", (oldest,))
                    if max_mb is not None:
                        # The size of an entry: its value and key, and some overhead.
                        self._connection.execute(
                            "DELETE FROM answers WHERE key IN (SELECT key FROM "
                            "(SELECT key, sum(length(value) + 200) OVER (ORDER BY used DESC, key) AS running "
                            "FROM answers) WHERE running > ?)",
                            (max_mb * 1e6,),
                        )
                gone = self._connection.total_changes - before
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except (sqlite3.Error, UnicodeError) as error:
                raise RunError(f"cannot prune the memo {self.path}: {error}; is another run using it?") from error
            return gone

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._note_hits()
                self._connection.close()
                self._connection = None

    def _files(self) -> list[Path]:
        return [self.path, self.path.with_name(self.path.name + "-wal")]

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self._busy, check_same_thread=False)
        try:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            # An untrusted file must not run code: its schema may not call anything unsafe.
            connection.execute("PRAGMA trusted_schema=OFF")
            if not self._ours(connection):
                self._found(connection)
            connection.execute("PRAGMA synchronous=NORMAL")
        except RunError:
            connection.close()
            raise
        except (sqlite3.DatabaseError, UnicodeError) as error:  # SQLite's message may contain bytes of a damaged file
            connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise RunError(
                f"{self.path} is not a memo of pinprompt, or is damaged ({error}); move it away, or switch the "
                "memo off (scoring.memo = false)"
            ) from error
        return connection

    def _ours(self, connection: sqlite3.Connection) -> bool:
        """True for a memo that can be used, False for an empty file; RunError for anything else."""
        connection.execute("BEGIN")  # one snapshot for all three queries: another process may be creating the file now
        objects = set(connection.execute("SELECT type, name FROM sqlite_master WHERE type != 'index'").fetchall())
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("ROLLBACK")
        if not objects and not application:
            return False
        if application != APPLICATION:
            raise RunError(
                f"{self.path} is a database of another program; move it away, or switch the memo off "
                "(scoring.memo = false)"
            )
        if version > SCHEMA:
            raise RunError(
                f"{self.path} was made by a newer pinprompt (schema {version}; this one supports {SCHEMA}); upgrade "
                "pinprompt, move the file away, or switch the memo off (scoring.memo = false)"
            )
        if objects != OBJECTS:
            raise RunError(
                f"{self.path} is a damaged or altered memo; move it away, or switch the memo off (scoring.memo = false)"
            )
        return True

    def _found(self, connection: sqlite3.Connection) -> None:
        """Make an empty file a memo; two processes may do so at once."""
        deadline = time.monotonic() + self._busy
        while True:
            try:
                # SQLite does not wait for other processes when it changes to WAL mode, so we wait here.
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.strip().split(";")[:-1]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA}")
        connection.execute("COMMIT")

    def _note_hits(self) -> None:
        """Store which answers were used, for the statistics and for pruning."""
        assert self._connection is not None
        if not self._hits or self._readable_only:
            return
        try:
            with self._connection:
                used = [(when, key) for key, when in self._hits.items()]
                self._connection.executemany("UPDATE answers SET used = ? WHERE key = ?", used)
                self._connection.executemany(
                    "INSERT INTO totals VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET number = number + ?2",
                    list(self._saved.items()),
                )
        except (sqlite3.Error, UnicodeError) as error:
            self._read_only(error)
        self._hits = {}
        self._saved = dict.fromkeys(self._saved, 0.0)

    def _read_only(self, error: Exception) -> None:
        """Keep reading a memo that cannot be written."""
        self._readable_only = True
        self._warn(f"the memo {self.path} cannot be written ({error}); the run continues and only reads it")

    def _give_up(self, error: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._warn(f"the memo {self.path} cannot be used ({error}); the run continues without it")


def _crc(key: str, value: Mapping[str, Any]) -> str:
    """The checksum of an answer and its key, so that answers cannot be swapped."""
    return checksum(dumps([key, value]).encode())


def _answer(key: str, value: Any) -> dict[str, Any] | None:
    """A stored value as an object, or None if it is damaged.

    Answers of earlier versions have no checksum and are accepted without one.
    """
    try:
        answer = loads(value)
    except (ValueError, TypeError, AttributeError):
        return None
    if not isinstance(answer, dict):
        return None
    crc = answer.pop("crc", None)
    return answer if crc is None or crc == _crc(key, answer) else None
