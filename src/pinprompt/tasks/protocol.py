"""The task contract and its checker.

A task has rows (examples) and can be asked: what does the model answer to these prompts on these rows? That is all that
costs calls. Everything else (values, metrics) is arithmetic on answers. What only some tasks have is in small protocols
of its own below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pinprompt.answers.requests import Requests
from pinprompt.errors import SettingError, TaskError, did_you_mean
from pinprompt.values import Answers, Draw, Evaluation, Floats, Prompt, Row

SPLITS = ("train", "dev", "test")
IN_CONTEXT = "in-context"
"""The name of the draft that consists of labelled examples; it is a method of its own, not a rival of every search."""
CHAT = "chat"
"""The name of drafts in the model's chat format; `race` tries them like prompts of its own, but does not vary them."""
WITH_EXAMPLES = "with examples"
"""The same for drafts that show rows as examples."""
EMBEDDINGS = "embeddings"
"""The name of a regression on embeddings of the texts among the baselines of a result; it has no prompt."""
ENSEMBLE, WITH_EMBEDDINGS = "ensemble", "with-embeddings"
"""The found prompt with others, and with that regression: names in `combined` of a result."""


@dataclass(frozen=True)
class TaskInfo:
    """Facts about a task."""

    name: str
    fingerprint: str
    """Changes whenever a score could: model and revision, template, data, reward."""
    primary: str = "score"
    """The primary metric of `metrics`."""
    score_is: str = ""
    """What a score is, in one sentence with its range, for reports; '' if it is the primary metric."""
    answered_by: str = ""
    """Changes whenever an answer could, besides prompt and row: what the memo keeps answers by. '': the fingerprint."""
    stochastic: bool = False
    """Whether the same prompt may get different answers; such answers are not kept across runs."""
    together: bool = False
    """Whether the last bits of an answer depend on the rows that are asked together, as with a local model."""
    chunk: int = 1
    """Number of prompts to ask about together. With 1, the clock is checked after every prompt."""
    costly: bool = False
    """Whether calls are too expensive to ask what each word of a prompt is worth."""
    learns: bool = False
    """Whether values are learnt from a prompt's answers on all labelled rows: rows are worth more than prompts then."""
    opening_calls: int = 0
    """Calls that were made to open the task (choosing the words that are read from answers); charged to the search."""
    language: str = "en"
    """The language of prompts: a code of `data/language.py`, or a language's name."""
    notes: tuple[str, ...] = ()
    """Notes about data and model, one sentence each."""


class Draft(NamedTuple):
    """A prompt that people wrote: a rival of the search if it has a name, otherwise only a place to start from."""

    text: str
    name: str = ""
    """'manual' if the user or a dataset's author wrote it, 'default' if nobody did, 'instructions' or 'in-context'."""


@runtime_checkable
class Task(Protocol):
    """What every task has; `check_task` checks it."""

    @property
    def info(self) -> TaskInfo:
        """Facts about the task."""

    @property
    def rows(self) -> Sequence[Row]:
        """Every row; those of a split are in order. There is at least one of 'train'."""

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        """The model's answers to each prompt on these rows (by their position in `rows`), with one draw per prompt.

        An answer never depends on the other prompts or rows of the call. A row without a usable answer is recorded in
        `Answers.failures`; an exception means that nothing can be asked.
        """

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """A prompt's value on each of these rows, [N] or [N, D] with several draws; their mean is its score.

        NaN if the prompt could not be answered. `fit` are the rows whose answers may be learnt from (calibration).
        """

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        """The metrics of a prompt on these rows, with intervals (resampled by `seed`) and what a report shows."""

    def context(self) -> str:
        """A context for the writer (template, examples), after which useful tokens are likely; '' if there is none."""

    def drafts(self) -> Sequence[Draft]:
        """Prompts that people wrote."""


# What only some tasks have.


@runtime_checkable
class Fitted(Protocol):
    """A task whose values on any row depend on a prompt's answers on certain rows (calibration on train)."""

    @property
    def fit_rows(self) -> tuple[int, ...]:
        """The rows whose answers are needed; () if none are."""


