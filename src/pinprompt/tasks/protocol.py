"""The task protocol and its checker."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

from pinprompt.errors import TaskError
from pinprompt.values import Evaluation, Meter, Prompt, Score

# The protocol. A task turns prompt texts into scores; it does not see how a prompt was written.

SPLITS = ("train", "dev", "test")


@runtime_checkable
class BareTask(Protocol):
    """The required members of a task; `check_task` checks them."""

    name: str
    stochastic: bool
    """Whether the same prompt may get different scores; such scores are not kept across runs by default."""
    fingerprint: str
    """Changes whenever a score could: model and revision, template, label words, data, reward."""
    splits: tuple[str, ...]
    """The splits that can be scored: always 'train', and 'dev' and 'test' if there is data for them."""
    primary: str
    """The primary metric of `evaluate`."""

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        """One score per prompt, in order, higher is better.

        A prompt's score never depends on the other prompts of the call. `seeds` has one seed per prompt, for
        stochastic tasks. Failures of single examples are recorded in `Score.failures`; an exception means that
        nothing can be scored.
        """

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        """The metrics of a prompt on one split."""

    def calls(self, split: str = "train") -> int:
        """The maximum number of model calls of one prompt on a split, which a budget reserves."""

    def context(self) -> str:
        """A context for the writer (template, examples), after which useful tokens are likely; '' if there is none."""

    def baselines(self) -> dict[str, str]:
        """Hand-written prompts to compare with: 'manual', 'instructions', 'in-context', if they exist."""


@runtime_checkable
class Task(BareTask, Protocol):
    """The full task protocol: required members, and optional members with defaults.

    Subclass it to inherit the defaults. `complete` adds them to a task that only has the members of `BareTask`.
    """

    notes: Sequence[str] = ()
    """Notes about data and model, one sentence each."""
    chunk: int = 1
    """Number of prompts to score together. With 1, the score is stored and the clock checked after every prompt."""
    billed: str | None = None
    """The model's name in `budget.prices`; None if the model is not billed."""
    fingerprints: Mapping[str, str] = MappingProxyType({})
    """A fingerprint per split, if a score on it depends on less than the whole task; otherwise `fingerprint`."""
    data_fingerprint: str = ""
    """What runs must share to be compared, if less than `fingerprint`: data and model, but not how it computes."""
    calibrates: bool = False
    """Whether scores on dev and test need the prompt's `offsets`, which come from its score on train."""

    language: str = "en"
    """The language of prompts: a code of `data/language.py`, or a language's name."""

    def check_window(self, length: int) -> None:
        """Raise a SettingError if prompts of `length` tokens cannot be scored; called before the search."""
        return

    def tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The maximum tokens in and out of a score; (0, 0) if tokens are not counted.

        The actual numbers go to `Score.details` (`tokens_in`, `tokens_out`) and `Evaluation.tables["usage"]`.
        """
        return 0, 0

    def likely_tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The expected tokens in and out of a score, for estimates."""
        return self.tokens(prompt, split)

    def evaluation_cost(self, prompt: Prompt, split: str) -> tuple[int, int, int]:
        """Maximum calls, tokens in and tokens out of an evaluation, which a budget reserves."""
        return self.calls(split), *self.tokens(prompt, split)

    def attach(self, meter: Meter) -> bool:
        """Report every request to the meter from now on; returns False if requests are not counted individually."""
        return False

    def judges(self) -> dict[str, str]:
        """The judges, for results and comparisons: runs with different judges are not comparable."""
        return {}

    def exhibits(self) -> dict[str, Any]:
        """Further entries of result.json, such as the target pictures."""
        return {}

    def sent(self, prompt: Prompt) -> dict[str, Any]:
        """What is sent to the model for a text, as `sent` in result.json; {} if not known."""
        return {}

    def shown_rows(self) -> dict[str, Any]:
        """The content of rows.json (the training examples), for the studio; {} if there is none."""
        return {}

    def kept_judges(self) -> dict[str, Any]:
        """The content of judges.json, which replaces the data when the prompt is used; {} if not needed."""
        return {}

    def differentiable(self) -> Differentiable | None:
        """The differentiable view for white-box methods; None for a black box."""
        return None

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int = 0) -> list[Evaluation]:
        """`evaluate` for several prompts, for tasks that do this faster; the results are the same as one by one."""
        return [self.evaluate(prompt, split, seed) for prompt in prompts]

    def evaluation_from(self, score: Score, split: str, seed: int = 0) -> Evaluation | None:
        """The evaluation that follows from a score on the same split, without further calls; None if there is none."""
        return None

    def row_values(self, score: Score, split: str) -> list[float]:
        """The value of each example in a score (their mean is the score); [] if unknown."""
        return []

    blocks: tuple[str, ...] = ()
    """Names of blocks of train and dev that can be scored separately; () if only whole splits can.

    They are disjoint, those of train come first, and together they are train and dev."""

    def pooled(self, scores: Sequence[Score]) -> list[float]:
        """The value of each row, from the scores of a prompt on the first blocks; their mean ranks prompts."""
        return [score.value for score in scores]

    def whole_splits(self, scores: Sequence[Score]) -> dict[str, Score]:
        """The scores on train and dev that follow from those on the first blocks, without further calls."""
        return {}

    def answers(self) -> tuple[str, ...]:
        """Words that the task model may say right after a prompt; () if there are none."""
        return ()

    def drafts(self) -> tuple[str, ...]:
        """Common prompts for this task, for a search to start from; () if there are none."""
        return ()

    def hints(self) -> Mapping[str, float]:
        """The scores of single words, if many can be computed at once; {} otherwise.

        Each word counts as one call for the method that uses them."""
        return {}


