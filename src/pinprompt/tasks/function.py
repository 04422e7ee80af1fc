"""Any function as a task: from a prompt to a number, from a list of prompts to numbers, or from a prompt and a row.

A function of a prompt has one row. A function of a prompt and a row has the user's rows, which are split into train,
dev and test, so that prompts can be raced over them and reported with intervals.
"""

from __future__ import annotations

import collections.abc
import hashlib
import importlib
import inspect
import json
import math
import os
import random
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from pinprompt.errors import BudgetSpent, PinpromptError, SettingError, TaskError, did_you_mean
from pinprompt.maths.bootstrap import interval_of_mean
from pinprompt.recipe.task_sections import CustomSettings
from pinprompt.tasks.protocol import SPLITS, Draft, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Floats, Prompt, Row, derive

_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
FEW_ROWS = 8
"""With fewer rows, all of them are training rows."""


class FunctionTask:
    """A function as a task.

    A function whose first parameter is annotated as a list (or any sequence but `str`) gets all prompts of a call at
    once; any other gets one text at a time. `batch=True` or `batch=False` overrides the annotation. With `rows` it gets
    a prompt's text and one of the rows.
    A number that is not finite, or an exception, is recorded as a failure of that prompt and row. A batch that raises
    an exception or returns the wrong number of values is a TaskError.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        rows: Iterable[Any] | None = None,
        batch: bool | None = None,
        stochastic: bool = False,
        calls_per_prompt: int = 1,
        context: str = "",
        drafts: Sequence[Draft] = (),
    ) -> None:
        if not callable(function):
            raise SettingError(f"a task's function must be callable; given: {type(function).__name__}")
        self.function, self._by_row = function, rows is not None
        self.batch = takes_a_list(function) if batch is None else batch
        if self._by_row and self.batch:
            raise SettingError("a function of a prompt and a row gets one prompt at a time; set batch to False")
        self._context, self._drafts, self._named = context, list(drafts), _named(function)
        key = "" if stochastic else "function"
        notes: tuple[str, ...] = ()
        if rows is None:
            self.rows: tuple[Row, ...] = (Row("train", 0, key=key, calls=calls_per_prompt),)
        else:
            self.rows, notes = _split(list(rows), key, calls_per_prompt)
        self.info = TaskInfo(
            name="custom",
            fingerprint=_fingerprint(function, self.batch, self.rows if self._by_row else ()),
            answered_by=_fingerprint(function, self.batch, ()),
            stochastic=stochastic,
            notes=notes,
        )

    @classmethod
    def build(cls, settings: CustomSettings) -> FunctionTask:
        """The task of a recipe, with its function imported from 'module:name'."""
        return cls(import_function(settings.function), stochastic=settings.stochastic)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        """The function's numbers; see the class for failures."""
        texts = [prompt.text for prompt in prompts]
        if self.batch:
            return [_answers(rows, [number]) for number in self._batch(texts)]
        if self._by_row:
            return [_answers(rows, [self._one(text, self.rows[row].input) for row in rows]) for text in texts]
        return [_answers(rows, [self._one(text)]) for text in texts]

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """The function's numbers; a row that failed has the prompt's lowest number, if there is any."""
        found = np.asarray(answers.on(rows), dtype=np.float64)
        failed = np.isnan(found)
        return found if failed.all() else np.where(failed, found[~failed].min(), found)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        """The mean of the function's numbers, with its interval if there are rows."""
        values, failures = self.values(answers, rows), answers.failed(rows)
        if np.isnan(values).any():
            raise TaskError(f"the function {self._named} could not score the prompt: {failures[0]}")
        split = self.rows[rows[0]].split
        tables = {"failures": list(failures)[:20]} if failures else {}
        if not self._by_row:
            return Evaluation(split, {"score": float(values[0])}, rows=1, tables=tables)
        return Evaluation(
            split,
            {"score": float(values.mean())},
            rows=len(rows),
            intervals={"score": interval_of_mean(values, derive(seed, "bootstrap"))},
            tables=tables,
            outcomes={"score": tuple(map(float, values))},
        )

    def context(self) -> str:
        return self._context

    def drafts(self) -> list[Draft]:
        return list(self._drafts)

    def _one(self, text: str, *row: Any) -> float | str:
        try:
            answer = self.function(text, *row)
        except (BudgetSpent, PinpromptError):
            raise
        except Exception as error:  # a user's function may raise anything
            return f"it raised {type(error).__name__}: {error} (prompt {text!r})"
        return _number(answer, text)

    def _batch(self, texts: list[str]) -> list[float | str]:
        try:
            answer = self.function(list(texts))
        except (BudgetSpent, PinpromptError):
            raise
        except Exception as error:  # a user's function may raise anything
            raise TaskError(
                f"the function {self._named} raised {type(error).__name__}: {error} for {len(texts)} prompts, of which "
                f"the first is {texts[0]!r}. A batch fails as a whole; handle errors of single prompts inside the "
                "function."
            ) from error
        try:
            values = list(answer)
        except TypeError:
            raise TaskError(
                f"the function {self._named} was given a list of {len(texts)} prompts and answered {answer!r:.60}; it "
                "must answer a list of numbers. If it scores one text at a time, annotate its parameter as str."
            ) from None
        if len(values) != len(texts):
            raise TaskError(
                f"the function {self._named} answered {len(values)} scores for {len(texts)} prompts; it must return "
                "one per prompt, in order."
            )
        return [_number(value, text) for value, text in zip(values, texts, strict=True)]


