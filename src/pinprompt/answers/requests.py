"""The requests that a run sent to a server (`requests.jsonl`), so that none is paid for twice and no limit exceeded.

A line `send` is written before a request, with the maximum it can use; a line `took` after it, with what it used; a
line `reply` has the reply, by a hash of its question. A killed process leaves requests without a `took`, which count at
their maximum. The whole file counts, whatever a checkpoint says, and a reply in it is never requested again in the run.
"""

from __future__ import annotations

import threading
from typing import Any

from pinprompt.answers.budget import Amounts, Budget
from pinprompt.answers.log import Log
from pinprompt.errors import RunError


class Requests:
    """What one run sends, with its budget and its file; safe to use from several threads."""

    def __init__(self, log: Log, budget: Budget) -> None:
        self.log, self.budget = log, budget
        self.limited = True
        """False while a report is made, which has no time limit."""
        self.lost = 0
        """Calls without a reply that may be billed."""
        self.untold = 0
        """Calls whose tokens the server did not report; they count at their maximum."""
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[str, Amounts]] = {}
        """Models and maxima of requests that have not ended."""
        self._known: dict[str, tuple[Any, int, int]] = {}
        self._next = 0

    def restore(self) -> None:
        """Read what earlier sessions sent and received."""
        lines, self.log.lines = [line for line in self.log.lines if line is not None], []
        try:
            self._take(lines)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RunError(f"{self.log.path} cannot be read ({error!r}); start the run again with --force") from error

    def recall(self, question: str) -> tuple[Any, int, int] | None:
        """The stored reply to a question in this run, with its tokens in and out."""
        with self._lock:
            return self._known.get(question)

    def keep(self, question: str, answer: Any, tokens_in: int, tokens_out: int) -> None:
        """Store a reply (JSON values); it is on disk when this returns."""
        self.log.append({"kind": "reply", "key": question, "reply": answer, "tokens": [tokens_in, tokens_out]})
        with self._lock:
            self._known[question] = (answer, tokens_in, tokens_out)

    def sending(self, model: str, calls: int, tokens_in: int, tokens_out: int) -> int:
        """Record a request and its maximum before it is sent; returns its number. ServerDown if it exceeds a limit."""
        pending = self.budget.send(calls, tokens_in, tokens_out, model)
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._pending[number] = model, pending
            most = [calls, tokens_in, tokens_out]
            self.log.append({"kind": "send", "number": number, "model": model, "most": most})
        return number

    def ended(self, number: int, calls: int, tokens_in: int, tokens_out: int, how: str = "told") -> None:
        """Record what a request used; 0 calls if it is not billed.

        `how` is one of 'told' (by the server), 'untold' (the maximum is assumed), 'lost' (no answer), 'refused'.
        """
        with self._lock:
            model, pending = self._pending.pop(number)
        self.budget.land(pending, self._amounts(model, calls, tokens_in, tokens_out))
        took = [calls, tokens_in, tokens_out]
        self.log.append({"kind": "took", "number": number, "model": model, "took": took, "how": how})
        with self._lock:
            self._tally(how, calls)

    def seconds_left(self) -> float | None:
        """The maximum time to wait for a server; None if there is no limit."""
        return self.budget.seconds_left() if self.limited else None

    def _amounts(self, model: str, calls: int, tokens_in: int, tokens_out: int) -> Amounts:
        return Amounts(calls, tokens_in, tokens_out, self.budget.price(model, tokens_in, tokens_out))

    def _tally(self, how: str, calls: int) -> None:
        self.lost += calls if how == "lost" else 0
        self.untold += calls if how == "untold" else 0

    def _take(self, lines: list[dict[str, Any]]) -> None:
        """Count an earlier session's requests and store its replies."""
        open_: dict[int, tuple[str, int, int, int]] = {}
        sent = Amounts()
        for line in lines:
            if line["kind"] == "reply":
                tokens_in, tokens_out = map(int, line["tokens"])
                self._known[str(line["key"])] = (line["reply"], tokens_in, tokens_out)
                continue
            number, model = int(line["number"]), str(line["model"])
            calls, tokens_in, tokens_out = map(int, line["most" if line["kind"] == "send" else "took"])
            if min(number, calls, tokens_in, tokens_out) < 0:
                raise ValueError("a negative number")
            if line["kind"] == "send":
                open_[number] = model, calls, tokens_in, tokens_out
                self._next = max(self._next, number + 1)
                continue
            open_.pop(number, None)
            sent.add(self._amounts(model, calls, tokens_in, tokens_out))
            self._tally(str(line["how"]), calls)
        for model, calls, tokens_in, tokens_out in open_.values():
            sent.add(self._amounts(model, calls, tokens_in, tokens_out))
            self._tally("lost", calls)
        self.budget.sent = sent
