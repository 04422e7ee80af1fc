"""Small SVG charts without a library, for reports, the studio and figures.

Colours are CSS classes, so that one page supports light and dark mode; a figure brings its own style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TypeVar

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 12, 40
TICK_CHARACTER = 7  # at least the width of a digit of an axis
POINTS = 300  # more points than a screen can show only make the page larger

LOOKS = 8
"""Colours and dashes; a second round of colours meets other dashes."""

Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Series:
    """One line: its name for the legend, its points in order of x."""

    name: str
    points: Sequence[Point]
    dots: bool = False
    errors: Sequence[float] = ()
    """One standard error for each point, drawn as a band around the line."""
    look: int | None = None
    """The number of its colour and dashes, so that it has the same in several charts; none: its place."""


@dataclass(frozen=True)
class Row:
    """One line of an interval chart."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Axis:
    """Maps a range of values to a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        value = math.log10(max(value, self.low)) if self.log else value
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside the range."""
        return decades(self.low, self.high) if self.log else nice_ticks(self.low, self.high, count)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (steps of 1, 2 or 5 times a power of ten) within [low, high]."""
    span = high - low
    raw = span / count
    if not raw > 1e-290:  # an empty or too small range
        return [low]
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(size * unit for size in (1, 2, 5, 10) if size * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)][: 4 * count]


def compact(value: float) -> str:
    """A short form of a number: 12.3k, 4M, 0.31."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e4 else f"{value:.3g}"


def thin(points: Sequence[T]) -> list[T]:
    """Evenly chosen points, first and last kept."""
    if len(points) <= POINTS:
        return list(points)
    return [points[round(place * (len(points) - 1) / (POINTS - 1))] for place in range(POINTS)]


def line_chart(
    series: Sequence[Series], *, title: str, x: str, y: str, log_x: bool = False, log_y: bool = False,
    label: Callable[[float], str] = compact, ticks: Sequence[float] | None = None,
) -> str:  # fmt: skip
    """Lines over a grid with a legend below; '' if there is nothing to draw. `ticks` are those of the x axis.

    A series needs two points, or one if it has dots.
    """
    drawn = [
        replace(one, points=thin(one.points), errors=thin(one.errors), look=place if one.look is None else one.look)
        for place, one in enumerate(one for one in series if len(one.points) > (0 if one.dots else 1))
    ]
    if not drawn:
        return ""
    bands = [_band(one) for one in drawn]
    xs = [point[0] for one in drawn for point in one.points]
    across = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, log_x)
    low, high = _padded([point[1] for band in bands for point in band], log_y)
    up = Axis(low, high, HEIGHT - BOTTOM, TOP, log_y)
    body = _grid(across, up, x, y, label, ticks)

    def pixels(points: Sequence[Point]) -> str:
        return " ".join(f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in points)

    for one, band in zip(drawn, bands, strict=True):
        shade = f"s{(one.look or 0) % LOOKS}"
        if one.errors:
            body.append(f'<polygon class="band {shade}" points="{pixels(band)}"/>')
        body.append(f'<polyline class="line {_look(one.look or 0)}" points="{pixels(one.points)}"/>')
        if one.dots and len(one.points) <= 60:
            body += [f'<circle class="dot {shade}" cx="{across.at(a):.1f}" cy="{up.at(b):.1f}" r="2.4"/>' for a, b in one.points]  # fmt: skip  # noqa: E501
    keys = [f'<line class="line {_look(one.look or 0)}" x2="16"/>' for one in drawn]
    legend, height = _legend([one.name for one in drawn], keys)
    return _frame(title, HEIGHT + height, [*body, *legend])


def interval_chart(rows: Sequence[Row], *, title: str, label: Callable[[float], str] = compact) -> str:
    """One dot with its 95 % interval per row, on a common axis."""
    if not rows:
        return ""
    ends = [end for row in rows for end in (row.value, row.low, row.high) if end is not None]
    low, high = _padded(ends, False)
    name_width, step, width = 132, 28, WIDTH
    across = Axis(low, high, name_width + 8, width - 70)
    height = step * len(rows) + 30
    foot = height - 22
    body = []
    for tick in across.ticks(4):
        at = across.at(tick)
        body.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="6" y2="{foot}"/>')
        body.append(f'<text class="tick mid" x="{at:.1f}" y="{foot + 15}">{escape(label(tick))}</text>')
    for place, row in enumerate(rows):
        at, shade = step * place + 18, "s0" if place == 0 else "muted"
        body.append(f'<text class="end{" strong" if place == 0 else ""}" x="{name_width}" y="{at + 4}">{_short(row.name, 20)}</text>')  # fmt: skip  # noqa: E501
        if row.low is not None and row.high is not None:
            left, right = across.at(row.low), across.at(row.high)
            body.append(f'<line class="whisker {shade}" x1="{left:.1f}" x2="{right:.1f}" y1="{at}" y2="{at}"/>')
        body.append(f'<circle class="dot {shade}" cx="{across.at(row.value):.1f}" cy="{at}" r="5"/>')
        body.append(f'<text class="strong" x="{width - 58}" y="{at + 4}">{escape(label(row.value))}</text>')
    return _frame(title, height, body, width)