def spans(count: int, size: int) -> list[tuple[int, int]]:
    """Rows 0 to `count` in blocks (begin, end): first `size` rows, then blocks that double the total."""
    found, begin = [], 0
    while begin < count:
        end = min(begin + max(size, begin), count)
        found.append((begin, end))
        begin = end
    return found


def blocks_of(task: Task) -> tuple[str, ...]:
    """The blocks of a task, or its train and dev splits if it has none."""
    return task.blocks or tuple(split for split in ("train", "dev") if split in task.splits)


OPTIONAL = (
    *("notes", "chunk", "billed", "fingerprints", "data_fingerprint", "calibrates", "blocks", "language"),
    *("check_window", "tokens", "judges", "exhibits", "sent", "shown_rows", "kept_judges", "differentiable"),
    *("row_values", "pooled", "whole_splits", "answers", "drafts", "hints", "evaluate_many", "evaluation_from"),
    *("evaluation_cost", "attach", "likely_tokens"),
)
"""The members with defaults."""


class _Defaults(Task):
    """The defaults themselves."""


class _Completed:
    """A user's task with defaults for missing members."""

    def __init__(self, task: BareTask) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._task, name)
        except AttributeError:
            if name not in OPTIONAL:
                raise
            if name in ("evaluate_many", "evaluation_cost", "likely_tokens"):  # their defaults call the task itself
                return partial(getattr(Task, name), self)
            return getattr(_DEFAULTS, name)


_DEFAULTS = _Defaults()  # type: ignore[abstract]  # only the members with defaults are asked of it


def complete(task: Any) -> Task:
    """The task itself if it has every member, otherwise a wrapper with defaults for the missing ones."""
    return cast(Task, task if isinstance(task, Task | _Completed) else _Completed(task))


class Differentiable(Protocol):
    """The view returned by `task.differentiable()`, for white-box methods; a black box has none.

    Prompts are vectors at the prompt's position in the task model's own input space.
    """

    embeddings: Any
    """[V, d] input embeddings of the task model (a frozen tensor)."""
    tokenizer: Any

    def loss(self, vectors: Any, rows: Sequence[int]) -> Any:
        """Mean loss over the given training rows for prompt vectors [n, d]; differentiable in `vectors`."""

    def score_vectors(self, vectors: Any, split: str) -> Score:
        """The task's own score of prompt vectors, without a gradient."""

    def rows(self, split: str) -> int:
        """How many examples a split has."""


_ATTRIBUTES = {"name": str, "stochastic": bool, "fingerprint": str, "splits": tuple, "primary": str}
_PROMPTS = ("It was", "The answer is", "In one word:")


