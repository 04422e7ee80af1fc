"""The memo: answers of deterministic tasks kept across runs and processes, in one SQLite file (WAL mode, JSON values).

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
from pinprompt.files import dumps, object_of, sealed, unsealed

APPLICATION = 0x50494E31
"""SQLite's application_id of our files ('PIN1'), so that no other database is written to."""
SCHEMA = 2
BUSY_SECONDS = 20.0
MAX_VALUE_BYTES = 64 << 20
"""Maximum size of a value in bytes: the file may be untrusted."""
BATCH = 500
"""Keys per query; SQLite allows 999 variables in old builds."""
TABLE = (
    "CREATE TABLE answers (key TEXT PRIMARY KEY, value TEXT NOT NULL, calls INTEGER NOT NULL, money REAL NOT NULL, "
    "used REAL NOT NULL, hits INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"
)
OFF = "move it away, or switch the memo off (scoring.memo = false)"


def memo_key(*parts: str) -> str:
    """The key of an answer: SHA-256 of what answers it (model, template), the row, the prompt's text, and the rows that
    were asked together, if its last bits depend on them.
    """
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode("ascii")).hexdigest()


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


@dataclass(frozen=True)
class MemoStats:
    """The size of a memo, and what its answers have saved."""

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
        self._writable = True
        self._used: list[tuple[float, str]] = []
        """Keys that were used since the last write, with the time."""
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
            try:
                for start in range(0, len(keys) if self._connection is not None else 0, BATCH):
                    part = list(keys[start : start + BATCH])
                    query = f"SELECT key, value FROM answers WHERE key IN ({','.join('?' * len(part))})"  # nosec B608
                    for key, value in self._db.execute(query, part):
                        answer = _answer(key, value)
                        if answer is not None:
                            found[key] = answer
            except (sqlite3.Error, ValueError, TypeError) as error:
                self._give_up(error)
        return found

    def count(self, key: str) -> None:
        """Register that an answer was used."""
        with self._lock:
            self._used.append((time.time(), key))
            if len(self._used) >= BATCH:
                self._note_uses()

    def keep(self, answers: Mapping[str, Mapping[str, Any]], money: float = 0.0) -> None:
        """Store answers; known ones are not changed. `money` is the cost of each."""
        rows = [
            (key, dumps(sealed({**value, "key": key})), int(value.get("calls", 0)), money, time.time())
            for key, value in answers.items()
        ]
        with self._lock:
            if self._connection is None or not rows or not self._writable:
                return
            try:
                with self._db:
                    self._db.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, 0)", rows)
            except sqlite3.OperationalError as error:
                self._read_only(error)
            except (sqlite3.Error, UnicodeError) as error:
                self._give_up(error)

    def stats(self) -> MemoStats:
        """Entries, size, hits, and the calls and money that they saved."""
        with self._lock:
            if self._connection is None:
                return MemoStats(0, 0, 0, 0, 0.0)
            self._note_uses()
            query = "SELECT count(*), total(hits), total(hits * calls), total(hits * money) FROM answers"
            try:
                entries, hits, calls, money = self._db.execute(query).fetchone()
                files = (self.path, self.path.with_name(self.path.name + "-wal"))
                size = sum(path.stat().st_size for path in files if path.exists())
                return MemoStats(int(entries), size, int(hits), int(calls), float(money))
            except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
                raise RunError(f"cannot read the memo {self.path}: {error}; move it away") from error

    def prune(self, older_than_days: float | None = None, max_mb: float | None = None, everything: bool = False) -> int:
        """Delete answers not used for `days`, the least recently used above a size, or all; returns how many."""
        # The size of an entry: its value and key, and some overhead.
        by_size = (
            "DELETE FROM answers WHERE key IN (SELECT key FROM (SELECT key, sum(length(value) + 200) OVER "
            "(ORDER BY used DESC, key) AS running FROM answers) WHERE running > ?)"
        )
        oldest = time.time() - (older_than_days or 0.0) * 86400
        wanted: list[tuple[str, tuple[float, ...]]] = [("DELETE FROM answers", ())] if everything else []
        wanted += [("DELETE FROM answers WHERE used < ?", (oldest,))] if older_than_days is not None else []
        wanted += [(by_size, (max_mb * 1e6,))] if max_mb is not None else []
        with self._lock:
            if self._connection is None:
                return 0
            self._note_uses()
            try:
                with self._db:
                    gone = sum(self._db.execute(*one).rowcount for one in wanted)
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except (sqlite3.Error, UnicodeError) as error:
                raise RunError(f"cannot prune the memo {self.path}: {error}; is another run using it?") from error
            return gone

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._note_uses()
                self._db.close()
                self._connection = None

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self._busy, check_same_thread=False)
        try:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            # An untrusted file must not run code: its schema may not call anything unsafe.
            connection.execute("PRAGMA trusted_schema=OFF")
            if not self._is_ours(connection):
                self._create(connection)
            connection.execute("PRAGMA synchronous=NORMAL")
        except RunError:
            connection.close()
            raise
        except (sqlite3.DatabaseError, UnicodeError) as error:  # SQLite's message may contain bytes of a damaged file
            connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise RunError(f"{self.path} is not a memo of pinprompt, or is damaged ({error}); {OFF}") from error
        return connection

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """True for a memo that can be used, False for an empty file; RunError for anything else."""
        connection.execute("BEGIN")  # one snapshot for all queries: another process may be creating the file now
        objects = set(connection.execute("SELECT type, name FROM sqlite_master WHERE type != 'index'").fetchall())
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("ROLLBACK")
        if not objects and not application:
            return False
        if application != APPLICATION:
            raise RunError(f"{self.path} is a database of another program; {OFF}")
        if version > SCHEMA:
            raise RunError(f"{self.path} was made by a newer pinprompt (schema {version}); upgrade pinprompt, or {OFF}")
        if version < SCHEMA or objects != {("table", "answers")}:
            raise RunError(f"{self.path} is a damaged or altered memo; {OFF}")
        return True

    def _create(self, connection: sqlite3.Connection) -> None:
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
        connection.execute(TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={SCHEMA}")
        connection.execute("COMMIT")

    def _note_uses(self) -> None:
        """Store which answers were used, for the statistics and for pruning."""
        used, self._used = self._used, []
        if not used or not self._writable or self._connection is None:
            return
        try:
            with self._db:
                self._db.executemany("UPDATE answers SET used = ?, hits = hits + 1 WHERE key = ?", used)
        except (sqlite3.Error, UnicodeError) as error:
            self._read_only(error)

    def _read_only(self, error: Exception) -> None:
        """Keep reading a memo that cannot be written."""
        self._writable = False
        self._warn(f"the memo {self.path} cannot be written ({error}); the run continues and only reads it")

    def _give_up(self, error: Exception) -> None:
        if self._connection is not None:
            self._db.close()
            self._connection = None
        self._warn(f"the memo {self.path} cannot be used ({error}); the run continues without it")


def _answer(key: str, value: Any) -> dict[str, Any] | None:
    """A stored value as an object; None if it is damaged or belongs to another key."""
    found = object_of(value.encode()) if isinstance(value, str) else None
    found = None if found is None else unsealed(found)
    return found if found is not None and found.pop("key", None) == key else None
