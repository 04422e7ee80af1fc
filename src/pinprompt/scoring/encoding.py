"""Scores and evaluations as plain JSON values, and back: what the journal and the memo keep.

A score goes through `clean` before anybody sees it, so that one that comes from the task and one that comes back from
a file are the same to the last bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pinprompt.errors import TaskError
from pinprompt.values import Evaluation, Score


def clean(score: Any, task: str, text: str) -> Score:
    """The task's score as plain Python values; a TaskError where the task broke its contract.

    A value that is no number stands for "could not be scored" if the score has failures to show for it (it is kept
    as NaN here; the evaluator decides what it counts as); without failures it is the task's mistake. Details that are
    not finite say nothing and are left out.
    """
    if not isinstance(score, Score):
        raise TaskError(f"the task '{task}' gave {type(score).__name__} where a Score is due, for the prompt {text!r}")
    try:
        value, calls = float(score.value), int(score.calls)
        details = {str(name): float(number) for name, number in score.details.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise TaskError(
            f"the task '{task}' gave a score that is not a number ({score.value!r}) for the prompt {text!r}; "
            "a score's value, calls and details must be numbers"
        ) from error
    failures = tuple(str(failure) for failure in score.failures)
    if not math.isfinite(value):
        if not failures:
            raise TaskError(
                f"the task '{task}' gave the score {value} for the prompt {text!r}; a score must be a finite number, "
                "or the score must name its failures"
            )
        value = math.nan
    if calls < 0:
        raise TaskError(f"the task '{task}' says that the prompt {text!r} took {calls} calls")
    finite = {name: details[name] for name in sorted(details) if math.isfinite(details[name])}
    return Score(value, calls, str(score.group), finite, failures)


def pack_score(score: Score) -> dict[str, Any]:
    """A score as JSON values; NaN (could not be scored) is null."""
    return {
        "value": None if math.isnan(score.value) else score.value,
        "calls": score.calls,
        "group": score.group,
        "details": dict(score.details),
        "failures": list(score.failures),
    }


def unpack_score(row: Mapping[str, Any]) -> Score:
    """The score of `pack_score`; ValueError where the values are not those of a score."""
    try:
        value = math.nan if row["value"] is None else float(row["value"])
        failures = tuple(str(failure) for failure in row["failures"])
        details = {str(name): float(number) for name, number in row["details"].items()}
        score = Score(value, int(row["calls"]), str(row["group"]), details, failures)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a score: {error}") from error
    if not math.isfinite(score.value) and (not failures or row["value"] is not None):
        raise ValueError("not a score: its value is not finite")
    return score


def pack_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON values."""
    return {
        "split": evaluation.split,
        "metrics": {str(name): float(number) for name, number in evaluation.metrics.items()},
        "rows": int(evaluation.rows),
        "calls": int(evaluation.calls),
        "intervals": {str(name): [float(low), float(high)] for name, (low, high) in evaluation.intervals.items()},
        "tables": dict(evaluation.tables),
    }


def unpack_evaluation(row: Mapping[str, Any]) -> Evaluation:
    """The evaluation of `pack_evaluation`; ValueError where the values are not those of an evaluation."""
    try:
        return Evaluation(
            split=str(row["split"]),
            metrics={str(name): float(number) for name, number in row["metrics"].items()},
            rows=int(row["rows"]),
            calls=int(row["calls"]),
            intervals={str(name): (float(low), float(high)) for name, (low, high) in row["intervals"].items()},
            tables=dict(row["tables"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not an evaluation: {error}") from error


def dumps(value: Any) -> str:
    """JSON on one line: ASCII only, so that lone surrogates and line separators of strange prompts cannot break it."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