def stacked_bar(parts: Sequence[tuple[str, float]], *, title: str, label: Callable[[float], str] = compact) -> str:
    """A stacked bar with a legend of values and shares."""
    total = sum(value for _, value in parts)
    if not total > 0:
        return ""
    body, left, width = [], 0.0, WIDTH
    for place, (_, value) in enumerate(parts):
        size = value / total * width
        body.append(f'<rect class="fill s{place % 8}" x="{left:.1f}" y="4" width="{max(size - 1, 0.5):.1f}" height="26" rx="3"/>')  # fmt: skip  # noqa: E501
        left += size
    for place, (name, value) in enumerate(parts):
        top = 54 + 22 * place
        body.append(f'<rect class="fill s{place % 8}" x="0" y="{top - 10}" width="12" height="12" rx="3"/>')
        body.append(f'<text x="20" y="{top}">{_short(name, 30)}</text>')
        body.append(f'<text class="end" x="300" y="{top}">{escape(label(value))}</text>')
        body.append(f'<text class="end tick" x="{width}" y="{top}">{100 * value / total:.0f} %</text>')
    return _frame(title, 54 + 22 * len(parts) - 8, body)


def scatter(points: Sequence[Point], front: Sequence[Point], *, title: str, x: str, y: str, log_x: bool = False) -> str:
    """A scatter plot with the points on the Pareto front connected and highlighted."""
    if len(points) < 2:
        return ""
    across = Axis(*_padded([point[0] for point in points], log_x), LEFT, WIDTH - RIGHT, log_x)
    up = Axis(*_padded([point[1] for point in points], False), HEIGHT - BOTTOM, TOP)
    body = _grid(across, up, x, y, compact)
    best = set(front)
    for a, b in [point for point in points if point not in best][: 4 * POINTS]:
        body.append(f'<circle class="dot muted" cx="{across.at(a):.1f}" cy="{up.at(b):.1f}" r="2.6"/>')
    path = " ".join(f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in sorted(best))
    body.append(f'<polyline class="line s0" points="{path}"/>')
    for a, b in sorted(best):
        body.append(f'<circle class="dot s0" cx="{across.at(a):.1f}" cy="{up.at(b):.1f}" r="4.2"/>')
    return _frame(title, HEIGHT, body)


def _frame(title: str, height: float, body: list[str], width: int = WIDTH) -> str:
    name = escape(title)
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{name}"><title>{name}</title>{"".join(body)}</svg>'  # noqa: E501


def _look(place: int) -> str:
    """The colour and the dash of a line: the next dash in every round of colours."""
    return f"s{place % LOOKS} d{(place + place // LOOKS) % LOOKS}"


def _band(series: Series) -> list[Point]:
    """The outline of what lies within one standard error; the points themselves if there are no errors."""
    if not series.errors:
        return list(series.points)
    pairs = list(zip(series.points, series.errors, strict=True))
    return [(x, y + error) for (x, y), error in pairs] + [(x, y - error) for (x, y), error in reversed(pairs)]


def _legend(names: Sequence[str], keys: Sequence[str]) -> tuple[list[str], int]:
    """Names behind their keys, in as many columns as fit below the chart; and its height."""
    columns, most = next((n, most) for n, most in ((3, 13), (2, 22), (1, 48)) if n == 1 or max(map(len, names)) <= most)
    body = []
    for place, (name, key) in enumerate(zip(names, keys, strict=True)):
        left, top = LEFT + 366 // columns * (place % columns), HEIGHT + 8 + 18 * (place // columns)
        body.append(f'<g transform="translate({left} {top})">{key}<text x="21" y="4">{_short(name, most)}</text></g>')
    return body, 18 * math.ceil(len(names) / columns)


def _grid(
    across: Axis, up: Axis, x: str, y: str, label: Callable[[float], str], ticks: Sequence[float] | None = None
) -> list[str]:
    body = []
    for tick in up.ticks():
        at = up.at(tick)
        body.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        body.append(f'<text class="tick end" x="{LEFT - 6}" y="{at + 4:.1f}">{escape(label(tick))}</text>')
    for tick in across.ticks() if ticks is None else ticks:
        name = compact(tick)
        # A long number at the end of the axis would reach beyond the chart.
        at = min(across.at(tick), WIDTH - TICK_CHARACTER * len(name) / 2)
        body.append(f'<text class="tick mid" x="{at:.1f}" y="{HEIGHT - BOTTOM + 17}">{escape(name)}</text>')
    middle, side = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    body.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    body.append(f'<text class="name mid" x="{middle:.0f}" y="{HEIGHT - 6}">{_short(x, 50)}</text>')
    body.append(f'<text class="name mid" transform="translate(11 {side:.0f}) rotate(-90)">{_short(y, 30)}</text>')
    return body


def _padded(values: Sequence[float], log: bool) -> Point:
    low, high = min(values), max(values)
    if log:
        low, high = max(low, 1e-9), max(high, 1e-9)
        return (low / 1.15, high * 1.15) if high / low > 1.5 else (low / 2, high * 2)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def decades(low: float, high: float) -> list[float]:
    """Round values on a logarithmic axis within [low, high]."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5) if last - first > 1 else (1, 2, 3, 5, 7)
    every = max(1, (last - first) // 6)
    ticks = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else nice_ticks(low, high, 4)


def _short(text: str, most: int) -> str:
    return escape(text if len(text) <= most else text[: most - 1] + "…")
