"""Figures for papers and pages: learning curves, ablations, score against readability; SVG and PNG in one style.

Colours are Okabe and Ito's, lines also differ in dash, and the font size fits a column of 3.3 inches. The same runs
give byte-identical SVG: no date, a fixed salt for ids, text as text.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError, SettingError, did_you_mean
from pinprompt.maths.bootstrap import mean, standard_error
from pinprompt.records.charts import Point, compact, decades
from pinprompt.records.compare import ScoreTable, by_number, compare, labelled, varying
from pinprompt.records.reading import RunRecord, number, read_run
from pinprompt.records.wording import SHARES, title

# The data of the figures: progress over calls or time, ablations, score against readability.

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
    """Our methods first, so that a method has the same colour in every figure."""
    return sorted(names, key=lambda name: (not name.startswith("pin"), by_number(name)))


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


def greedy_curves(table: ScoreTable, column: str) -> list[Curve]:
    """The score of each row's greedy prompt over calls, on dev if there is one: the paper's training curves."""
    found = []
    for row in drawn_order(table.rows):
        runs = [read_run(entry.folder, prompts=False) for entry in table.runs.get((row, column), ())]
        drawn = [points for record in runs if len(points := greedy_progress(record)) > 1]
        if drawn:
            found.append(averaged(row, drawn))
    return found


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


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (6, 2, 1, 2)))
MARKERS = "osD^vP*X"
WIDTH, HEIGHT = 3.3, 2.3  # inches: one column of a two-column page
LEGEND_LINE = 0.15  # inches

STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8, "axes.labelsize": 8,
    "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.grid": True,
    "grid.color": "#dddddd", "grid.linewidth": 0.5, "axes.axisbelow": True, "lines.linewidth": 1.4,
    "figure.figsize": (WIDTH, HEIGHT), "figure.constrained_layout.use": True, "savefig.dpi": 300,
    "svg.fonttype": "none", "svg.hashsalt": "pinprompt", "path.simplify": False,
    "text.parse_math": False,  # a name with two dollar signs is not a formula
}  # fmt: skip


def write_figures(folders: Iterable[Path | str], out: Path | str) -> list[Path]:
    """Every figure that the runs have data for, as SVG and PNG under `out`; returns the files.

    Runs that are not comparable (other data, judges, task models, budgets) get separate figures.
    """
    out = Path(out)
    written: list[Path] = []
    tables = compare(folders).tables
    many = sum(len(table.columns) for table in tables) > 1
    for place, table in enumerate(tables):
        for column in table.columns:
            name = f"{column}-{place + 1}" if len(tables) > 1 else column
            end = "-" + re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60] if many else ""
            for axis in AXES:
                curves = learning_curves(table, column, axis)
                if curves:
                    written += save(out / f"curve-{axis}{end}", partial(draw_curves, curves=curves, axis=axis))
            greedy = greedy_curves(table, column)
            if greedy:
                score = f"{'' if table.split == 'train' else 'dev '}score of the greedy prompt"
                draw = partial(draw_curves, curves=greedy, axis="calls", score=score)
                written += save(out / f"curve-greedy{end}", draw)
            for setting in ABLATIONS:
                lines = ablation(table, column, setting)
                if lines:
                    draw = partial(draw_ablation, curves=lines, setting=setting, metric=table.metric)
                    written += save(out / f"ablation-{setting}{end}", draw)
            points = against_readability(table, column)
            if points:
                draw = partial(draw_readability, points=points, metric=table.metric)
                written += save(out / f"readability{end}", draw)
    if not written:
        raise RunError("The runs have nothing to draw: no steps in events.jsonl, no varied setting, no readability.")
    return written


def draw_curves(axes: Any, curves: Sequence[Curve], axis: str, score: str = "best score so far") -> None:
    """Lines with the standard error shaded."""
    for place, curve in enumerate(curves):
        style = _style(place)
        axes.plot(curve.x, curve.mean, label=curve.name, **style)
        _shade(axes, curve, style["color"])
    axes.xaxis.set_major_locator(_locator(5))
    axes.xaxis.set_major_formatter(lambda value, _: compact(value))
    axes.set_xlabel("calls to the task model" if axis == "calls" else "minutes")
    axes.set_ylabel(score)
    _legend(axes, [curve.name for curve in curves])


def _shade(axes: Any, curve: Curve, colour: Any) -> None:
    """One standard error to either side of the mean."""
    low = [y - e for y, e in zip(curve.mean, curve.error, strict=True)]
    high = [y + e for y, e in zip(curve.mean, curve.error, strict=True)]
    axes.fill_between(curve.x, low, high, color=colour, alpha=0.18, linewidth=0)


def draw_ablation(axes: Any, curves: Sequence[Curve], setting: str, metric: str) -> None:
    """Means over a setting with the standard error shaded; a logarithmic axis if it spans a decade or more."""
    for place, curve in enumerate(curves):
        style = _style(place)
        axes.plot(curve.x, curve.mean, label=curve.name, markersize=3.5, marker=MARKERS[_look(place)[1]], **style)
        _shade(axes, curve, style["color"])
    xs = sorted({x for curve in curves for x in curve.x})
    if xs[-1] / xs[0] >= 8:
        axes.set_xscale("log", base=2 if all(math.log2(x).is_integer() for x in xs) else 10)
    if len(xs) <= 8:
        axes.set_xticks(xs, [compact(x) for x in xs])
        axes.minorticks_off()
    labels = {
        "length": "prompt length (tokens)",
        "k": "tokens kept by the filter (k)",
        "reward_scale": "reward scale (1/\N{GREEK SMALL LETTER ALPHA})",
    }
    axes.set_xlabel(labels[setting])
    _measure(axes, metric)
    _legend(axes, [curve.name for curve in curves])


def draw_readability(axes: Any, points: dict[str, list[Point]], metric: str) -> None:
    """One mark per run: higher is better, further left is more readable."""
    for place, (name, found) in enumerate(points.items()):
        xs, ys = zip(*found, strict=True)
        colour, shape = _look(place)
        kind = {"color": COLOURS[colour], "marker": MARKERS[shape]}
        axes.scatter(xs, ys, s=16, label=name, linewidths=0.4, edgecolors="white", **kind)
    axes.set_xscale("log")
    ticks = decades(*axes.get_xlim())
    axes.set_xticks(ticks, [compact(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("perplexity of the prompt (lower is more readable)")
    _measure(axes, metric)
    _legend(axes, list(points))


def save(stem: Path, draw: Callable[[Any], None]) -> list[Path]:
    """Draw into a fresh figure and write it as stem.svg and stem.png."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with _figure() as (figure, axes):
        draw(axes)
        for ending, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            path = stem.with_name(f"{stem.name}.{ending}")
            figure.savefig(path, metadata=metadata)
            written.append(path)
    return written