@runtime_checkable
class Billed(Protocol):
    """A task whose model is behind an API; `billed` is None if it is not."""

    @property
    def billed(self) -> str | None:
        """The model's name in `budget.prices`."""

    def most_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        """The maximum tokens in and out of a prompt's answers on these rows."""

    def likely_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        """The expected tokens in and out, for estimates."""

    def attach(self, meter: Requests) -> bool:
        """Report every request to the meter from now on; returns False if requests are not counted individually."""


@runtime_checkable
class DrawsRows(Protocol):
    """A task that draws new rows at each step of a search."""

    def rows_of_step(self, step: int, place: int) -> tuple[int, ...]:
        """The rows for the prompt at a place of a step; () if every prompt is asked on all of train."""


@runtime_checkable
class Shown(Protocol):
    """A task with more to show in a report or in the studio."""

    def exhibits(self) -> dict[str, Any]:
        """Further entries of result.json, such as the target pictures."""
        return {}

    def sent(self, prompt: Prompt, evaluation: Evaluation | None) -> dict[str, Any]:
        """What is sent to the model for a text, as `sent` in result.json; {} if not known."""
        return {}

    def shown_rows(self) -> dict[str, Any]:
        """The content of rows.json (the training examples), for the studio; {} if there is none."""
        return {}


@runtime_checkable
class Judged(Protocol):
    """A task whose answers are rated by judges."""

    def judges(self) -> dict[str, str]:
        """The judges, for results and comparisons: runs with different judges are not comparable."""

    def kept_judges(self) -> dict[str, Any]:
        """The content of judges.json, which replaces the data when the prompt is used; {} if not needed."""


@runtime_checkable
class Windowed(Protocol):
    """A task whose prompts have a maximum length."""

    def check_window(self, length: int) -> None:
        """Raise a SettingError if prompts of `length` tokens cannot be asked; called before the search."""


