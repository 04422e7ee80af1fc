"""Metrics of free answers: an answer and a row in, a value from 0 to 1 and the reason out.

`exact`, `contains`, `number` and `json` compare an answer with the row's reference, `regex` with a pattern. `function`
is the user's own, and `judge` asks a model, by a rubric (`tasks/answers.py` counts its calls).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import regex

from pinprompt.errors import BudgetSpent, PinpromptError, SettingError
from pinprompt.recipe.task_sections import AnswerSettings
from pinprompt.tasks.function import import_function

NEEDS_TARGET = ("exact", "contains", "number", "json")
QUOTES = "\"'`*\u201c\u201d\u2018\u2019"
"""What may stand around an answer without being part of it."""
SECONDS = 1.0
"""Maximum time for one pattern on one answer: some patterns would take forever."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)


class Value(NamedTuple):
    """What an answer is worth, and why it is not worth more; `failure` if it could not be valued."""

    value: float
    why: str = ""
    failure: str = ""


Metric = Callable[[str, Mapping[str, Any], str], Value]
"""From an answer, its row (all columns) and the reference to a value."""


def normalised(text: str) -> str:
    """A text without case, spaces around it, repeated spaces, quotes around it and a full stop at its end."""
    text = " ".join(text.split()).casefold()
    previous = None
    while previous != text:
        previous = text
        text = text.strip().strip(QUOTES).removesuffix(".").strip()
    return text


def exact(answer: str, row: Mapping[str, Any], target: str) -> Value:
    """1 if the answer is the reference, both normalised."""
    return _met(normalised(answer) == normalised(target), f"it is not '{target}'")


def contains(answer: str, row: Mapping[str, Any], target: str) -> Value:
    """1 if the reference stands in the answer as whole words, both normalised."""
    wanted = re.escape(normalised(target))
    found = re.search(rf"(?<!\w){wanted}(?!\w)", " ".join(answer.split()).casefold())
    return _met(found is not None, f"'{target}' is not in it")


def numbers(text: str) -> list[float]:
    """The numbers in a text; 1,000 is a thousand."""
    found = (one.group().replace(",", "") for one in _NUMBER.finditer(text))
    return [float(one) for one in found if any(letter.isdigit() for letter in one)]


def _number(settings: AnswerSettings) -> Metric:
    def number(answer: str, row: Mapping[str, Any], target: str) -> Value:
        """1 if the last number of the answer is the reference's, within the tolerance."""
        said, wanted = numbers(answer)[-1:], numbers(target)[-1:]
        if not said:
            return Value(0.0, "there is no number in it")
        close = math.isclose(said[0], wanted[0], rel_tol=0.0, abs_tol=settings.tolerance)
        return _met(close, f"{said[0]:g} is not {wanted[0]:g}")

    return number


def _regex(settings: AnswerSettings) -> Metric:
    try:
        pattern = regex.compile(settings.pattern or "")
    except regex.error as error:
        raise SettingError(f"task.pattern '{settings.pattern}' is not a regular expression: {error}") from None

    def matches(answer: str, row: Mapping[str, Any], target: str) -> Value:
        """1 if the pattern matches somewhere in the answer; with a group, if the group is the reference."""
        try:
            found = pattern.search(answer, timeout=SECONDS)
        except TimeoutError:
            return Value(0.0, failure=f"the pattern takes more than {SECONDS:g} s on an answer; make it simpler")
        if found is None:
            return Value(0.0, f"it does not match {settings.pattern}")
        if not pattern.groups or not target:
            return Value(1.0)
        said = found.group(1) or ""
        return _met(normalised(said) == normalised(target), f"the pattern finds '{said}', not '{target}'")

    return matches


def json_of(text: str) -> Any:
    """The JSON value of an answer, which may stand in a code block or between other words; None if there is none."""
    fenced = _FENCE.search(text)
    start, end = text.find("{"), text.rfind("}")
    for part in (fenced.group(1) if fenced else "", text, text[start : end + 1] if 0 <= start < end else ""):
        try:
            return json.loads(part)
        except (ValueError, RecursionError):
            continue
    return None


def _json(settings: AnswerSettings) -> Metric:
    def fields(answer: str, row: Mapping[str, Any], target: str) -> Value:
        """The share of the reference's fields that the answer has with the same value."""
        said, wanted = json_of(answer), json_of(target)
        if not isinstance(said, dict):
            return Value(0.0, "it is not a JSON object")
        names = settings.fields or tuple(wanted)
        wrong = [name for name in names if not _same(said.get(name), wanted.get(name))]
        extra = [name for name in said if name not in wanted]
        whole = len(names) + len(extra)
        why = [f"{name} is {json.dumps(said.get(name))[:40]}" for name in wrong] + [
            f"{name} is extra" for name in extra
        ]
        return Value((whole - len(wrong) - len(extra)) / whole, ", ".join(why))

    return fields


def _same(said: Any, wanted: Any) -> bool:
    if isinstance(said, str | int | float) and isinstance(wanted, str | int | float):
        return normalised(str(said)) == normalised(str(wanted))
    return bool(said == wanted)


def by_function(function: Callable[..., Any]) -> Metric:
    """The user's own function `(answer, row) -> number`, or `-> (number, reason)`."""

    def valued(answer: str, row: Mapping[str, Any], target: str) -> Value:
        try:
            found = function(answer, dict(row))
            value, why = found if isinstance(found, tuple) else (found, "")
            value = float(value)
        except (BudgetSpent, PinpromptError):
            raise
        except Exception as error:  # the user's code may raise anything
            return Value(0.0, failure=f"the metric raised {type(error).__name__}: {error}")
        if not math.isfinite(value):
            return Value(0.0, failure=f"the metric returned {value}, which is not finite")
        return Value(value, str(why))

    return valued


def _met(is_met: bool, why: str) -> Value:
    return Value(1.0) if is_met else Value(0.0, why)


def metric_of(settings: AnswerSettings, own: Callable[..., Any] | None = None) -> Metric:
    """The metric of a task; that of a judge is not a function of the answer."""
    if own is not None:
        return by_function(own)
    if settings.metric == "function":
        return by_function(import_function(settings.function, "task.function"))
    simple: Mapping[str, Metric] = {"exact": exact, "contains": contains}
    made: Mapping[str, Callable[[AnswerSettings], Metric]] = {"number": _number, "regex": _regex, "json": _json}
    if settings.metric in simple:
        return simple[settings.metric]
    if settings.metric == "regex" and not settings.pattern:
        raise SettingError("the metric regex needs a pattern: set task.pattern (--pattern)")
    return made[settings.metric](settings)


def check_targets(settings: AnswerSettings, targets: Sequence[tuple[str, str]]) -> None:
    """Raise an error for references that no answer can reach; `targets` are (place, reference)."""
    for place, target in targets:
        if settings.metric == "number" and not numbers(target):
            raise SettingError(f"{place}: the reference '{target}' has no number; use another metric")
        if settings.metric == "json":
            wanted = json_of(target)
            if not isinstance(wanted, dict) or not wanted:
                raise SettingError(f"{place}: the reference is not a JSON object: '{target[:80]}'")
            lacking = [name for name in settings.fields if name not in wanted]
            if lacking:
                raise SettingError(f"{place}: the reference has no field '{lacking[0]}', which task.fields names")
