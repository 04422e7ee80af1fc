"""The meter of the arena: it counts every call to the model in a search, and allows no more than the limit."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


class Spent(Exception):
    """The contestant has no calls left."""


@dataclass
class Meter:
    """Calls and tokens of one cell; a call is one text that the model reads, whoever asked for it."""

    limit: int
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    refused: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, calls: int = 1) -> None:
        """Count calls before they are made; `Spent` if they are more than what is left, and then none is counted."""
        with self._lock:
            if self.calls + calls > self.limit:
                self.refused += calls
                raise Spent(f"{self.calls} of {self.limit} calls are used, {calls} more were asked for")
            self.calls += calls

    def read(self, tokens_in: int, tokens_out: int) -> None:
        """Add the tokens of calls that were made."""
        with self._lock:
            self.tokens_in += tokens_in
            self.tokens_out += tokens_out