def check_task(task: Any, prompts: Sequence[str] = _PROMPTS, *, seed: int = 0, raise_error: bool = True) -> list[str]:
    """Check on a few prompts that a task satisfies the protocol.

    Scores each prompt a few times and evaluates one per split, so it costs model calls. With `raise_error` (the
    default) violations are raised as one TaskError; otherwise they are returned as a list of sentences.
    """
    findings = _shape(task)
    if not findings:
        task = complete(task)
        given = [Prompt(text) for text in dict.fromkeys(prompts)]
        findings = [
            *_scores(task, given, seed),
            *_evaluations(task, given[0], seed),
            *_words(task),
            *_extras(task, given[0]),
        ]
    if findings and raise_error:
        raise TaskError("the task violates its protocol:\n" + "\n".join(f"- {finding}" for finding in findings))
    return findings


def _shape(task: Any) -> list[str]:
    found = []
    for name, kind in _ATTRIBUTES.items():
        if not hasattr(task, name):
            found.append(f"it has no attribute '{name}' ({kind.__name__})")
        elif not isinstance(getattr(task, name), kind):
            found.append(f"'{name}' must be a {kind.__name__}, it is {getattr(task, name)!r:.60}")
    for name in ("score", "evaluate", "calls", "context", "baselines"):
        if not callable(getattr(task, name, None)):
            found.append(f"it has no method '{name}'")
    if found:
        return found
    if "train" not in task.splits:
        found.append(f"'train' must be among its splits, they are {task.splits}")
    found += [
        f"the split '{split}' is unknown; use {', '.join(SPLITS)}" for split in task.splits if split not in SPLITS
    ]
    if not task.fingerprint:
        found.append("'fingerprint' is empty; it must change whenever a score could")
    return found


def _scores(task: Task, prompts: list[Prompt], seed: int) -> list[str]:
    seeds = [seed + place for place in range(len(prompts))]
    found: list[str] = []
    ready = prompts
    """The prompts with the offsets from their scores on train."""
    for split in sorted(task.splits, key=lambda split: split != "train"):
        calls: int | None = task.calls(split)
        if not isinstance(calls, int) or isinstance(calls, bool) or calls < 0:
            found.append(f"calls('{split}') must be a whole number of at least 0, it is {calls!r}")
            calls = None
        try:
            scores = task.score(prompts if split == "train" else ready, seeds, split)
        except Exception as error:  # the task may raise anything
            found.append(f"score raised {type(error).__name__} on '{split}': {error}")
            continue
        if not isinstance(scores, list) or len(scores) != len(prompts):
            found.append(f"score must give a list of {len(prompts)} scores for as many prompts, it gave {scores!r:.80}")
            continue
        found += [problem for p, s in zip(prompts, scores, strict=True) for problem in _score(p, s, calls, split)]
        if found:
            break
        if split == "train" and task.calibrates:
            ready = [replace(p, offsets=s.offsets) for p, s in zip(prompts, scores, strict=True)]
        for prompt, score in zip(prompts, scores, strict=True):
            rows = task.row_values(score, split)
            if rows and not math.isclose(sum(rows) / len(rows), score.value, rel_tol=1e-4, abs_tol=1e-4):
                found.append(
                    f"row_values() of {prompt.text!r} on '{split}' have a mean other than its score {score.value}"
                )
    if found:
        return found
    return _independence(task, prompts, seeds)


def _score(prompt: Prompt, score: Any, calls: int | None, split: str) -> list[str]:
    what = f"the score of {prompt.text!r} on '{split}'"
    if not isinstance(score, Score):
        return [f"{what} is a {type(score).__name__}, not a pinprompt Score"]
    found = []
    if isinstance(score.value, float) and math.isnan(score.value) and score.failures:
        found.append(f"{what} failed: {score.failures[0]}")
    elif not isinstance(score.value, int | float) or not math.isfinite(score.value):
        found.append(f"{what} is {score.value!r}, which is not a finite number")
    if calls is not None and score.calls > calls:
        found.append(f"{what} says {score.calls} calls, more than the {calls} that calls('{split}') declares")
    return found


def _independence(task: Task, prompts: list[Prompt], seeds: list[int]) -> list[str]:
    """A prompt must get the same score alone, in another order and a second time, given the same seeds."""
    together = task.score(prompts, seeds, "train")
    again = task.score(prompts, seeds, "train")
    turned = task.score(prompts[::-1], seeds[::-1], "train")[::-1]
    alone = [task.score([prompt], [seed], "train")[0] for prompt, seed in zip(prompts, seeds, strict=True)]
    found = []
    for place, prompt in enumerate(prompts):
        first = together[place].value
        if first != again[place].value:
            if not task.stochastic:
                found.append(
                    f"{prompt.text!r} scored {first} and then {again[place].value}: set stochastic to True, or make "
                    "the task deterministic"
                )
        elif first != turned[place].value or first != alone[place].value:
            found.append(
                f"{prompt.text!r} scored {first} among others, {turned[place].value} in another order and "
                f"{alone[place].value} alone: a score must not depend on the other prompts of the call"
            )
    return found