@contextmanager
def _figure() -> Iterator[tuple[Any, Any]]:
    """A figure without pyplot: no window, no global state, nothing to close."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure, figure.add_subplot()


def _legend(axes: Any, names: list[str]) -> None:
    """A legend above the axes, where it covers no data; even for a single line. A long one makes the figure higher."""
    longest = max(map(len, names))
    columns = min(len(names), 3 if longest <= 10 else 2 if longest <= 20 else 1)
    axes.figure.set_figheight(HEIGHT + LEGEND_LINE * max(0, math.ceil(len(names) / columns) - 2))
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2}
    axes.legend(ncols=columns, handlelength=2.2, columnspacing=1.0, **place)


def _look(place: int) -> tuple[int, int]:
    """The colour and the dash or mark of a line: colours repeat after eight, marks differ."""
    return place % 8, (place + place // 8) % 8


def _style(place: int) -> dict[str, Any]:
    colour, dash = _look(place)
    return {"color": COLOURS[colour], "linestyle": DASHES[dash]}


def _measure(axes: Any, metric: str) -> None:
    """The metric on the vertical axis, shares in percent."""
    axes.set_ylabel(title(metric) + (" (%)" if metric in SHARES else ""))
    if metric in SHARES:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}")


def _locator(count: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count)
