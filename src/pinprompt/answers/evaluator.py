"""The evaluator: asks the task model for the cells of the table, and computes scores and metrics from them.

For each question it consults, in order: the table, answers that a killed session of this run paid for, answers of
earlier runs (memo), the budget, and finally the executor. No cell is paid for twice, no limit is exceeded, and every
answer is on disk before the search sees it.

A stochastic task draws an answer for each prompt of each request separately, with a seed derived from the request's
number and the prompt's position in it; requests with a name (a block of rows in a race) draw the same for all prompts,
so that they can be compared.

A prompt that could not be answered gets the worst score on the same rows in the run so far, including its own request:
the search learns to avoid it, and the value depends only on the run. If nothing could be answered yet, that is a
TaskError.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from pinprompt.answers.budget import Amounts, Budget, Reservation
from pinprompt.answers.executors import Executor, Inline, Job, never
from pinprompt.answers.memo import Memo, memo_key
from pinprompt.answers.requests import Requests
from pinprompt.answers.table import Table, pack_contents, pack_rows, unpack_contents
from pinprompt.errors import BudgetSpent, RunError, TaskError, UselessAnswers
from pinprompt.tasks.protocol import (
    Billed,
    Labelling,
    Proposing,
    Task,
    billed,
    calls,
    fit_rows,
    report_fit_rows,
    split_rows,
    splits,
)
from pinprompt.values import Answers, Draw, Evaluation, Prompt, Score, derive

REPORT = "report"
"""The draw of a stochastic task that a report shows."""
FIRST = 20
"""Answers of a model behind an API after which a run stops if most of them cannot be used."""
PAIRED = "paired"
"""The draw of a stochastic task that all prompts of named requests share."""


class _Asked(NamedTuple):
    """One prompt of a request, with its rows and the name and seed of its draw."""

    prompt: Prompt
    rows: tuple[int, ...]
    draw: str = ""
    seed: int = 0
    final: bool = False
    """Whether the answer is evaluated in the report; a score that a report shows is not."""


@dataclass
class _Question:
    """A prompt with the rows that the table has no answers for."""

    asked: _Asked
    rows: tuple[int, ...]
    known: Answers
    """Answers that cost nothing: of a killed session, or from the memo."""
    reservation: Reservation | None = None

    @property
    def unknown(self) -> tuple[int, ...]:
        return self.known.missing(self.rows)


class Evaluator:
    """Everything between a search and the task model, for one run."""

    def __init__(
        self,
        task: Task,
        budget: Budget,
        *,
        memo: Memo | None = None,
        executor: Executor | None = None,
        seed: int = 0,
        table: Table | None = None,
        requests: Requests | None = None,
    ) -> None:
        self.task, self.budget, self.seed = task, budget, seed
        self.table = Table() if table is None else table
        self.executor: Executor = Inline(task) if executor is None else executor
        self.memo = None if task.info.stochastic else memo
        self.splits = splits(task)
        self.requests_made = 0
        self.memo_hits = 0
        """Number of answers taken from the memo."""
        self._rows = {split: split_rows(task, split) for split in self.splits}
        self._fit = fit_rows(task)
        self._billed = billed(task)
        proposer = task.proposer_billed if isinstance(task, Proposing) else None
        self._servers = [name for name in (self._billed, proposer) if name is not None]
        self._useful = self._billed is None
        """Whether enough answers can be used; a model that costs nothing may be asked in any case."""
        self._requests = requests
        self._paid_calls = 0
        self._restored = False
        self._worst: dict[str, float] = {}
        """The worst score so far, by rows."""
        self._groups: dict[tuple[int, ...], str] = {}
        """Hashes of the rows that are asked together."""
        self._failed: dict[str, float] = {}
        """The scores of prompts that could not be answered, by rows, draw and text."""

    # What a search asks.

    def rows(self, split: str = "train") -> tuple[int, ...]:
        """The rows of a split."""
        return self._rows[split] if split in self._rows else split_rows(self.task, split)

    def ask(
        self, prompts: Sequence[Prompt], rows: Sequence[int], *, name: str = "", report: bool = False
    ) -> list[Answers]:
        """The answers of each prompt on at least these rows. Raises BudgetSpent before a limit is exceeded.

        Answers that were obtained by then are kept: `BudgetSpent.scores` has those of the first prompts. With `report`
        the calls are counted separately from the search's, and only the common limits apply.
        """
        asked = self._request(prompts, [tuple(rows)] * len(prompts), name)
        refusal = self._collect(asked, report)
        found = [self._answers(one) for one in self._answered(asked)]
        if refusal is not None:
            raise BudgetSpent(refusal, scores=found)
        return found

    def score(
        self,
        prompts: Sequence[Prompt],
        rows: str | Sequence[int] = "train",
        *,
        fit: Sequence[int] | None = None,
        name: str = "",
        report: bool = False,
    ) -> list[Score]:
        """Scores on a split or on some rows, in order. Raises BudgetSpent with the scores of the first prompts.

        `fit` are the rows whose answers may be learnt from (calibration); by default those that the task needs. `name`
        names a request of a stochastic task.
        """
        rows = self.rows(rows) if isinstance(rows, str) else tuple(rows)
        return self.score_each(prompts, [rows] * len(prompts), fit=fit, name=name, report=report)

    def score_each(
        self,
        prompts: Sequence[Prompt],
        rows: Sequence[tuple[int, ...]],
        *,
        fit: Sequence[int] | None = None,
        name: str = "",
        report: bool = False,
    ) -> list[Score]:
        """The same with rows for each prompt."""
        fit = self._fit if fit is None else tuple(fit)
        asked, refusal = self._request(prompts, rows, name), None
        if any(not set(fit) <= set(one.rows) for one in asked):
            before = [one._replace(rows=fit) for one in asked]
            refusal = self._collect(before, report)
            asked = asked[: len(self._answered(before))]
        later = self._collect(asked, report)
        refusal = refusal if later is None else later
        scores = self._scored(self._answered(asked), fit)
        if refusal is not None:
            raise BudgetSpent(refusal, scores=scores)
        return scores

    def evaluate(self, prompts: Sequence[Prompt], split: str) -> list[Evaluation]:
        """The task's metrics of each prompt on a split, charged to the report."""
        rows, fit, found = self.rows(split), report_fit_rows(self.task), []
        asked = self._ask_for_report(prompts, split)
        for one in asked:
            tokens = self.table.tokens(one.prompt.text, one.draw, rows)  # not those of other splits
            found.append(self.task.metrics(replace(self._answers(one), tokens=tokens), rows, fit, one.seed))
        for prompt, evaluation in zip(prompts, found, strict=True):
            self._check(evaluation, prompt)
        return found

    def evaluate_together(
        self, prompts: Sequence[Prompt], split: str, *, readouts: Sequence[Any] = (), embeddings: bool = False
    ) -> Evaluation | None:
        """The task's metrics of the mean output of several prompts, charged to the report; None if there is none."""
        task = self.task
        if not isinstance(task, Labelling):
            return None
        asked, fit = self._ask_for_report(prompts, split), report_fit_rows(task)
        answers, rows = [self._answers(one) for one in asked], self.rows(split)
        return task.combined_metrics(answers, rows, fit, asked[0].seed, readouts=readouts, embeddings=embeddings)

    def _ask_for_report(self, prompts: Sequence[Prompt], split: str) -> list[_Asked]:
        """Ask prompts on a split and on the rows that a report learns from."""
        # One seed for all prompts, so that they are compared on the same random draws.
        seed = derive(self.seed, "task", "evaluation", split)
        draw = REPORT if self.task.info.stochastic else ""
        asked = [_Asked(prompt, self.rows(split), draw, seed, final=True) for prompt in prompts]
        for needed in (report_fit_rows(self.task), self.rows(split)):
            refusal = self._collect([one._replace(rows=needed) for one in asked], report=True)
            if refusal is not None:
                raise BudgetSpent(refusal)
        return asked

    def known(self, prompt: Prompt, split: str = "train") -> Score | None:
        """The score that follows from the answers so far; None if some are missing, and nothing is asked."""
        draws = self.table.prompts[prompt.text].draws if prompt.text in self.table.prompts else []
        known = (self._known(prompt, draw, split) for draw in reversed(draws) if draw != REPORT)
        return next((score for score in known if score is not None), None)

    def recall(self, prompt: Prompt, rows: str | Sequence[int] = "train", draw: str = "") -> Score:
        """The score that follows from the table's answers in a draw; nothing is asked."""
        rows = self.rows(rows) if isinstance(rows, str) else tuple(rows)
        return self._scored([_Asked(prompt, rows, draw)], self._fit)[0]

    def charge(self, count: int, tokens_in: int = 0, tokens_out: int = 0, model: str | None = None) -> None:
        """Charge calls that a method makes itself; BudgetSpent if they do not fit, so call this before making them.

        The tokens are a maximum, which has to fit: those of a server are counted as they are sent.
        """
        self._begin()
        self.budget.settle(self.budget.reserve(count, tokens_in, tokens_out, model), count, 0, 0)
        self._paid_calls += count

    @property
    def stop(self) -> Callable[[], bool]:
        """Whether the minutes of the search are over; `never` if they are not limited."""
        return never if self.budget.settings.minutes is None else self.budget.expired

    # What was spent.

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
        return self.budget.sent.calls if self.budget.metered else self._paid_calls

    @property
    def distinct(self) -> int:
        """Different prompts that the search asked about."""
        return self.table.searched

    def totals(self) -> dict[str, Any]:
        """What search and report were charged, what was actually sent, and the money (None: price not known)."""
        budget = self.budget
        totals: dict[str, Any] = {"search": _counted(budget.spent), "report": _counted(budget.report)}
        totals["sent"] = _counted(budget.sent) | {"calls": self.paid_calls}
        if self._requests is not None:
            totals["sent"] |= {"lost": self._requests.lost, "untold": self._requests.untold}
        if self._servers:
            totals["money"] = float(budget.paid()) if all(map(budget.priced, self._servers)) else None
        return totals

    def prompts_table(self) -> list[dict[str, Any]]:
        """Every distinct prompt in order of appearance, with its mean score per split (for prompts.csv)."""
        return [self._summary(text) for text, asked in self.table.prompts.items() if asked.searched]

    # Resuming.

    def position(self) -> dict[str, Any]:
        """The position of the run, as JSON values for a checkpoint."""
        self._begin()
        return {
            "requests": self.requests_made,
            **self.table.position(),
            "paid_calls": self.paid_calls,
            "memo_hits": self.memo_hits,
            "useful": self._useful,
            "worst": dict(self._worst),
            "failed": dict(self._failed),
            "budget": self.budget.state(),
        }

    def spent(self) -> dict[str, Any]:
        """Money, seconds and calls actually spent so far, as JSON values; a resumed run takes the largest it finds."""
        return {"money": str(self.budget.paid()), "seconds": self.budget.seconds(), "paid_calls": self.paid_calls}

    def restore(self, position: Mapping[str, Any] | None, spent: Mapping[str, Any] | None = None) -> None:
        """Continue from a checkpoint's position, or with None from the beginning with the answers of a killed session.

        Must be called before anything is asked; a run without a checkpoint does it by itself. `spent` is the actual
        cost in the checkpoint, which may be more than at its position.
        """
        if self._restored:
            raise RunError("an evaluator can only be restored before it has asked anything")
        lines: Any = []
        if position is not None:
            try:
                lines, self.requests_made = position["lines"], int(position["requests"])
                self._paid_calls, self.memo_hits = int(position["paid_calls"]), int(position["memo_hits"])
                self._worst = {str(name): float(value) for name, value in position["worst"].items()}
                self._failed = {str(name): float(value) for name, value in position["failed"].items()}
                self._useful, budget = bool(position["useful"]), position["budget"]
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise RunError(f"the evaluator's position in the checkpoint cannot be read: {error!r}") from error
            self.budget.restore(budget)
        self._restored = True
        for model in self._servers:
            self.budget.price(model, 0, 0)  # refuses a limit of money without a price
        if self._requests is not None:
            self._requests.restore()
            self.budget.metered = isinstance(self.task, Billed) and self.task.attach(self._requests)
        if position is None and self.task.info.opening_calls:
            self.charge(self.task.info.opening_calls)
        facts = self.table.restore(lines)
        try:
            self._restore_spent([line["spent"] for line in facts] + ([] if spent is None else [dict(spent)]))
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RunError(f"the costs of the run cannot be read ({error!r}); start again with --force") from error

    def close(self) -> None:
        """Close workers, files and memo."""
        self.executor.close()
        for log in (self.table.log, None if self._requests is None else self._requests.log):
            if log is not None:
                log.close()
        if self.memo is not None:
            self.memo.close()

    # Asking.

    def _begin(self) -> None:
        if not self._restored:
            self.restore(None)

    def _request(self, prompts: Sequence[Prompt], rows: Sequence[tuple[int, ...]], name: str) -> list[_Asked]:
        """A new request: each prompt with its rows, and the name and the seed of its draw."""
        self._begin()
        number, self.requests_made = self.requests_made, self.requests_made + 1
        asked = [_Asked(prompt, own) for prompt, own in zip(prompts, rows, strict=True)]
        if not self.task.info.stochastic:
            return asked
        if name:
            return [one._replace(draw=PAIRED, seed=derive(self.seed, "task", name)) for one in asked]
        return [
            one._replace(draw=f"{number}.{place}", seed=derive(self.seed, "task", number, place))
            for place, one in enumerate(asked)
        ]

    def _answers(self, asked: _Asked) -> Answers:
        return self.table.get(asked.prompt.text, asked.draw)

    def _answered(self, asked: Sequence[_Asked]) -> list[_Asked]:
        """The first prompts that have answers on all of their rows."""
        return list(itertools.takewhile(lambda one: not self._answers(one).missing(one.rows), asked))

    def _collect(self, asked: Sequence[_Asked], report: bool) -> str | None:
        """Fill the table's missing cells as far as the budget allows; returns why it ended early, if it did."""
        self._begin()
        questions = self._questions(asked)
        done = 0
        # Refusals are texts: an exception that is kept refers to its frames, and so to the models in them.
        refusal: str | None = None
        try:
            while done < len(questions) and refusal is None:
                todo = questions[done:]
                refusal = self._admit(todo, report)
                admitted = [question for question in todo if question.reservation is not None]
                if admitted:
                    # These may have cost less than their worst case, so the next ones may fit: try again.
                    answered, refusal = self._obtain(admitted, report)
                    done += answered
        finally:
            for question in questions:
                if question.reservation is not None and question.reservation.open:
                    self.budget.release(question.reservation)
        return refusal

    def _questions(self, asked: Sequence[_Asked]) -> list[_Question]:
        """The prompts of a request with the rows that the table has no answers for; equal ones once."""
        found: dict[tuple[str, str], _Question] = {}
        for one in asked:
            missing = self._answers(one).missing(one.rows)
            if missing and (one.draw, one.prompt.text) not in found:
                waiting = self.table.waiting(one.prompt.text, one.draw, missing)
                found[one.draw, one.prompt.text] = _Question(one, missing, waiting)
        self._look_up(list(found.values()))
        return list(found.values())

    def _look_up(self, questions: Sequence[_Question]) -> None:
        """Add the memo's answers to the known ones."""
        if self.memo is None:
            return
        keys = {(place, row): key for place, question in enumerate(questions) for row in question.unknown
                if (key := self._memo_key(question, row))}  # fmt: skip
        stored = self.memo.look_up(list(keys.values()))
        for place, question in enumerate(questions):
            rows, contents, tokens = [], [], (0, 0)
            for row in question.unknown:
                key = keys.get((place, row), "")
                try:
                    content = unpack_contents(stored[key]["contents"], 1)
                    tokens_in, tokens_out = stored[key]["tokens"]
                    tokens = (tokens[0] + int(tokens_in), tokens[1] + int(tokens_out))
                except (KeyError, TypeError, ValueError):
                    continue
                contents.append(content)
                rows.append(row)
            if rows:
                self.memo_hits += len(rows)
                joined = np.concatenate(contents) if hasattr(contents[0], "dtype") else [one[0] for one in contents]
                question.known = question.known.joined(Answers(tuple(rows), joined, tokens=tokens))

    def _memo_key(self, question: _Question, row: int) -> str:
        """The memo's key of one answer; '' if it is not kept."""
        info, key = self.task.info, self.task.rows[row].key
        if not key:
            return ""
        together = ""
        if info.together:  # the same few groups of rows come again and again
            if question.rows not in self._groups:
                self._groups[question.rows] = memo_key("", *(self.task.rows[one].key for one in question.rows))
            together = self._groups[question.rows]
        return memo_key(info.answered_by or info.fingerprint, key, question.asked.prompt.text, together)

    def _admit(self, questions: Sequence[_Question], report: bool) -> str | None:
        """Reserve the worst case of as many questions as fit, in order; returns why one does not.

        Calls and tokens are reserved for known answers too: the run must not depend on the content of the memo.
        """
        for question in questions:
            asked, rows, tokens_in, tokens_out = question.asked, question.rows, 0, 0
            if isinstance(self.task, Billed):
                tokens_in, tokens_out = map(int, self.task.most_tokens(asked.prompt, rows, asked.final))
            model = self._billed if question.unknown else None
            count = calls(self.task, rows, asked.final)
            try:
                question.reservation = self.budget.reserve(count, tokens_in, tokens_out, model, report=report)
            except BudgetSpent as refused:
                return str(refused)
        return None

    def _obtain(self, questions: Sequence[_Question], report: bool) -> tuple[int, str | None]:
        """Answer admitted questions in order, charging and storing each; returns how many, and why it ended early."""
        jobs = [
            Job(one.asked.prompt, one.unknown, Draw(one.asked.seed, one.asked.final))
            for one in questions
            if one.unknown
        ]
        stop = never if report else self.stop  # reports have no limit
        if self._requests is not None:
            self._requests.limited = not report
        answers = self.executor.run(jobs, stop)
        done = 0
        try:
            for question in questions:
                found, new = question.known, Answers()
                if question.unknown:
                    given = next(answers, None)
                    if given is None:
                        if stop():
                            return done, f"the budget of {self.budget.settings.minutes} minutes is used up"
                        raise TaskError(
                            f"the task '{self.task.info.name}' gave too few answers for {len(jobs)} prompts"
                        )
                    new = self._cleaned(given, question)
                    found = found.joined(new)
                assert question.reservation is not None
                most = question.reservation.amounts
                used = found.tokens if any(found.tokens) else (most.tokens_in, most.tokens_out)
                self.budget.settle(question.reservation, most.calls, *used)
                self._paid_calls += calls(self.task, question.unknown, question.asked.final)
                self._store(question, found, new, report)
                self._check_first()
                done += 1
        except BudgetSpent as refused:
            return done, str(refused)  # the minutes ended in the middle of a prompt; its replies so far are kept
        return done, None

    def _check_first(self) -> None:
        """Raise UselessAnswers if most of the first answers failed: all others would be paid for in vain."""
        if self._useful:
            return
        known = [self.table.get(text, draw) for text, asked in self.table.prompts.items() for draw in asked.draws]
        count, failures = sum(len(one.rows) for one in known), [why for one in known for why in one.failures.values()]
        if count < FIRST:
            return
        if 2 * len(failures) > count:
            raise UselessAnswers(
                f"{len(failures)} of the first {count} answers of '{self._billed}' cannot be used, so the run stops; "
                f"the first: {failures[0]}. Check the model, its server and the label words, then start over with "
                "--force"
            )
        self._useful = True

    def _cleaned(self, given: Any, question: _Question) -> Answers:
        """A task's answers after a check; a TaskError if the task broke its contract."""
        name, text = self.task.info.name, question.asked.prompt.text
        if not isinstance(given, Answers):
            raise TaskError(f"the task '{name}' gave {type(given).__name__} instead of Answers, for {text!r}")
        if tuple(given.rows) != question.unknown or len(given.contents) != len(question.unknown):
            raise TaskError(
                f"the task '{name}' gave {len(given.contents)} answers for {len(question.unknown)} rows, for the "
                f"prompt {text!r}; give one per row, in order"
            )
        return given

    def _store(self, question: _Question, found: Answers, new: Answers, report: bool) -> None:
        """Add answers to the table and, if they are new and usable, to the memo."""
        ordered, asked = found.part(question.rows), question.asked
        self.table.add(asked.prompt, ordered, asked.draw, self.requests_made - 1, report, {"spent": self.spent()})
        if self.memo is None or not new.rows:
            return
        kept = {}
        # Tokens are known for all rows together: each row gets its share, so that a run from the memo is charged alike.
        shares = zip(*(_shares(tokens, len(new.rows)) for tokens in new.tokens), strict=True)
        for row, tokens in zip(new.rows, shares, strict=True):
            key = "" if row in new.failures else self._memo_key(question, row)
            if key:
                kept[key] = {"contents": pack_contents(new.on((row,))), "tokens": list(tokens)}
        self.memo.keep(kept)

    # From answers to scores.

    def _scored(self, asked: Sequence[_Asked], fit: tuple[int, ...]) -> list[Score]:
        """The scores of prompts whose answers are in the table."""
        found: list[Score] = []
        for one in asked:
            answers = self._answers(one)
            values = np.asarray(self.task.values(answers, one.rows, fit), dtype=np.float64)
            value = float(np.mean(values)) if values.size else math.nan
            failures = answers.failed((*one.rows, *fit))
            if not math.isfinite(value):
                if not failures:
                    raise TaskError(
                        f"the task '{self.task.info.name}' gave the value {value} for the prompt {one.prompt.text!r}; "
                        "a value must be a finite number, or its answer must be a recorded failure"
                    )
                value = math.nan
            found.append(Score(value, values, one.rows, failures, one.draw))
            if not math.isnan(value):
                where = _named(one.rows)
                self._worst[where] = min(value, self._worst.get(where, math.inf))
        return [
            score if not math.isnan(score.value) else self._as_worst(score, one)
            for score, one in zip(found, asked, strict=True)
        ]

    def _as_worst(self, score: Score, asked: _Asked) -> Score:
        """The score of a prompt that could not be answered: the worst when it was first asked about."""
        where = _named(asked.rows)
        key = f"{where} {asked.draw} {asked.prompt.text}"
        if key not in self._failed:
            if where not in self._worst:
                raise TaskError(
                    f"the task '{self.task.info.name}' could not answer a single prompt so far; the first failure: "
                    f"{score.failures[0]}"
                )
            self._failed[key] = self._worst[where]
        value = self._failed[key]
        return replace(score, value=value, values=np.full_like(score.values, value))

    def _summary(self, text: str) -> dict[str, Any]:
        """A prompt as in prompts.csv: its score on each split that was asked in full, and on all rows asked."""
        asked = self.table.prompts[text]
        draws = [draw for draw in asked.draws if draw != REPORT]
        found: dict[str, Any] = {"prompt": text, "ids": " ".join(map(str, asked.prompt.ids)), "first": asked.first}
        searched = {row for draw in draws for row in self.table.get(text, draw).rows}
        found["rows"] = sum(self.task.rows[row].split != "test" for row in searched)
        for split in self.splits:
            means = [score.value for draw in draws if (score := self._known(asked.prompt, draw, split))]
            found[split] = sum(means) / len(means) if means else None
        found["failures"] = sum(len(self.table.get(text, draw).failures) for draw in asked.draws)
        return found

    def _known(self, prompt: Prompt, draw: str, split: str) -> Score | None:
        asked = _Asked(prompt, self.rows(split), draw)
        if self._answers(asked).missing((*asked.rows, *self._fit)):
            return None
        return self._scored([asked], self._fit)[0]

    def _check(self, evaluation: Any, prompt: Prompt) -> None:
        if not isinstance(evaluation, Evaluation):
            given = type(evaluation).__name__
            raise TaskError(f"the task '{self.task.info.name}' gave {given} instead of an Evaluation ({prompt.text!r})")
        try:
            json.dumps([dict(evaluation.metrics), dict(evaluation.tables)], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TaskError(
                f"the metrics of the task '{self.task.info.name}' are not plain numbers and tables: {error}"
            ) from error

    def _restore_spent(self, spent: list[Mapping[str, Any]]) -> None:
        """Count what was actually spent after the checkpoint."""
        if not spent:
            return
        money = max(Decimal(entry["money"]) for entry in spent)
        seconds = max(float(entry["seconds"]) for entry in spent)
        if not (money.is_finite() and math.isfinite(seconds)):
            raise ValueError("a sum that is not finite")
        self.budget.at_least(money, seconds)
        self._paid_calls = max(self.paid_calls, *(int(entry["paid_calls"]) for entry in spent))


def _named(rows: tuple[int, ...]) -> str:
    """Rows as a short text, for the position in a checkpoint."""
    return json.dumps(pack_rows(rows))


def _shares(total: int, count: int) -> list[int]:
    """Whole numbers, as equal as possible, that add up to a total."""
    return [total * (place + 1) // count - total * place // count for place in range(count)]


def _counted(amounts: Amounts) -> dict[str, int]:
    """Calls, and tokens if they are counted."""
    tokens = {"tokens_in": amounts.tokens_in, "tokens_out": amounts.tokens_out} if amounts.tokens else {}
    return {"calls": amounts.calls, **tokens}
