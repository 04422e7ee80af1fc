"""Figures for papers and pages: learning curves and ablations, as SVG files in one style.

Colours are Okabe and Ito's, and lines also differ in dash. The same runs give byte-identical files.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError, SettingError, did_you_mean
from pinprompt.folder.reading import RunRecord, number, read_run, sequence
from pinprompt.maths.bootstrap import mean, standard_error
from pinprompt.reports.charts import Point, Series, compact, line_chart
from pinprompt.reports.compare import ScoreTable, by_number, compare, labelled, varying
from pinprompt.wording import SHARES, title

# The data of the figures: progress over calls or time, ablations.

AXES = ("calls", "time")
ABLATIONS = {"length": "policy.length", "k": "policy.k", "reward_scale": "q_learning.alpha"}
X_AXES = {
    "calls": "calls to the task model",
    "time": "minutes",
    "length": "prompt length (tokens)",
    "k": "tokens kept by the filter (k)",
    "reward_scale": "reward scale (1/\N{GREEK SMALL LETTER ALPHA})",
}
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
    """The best score so far of each row, over calls or over minutes: mean and standard error over its runs.

    With the axis `greedy`, the score of its greedy prompt over calls: the paper's training curves.
    """
    found = []
    for row in sorted(table.rows, key=by_number):
        runs = [read_run(entry.folder) for entry in table.runs.get((row, column), ())]
        curves = [greedy_progress(record) if axis == "greedy" else progress(record, axis) for record in runs]
        drawn = [points for points in curves if points]
        if drawn:
            found.append(averaged(row, drawn))
    return found


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


def greedy_progress(record: RunRecord) -> list[Point]:
    """The scores of one run's greedy prompts, on dev if there is one, over the calls of the preceding steps."""
    # A folder may be untrusted: steps that are not numbers are skipped.
    calls = {
        step: number(event.get("calls")) for event in record.of("step") if isinstance(step := event.get("step"), int)
    }
    found: list[Point] = []
    greedy = record.of("greedy")
    name = "dev" if any(number(event.get("dev")) is not None for event in greedy) else "score"
    for event in greedy:
        step, value = event.get("step"), number(event.get(name))
        at = calls.get(step - 1) if isinstance(step, int) else None
        if at is not None and value is not None:
            found.append((at, value))
    return sorted(found)


def learning_charts(record: RunRecord) -> dict[str, tuple[str, str, str]]:
    """How a Q-learning run learnt, by file name: titles, notes and charts of loss, range of Q and support."""
    steps = record.of("step")

    def over_updates(name: str) -> list[Point]:
        pairs = ((number(event.get("updates")), number(event.get(name))) for event in steps)
        return [(at, value) for at, value in pairs if at is not None and value is not None]

    loss = line_chart([Series("loss", over_updates("loss"))], title="Loss", x="updates", y="loss")
    ends = [Series(said, over_updates(name)) for name, said in (("q_max", "largest"), ("q_min", "smallest"))]
    ranges = line_chart(ends, title="Range of Q", x="updates", y="Q / alpha")
    support = line_chart(_support(steps), title="Support size per position", x="step", y="tokens", log_y=True)
    return {
        "learning-loss": ("Loss", "Mean of a step's updates.", loss),
        "learning-q": ("Range of Q", "Of the tokens in the episodes that a step learnt from.", ranges),
        "learning-support": (
            "Support per position",
            "Tokens with a probability above zero; 1 means that the search has converged.",
            support,
        ),
    }


def _support(steps: Sequence[Mapping[str, Any]]) -> list[Series]:
    rows = [(number(event.get("step")), sequence(event.get("support"))) for event in steps]
    length = min(max((len(sizes) for _, sizes in rows), default=0), 512)
    shown = sorted({round(place * (length - 1) / 5) for place in range(6)}) if length > 6 else range(length)
    found = []
    for place in shown:
        points = [
            (at, size)
            for at, sizes in rows
            if at is not None and place < len(sizes) and (size := number(sizes[place])) is not None and size > 0
        ]
        found.append(Series(f"position {place + 1}", points))
    return found


