"""Known scores: those that a killed session of this run paid for, and those of earlier runs in the memo."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pinprompt.errors import BudgetSpent, TaskError
from pinprompt.scoring import journal
from pinprompt.scoring.budget import Budget, Reservation
from pinprompt.scoring.journal import Row
from pinprompt.scoring.memo import Memo, memo_key
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Prompt, Score

# Costs of a score: the worst case before it, the actual cost after it.


@dataclass
class Question:
    """One prompt of a request that the run has no score for yet."""

    place: int
    prompt: Prompt
    known: Score | None
    """A known score: from the journal of a killed session, or from the memo."""
    reservation: Reservation | None = None


class Billing:
    """Charges a task's costs to a budget, by its `calls`, `billed` and `tokens`, and its scores' reported costs."""

    def __init__(self, task: Task, budget: Budget) -> None:
        self.task, self.budget = task, budget
        self.model = task.billed
        self._paid_calls = 0

    @property
    def paid_calls(self) -> int:
        """Calls actually made, not answered from a cache; including lost ones if they are counted."""
        return self.budget.sent.calls if self.budget.metered else self._paid_calls

    @paid_calls.setter
    def paid_calls(self, calls: int) -> None:
        self._paid_calls = calls

    def admit(self, questions: list[Question], split: str, report: bool) -> str | None:
        """Reserve the worst case of as many questions as fit, in order; returns why one does not.

        Calls and tokens are reserved for known scores too: the run must not depend on the content of the memo.
        """
        for question in questions:
            tokens_in, tokens_out = self._most(question.prompt, split)
            model = self.model if question.known is None else None
            calls = self.task.calls(split)
            try:
                question.reservation = self.budget.reserve(calls, tokens_in, tokens_out, model, report=report)
            except BudgetSpent as refusal:
                return str(refusal)
        return None

    def settle(self, question: Question, score: Score, split: str) -> None:
        """Charge what a score cost."""
        calls = score.calls or self.task.calls(split)
        tokens_in, tokens_out = self._took(question.prompt, score, split)
        if question.reservation is None:
            raise ValueError(f"the score of {question.prompt.text!r} was not reserved")
        self.budget.settle(question.reservation, calls, tokens_in, tokens_out)
        if question.known is None:
            self._paid_calls += calls

    def admit_evaluation(self, prompt: Prompt, split: str, known: bool) -> Reservation:
        """Reserve the worst case of an evaluation; BudgetSpent if it does not fit."""
        calls, tokens_in, tokens_out = self.task.evaluation_cost(prompt, split)
        return self.budget.reserve(calls, tokens_in, tokens_out, None if known else self.model, report=True)

    def settle_evaluation(self, reservation: Reservation, evaluation: Evaluation, known: bool) -> float:
        """Charge an evaluation to the report; returns the money it cost."""
        most = reservation.amounts
        calls = evaluation.calls or most.calls
        usage = evaluation.tables.get("usage")
        usage = usage if isinstance(usage, Mapping) else {}
        tokens_in, tokens_out = (int(usage.get(name, getattr(most, name))) for name in ("tokens_in", "tokens_out"))
        self.budget.settle(reservation, calls, tokens_in, tokens_out)
        self._paid_calls += 0 if known else calls
        return float(self.budget.price(reservation.model, tokens_in, tokens_out))

    def release(self, questions: list[Question]) -> None:
        """Release what was reserved for unanswered questions."""
        for question in questions:
            if question.reservation is not None and question.reservation.open:
                self.budget.release(question.reservation)

    def money(self, prompt: Prompt, score: Score, split: str) -> float:
        """What a score cost when it was paid for."""
        return float(self.budget.price(self.model, *self._took(prompt, score, split)))

    def check(self, question: Question, score: Score, split: str) -> None:
        """Raise an error for a task that uses more calls than it declared, since the budget relies on it."""
        if score.calls > self.task.calls(split):
            raise TaskError(
                f"the task '{self.task.name}' took {score.calls} calls for the prompt {question.prompt.text!r} though "
                f"it declares at most {self.task.calls(split)} on {split}; correct its calls()"
            )

    def really_spent(self) -> dict[str, Any]:
        """The actual cost so far; it only grows, so a resumed run takes the largest value that it finds."""
        money = str(self.budget.paid())
        return {"spent": {"money": money, "seconds": self.budget.seconds(), "paid_calls": self.paid_calls}}

    def _most(self, prompt: Prompt, split: str) -> tuple[int, int]:
        most_in, most_out = self.task.tokens(prompt, split)
        return int(most_in), int(most_out)

    def _took(self, prompt: Prompt, score: Score, split: str) -> tuple[int, int]:
        """Tokens in and out of a score: as reported, otherwise the maximum."""
        most_in, most_out = self._most(prompt, split)
        return int(score.details.get("tokens_in", most_in)), int(score.details.get("tokens_out", most_out))


# The table of scores of a run, which answers repeats and from which prompts.csv is written.


@dataclass
class _Entry:
    """One distinct prompt: its ids, its first request, and per split (sum of scores, number of scores)."""

    ids: tuple[int, ...]
    first: int
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    failures: int = 0


class Table:
    """Scores by split and text, and the worst score of each split."""

    def __init__(self) -> None:
        self.texts: dict[str, _Entry] = {}
        self._scores: dict[tuple[str, str], Score] = {}
        self._worst: dict[str, float] = {}

    def get(self, split: str, text: str) -> Score | None:
        """The latest score of a prompt on a split."""
        return self._scores.get((split, text))

    def enter(self, number: int, split: str, scored: Sequence[tuple[int, Prompt, Score]]) -> dict[int, Score]:
        """Add the scores of one request and return them by position, failed ones as the worst so far.

        Failures on a split without any score yet cannot be given a value and are left out.
        """
        finite = [score.value for _, _, score in scored if not math.isnan(score.value)]
        if finite:
            self._worst[split] = min([*finite, self._worst.get(split, math.inf)])
        settled: dict[int, Score] = {}
        for place, prompt, raw in scored:
            score = raw
            if math.isnan(raw.value):
                if split not in self._worst:
                    continue
                score = replace(raw, value=self._worst[split])
            settled[place] = score
            self._scores[split, prompt.text] = score
            entry = self.texts.setdefault(prompt.text, _Entry(prompt.ids, number))
            total, times = entry.sums.get(split, (0.0, 0))
            entry.sums[split] = (total + score.value, times + 1)
            entry.failures += len(score.failures)
        return settled

    def rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        """Every distinct prompt in order of appearance: text, ids, mean score per split, times scored, failures."""
        rows = []
        for text, entry in self.texts.items():
            row: dict[str, Any] = {"prompt": text, "ids": " ".join(map(str, entry.ids)), "first": entry.first}
            for split in splits:
                total, times = entry.sums.get(split, (0.0, 0))
                row[split] = total / times if times else None
            row["scored"] = sum(times for _, times in entry.sums.values())
            row["failures"] = entry.failures
            rows.append(row)
        return rows


class Known:
    """Looks up known scores; `fixed` tasks have one score per prompt and split, others one per request."""

    def __init__(self, task: Task, fixed: bool, memo: Memo | None) -> None:
        self.task, self.fixed = task, fixed
        self.memo = memo if fixed else None
        self.hits = 0
        """Number of scores taken from the memo."""
        self._scores: dict[tuple[Any, ...], Score] = {}
        self._evaluations: dict[tuple[str, str], Evaluation] = {}
        self._stored: set[str] = set()
        """Keys of the last questions that the memo answered."""

    def take(self, spare: Iterable[Row]) -> None:
        """Add journal rows from after the last checkpoint; scores with failures are computed again."""
        for row in spare:
            if row["kind"] == "evaluation":
                self._evaluations[row["split"], row["text"]] = journal.unpack_evaluation(row["evaluation"])
                continue
            score = journal.unpack_score(row)
            if not math.isnan(score.value) and not score.failures:
                self._scores[self._question(row["n"], row["place"], row["split"], row["text"])] = score

    def scores(self, asked: Sequence[tuple[int, Prompt]], split: str, number: int) -> dict[int, Score]:
        """The known scores among the (position, prompt) pairs of request `number`, by position."""
        found: dict[int, Score] = {}
        for place, prompt in asked:
            paid = self._scores.get(self._question(number, place, split, prompt.text))
            if paid is not None:
                found[place] = paid
        if self.memo is None:
            return found
        keys = {place: self.score_key(split, prompt) for place, prompt in asked if place not in found}
        stored = self.memo.look_up(list(keys.values()))
        for place, key in keys.items():
            with contextlib.suppress(KeyError, ValueError):
                found[place] = journal.unpack_score(stored[key])
        self._stored = {key for place, key in keys.items() if place in found}
        return found

    def used(self, split: str, prompt: Prompt) -> None:
        """Register that a known score was used; a hit if it came from the memo."""
        key = self.score_key(split, prompt)
        if self.memo is not None and key in self._stored:
            self.hits += 1
            self.memo.count(key)

    def evaluation(self, prompt: Prompt, split: str) -> Evaluation | None:
        """The known evaluation of a prompt on a split."""
        paid = self._evaluations.get((split, prompt.text))
        if paid is not None or self.memo is None:
            return paid
        key = self.evaluation_key(split, prompt)
        try:
            known = journal.unpack_evaluation(self.memo.look_up([key])[key])
        except (KeyError, ValueError):
            return None
        self.hits += 1
        self.memo.count(key)
        return known

    def keep(self, answers: Mapping[str, dict[str, Any]], money: float = 0.0) -> None:
        """Store new scores in the memo; `money` is the cost of each."""
        if self.memo is not None:
            self.memo.keep(answers, money)

    def _fingerprint(self, split: str) -> str:
        """The fingerprint that a score on a split depends on: the task's, or the split's own if it has one."""
        return str(self.task.fingerprints.get(split, self.task.fingerprint))

    def score_key(self, split: str, prompt: Prompt) -> str:
        """The memo's key of a score."""
        return memo_key(self._fingerprint(split), "score", split, prompt.text)

    def evaluation_key(self, split: str, prompt: Prompt) -> str:
        """The memo's key of an evaluation."""
        return memo_key(self._fingerprint(split), "evaluation by rows", split, prompt.text)

    def _question(self, number: int, place: int, split: str, text: str) -> tuple[Any, ...]:
        return (split, text) if self.fixed else (split, text, number, place)