@runtime_checkable
class Labelling(Protocol):
    """A task whose model predicts one of several labels."""

    def label_words(self) -> tuple[str, ...]:
        """The words that the model says for the labels, right after a prompt."""
        return ()

    def confusion(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> NDArray[np.int64]:
        """Counts [true, predicted] on these rows."""
        raise NotImplementedError

    def combined(self, answers: Sequence[Answers], rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """The log-likelihood of each row under the mean output of several prompts."""
        raise NotImplementedError

    def combined_metrics(
        self,
        answers: Sequence[Answers],
        rows: Sequence[int],
        fit: Sequence[int] = (),
        seed: int = 0,
        *,
        readouts: Sequence[Any] = (),
        embeddings: bool = False,
    ) -> Evaluation | None:
        """The metrics of the mean output, with `embeddings` also of the regression on embeddings; None without one.

        `readouts` are those of the prompts, if they are known.
        """

    def with_half(self, answers: Answers, rows: Sequence[int]) -> float:
        """The share of these rows that is right if each half is read by what the other half teaches."""
        raise NotImplementedError

    def before_text(self, best: Sequence[Prompt], seed: int) -> list[Prompt]:
        """The best prompts so far with a sentence before the text, or examples; a row is asked without its own one."""
        return []

    def without_prompt(self) -> dict[str, Any]:
        """The metrics of what people would use instead of a prompt, as `baselines.embeddings` in result.json.

        No call is made. `missing` is the reason if it cannot be computed here; {} if it is not asked for.
        """
        return {}


@runtime_checkable
class Hinting(Protocol):
    """A task that can value many single words at once; each counts as one call for the method that uses them."""

    def hints(self) -> Mapping[str, float]:
        """The values of single words; {} if there are none."""


@runtime_checkable
class Proposing(Protocol):
    """A task that makes new prompts from the best ones so far."""

    @property
    def most_proposals(self) -> int:
        """The calls of all proposals of a search."""

    @property
    def proposal_calls(self) -> int:
        """The calls of the next proposals; 0 once all were made."""

    @property
    def proposer_billed(self) -> str | None:
        """The name in `budget.prices` of the model that proposes; None if it is not behind an API."""

    def proposal_tokens(self, best: Sequence[tuple[Prompt, Answers]]) -> tuple[int, int]:
        """The maximum tokens in and out of the next proposals."""

    def proposals(self, best: Sequence[tuple[Prompt, Answers]], seed: int) -> list[str]:
        """New prompts from the best ones and their answers so far."""

    def copies(self, text: str) -> bool:
        """Whether a prompt copies something from the rows; one that was written, not declared, must not."""


class Differentiable(Protocol):
    """The view for white-box methods: prompts are vectors at the prompt's position in the task model's input space."""

    embeddings: Any
    """[V, d] input embeddings of the task model (a frozen tensor)."""
    tokenizer: Any

    def loss(self, vectors: Any, rows: Sequence[int]) -> Any:
        """Mean loss over the given training rows for prompt vectors [n, d]; differentiable in `vectors`."""

    def answers(self, vectors: Any, rows: Sequence[int]) -> Answers:
        """The task model's answers to prompt vectors on rows, without a gradient."""


@runtime_checkable
class WhiteBox(Protocol):
    """A task whose model gives gradients."""

    def differentiable(self) -> Differentiable | None:
        """The differentiable view; None if this model can only be called."""


# Questions that many rooms ask of a task.


def split_rows(task: Task, split: str) -> tuple[int, ...]:
    """The rows of a split, in order; a SettingError if there are none."""
    found = tuple(number for number, row in enumerate(task.rows) if row.split == split)
    if not found:
        raise SettingError(f"the task '{task.info.name}' has no split '{split}'; {did_you_mean(split, splits(task))}")
    return found


def splits(task: Task) -> tuple[str, ...]:
    """The splits that have rows: train, and dev and test if there is data for them."""
    there = {row.split for row in task.rows}
    return tuple(split for split in SPLITS if split in there)


def calls(task: Task, rows: Sequence[int], report: bool = False) -> int:
    """The most calls that one prompt costs on these rows."""
    return sum(calls_of(task.rows[row], report) for row in rows)


def calls_of(row: Row, report: bool = False) -> int:
    """The most calls that one answer on a row costs."""
    return row.report_calls if report and row.report_calls is not None else row.calls


def fit_rows(task: Task) -> tuple[int, ...]:
    """The rows whose answers are needed for a value on any other row."""
    return task.fit_rows if isinstance(task, Fitted) else ()


def report_fit_rows(task: Task) -> tuple[int, ...]:
    """The rows that a report may learn from, if the task learns from rows: all of train and dev."""
    if not fit_rows(task):
        return ()
    return tuple(number for number, row in enumerate(task.rows) if row.split in ("train", "dev"))


def billed(task: Task) -> str | None:
    """The model's name in `budget.prices`; None if the model is not behind an API."""
    return task.billed if isinstance(task, Billed) else None


def hand_written(task: Task) -> dict[str, str]:
    """The hand-written prompts that a search competes with, by name."""
    others = ("", IN_CONTEXT, CHAT, WITH_EXAMPLES)
    return {draft.name: draft.text for draft in task.drafts() if draft.name not in others}


def draft_named(task: Task, name: str) -> str | None:
    """The text of a draft; None if there is none of that name. The default stands in for a missing manual prompt."""
    named = {draft.name: draft.text for draft in task.drafts()}
    return named.get(name, named.get("default") if name == "manual" else None)


# The contract as code.

_PROMPTS = ("It was", "The answer is", "In one word:")
_ROWS = 8


def check_task(task: Any, prompts: Sequence[str] = _PROMPTS, *, seed: int = 0, raise_error: bool = True) -> list[str]:
    """Check on a few prompts that a task keeps the contract.

    Asks about each prompt a few times on some rows of each split, so it costs model calls. With `raise_error` (the
    default) violations are raised as one TaskError; otherwise they are returned as a list of sentences.
    """
    findings = _shape(task)
    if not findings:
        given = [Prompt(text) for text in dict.fromkeys(prompts)]
        findings = [*_words(task), *_extras(task)]
        for split in splits(task):
            findings += _answers(task, given, split_rows(task, split)[:_ROWS], seed)
            if findings:
                break
    if findings and raise_error:
        raise TaskError("the task violates its contract:\n" + "\n".join(f"- {finding}" for finding in findings))
    return findings


def _shape(task: Any) -> list[str]:
    found = [f"it has no '{name}'" for name in ("info", "rows") if not hasattr(task, name)]
    methods = ("ask", "values", "metrics", "context", "drafts")
    found += [f"it has no method '{name}'" for name in methods if not callable(getattr(task, name, None))]
    if found:
        return found
    info = task.info
    if not isinstance(info, TaskInfo):
        return [f"'info' must be a pinprompt TaskInfo, it is {info!r:.60}"]
    if not info.fingerprint:
        found.append("'info.fingerprint' is empty; it must change whenever a score could")
    if isinstance(info.notes, str) or not all(isinstance(note, str) for note in info.notes):
        found.append(f"'info.notes' must be a tuple of sentences, it is {info.notes!r:.80}")
    if not isinstance(info.chunk, int) or isinstance(info.chunk, bool) or info.chunk < 1:
        found.append(f"'info.chunk' must be a whole number of at least 1, it is {info.chunk!r}")
    rows = list(task.rows)
    if not all(isinstance(row, Row) for row in rows):
        return [*found, "'rows' must be pinprompt Rows"]
    if not any(row.split == "train" for row in rows):
        found.append("no row has the split 'train'")
    for split in dict.fromkeys(row.split for row in rows):
        if [row.index for row in rows if row.split == split] != list(range(sum(row.split == split for row in rows))):
            found.append(f"the rows of '{split}' must have the indices 0, 1, 2, ... in order")
    bad = next((row for row in rows if not isinstance(row.calls, int) or row.calls < 0), None)
    if bad is not None:
        found.append(f"'calls' of a row must be a whole number of at least 0, it is {bad.calls!r}")
    return found


def _answers(task: Task, prompts: list[Prompt], rows: tuple[int, ...], seed: int) -> list[str]:
    split = task.rows[rows[0]].split
    draws = [Draw(seed + place) for place in range(len(prompts))]
    fit = fit_rows(task)
    needed = (*rows, *(row for row in fit if row not in rows))
    try:
        together = task.ask(prompts, needed, draws)
    except Exception as error:  # the task may raise anything
        return [f"ask raised {type(error).__name__} on '{split}': {error}"]
    if not isinstance(together, list) or len(together) != len(prompts):
        return [f"ask must give a list of {len(prompts)} Answers for as many prompts, it gave {together!r:.80}"]
    found: list[str] = []
    for prompt, answers in zip(prompts, together, strict=True):
        what = f"for {prompt.text!r} on '{split}'"
        if not isinstance(answers, Answers):
            return [f"ask gave a {type(answers).__name__} {what}, not pinprompt Answers"]
        if tuple(answers.rows) != needed or len(answers.contents) != len(needed):
            return [f"ask must answer all {len(needed)} rows in order; it has {len(answers.contents)} answers {what}"]
        if rows[0] in answers.failures:
            found.append(f"the first row could not be answered {what}: {answers.failures[rows[0]]}")
    return found or [
        *_values(task, prompts, together, rows, fit, seed),
        *_independent(task, prompts, together, rows, draws),
    ]


def _values(
    task: Task, prompts: list[Prompt], together: list[Answers], rows: tuple[int, ...], fit: tuple[int, ...], seed: int
) -> list[str]:
    split = task.rows[rows[0]].split
    for prompt, answers in zip(prompts, together, strict=True):
        what = f"of {prompt.text!r} on '{split}'"
        try:
            values = np.asarray(task.values(answers, rows, fit))
            if task.info.stochastic:  # a report has its own draw
                [answers] = task.ask([prompt], (*rows, *(row for row in fit if row not in rows)), [Draw(seed, True)])
            evaluation = task.metrics(answers, rows, fit)
        except Exception as error:  # the task may raise anything
            return [f"values or metrics {what} raised {type(error).__name__}: {error}"]
        if values.shape[:1] != (len(rows),) or values.ndim > 2:
            return [f"values {what} must have one value per row ({len(rows)}), the shape is {values.shape}"]
        if not np.isfinite(values).all():
            return [f"values {what} are not finite numbers: {values.tolist()!r:.80}"]
        if not isinstance(evaluation, Evaluation):
            return [f"metrics {what} gave a {type(evaluation).__name__}, not a pinprompt Evaluation"]
        if task.info.primary not in evaluation.metrics:
            known = ", ".join(evaluation.metrics) or "none"
            return [f"metrics {what} have no '{task.info.primary}' (the primary metric); they have: {known}"]
        if not all(math.isfinite(value) for value in evaluation.metrics.values()):
            return [f"metrics {what} are not finite: {dict(evaluation.metrics)}"]
        try:
            json.dumps(dict(evaluation.tables), allow_nan=False)
        except (TypeError, ValueError) as error:
            return [f"the tables of metrics {what} are not plain JSON values: {error}"]
    return []


def _independent(
    task: Task, prompts: list[Prompt], together: list[Answers], rows: tuple[int, ...], draws: list[Draw]
) -> list[str]:
    """A prompt must get the same answers alone, in another order, on single rows and a second time.

    On other rows they may differ a little: a model that computes several texts at once rounds differently.
    """
    again, second = task.ask(prompts, rows, draws), task.ask(prompts, rows, draws)
    turned = task.ask(prompts[::-1], rows, draws[::-1])[::-1]
    alone = [task.ask([prompt], rows, [draw])[0] for prompt, draw in zip(prompts, draws, strict=True)]
    single = [task.ask([prompt], rows[:1], [draw])[0] for prompt, draw in zip(prompts, draws, strict=True)]
    found = []
    for place, prompt in enumerate(prompts):
        first = _plain(again[place].contents)
        if first != _plain(second[place].contents):
            if not task.info.stochastic:
                found.append(
                    f"{prompt.text!r} was answered differently a second time: set info.stochastic to True, or make the "
                    "task deterministic"
                )
        elif (
            first != _plain(turned[place].contents)
            or first != _plain(alone[place].contents)
            or not _close(first, _plain(together[place].on(rows)))
            or not _close(first[:1], _plain(single[place].contents))
        ):
            found.append(
                f"{prompt.text!r} was answered differently alone or in another order: an answer must not depend on the "
                "other prompts and rows of the call"
            )
    return found


def _plain(contents: Any) -> list[Any]:
    return list(contents.tolist()) if isinstance(contents, np.ndarray) else list(contents)


def _close(one: Any, other: Any) -> bool:
    """Whether two answers are the same but for rounding."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_close(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-3) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def _words(task: Task) -> list[str]:
    found = []
    if not isinstance(task.context(), str):
        found.append(f"context() must give a text, it gave {task.context()!r:.60}")
    if not all(isinstance(draft, Draft) for draft in task.drafts()):
        found.append(f"drafts() must give pinprompt Drafts, it gave {list(task.drafts())!r:.80}")
    return found


def _extras(task: Task) -> list[str]:
    """Check what only some tasks have."""
    found = []
    if isinstance(task, Fitted) and not all(row in range(len(task.rows)) for row in task.fit_rows):
        found.append(f"'fit_rows' must be positions in 'rows', they are {task.fit_rows!r:.80}")
    offered: dict[str, Any] = {}
    if isinstance(task, Shown):
        offered |= {"exhibits": task.exhibits(), "shown_rows": task.shown_rows()}
    if isinstance(task, Judged):
        offered |= {"judges": task.judges(), "kept_judges": task.kept_judges()}
    for name, given in offered.items():
        try:
            fits = isinstance(given, dict) and bool(json.dumps(given, allow_nan=False))
        except (TypeError, ValueError):
            fits = False
        if not fits:
            found.append(f"{name}() must give a dict of plain JSON values, it gave {given!r:.80}")
    view = task.differentiable() if isinstance(task, WhiteBox) else None
    members = ("embeddings", "tokenizer", "loss", "answers")
    missing = [] if view is None else [name for name in members if not hasattr(view, name)]
    if missing:
        found.append(f"differentiable() must give None or a view; its view has no {', '.join(missing)}")
    return found
