"""The memo: answers of deterministic tasks kept across runs and processes, in one SQLite file (WAL mode, JSON values).

The memo is optional. If it cannot be read or written (a full disk, a file of another program), the run prints a note
and continues without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError
from pinprompt.files import seal, unseal

VERSION = 0x50494E33
"""SQLite's application_id of our files ('PIN3'), so that no other database is written to."""
BUSY_SECONDS = 20.0
BATCH = 500
"""Keys per query; SQLite allows 999 variables in old builds."""


def memo_key(*parts: str) -> str:
    """The key of an answer: SHA-256 of what answers it (model, template), the row, the prompt's text, and the rows that
    were asked together, if its last bits depend on them.
    """
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode("ascii")).hexdigest()


class Memo:
    """The memo file; safe for several processes and threads at once."""

    def __init__(
        self, path: Path, warn: Callable[[str], None] = warnings.warn, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self.path, self._warn = Path(path), warn
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=busy_seconds, check_same_thread=False)
            self._open(self._connection)
        except (sqlite3.Error, OSError, UnicodeError) as error:
            self._give_up(error)

    def look_up(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The known answers among the keys."""
        found: dict[str, dict[str, Any]] = {}
        with self._lock, self._guarded() as database:
            for start in range(0, len(keys) if database is not None else 0, BATCH):
                part = list(keys[start : start + BATCH])
                query = f"SELECT key, value FROM answers WHERE key IN ({','.join('?' * len(part))})"  # nosec B608
                for key, value in database.execute(query, part):
                    answer = unseal(value, key) if isinstance(value, bytes) and isinstance(key, str) else None
                    if answer is not None:
                        found[key] = answer
        return found

    def keep(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Store answers; known ones are not changed."""
        with self._lock, self._guarded() as database:
            if database is not None and answers:
                rows = [(key, seal(value, key)) for key, value in answers.items()]
                with database:
                    database.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def size(self) -> tuple[int, int]:
        """The number of answers, and the bytes of the file."""
        with self._lock:
            if self._connection is None:
                return 0, 0
            try:
                (entries,) = self._connection.execute("SELECT count(*) FROM answers").fetchone()
            except (sqlite3.Error, UnicodeError) as error:
                raise RunError(f"cannot read the memo {self.path}: {error}; move it away") from error
            return int(entries), self.path.stat().st_size

    def clear(self) -> None:
        """Delete all answers."""
        with self._lock:
            if self._connection is not None:
                try:
                    with self._connection:
                        self._connection.execute("DELETE FROM answers")
                    self._connection.execute("VACUUM")
                except (sqlite3.Error, UnicodeError) as error:
                    raise RunError(f"cannot clear the memo {self.path}: {error}; is another run using it?") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[Any]:
        """The connection, or None if there is none any more; an error of the file ends its use."""
        try:
            yield self._connection
        except (sqlite3.Error, UnicodeError) as error:
            self._give_up(error)

    def _open(self, connection: sqlite3.Connection) -> None:
        """Check that the file is a memo, or make an empty one; two processes may do so at once."""
        # An untrusted file must not run code: its schema may not call anything unsafe.
        connection.execute("PRAGMA trusted_schema=OFF")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA application_id").fetchone()
            objects = connection.execute("SELECT type, name FROM sqlite_master WHERE type != 'index'").fetchall()
            if not version and not objects:
                connection.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
                connection.execute(f"PRAGMA application_id={VERSION}")
            elif version != VERSION or objects != [("table", "answers")]:
                raise sqlite3.DatabaseError("a file of another program or version; move it away")
        with contextlib.suppress(sqlite3.OperationalError):  # another process may be opening the file now
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    def _give_up(self, error: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._warn(f"the memo {self.path} cannot be used ({error}); the run continues without it")