def averaged(name: str, runs: Sequence[Sequence[Point]]) -> Curve:
    """Runs as step functions on a common axis, over the range that all of them cover; no extrapolation."""
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
    """The metric over a setting that runs of one method vary, all else equal; empty if none varies it."""
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
    for name in sorted(groups, key=by_number):
        values = groups[name]
        xs = sorted(values)
        if len(xs) > 1:
            errors = [standard_error(values[x]) or 0.0 for x in xs]
            found.append(Curve(name, xs, [mean(values[x]) for x in xs], errors, sum(map(len, values.values()))))
    return found


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("none", "6 3", "6 3 2 3", "2 3", "10 3", "5 2 2 2", "1 2", "9 4 2 4")
STYLE = "".join(
    [
        "text{font:11px sans-serif}.mid{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#ddd}.axis{stroke:#444}",
        ".line{fill:none;stroke-width:1.8}.band{fill-opacity:.18}",
        *(f".line.s{n}{{stroke:{c}}}.dot.s{n},.band.s{n}{{fill:{c}}}" for n, c in enumerate(COLOURS)),
        *(f".d{n}{{stroke-dasharray:{dash}}}" for n, dash in enumerate(DASHES)),
    ]
)


def write_figures(folders: Iterable[Path | str], out: Path | str = "figures") -> list[Path]:
    """Draw every figure that the runs have data for, as SVG under `out`; returns the files.

    A single run also gets the charts of what it learnt. Runs that are not comparable (other data, judges, task models,
    budgets) get separate figures.
    """
    drawn: dict[str, str] = {}
    tables = compare(folders).tables
    many = sum(len(table.columns) for table in tables) > 1
    for place, table in enumerate(tables):
        for column in table.columns:
            name = f"{column}-{place + 1}" if len(tables) > 1 else column
            end = "-" + re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60] if many else ""
            looks = {row: number for number, row in enumerate(sorted(table.rows, key=by_number))}
            for axis in AXES:
                drawn[f"curve-{axis}{end}"] = draw_curves(learning_curves(table, column, axis), axis, looks=looks)
            score = f"{'' if table.split == 'train' else 'dev '}score of the greedy prompt"
            drawn[f"curve-greedy{end}"] = draw_curves(learning_curves(table, column, "greedy"), "calls", score, looks)
            for setting in ABLATIONS:
                lines = ablation(table, column, setting)
                drawn[f"ablation-{setting}{end}"] = draw_ablation(lines, setting, table.metric)
    runs = [entry for table in tables for group in table.runs.values() for entry in group]
    if len(runs) == 1:
        charts = learning_charts(read_run(runs[0].folder))
        drawn |= {name: svg for name, (_, _, svg) in charts.items()}
    written = [save(Path(out) / f"{name}.svg", svg) for name, svg in drawn.items() if svg]
    if not written:
        raise RunError("The runs have nothing to draw: no steps in events.jsonl, no varied setting.")
    return written


def draw_curves(
    curves: Sequence[Curve], axis: str, score: str = "best score so far", looks: Mapping[str, int] | None = None
) -> str:
    """Lines with the standard error as a band, a single point as a dot; '' if there are none.

    `looks` numbers the rows, so that each has one colour in all figures.
    """
    lines = [replace(one, dots=len(one.points) == 1, look=(looks or {}).get(one.name)) for one in _series(curves)]
    return line_chart(lines, title=score, x=X_AXES[axis], y=score)


def draw_ablation(curves: Sequence[Curve], setting: str, metric: str) -> str:
    """Means over a setting with the standard error as a band; a logarithmic axis if it spans a decade or more."""
    xs = sorted({x for curve in curves for x in curve.x})
    if not xs:
        return ""
    name, label = _measure(metric)
    ticks = xs if len(xs) <= 8 else None
    log = xs[-1] / xs[0] >= 8
    lines = _series(curves, dots=True)
    return line_chart(lines, title=name, x=X_AXES[setting], y=name, log_x=log, label=label, ticks=ticks)


def save(path: Path, svg: str) -> Path:
    """Write a chart as a file of its own, with its style sheet on white."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet = f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
    alone = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        "</title>", f"</title>{sheet}", 1
    )
    path.write_text(alone + "\n", "utf-8")
    return path


def _series(curves: Sequence[Curve], dots: bool = False) -> list[Series]:
    return [Series(curve.name, list(zip(curve.x, curve.mean, strict=True)), dots, curve.error) for curve in curves]


def _measure(metric: str) -> tuple[str, Callable[[float], str]]:
    """The metric's name on an axis, and how its values are written there: shares in percent."""
    if metric in SHARES:
        return f"{title(metric)} (%)", lambda value: f"{100 * value:.4g}"
    return title(metric), compact