def _evaluations(task: Task, prompt: Prompt, seed: int) -> list[str]:
    found = []
    for split in task.splits:
        try:
            answer = task.evaluate(prompt, split, seed)
        except Exception as error:  # the task may raise anything
            found.append(f"evaluate raised {type(error).__name__} on '{split}': {error}")
            continue
        if not isinstance(answer, Evaluation):
            found.append(f"evaluate gave a {type(answer).__name__} on '{split}', not a pinprompt Evaluation")
        elif task.primary not in answer.metrics:
            known = ", ".join(answer.metrics) or "none"
            found.append(f"evaluate has no metric '{task.primary}' (its primary) on '{split}'; it has: {known}")
        elif not all(math.isfinite(value) for value in answer.metrics.values()):
            found.append(f"evaluate has a metric on '{split}' that is not finite: {dict(answer.metrics)}")
    return found


def _words(task: Task) -> list[str]:
    found = []
    if not isinstance(task.context(), str):
        found.append(f"context() must give a text, it gave {task.context()!r:.60}")
    baselines = task.baselines()
    if not isinstance(baselines, dict) or not all(isinstance(v, str) for pair in baselines.items() for v in pair):
        found.append(f"baselines() must give a dict of name to prompt, it gave {baselines!r:.80}")
    return found


def _extras(task: Task, prompt: Prompt) -> list[str]:
    """Check the optional members that a task has."""
    found = []
    if isinstance(task.notes, str) or not all(isinstance(note, str) for note in task.notes):
        found.append(f"'notes' must be a list of sentences, it is {task.notes!r:.80}")
    if not isinstance(task.chunk, int) or isinstance(task.chunk, bool) or task.chunk < 1:
        found.append(f"'chunk' must be a whole number of at least 1, it is {task.chunk!r}")
    if task.billed is not None and not isinstance(task.billed, str):
        found.append(f"'billed' must be a model's name or None, it is {task.billed!r:.60}")
    if not isinstance(task.calibrates, bool):
        found.append(f"'calibrates' must be True or False, it is {task.calibrates!r:.60}")
    if not isinstance(task.blocks, tuple) or not all(isinstance(block, str) for block in task.blocks):
        found.append(f"'blocks' must be a tuple of names, it is {task.blocks!r:.80}")
    elif task.blocks and sum(map(task.calls, task.blocks)) < task.calls("train"):
        found.append("the 'blocks' together must cost at least what 'train' costs: they hold all of its rows")
    if not isinstance(task.data_fingerprint, str):
        found.append(f"'data_fingerprint' must be a text, it is {task.data_fingerprint!r:.60}")
    if not _texts(task.fingerprints) or not set(task.fingerprints) <= {*task.splits, *task.blocks}:
        found.append(f"'fingerprints' must map splits and blocks to texts, it is {task.fingerprints!r:.80}")
    for split in task.splits:
        most: Any = task.tokens(prompt, split)
        pair = isinstance(most, tuple) and len(most) == 2
        if not pair or not all(isinstance(count, int) and count >= 0 for count in most):
            found.append(f"tokens() on '{split}' must give two whole numbers, in and out, it gave {most!r:.60}")
    if not _texts(task.judges()):
        found.append(f"judges() must give a dict of what to who, it gave {task.judges()!r:.80}")
    offered = {name: getattr(task, name)() for name in ("exhibits", "shown_rows", "kept_judges")}
    for name, given in offered.items():
        try:
            fits = isinstance(given, dict) and bool(json.dumps(given, allow_nan=False))
        except (TypeError, ValueError):
            fits = False
        if not fits:
            found.append(f"{name}() must give a dict of plain JSON values, it gave {given!r:.80}")
    view = task.differentiable()
    members = ("embeddings", "tokenizer", "loss", "score_vectors", "rows")
    missing = [] if view is None else [name for name in members if not hasattr(view, name)]
    if missing:
        found.append(f"differentiable() must give None or a view; its view has no {', '.join(missing)}")
    return found


def _texts(given: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(text, str) for pair in given.items() for text in pair)
