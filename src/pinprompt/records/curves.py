"""What the figures show, as numbers: progress over calls or time, ablations, score against readability."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.records.compare import ScoreTable, labelled, varying
from pinprompt.records.paired import mean, standard_error
from pinprompt.records.reading import RunRecord, number, read_run
from pinprompt.records.svg import Point

AXES = ("calls", "time")
ABLATIONS = {"length": "policy.length", "k": "policy.k", "reward_scale": "q_learning.alpha"}
GRID = 120


@dataclass(frozen=True)
class Curve:
    """The mean of several runs over a common axis, with its standard error."""

    name: str
    x: list[float]
    mean: list[float]
    error: list[float]
    runs: int


def learning_curves(table: ScoreTable, column: str, axis: str = "calls") -> list[Curve]:
    """The best score so far of each row, over calls or over minutes: mean and standard error over its runs."""
    found = []
    for row in drawn_order(table.rows):
        runs = [read_run(entry.folder, prompts=False) for entry in table.runs.get((row, column), ())]
        drawn = [points for record in runs if len(points := progress(record, axis)) > 1]
        if drawn:
            found.append(averaged(row, drawn))
    return found


def drawn_order(names: Iterable[str]) -> list[str]:
    """Ours first, so that the same method has the same colour in every figure of a paper."""

    def key(name: str) -> tuple[bool, list[tuple[int, str]]]:
        # Numbers by their value: k=64 before k=256.
        parts = re.findall(r"\d+|\D+", name)
        return not name.startswith("pin"), [(int(part), "") if part.isdecimal() else (0, part) for part in parts]

    return sorted(names, key=key)


def progress(record: RunRecord, axis: str = "calls") -> list[Point]:
    """The best score so far of one run, over calls or over minutes."""
    if axis not in AXES:
        raise SettingError(f"A learning curve has no axis '{axis}': {did_you_mean(axis, AXES)}")
    seconds = {
        step: number(row.get("elapsed"))
        for row in record.costs
        if row.get("event") == "step" and isinstance(step := row.get("step"), int)
    }
    found: list[Point] = []
    for event in record.of("step"):
        step, value = event.get("step"), number(event.get("score_best"))
        at = number(event.get("calls")) if axis == "calls" else seconds.get(step) if isinstance(step, int) else None
        if at is not None and value is not None:
            found.append((at / 60 if axis == "time" else at, max(value, found[-1][1]) if found else value))
    return sorted(found)


def averaged(name: str, runs: Sequence[Sequence[Point]]) -> Curve:
    """Runs as steps on a common axis, from where all have begun to where the first ends: nothing is made up."""
    start, end = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    xs = [start + (end - start) * place / (GRID - 1) for place in range(GRID)] if end > start else [start]
    places = [[point[0] for point in run] for run in runs]
    columns = [
        [run[max(bisect_right(known, x * (1 + 1e-12)) - 1, 0)][1] for run, known in zip(runs, places, strict=True)]
        for x in xs
    ]
    errors = [standard_error(values) or 0.0 for values in columns]
    return Curve(name, xs, [mean(values) for values in columns], errors, len(runs))


def ablation(table: ScoreTable, column: str, setting: str) -> list[Curve]:
    """The metric over a setting that runs of one method vary, all else equal; empty where none varies it."""
    if setting not in ABLATIONS:
        raise SettingError(f"There is no ablation '{setting}': {did_you_mean(setting, ABLATIONS)}")
    key = ABLATIONS[setting]
    entries = [entry for row in table.rows for entry in table.runs.get((row, column), ())]
    groups: dict[str, dict[float, list[float]]] = {}
    for entry in entries:
        others = varying([other.settings for other in entries if other.method == entry.method]) - {key}
        at = number(entry.settings.get(key))
        if at is not None and at > 0:
            name = labelled(entry.method, entry.settings, others)
            groups.setdefault(name, {}).setdefault(1 / at if setting == "reward_scale" else at, []).append(entry.value)
    found = []
    for name in drawn_order(groups):
        values = groups[name]
        xs = sorted(values)
        if len(xs) > 1:
            errors = [standard_error(values[x]) or 0.0 for x in xs]
            found.append(Curve(name, xs, [mean(values[x]) for x in xs], errors, sum(map(len, values.values()))))
    return found


def against_readability(table: ScoreTable, column: str) -> dict[str, list[Point]]:
    """(perplexity, metric) of every run's answer, per row; empty for fewer than two runs."""
    found: dict[str, list[Point]] = {}
    for row in drawn_order(table.rows):
        for entry in table.runs.get((row, column), ()):
            at = entry.readability.get("perplexity")
            if at is not None and at > 0:
                found.setdefault(row, []).append((at, entry.value))
    return found if sum(map(len, found.values())) > 1 else {}
