"""The evaluator: scores prompts without paying twice, exceeding the budget, or losing a paid score.

For each request it consults, in order: prompts seen before in the batch or the run, scores that a killed session paid
for (journal), scores of earlier runs (memo), the budget, and finally the executor. For a stochastic task each prompt of
each request is a separate question, with a seed derived from the request's number and the prompt's position in it; on a
block of rows all prompts have the same seed.

A prompt that could not be scored (no finite value, but recorded failures) gets the worst score of its split in the run
so far, including its own request: the search learns to avoid it, and the value depends only on the run. If nothing
could be scored yet, that is a TaskError. Failures are never kept for other runs, and a resumed run tries again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from pinprompt.errors import BudgetSpent, RunError, SettingError, TaskError, did_you_mean
from pinprompt.files import dumps
from pinprompt.scoring import journal
from pinprompt.scoring.budget import Amounts, Budget, Reservation
from pinprompt.scoring.executors import Executor, Inline
from pinprompt.scoring.journal import Answers, Journal, Row
from pinprompt.scoring.ledger import Billing, Known, Question, Table
from pinprompt.scoring.memo import Memo
from pinprompt.tasks.protocol import Task, complete
from pinprompt.values import Evaluation, Prompt, Score, derive


class Evaluator:
    """Implements `methods.protocol.Evaluator` for one run."""

    def __init__(
        self,
        task: Task,
        budget: Budget,
        memo: Memo | None = None,
        executor: Executor | None = None,
        seed: int = 0,
        journal: Journal | None = None,
        memoise_stochastic: bool = False,
        answers: Answers | None = None,
    ) -> None:
        task = complete(task)
        self.task, self.budget, self.seed, self.journal = task, budget, seed, journal
        self.executor: Executor = Inline(task) if executor is None else executor
        self.fixed = memoise_stochastic or not task.stochastic
        """Whether one score per prompt and split is enough."""
        self.requests = 0
        self.repeats = 0
        self.unwritten: frozenset[str] = frozenset()
        """Tables of evaluations that are not written to the run folder."""
        self._begun = False
        self._billing = Billing(task, budget)
        self._known = Known(task, self.fixed, memo)
        self._table = Table()
        self._evaluations: dict[tuple[str, str], Evaluation] = {}
        self._answers = answers

    @property
    def charged_calls(self) -> int:
        """Calls charged to the search's budget."""
        return self.budget.spent.calls

    @property
    def report_calls(self) -> int:
        """Calls for the report, which `budget.calls` does not limit."""
        return self.budget.report.calls

    @property
    def paid_calls(self) -> int:
        """Calls actually made, including reports, retries and truncated answers."""
        return self._billing.paid_calls

    @property
    def memo_hits(self) -> int:
        """Number of scores taken from the memo."""
        return self._known.hits

    @property
    def distinct(self) -> int:
        """Different prompts scored in this run, on any split."""
        return len(self._table.texts)

    def score(self, prompts: list[Prompt], split: str = "train", *, report: bool = False) -> list[Score]:
        """Scores in order. Raises BudgetSpent before a limit is exceeded, with the scores of the first prompts.

        With `report` the calls are counted separately from the search's, and only the common limits apply.
        """
        self._begin(split)
        prompts, refused = self._calibrated(prompts, split, report)
        number, self.requests = self.requests, self.requests + 1
        questions, first = self._questions(prompts, split, number)
        got: dict[int, Score] = {}
        # Refusals are texts: an exception that is kept refers to its frames, and so to the models in them.
        refusal: str | None = None
        try:
            while len(got) < len(questions) and refusal is None:
                todo = questions[len(got) :]
                refusal = self._billing.admit(todo, split, report)
                admitted = [question for question in todo if question.reservation is not None]
                if admitted:
                    # These may have cost less than their worst case, so the next ones may fit: try again.
                    refusal = self._obtain(admitted, split, number, got, report)
        finally:
            self._billing.release(questions)
            settled = self._keep(number, split, questions, got)
        lost = [score for place, score in got.items() if place not in settled]
        if lost:
            raise TaskError(
                f"the task '{self.task.name}' could not score a single prompt on {split} so far; "
                f"the first failure: {lost[0].failures[0]}"
            )
        scores: list[Score] = []
        for place, prompt in enumerate(prompts):
            score = self._table.get(split, prompt.text) if self.fixed else settled.get(place)
            if score is None:
                break
            self.repeats += self.fixed and first.get(prompt.text) != place
            scores.append(score)
        refusal = refused if refusal is None else refusal
        if refusal is not None:
            raise BudgetSpent(refusal, scores=scores)
        return scores

    def evaluate(self, prompt: Prompt, split: str) -> Evaluation:
        """The task's metrics of one prompt; each prompt and split is evaluated once, and charged to the report."""
        return self.evaluate_all([prompt], split)[0]

    def evaluate_all(self, prompts: list[Prompt], split: str) -> list[Evaluation]:
        """The same for several prompts together, which may be faster.

        Evaluations known from scores of this run, the journal of a killed session or the memo are not computed again.
        """
        self._begin(split)
        new = list({p.text: p for p in prompts if (split, p.text) not in self._evaluations}.values())
        ready, _ = self._calibrated(new, split, report=True)
        # One seed for all prompts, so that they are compared on the same random draws.
        seed = derive(self.seed, "task", "evaluation", split)
        derived = [self._from_score(prompt, split, seed) for prompt in ready]
        known = [
            self._known.evaluation(prompt, split) if from_score is None else None
            for prompt, from_score in zip(ready, derived, strict=True)
        ]
        asked = [p for p, *found in zip(ready, derived, known, strict=True) if found == [None, None]]
        held: dict[str, Reservation] = {}
        try:
            for prompt, from_score, remembered in zip(ready, derived, known, strict=True):
                if from_score is None:
                    held[prompt.text] = self._billing.admit_evaluation(prompt, split, remembered is not None)
            self._limit_time(False)
            answers = iter(self.executor.evaluate_many(asked, split, seed) if asked else [])
            given = [one or remembered or self._checked(next(answers), prompt)
                     for prompt, one, remembered in zip(ready, derived, known, strict=True)]  # fmt: skip
        except BaseException:
            for reservation in held.values():
                self.budget.release(reservation)
            raise
        for prompt, from_score, remembered, found in zip(ready, derived, known, given, strict=True):
            if from_score is not None:
                evaluation, money = self._checked(from_score, prompt), 0.0
            else:
                evaluation = found
                money = self._billing.settle_evaluation(held[prompt.text], evaluation, remembered is not None)
            if from_score is None and remembered is None:
                packed = journal.pack_evaluation(evaluation)
                self._known.keep({self._known.evaluation_key(split, prompt): packed}, money)
            evaluation = self._written(evaluation)
            self._evaluations[split, prompt.text] = evaluation
            packed = journal.pack_evaluation(evaluation)
            self._journal([self._row("evaluation", self.requests, -1, split, prompt) | {"evaluation": packed}])
        return [self._evaluations[split, prompt.text] for prompt in prompts]

    def _written(self, evaluation: Evaluation) -> Evaluation:
        """An evaluation as it may be written to the run folder."""
        tables = {name: table for name, table in evaluation.tables.items() if name not in self.unwritten}
        return replace(evaluation, tables=tables)

    def _from_score(self, prompt: Prompt, split: str, seed: int) -> Evaluation | None:
        """The evaluation that follows from the prompt's score on this split."""
        score = self._table.get(split, prompt.text) if self.fixed else None
        return None if score is None else self.task.evaluation_from(score, split, seed)

    def charge(self, calls: int) -> None:
        """Charge calls that a method makes itself; BudgetSpent if they do not fit, so call this before making them."""
        self._begin("train")
        self.budget.settle(self.budget.reserve(calls))
        self._billing.paid_calls += calls

    def totals(self) -> dict[str, Any]:
        """What search and report were charged, what was actually sent, and the money (None: price not known)."""
        budget, model = self.budget, self.task.billed
        totals: dict[str, Any] = {"search": _counted(budget.spent), "report": _counted(budget.report)}
        totals["sent"] = _counted(budget.sent) if budget.metered else {"calls": self.paid_calls}
        if self._answers is not None:
            totals["sent"] |= {"lost": self._answers.lost, "untold": self._answers.untold}
        if model is not None:
            totals["money"] = float(budget.paid()) if budget.priced(model) else None
            totals["currency"] = budget.settings.currency
        return totals

    def prompts_table(self) -> list[dict[str, Any]]:
        """Every distinct prompt in order of appearance, with its mean score per split (for prompts.csv)."""
        return self._table.rows((*self.task.splits, *self.task.blocks))

    def known(self, prompt: Prompt, split: str) -> Score | None:
        """The latest score of a prompt on a split; None where there is none, and nothing is asked."""
        return self._table.get(split, prompt.text)

    def derive(self, prompt: Prompt, scores: list[Score]) -> None:
        """Derive a prompt's score on whole splits from its scores on blocks, so that it is not computed again."""
        self._begin("train")
        for split, score in self.task.whole_splits(scores).items():
            if self._table.get(split, prompt.text) is None:
                self._table.enter(self.requests, split, [(0, prompt, score)])

    def position(self) -> dict[str, Any]:
        """The position of the run, as JSON values for a checkpoint."""
        self._begin("train")
        return {
            "requests": self.requests,
            "rows": 0 if self.journal is None else self.journal.rows,
            "crc": None if self.journal is None else self.journal.crc,
            "paid_calls": self.paid_calls,
            "memo_hits": self.memo_hits,
            "repeats": self.repeats,
            "budget": self.budget.state(),
        }

    def spent(self) -> dict[str, Any]:
        """Money, seconds and calls actually spent so far, as JSON values for a checkpoint."""
        spent: dict[str, Any] = self._billing.really_spent()["spent"]
        return spent

    def restore(self, position: Mapping[str, Any] | None, spent: Mapping[str, Any] | None = None) -> None:
        """Continue from a checkpoint's position, or with None from the beginning with the scores of a killed session.

        Must be called before anything is scored; a run with a journal and no checkpoint does it by itself. `spent` is
        the actual cost in the checkpoint, which may be more than at its position.
        """
        if self._begun:
            raise RunError("an evaluator can only be restored before it has scored anything")
        rows, crc = 0, None
        if position is not None:
            try:
                crc = position.get("crc")
                rows, self.requests = int(position["rows"]), int(position["requests"])
                self._billing.paid_calls = int(position["paid_calls"])
                self._known.hits, self.repeats = int(position["memo_hits"]), int(position["repeats"])
                budget = position["budget"]
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise RunError(f"the evaluator's position in the checkpoint cannot be read: {error!r}") from error
            self.budget.restore(budget)
        self._begun = True
        if self._answers is not None:
            self._answers.restore()
            self.budget.metered = self.task.attach(self._answers)
        if self.journal is None:
            return
        history, spare = self.journal.split_at(rows, crc)
        try:
            self._rebuild(history)
            self._known.take(spare)
            self._restore_spent([row["spent"] for row in history + spare] + ([] if spent is None else [dict(spent)]))
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RunError(
                f"{self.journal.path} cannot be read ({error!r}); start the run again with --force"
            ) from error

    def close(self) -> None:
        """Close workers, journals and memo."""
        self.executor.close()
        if self._answers is not None:
            self._answers.close()
        if self.journal is not None:
            self.journal.close()
        if self._known.memo is not None:
            self._known.memo.close()

    def _begin(self, split: str) -> None:
        if not self._begun:
            self.restore(None)
        if split not in self.task.splits and split not in self.task.blocks:
            known = did_you_mean(split, self.task.splits)
            raise SettingError(f"the task '{self.task.name}' has no split '{split}'; {known}")

    def _calibrated(self, prompts: list[Prompt], split: str, report: bool) -> tuple[list[Prompt], str | None]:
        """The prompts with the offsets of their scores on train, which are computed first if necessary.

        If the budget does not suffice for all, returns those before the first it refused, and why it refused.
        """
        if split == "train" or split in self.task.blocks or not self.task.calibrates:
            return prompts, None
        unknown = [prompt for prompt in prompts if self._table.get("train", prompt.text) is None]
        refusal = None
        if unknown:
            try:
                self.score(unknown, "train", report=report)
            except BudgetSpent as spent:
                refusal = str(spent)
        ready: list[Prompt] = []
        for prompt in prompts:
            score = self._table.get("train", prompt.text)
            if score is None:
                break
            ready.append(replace(prompt, offsets=score.offsets))
        return ready, refusal

    def _questions(self, prompts: list[Prompt], split: str, number: int) -> tuple[list[Question], dict[str, int]]:
        """The prompts of a request that have no score yet, and the first position of each text among them."""
        first: dict[str, int] = {}
        asked: list[tuple[int, Prompt]] = []
        for place, prompt in enumerate(prompts):
            if self.fixed and (prompt.text in first or self._table.get(split, prompt.text) is not None):
                continue
            first.setdefault(prompt.text, place)
            asked.append((place, prompt))
        known = self._known.scores(asked, split, number)
        return [Question(place, prompt, known.get(place)) for place, prompt in asked], first

    def _limit_time(self, limited: bool) -> None:
        """Whether the budget's minutes end requests to a server."""
        if self._answers is not None:
            self._answers.limited = limited

    def _obtain(
        self, questions: list[Question], split: str, number: int, got: dict[int, Score], report: bool
    ) -> str | None:
        """Score admitted questions in order, charging and journalling each; returns why it ended early, if it did."""
        unknown = [question for question in questions if question.known is None]
        # On a block of rows all prompts of all requests have the same draws, so that they can be compared.
        paired = split in self.task.blocks
        seeds = [derive(self.seed, "task", *((split,) if paired else (number, one.place))) for one in unknown]
        stop = bool if report else self.budget.expired  # a report has no time limit
        self._limit_time(not report)
        answers = self.executor.run([question.prompt for question in unknown], seeds, split, stop)
        rows: list[Row] = []
        try:
            for question in questions:
                score = question.known
                if score is None:
                    answer = next(answers, None)
                    if answer is None:
                        if stop():
                            return f"the budget of {self.budget.settings.minutes} minutes is used up"
                        raise TaskError(f"the task '{self.task.name}' gave too few scores for {len(questions)} prompts")
                    score = journal.clean(answer, self.task.name, question.prompt.text)
                else:
                    self._known.used(split, question.prompt)
                self._billing.settle(question, score, split)
                got[question.place] = score
                rows.append(
                    self._row("score", number, question.place, split, question.prompt) | journal.pack_score(score)
                )
                if question.known is None:
                    paid, rows = rows, []
                    self._journal(paid)
                self._billing.check(question, score, split)
        except BudgetSpent as refusal:
            return str(refusal)  # the minutes ended in the middle of a prompt; its answers so far are in the journal
        finally:
            self._journal(rows)
        return None

    def _row(self, kind: str, number: int, place: int, split: str, prompt: Prompt) -> Row:
        head: Row = {"kind": kind, "n": number, "place": place, "split": split}
        return head | {"text": prompt.text, "ids": list(prompt.ids)} | self._billing.really_spent()

    def _journal(self, rows: list[Row]) -> None:
        if self.journal is not None:
            self.journal.append(rows)

    def _keep(self, number: int, split: str, questions: list[Question], got: dict[int, Score]) -> dict[int, Score]:
        """Add new scores to the run's table and the memo; returns the scores by position."""
        answered = [(question, got[question.place]) for question in questions if question.place in got]
        for question, score in answered:
            if question.known is None and not score.failures:
                key = self._known.score_key(split, question.prompt)
                money = self._billing.money(question.prompt, score, split)
                self._known.keep({key: journal.pack_score(score)}, money)
        return self._table.enter(number, split, [(asked.place, asked.prompt, score) for asked, score in answered])

    def _checked(self, evaluation: Any, prompt: Prompt) -> Evaluation:
        """An evaluation after a round trip through JSON, so that it equals a stored one."""
        if not isinstance(evaluation, Evaluation):
            given = type(evaluation).__name__
            raise TaskError(f"the task '{self.task.name}' gave {given} instead of an Evaluation ({prompt.text!r})")
        try:
            return journal.unpack_evaluation(json.loads(dumps(journal.pack_evaluation(evaluation))))
        except (TypeError, ValueError) as error:
            name = self.task.name
            raise TaskError(f"the evaluation of the task '{name}' is not plain numbers and tables: {error}") from error

    def _rebuild(self, history: list[Row]) -> None:
        """Rebuild the run's table from the rows before the checkpoint, request by request."""
        requests: dict[tuple[int, str], list[tuple[int, Prompt, Score]]] = {}
        for row in history:
            if row["kind"] == "evaluation":
                self._evaluations[row["split"], row["text"]] = journal.unpack_evaluation(row["evaluation"])
                continue
            prompt = Prompt(str(row["text"]), tuple(int(token) for token in row["ids"]))
            place = (int(row["place"]), prompt, journal.unpack_score(row))
            requests.setdefault((int(row["n"]), str(row["split"])), []).append(place)
        for (number, split), scored in requests.items():
            self._table.enter(number, split, scored)

    def _restore_spent(self, spent: list[dict[str, Any]]) -> None:
        """Count what was actually spent after the checkpoint."""
        if not spent:
            return
        money = max(Decimal(entry["money"]) for entry in spent)
        seconds = max(float(entry["seconds"]) for entry in spent)
        if not (money.is_finite() and math.isfinite(seconds)):
            raise ValueError("a sum that is not finite")
        self.budget.at_least(money, seconds)
        self._billing.paid_calls = max(self.paid_calls, *(int(entry["paid_calls"]) for entry in spent))


def _counted(amounts: Amounts) -> dict[str, int]:
    """Calls, and tokens if they are counted."""
    tokens = {"tokens_in": amounts.tokens_in, "tokens_out": amounts.tokens_out} if amounts.tokens else {}
    return {"calls": amounts.calls, **tokens}
