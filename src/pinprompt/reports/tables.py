"""Comparisons as terminal tables, Markdown, CSV and LaTeX, from the same grid of cells."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.files import csv_safe
from pinprompt.maths.bootstrap import FEWEST, mean
from pinprompt.reports.compare import READABILITY, Comparison, Measured, ScoreTable, rank_of
from pinprompt.reports.entries import LEARNING
from pinprompt.wording import COUNTS, NONE, SHARES, digits, plain, title

if TYPE_CHECKING:
    from rich.table import Table

PLAIN, BEST, SECOND = 0, 1, 2
FEW = "\N{DAGGER}"
"""Marks a cell whose runs had too few calls to learn."""
MANY = 4
"""Number of metrics from which on a table shows all of them."""


@dataclass(frozen=True)
class Spot:
    """One cell as text, with its rank in the column."""

    text: str
    error: str = ""
    rank: int = PLAIN

    def __str__(self) -> str:
        return f"{self.text} ± {self.error}" if self.error else self.text


@dataclass(frozen=True)
class Grid:
    """A formatted table: a caption, headings, and rows that start with their name."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Spot, ...]], ...]
    note: str = ""


def grids(table: ScoreTable) -> list[Grid]:
    """The tables of scores, significance, learning, further metrics and readability."""
    found = (_scores(table), _significance(table), _learning(table), *_metrics(table), _readability(table))
    return [grid for grid in found if grid is not None]


def _all_grids(comparison: Comparison) -> list[Grid]:
    return [grid for table in comparison.tables for grid in grids(table)]


def markdown(comparison: Comparison) -> str:
    """Markdown: best in bold, second underlined."""
    parts = [grid_markdown(grid) for grid in _all_grids(comparison)]
    parts += [f"*{_markdown_escaped(note)}*" for note in comparison.notes]
    return "\n\n".join(parts) + "\n"


def grid_markdown(grid: Grid) -> str:
    """One grid as a Markdown table under its caption."""
    wrap = {PLAIN: "{}", BEST: "**{}**", SECOND: "<u>{}</u>"}
    lines = [f"**{_markdown_escaped(grid.caption)}**", "", "| " + " | ".join(map(_markdown_escaped, grid.heads)) + " |"]
    lines.append("|---" + "|---:" * (len(grid.heads) - 1) + "|")
    for name, spots in grid.rows:
        cells = [
            wrap[spot.rank].format(_markdown_escaped(spot.text)) + (f" ± {spot.error}" if spot.error else "")
            for spot in spots
        ]
        lines.append("| " + " | ".join([_markdown_escaped(name), *cells]) + " |")
    return "\n".join([*lines, *(["", _markdown_escaped(grid.note)] if grid.note else [])])


def latex(comparison: Comparison) -> str:
    """LaTeX for the booktabs package: best in bold, second underlined."""
    return "\n\n".join(map(_grid_latex, _all_grids(comparison))) + "\n"