def _number(answer: Any, text: str) -> float | str:
    """A function's answer as a number, or why it is none."""
    try:
        if isinstance(answer, str | bytes | bytearray):
            raise TypeError
        value = float(answer)
    except (TypeError, ValueError, RuntimeError):
        return f"it returned {answer!r:.60}, which is not a number (prompt {text!r})"
    return value if math.isfinite(value) else f"it returned {value}, which is not finite (prompt {text!r})"


def _answers(rows: Sequence[int], found: Sequence[float | str]) -> Answers:
    failures = {row: one for row, one in zip(rows, found, strict=True) if isinstance(one, str)}
    numbers = np.array([math.nan if isinstance(one, str) else one for one in found])
    return Answers(tuple(rows), numbers, failures)


def _split(rows: list[Any], key: str, calls: int) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows by split: as their own field `split` says, or a third each for training, choosing and the report."""
    if not rows:
        raise SettingError("rows is empty; give at least one row, or leave it out for a function of the prompt alone")
    names = [row.get("split") if isinstance(row, collections.abc.Mapping) else None for row in rows]
    notes: tuple[str, ...] = ()
    if not all(name in SPLITS for name in names):
        order = list(range(len(rows)))
        random.Random(derive(0, "rows of a function")).shuffle(order)
        size = len(rows) // 3 if len(rows) >= FEW_ROWS else 0
        test, dev = set(order[:size]), set(order[size : 2 * size])
        names = ["test" if place in test else "dev" if place in dev else "train" for place in range(len(rows))]
        counts = ", ".join(f"{names.count(split)} for {use}" for split, use in
                           (("train", "training"), ("dev", "choosing"), ("test", "the report"))
                           if split in names)  # fmt: skip
        notes = (f"{len(rows)} rows, split at random: {counts}; a field 'split' in the rows decides otherwise",)
    if "train" not in names:
        raise SettingError("no row has the split 'train'; mark some rows with it")
    found = [
        Row(split, index, row, key=key and f"{key}\n{_row_text(row)}", calls=calls)
        for split in SPLITS
        for index, row in enumerate(row for row, name in zip(rows, names, strict=True) if name == split)
    ]
    return tuple(found), notes


def _row_text(row: Any) -> str:
    """A row as text, the same for equal rows."""
    try:
        return json.dumps(row, sort_keys=True, ensure_ascii=True)
    except (TypeError, ValueError):
        return repr(row)


def takes_a_list(function: Callable[..., Any]) -> bool:
    """Whether the first parameter's annotation is a list or another sequence of texts."""
    target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(target)
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError, NameError, AttributeError):
        return False
    hint = hints.get(names[0]) if names else None
    return (typing.get_origin(hint) or hint) in _LISTS


def import_function(place: str, setting: str = "task.function") -> Callable[..., Any]:
    """The function at 'module:name'; modules in the working folder are found too."""
    module_name, colon, name = place.partition(":")
    if not colon or not module_name or not name:
        raise SettingError(
            f"{setting} must be 'module:name', such as 'my_task:score' for the function score in my_task.py; "
            f"'{place}' was given."
        )
    module = _module(module_name, f"{setting} = '{place}'")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [known for known in vars(module) if not known.startswith("_") and callable(getattr(module, known))]
            raise SettingError(
                f"the module '{module_name}' has no '{name}'; {did_you_mean(part, known or ['nothing'])}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise SettingError(f"'{place}' is a {type(found).__name__}, not a function.")
    return typing.cast(Callable[..., Any], found)


def _module(name: str, place: str) -> ModuleType:
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise SettingError(
                f"there is no module '{error.name}' for {place}; searched {here} and the "
                "installed packages. Run from the folder that holds it, or install it."
            ) from None
        raise SettingError(f"the module '{name}' cannot be imported: {error}.") from error
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise SettingError(f"the module '{name}' cannot be imported: {type(error).__name__}: {error}.") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _named(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"


def _fingerprint(function: Callable[..., Any], batch: bool, rows: Sequence[Row]) -> str:
    """The function's name and source, and its rows: an edited function is another task, those it calls do not count."""
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        source = ""
    data = "".join(f"\n{row.split} {_row_text(row.input)}" for row in rows)
    return hashlib.sha256(f"{_named(function)}\n{batch}\n{source}{data}".encode()).hexdigest()
