"""What a score costs a task's user: the worst case before it, what it took after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinprompt.errors import BudgetSpent, TaskError
from pinprompt.scoring.budget import Budget, Reservation
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Prompt, Score


@dataclass
class Question:
    """One prompt of a request that the run has no score for yet."""

    place: int
    prompt: Prompt
    known: Score | None
    """An answer that costs nothing now: from the journal of a killed session, or from the memo."""
    reservation: Reservation | None = None


class Billing:
    """A task's costs booked on a budget.

    What a task may tell beyond its contract: `billed`, the name of its model in the price table; `tokens(prompt,
    split)`, the most tokens in and out that a score can take; `tokens_in` and `tokens_out` in `Score.details` (and
    under "usage" in `Evaluation.tables`), what it took.
    """

    def __init__(self, task: Task, budget: Budget) -> None:
        self.task, self.budget = task, budget
        self.model: str | None = getattr(task, "billed", None)
        self.paid_calls = 0
        """Calls that were really made, not answered from memory."""

    def admit(self, questions: list[Question], split: str) -> BudgetSpent | None:
        """Reserve the worst case of as many questions as fit, in order; gives the refusal of the first that does not.

        Calls and tokens are reserved for known answers too: the run must not depend on what the memo knows.
        """
        for question in questions:
            tokens_in, tokens_out = self._most(question.prompt, split)
            model = self.model if question.known is None else None
            try:
                question.reservation = self.budget.reserve(self.task.calls(split), tokens_in, tokens_out, model)
            except BudgetSpent as refusal:
                return refusal
        return None

    def settle(self, question: Question, score: Score, split: str) -> None:
        """Book what a score took: on the search's budget if it was admitted there, else as a report."""
        calls = score.calls or self.task.calls(split)
        tokens_in, tokens_out = self._took(question.prompt, score, split)
        if question.reservation is not None:
            self.budget.settle(question.reservation, calls, tokens_in, tokens_out)
        else:
            self.budget.book_report(calls, tokens_in, tokens_out, self.model if question.known is None else None)
        if question.known is None:
            self.paid_calls += calls

    def settle_evaluation(self, evaluation: Evaluation, split: str, known: bool) -> float:
        """Book an evaluation as a report; gives the money it cost."""
        calls = evaluation.calls or self.task.calls(split)
        usage = evaluation.tables.get("usage")
        usage = usage if isinstance(usage, Mapping) else {}
        tokens_in, tokens_out = int(usage.get("tokens_in", 0)), int(usage.get("tokens_out", 0))
        model = None if known else self.model
        self.budget.book_report(calls, tokens_in, tokens_out, model)
        self.paid_calls += 0 if known else calls
        return float(self.budget.price(model, tokens_in, tokens_out))

    def release(self, questions: list[Question]) -> None:
        """Free what was reserved for questions that got no answer."""
        for question in questions:
            if question.reservation is not None and question.reservation.open:
                self.budget.release(question.reservation)

    def money(self, prompt: Prompt, score: Score, split: str) -> float:
        """What a score cost when it was paid for."""
        return float(self.budget.price(self.model, *self._took(prompt, score, split)))

    def check(self, question: Question, score: Score, split: str) -> None:
        """A task that takes more calls than it promised would make the budget a lie."""
        if score.calls > self.task.calls(split):
            raise TaskError(
                f"the task '{self.task.name}' took {score.calls} calls for the prompt {question.prompt.text!r} though "
                f"it promises at most {self.task.calls(split)} on {split}; correct its calls()"
            )

    def really_spent(self) -> dict[str, Any]:
        """The ledger of what was really spent; it only grows, so a resumed run takes the largest that it finds."""
        money = str(self.budget.spent.money)
        return {"spent": {"money": money, "seconds": self.budget.seconds(), "paid_calls": self.paid_calls}}

    def _most(self, prompt: Prompt, split: str) -> tuple[int, int]:
        tokens = getattr(self.task, "tokens", None)
        if tokens is None:
            return 0, 0
        most_in, most_out = tokens(prompt, split)
        return int(most_in), int(most_out)

    def _took(self, prompt: Prompt, score: Score, split: str) -> tuple[int, int]:
        """Tokens in and out of a score: as it says, or else the most that it can have been."""
        most_in, most_out = self._most(prompt, split)
        return int(score.details.get("tokens_in", most_in)), int(score.details.get("tokens_out", most_out))
