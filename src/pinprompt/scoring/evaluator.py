"""The only way from prompts to scores: no prompt is paid for twice, nothing is overspent, nothing paid for is lost.

A request goes through five sieves: prompts seen before in the batch or in the run, answers that a killed session paid
for (journal), answers of earlier runs (memo), the budget, and last the executor. For a stochastic task each prompt of
each request is its own question, with its own seed from the request's number and the prompt's place in it; on a block
of rows all prompts have one seed.

A prompt that could not be scored (a score without a finite value, but with failures to show for it) counts as the worst
score of its split in the run so far, its own request included: the search learns to avoid it, and the number depends
on nothing but the run. Where nothing at all could be scored yet, that is a TaskError. Failures are never kept for
other runs, and a resumed run asks again.
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
        """One answer per prompt and split is enough."""
        self.requests = 0
        self.repeats = 0
        self.unwritten: frozenset[str] = frozenset()
        """Tables of evaluations that stay out of the run folder."""
        self._begun = False
        self._billing = Billing(task, budget)
        self._known = Known(task, self.fixed, memo)
        self._table = Table()
        self._evaluations: dict[tuple[str, str], Evaluation] = {}
        self._answers = answers

    @property
    def charged_calls(self) -> int:
        """Calls booked to the search's budget."""
        return self.budget.spent.calls

    @property
    def report_calls(self) -> int:
        """Calls for the report, which `budget.calls` does not limit."""
        return self.budget.report.calls

    @property
    def paid_calls(self) -> int:
        """Calls that were really made: reports, new tries and answers that were cut included."""
        return self._billing.paid_calls

    @property
    def memo_hits(self) -> int:
        """Answers of the memo that were used."""
        return self._known.hits

    @property
    def distinct(self) -> int:
        """Different prompts scored in this run, on any split."""
        return len(self._table.texts)

    def score(self, prompts: list[Prompt], split: str = "train", *, report: bool = False) -> list[Score]:
        """Scores in order. Raises BudgetSpent before anything is overspent, with the scores of the first prompts.

        With `report` the calls are counted apart from those of the search, and limited by what limits both together.
        """
        self._begin(split)
        prompts, refused = self._calibrated(prompts, split, report)
        number, self.requests = self.requests, self.requests + 1
        questions, first = self._questions(prompts, split, number)
        got: dict[int, Score] = {}
        refusal: BudgetSpent | None = None
        try:
            while len(got) < len(questions) and refusal is None:
                todo = questions[len(got) :]
                refusal = self._billing.admit(todo, split, report)
                admitted = [question for question in todo if question.reservation is not None]
                if admitted:
                    # What these leave of their worst case may let the next ones fit: the refusal is asked for again.
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
        refusal = refusal or refused
        if refusal is not None:
            raise BudgetSpent(str(refusal), scores=scores)
        return scores

    def evaluate(self, prompt: Prompt, split: str) -> Evaluation:
        """The task's metrics of one prompt; each prompt and split is evaluated once, and counted as a report."""
        return self.evaluate_all([prompt], split)[0]

    def evaluate_all(self, prompts: list[Prompt], split: str) -> list[Evaluation]:
        """The same of several prompts together, which a task may do faster.

        What follows from scores of this run, from the journal of a killed session or from the memo is not asked for.
        """
        self._begin(split)
        new = list({p.text: p for p in prompts if (split, p.text) not in self._evaluations}.values())
        ready, _ = self._calibrated(new, split, report=True)
        # One seed for all prompts: a comparison of two prompts is then a comparison on the same draws.
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
        """An evaluation as the run folder may have it."""
        tables = {name: table for name, table in evaluation.tables.items() if name not in self.unwritten}
        return replace(evaluation, tables=tables)

    def _from_score(self, prompt: Prompt, split: str, seed: int) -> Evaluation | None:
        """What the prompt's score on this split says already."""
        score = self._table.get(split, prompt.text) if self.fixed else None
        return None if score is None else self.task.evaluation_from(score, split, seed)

    def charge(self, calls: int) -> None:
        """Book calls that a method makes itself; BudgetSpent where they do not fit, so ask before making them."""
        self._begin("train")
        self.budget.settle(self.budget.reserve(calls))
        self._billing.paid_calls += calls

    def totals(self) -> dict[str, Any]:
        """What search and report were charged, what was really sent, and the money (None: the price is not known)."""
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
        """Enter what the scores of a prompt on the first blocks say of whole splits, so that nobody asks for it."""
        self._begin("train")
        for split, score in self.task.whole_splits(scores).items():
            if self._table.get(split, prompt.text) is None:
                self._table.enter(self.requests, split, [(0, prompt, score)])

    def position(self) -> dict[str, Any]:
        """Where the run stands, as JSON values for a checkpoint."""
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
        """Money, seconds and calls that were really spent so far, as JSON values for a checkpoint."""
        spent: dict[str, Any] = self._billing.really_spent()["spent"]
        return spent

    def restore(self, position: Mapping[str, Any] | None, spent: Mapping[str, Any] | None = None) -> None:
        """Continue from a checkpoint's position, or with None from the beginning with what a killed session paid for.

        To be called before anything is scored; a run that has a journal and no checkpoint does it by itself. `spent` is
        what the checkpoint says was really spent, which may be more than at its position.
        """
        if self._begun:
            raise RunError("an evaluator can be restored only before it has scored anything")
        rows, crc = 0, None
        if position is not None:
            try:
                crc = position.get("crc")
                rows, self.requests = int(position["rows"]), int(position["requests"])
                self._billing.paid_calls = int(position["paid_calls"])
                self._known.hits, self.repeats = int(position["memo_hits"]), int(position["repeats"])
                budget = position["budget"]
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise RunError(f"the evaluator's place in the checkpoint cannot be read: {error!r}") from error
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
        """Let go of workers, journals and memo."""
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

    def _calibrated(self, prompts: list[Prompt], split: str, report: bool) -> tuple[list[Prompt], BudgetSpent | None]:
        """The prompts with the offsets of their scores on train, which are obtained first where there is none yet.

        Where the budget does not allow that for all, gives those before the first it refused, and the refusal.
        """
        if split == "train" or split in self.task.blocks or not self.task.calibrates:
            return prompts, None
        unknown = [prompt for prompt in prompts if self._table.get("train", prompt.text) is None]
        refusal = None
        if unknown:
            try:
                self.score(unknown, "train", report=report)
            except BudgetSpent as spent:
                refusal = spent
        ready: list[Prompt] = []
        for prompt in prompts:
            score = self._table.get("train", prompt.text)
            if score is None:
                break
            ready.append(replace(prompt, offsets=score.offsets))
        return ready, refusal

    def _questions(self, prompts: list[Prompt], split: str, number: int) -> tuple[list[Question], dict[str, int]]:
        """The prompts of a request that have no score yet, and where each text stands first among them."""
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
        """Let the minutes of the budget end requests to a server, or not."""
        if self._answers is not None:
            self._answers.limited = limited

    def _obtain(
        self, questions: list[Question], split: str, number: int, got: dict[int, Score], report: bool
    ) -> BudgetSpent | None:
        """Get the scores of admitted questions in order, settling and journalling each; a refusal if time ran out."""
        unknown = [question for question in questions if question.known is None]
        # On a block of rows all prompts have the same draws, in whichever request: they are there to be compared.
        paired = split in self.task.blocks
        seeds = [derive(self.seed, "task", *((split,) if paired else (number, one.place))) for one in unknown]
        stop = bool if report else self.budget.expired  # no clock ends a report
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
                            return BudgetSpent(f"the budget of {self.budget.settings.minutes} minutes is used up")
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
            return refusal  # the minutes ended in the middle of a prompt; what came of it is in the journal of answers
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
        """Enter what was obtained into the run's table and the memo; gives the scores by place."""
        answered = [(question, got[question.place]) for question in questions if question.place in got]
        for question, score in answered:
            if question.known is None and not score.failures:
                key = self._known.score_key(split, question.prompt)
                money = self._billing.money(question.prompt, score, split)
                self._known.keep({key: journal.pack_score(score)}, money)
        return self._table.enter(number, split, [(asked.place, asked.prompt, score) for asked, score in answered])

    def _checked(self, evaluation: Any, prompt: Prompt) -> Evaluation:
        """An evaluation as it comes back from JSON, so that it is the same when it was kept."""
        if not isinstance(evaluation, Evaluation):
            given = type(evaluation).__name__
            raise TaskError(f"the task '{self.task.name}' gave {given} instead of an Evaluation ({prompt.text!r})")
        try:
            return journal.unpack_evaluation(json.loads(dumps(journal.pack_evaluation(evaluation))))
        except (TypeError, ValueError) as error:
            name = self.task.name
            raise TaskError(f"the evaluation of the task '{name}' is not plain numbers and tables: {error}") from error

    def _rebuild(self, history: list[Row]) -> None:
        """The run's table from the rows before the checkpoint, request by request as it was made."""
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
        """What was really spent after the checkpoint stays spent."""
        if not spent:
            return
        money = max(Decimal(entry["money"]) for entry in spent)
        seconds = max(float(entry["seconds"]) for entry in spent)
        if not (money.is_finite() and math.isfinite(seconds)):
            raise ValueError("a sum that is not finite")
        self.budget.at_least(money, seconds)
        self._billing.paid_calls = max(self.paid_calls, *(int(entry["paid_calls"]) for entry in spent))


def _counted(amounts: Amounts) -> dict[str, int]:
    """Calls, and tokens where anybody counts them."""
    tokens = {"tokens_in": amounts.tokens_in, "tokens_out": amounts.tokens_out} if amounts.tokens else {}
    return {"calls": amounts.calls, **tokens}