def _grid_latex(grid: Grid) -> str:
    wrap = {PLAIN: "{}", BEST: r"\textbf{{{}}}", SECOND: r"\underline{{{}}}"}
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_escaped(grid.caption)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(grid.heads) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(latex_escaped, grid.heads)) + r" \\", r"\midrule"]
    for name, spots in grid.rows:
        cells = [
            wrap[spot.rank].format(latex_escaped(spot.text))
            + (rf" {{\scriptsize$\pm$ {spot.error}}}" if spot.error else "")
            for spot in spots
        ]
        lines.append(" & ".join([latex_escaped(name), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def comma_separated(comparison: Comparison) -> str:
    """CSV in long form, with all digits: one line per table, row, column and metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "row", "column", "metric", "mean", "standard_error", "runs"])

    def line(table: ScoreTable, row: str, column: str, metric: str, cell: Measured) -> None:
        error = "" if cell.error is None else repr(cell.error)
        names = [csv_safe(value) for value in (table.title, row, column, metric)]
        writer.writerow([*names, repr(cell.mean), error, len(cell.values)])

    for table in comparison.tables:
        for row in table.rows:
            for column in table.columns:
                if (row, column) in table.cells:
                    line(table, row, column, table.metric, table.cells[row, column])
                for (of, at, name), cell in table.metrics.items():
                    if (of, at) == (row, column) and name != table.metric:
                        line(table, row, column, name, cell)
            for name in READABILITY:
                if (row, name) in table.readability:
                    line(table, row, "all", name, table.readability[row, name])
    return out.getvalue()


def rich_tables(comparison: Comparison) -> list[Table]:
    """Tables for a rich console: best in bold, second underlined. Cells are Text, so markup in names has no effect."""
    from rich.table import Table
    from rich.text import Text

    style = {PLAIN: "", BEST: "bold", SECOND: "underline"}
    found = []
    for grid in _all_grids(comparison):
        table = Table(title=Text(grid.caption), caption=Text(grid.note) if grid.note else None)
        for place, head in enumerate(grid.heads):
            table.add_column(Text(head), justify="right" if place else "left")
        for name, spots in grid.rows:
            cells = [
                Text(spot.text, style[spot.rank]) + Text(f" ± {spot.error}" if spot.error else "") for spot in spots
            ]
            table.add_row(Text(name), *cells)
        found.append(table)
    return found


def _scores(table: ScoreTable) -> Grid:
    average = len(table.columns) > 1
    rows = []
    for row in table.rows:
        spots = [
            _spot(table.metric, table.cells.get((row, column)), table.rank(row, column), table.too_few(row, column))
            for column in table.columns
        ]
        if average:
            means = [table.cells[row, column].mean for column in table.columns if (row, column) in table.cells]
            whole = len(means) == len(table.columns)
            spots.append(Spot(amount(table.metric, mean(means))) if whole else Spot(NONE))
        rows.append((row, tuple(spots)))
    counts = sorted({len(table.cells[place].values) for place in table.cells})
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    heads = ("method", *table.columns, *(("average",) if average else ()))
    note = f"Mean ± standard error over splits; over seeds if there is one split ({runs} a cell{_scale(table.metric)})."
    if counts == [1]:
        note = f"One run a cell{_scale(table.metric)}: without standard errors and tests."
    if any(table.too_few(*place) for place in table.cells):
        note += f" {FEW} fewer calls than are enough for learning, so it says nothing about learning."
    judges = f" Judges: {table.facts['judges']}." if table.facts["judges"] else ""
    return Grid(table.title, heads, tuple(rows), note + judges)


def _learning(table: ScoreTable) -> Grid | None:
    """How much the Q-learning methods learnt: without it no difference can be attributed to learning."""
    rows = []
    for row in table.rows:
        known = [entry.learning for entry in table.runs_of(row) if entry.learning]
        if known:
            updates, share, calls, enough = (mean([one[name] for one in known]) for name in LEARNING)
            shown = [plain(round(updates)), f"{100 * share:.0f}", plain(round(calls)), plain(round(enough))]
            rows.append((row, tuple(map(Spot, shown))))
    heads = ("method", "updates", "prompts after the first update (%)", "calls", "calls that are enough")
    return Grid(f"{table.title}: learning", heads, tuple(rows), "Means over runs.") if rows else None


def _significance(table: ScoreTable) -> Grid | None:
    if all(contrast.difference is None for contrast in table.contrasts):
        return None
    rows = []
    for contrast in table.contrasts:
        found = contrast.difference
        name = f"{contrast.row} against {contrast.baseline}, {contrast.column}"
        if found is None or found.pairs < FEWEST:  # the interval of two pairs is their range, and no p-value agrees
            pairs, difference = ("", NONE) if found is None else (f" ({found.pairs})", amount(table.metric, found.mean))
            rows.append((name, (Spot(difference), Spot(NONE), Spot(NONE), Spot(f"too few pairs{pairs}"))))
            continue
        interval = f"[{amount(table.metric, found.low)}, {amount(table.metric, found.high)}]"
        enough = "yes" if found.significant else "no"
        rows.append(
            (name, (Spot(amount(table.metric, found.mean)), Spot(interval), Spot(f"{found.p:.3f}"), Spot(enough)))
        )
    heads = ("row", "difference", "95 % interval", "p", "significant")
    note = (
        f"Paired bootstrap over splits (over seeds where there is one split); fewer than {FEWEST} pairs are not tested."
    )
    return Grid(f"{table.title}: the best against the second", heads, tuple(rows), note)


def _readability(table: ScoreTable) -> Grid | None:
    names = [name for name in READABILITY if any((row, name) in table.readability for row in table.rows)]
    return _measures(f"{table.title}: readability", table.rows, names, table.readability) if names else None


def _metrics(table: ScoreTable) -> list[Grid]:
    """All metrics of tasks with several that must be read together, one grid per column."""
    found = []
    for column in table.columns:
        cells = {(row, name): cell for (row, at, name), cell in table.metrics.items() if at == column}
        names = [name for name in dict.fromkeys(name for _, name in cells) if not name.endswith("majority")]
        if len(names) >= MANY:
            found.append(_measures(f"{table.title}: all measures on {column}", table.rows, names, cells))
    return found


def _measures(
    caption: str, rows: Sequence[str], names: Sequence[str], cells: Mapping[tuple[str, str], Measured]
) -> Grid:
    shown = [
        (row, tuple(_spot(name, cells.get((row, name)), rank_of(cells, row, name, name)) for name in names))
        for row in rows
        if any((row, name) in cells for name in names)
    ]
    heads = ("method", *(title(name) + (" (%)" if name in SHARES else "") for name in names))
    return Grid(caption, heads, tuple(shown))


def _spot(metric: str, cell: Measured | None, rank: int, too_few: bool = False) -> Spot:
    if cell is None:
        return Spot(NONE)
    shown, mark = amount(metric, cell.mean), FEW if too_few else ""
    places = len(shown.partition(".")[2])  # the error has as many decimals as its mean
    if cell.error is None:
        return Spot(shown + mark, rank=rank)
    error = cell.error * (100 if metric in SHARES else 1)
    return Spot(shown + mark, digits(error) if "e" in shown else f"{error:,.{places}f}", rank)


def amount(metric: str, value: float) -> str:
    """A metric's value in a table: shares as percent without the sign, which is in the note or the heading."""
    if metric in SHARES:
        return f"{100 * value:.1f}"
    return f"{value:.2f}" if metric in COUNTS else digits(value)


def _scale(metric: str) -> str:
    return ", in percent" if metric in SHARES else ""


def _markdown_escaped(value: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~$])", r"\\\1", _one_line(value))


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", NONE: "--", "±": r"$\pm$", FEW: r"$\dagger$",
}  # fmt: skip


def latex_escaped(value: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(value))


def _one_line(value: str) -> str:
    return " ".join(value.split())


FORMATS: dict[str, Callable[[Comparison], str]] = {"markdown": markdown, "csv": comma_separated, "latex": latex}


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values: per table its facts, and a cell per row and column with mean and error."""

    def cells(found: Mapping[tuple[str, str], Measured]) -> list[dict[str, Any]]:
        return [
            {"row": row, "column": column, "mean": cell.mean, "error": cell.error, "runs": len(cell.values)}
            for (row, column), cell in found.items()
        ]

    tables = [
        {
            "facts": table.facts,
            "metric": table.metric,
            "split": table.split,
            "cells": cells(table.cells),
            "readability": cells(table.readability),
            "learning": [
                {"folder": str(entry.folder), "row": row, **entry.learning, "too_few": entry.too_few}
                for row in table.rows
                for entry in table.runs_of(row)
                if entry.learning
            ],
            "metrics": [
                {"row": row, "column": column, "metric": name, "mean": cell.mean, "error": cell.error}
                for (row, column, name), cell in table.metrics.items()
            ],
            "contrasts": [asdict(contrast) for contrast in table.contrasts],
        }
        for table in comparison.tables
    ]
    return {"tables": tables, "notes": list(comparison.notes)}


def write_as(comparison: Comparison, name: str) -> str:
    """The comparison in a named format: markdown, csv or latex; text is `rich_tables`."""
    if name not in FORMATS:
        raise SettingError(f"There is no format '{name}' for a comparison: {did_you_mean(name, ('text', *FORMATS))}")
    return FORMATS[name](comparison)
