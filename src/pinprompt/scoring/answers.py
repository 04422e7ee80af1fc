"""The journal of a server's answers: what was sent, what came back, and no question paid for twice.

`answers.jsonl` grows with every request of a task whose model is behind an API. A row `send` stands before the request
is made, with the most that it can take; a row `took` after it, with what it did take; a row `answer` has the answer
itself, by a hash of its question. A killed process leaves requests without a `took`: they count at their most. All of
the file counts, whatever the checkpoint says, since what was sent was sent; and an answer that is in it is never asked
for again in the run, whether a killed session asked for it or an earlier score of the same prompt on the same text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pinprompt.errors import RunError
from pinprompt.scoring.budget import Amounts, Budget
from pinprompt.scoring.journal import Journal, Row


class Answers:
    """Implements `values.Meter` for one run: counts on a budget, keeps in a file."""

    def __init__(self, journal: Journal, budget: Budget, model: str) -> None:
        self.budget, self.model = budget, model
        self.limited = True
        """False while a report is made, which no clock ends."""
        self.lost = 0
        """Calls that may be billed and gave no answer."""
        self.untold = 0
        """Calls whose tokens the server did not tell: they count at their most."""
        self._journal = journal
        self._lock = threading.Lock()
        self._flights: dict[int, Amounts] = {}
        self._known: dict[str, tuple[Any, int, int]] = {}
        self._next = 0

    def restore(self) -> None:
        """Take in what earlier sessions sent and got."""
        try:
            self._take(self._journal.good_rows())
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RunError(
                f"{self._journal.path} cannot be read ({error!r}); start the run again with --force"
            ) from error

    @property
    def problems(self) -> list[str]:
        """Rows of the file that could not be used."""
        return self._journal.problems

    def recall(self, question: str) -> tuple[Any, int, int] | None:
        """The answer that a question had before in this run."""
        with self._lock:
            return self._known.get(question)

    def keep(self, question: str, answer: Any, tokens_in: int, tokens_out: int) -> None:
        """Write an answer down."""
        self._write(lambda: {"kind": "answer", "key": question, "answer": answer, "tokens": [tokens_in, tokens_out]})
        with self._lock:
            self._known[question] = (answer, tokens_in, tokens_out)

    def sending(self, calls: int, tokens_in: int, tokens_out: int) -> int:
        """Write a request down before it is sent; ServerDown where it would go beyond a limit."""
        flight = self.budget.send(calls, tokens_in, tokens_out, self.model)

        def row() -> Row:
            number, self._next = self._next, self._next + 1
            self._flights[number] = flight
            return {"kind": "send", "number": number, "most": [calls, tokens_in, tokens_out]}

        return int(self._write(row)["number"])

    def ended(self, number: int, calls: int, tokens_in: int, tokens_out: int, how: str = "told") -> None:
        """Write down what a request took, and how that is known."""
        with self._lock:
            flight = self._flights.pop(number)
        self.budget.land(flight, self._amounts(calls, tokens_in, tokens_out))
        took = [calls, tokens_in, tokens_out]
        self._write(lambda: {"kind": "took", "number": number, "took": took, "how": how})
        with self._lock:
            self._tally(how, calls)

    def seconds_left(self) -> float | None:
        """What is left of the minutes, while they count."""
        return self.budget.seconds_left() if self.limited else None

    def close(self) -> None:
        """Let go of the file."""
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
        """Count an earlier session's requests and keep its answers."""
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
