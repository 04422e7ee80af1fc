"""Writes a sweep's tables into docs/results.md: `python tools/results_page.py FOLDER [--name NAME]`.

The page has blocks between `<!-- results:begin NAME -->` and `<!-- results:end -->`. The block of that name (by default
the folder's) is replaced, or appended if there is none; the rest of the page is kept. Every found prompt is written to
docs/results/NAME.csv, which the block links to. Each row shows the commands of its runs, or `--command`, the one that
made the whole sweep.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinprompt.files import csv_safe
from pinprompt.folder.reading import mapping, number, read_run
from pinprompt.reports.compare import Comparison, ScoreTable, compare
from pinprompt.reports.entries import Entry
from pinprompt.reports.tables import Grid, Spot, amount, grid_markdown, grids
from pinprompt.wording import digits, text

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
COMMANDS_SHOWN = 3
EXAMPLES = 2
"""Number of best and of worst rewrites that are shown."""
MARKS = ("content", "style", "fluency")


def main() -> None:
    """Write the block and the CSV file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of a sweep")
    parser.add_argument("--name", help="name of the block; default: the folder's")
    parser.add_argument("--command", help="the command that made the whole sweep")
    given = parser.parse_args()
    name = given.name or given.folder.resolve().name
    comparison = compare([given.folder])
    body = tables(comparison, given.command)
    if listed := _every_prompt(comparison):
        path = PAGE.with_suffix("") / f"{name}.csv"
        path.write_text(listed, "utf-8")
        body += f"\n\nEvery found prompt: [results/{path.name}](results/{path.name})."
    PAGE.write_text(with_block(PAGE.read_text("utf-8"), name, body), "utf-8")


def with_block(page: str, name: str, body: str) -> str:
    """The page with the block of that name replaced, or appended."""
    begin, end = f"<!-- results:begin {name} -->", "<!-- results:end -->"
    block = f"{begin}\n{body.strip()}\n{end}"
    if begin not in page:
        return f"{page.rstrip()}\n\n## {name}\n\n{block}\n"
    return re.sub(f"{re.escape(begin)}.*?{end}", lambda _: block, page, count=1, flags=re.DOTALL)


def tables(comparison: Comparison, command: str | None) -> str:
    """Scores, significance, readability, the prompt of each row's median run, the commands."""
    parts = []
    for table in comparison.tables:
        parts += [grid_markdown(grid) for grid in grids(table)]
        parts += [_prompts(table), _rewrites(table), _commands(table, command)]
    parts += [f"*{note}*" for note in comparison.notes]
    return _inert("\n\n".join(part for part in parts if part))


def _prompts(table: ScoreTable) -> str:
    """The prompts of each row's median run."""
    rows = []
    for row in table.rows:
        runs = table.runs_of(row)
        if runs and any(entry.prompt for entry in runs):
            middle = _median(runs)
            rows.append((row, (Spot(middle.prompt), Spot(amount(table.metric, middle.value)))))
    if not rows:
        return ""
    return grid_markdown(Grid("The prompt of each row's median run", ("method", "prompt", table.metric), tuple(rows)))


def _every_prompt(comparison: Comparison) -> str:
    """The prompt of every run as CSV, with its metric; '' if no run found a text."""
    rows = []
    for table in comparison.tables:
        for row in table.rows:
            for entry in sorted(table.runs_of(row), key=lambda entry: (entry.dataset, entry.unit)):
                if entry.prompt:
                    shown = amount(table.metric, entry.value)
                    cells = (row, entry.dataset, *map(str, entry.unit), entry.prompt, table.metric, shown)
                    rows.append([csv_safe(cell) for cell in cells])
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([["method", "data", "split", "seed", "prompt", "metric", "value"], *rows])
    return out.getvalue()


def _rewrites(table: ScoreTable) -> str:
    """The best and worst rewrites of each row's median run."""
    rows = []
    for (row, column), runs in sorted(table.runs.items(), key=lambda item: (item[0][1], table.rows.index(item[0][0]))):
        middle = _median(list(runs))
        shown = mapping(read_run(middle.folder, events=False).result.get("tables"))
        made = [mapping(one) for one in shown.get("rewrites") or []]
        ranked = sorted(made, key=_worth, reverse=True)
        for one in [*ranked[:EXAMPLES], *ranked[EXAMPLES:][-EXAMPLES:]]:
            marks = "/".join(digits(number(one.get(name)) or 0.0) for name in MARKS)
            rows.append(
                (row, (Spot(column), Spot(text(one.get("source"))), Spot(text(one.get("rewrite"))), Spot(marks)))
            )
    if not rows:
        return ""
    heads = ("method", "data", "before", "after", "/".join(MARKS))
    return grid_markdown(Grid("The best and the worst rewrites of each row's median run", heads, tuple(rows)))


def _worth(rewrite: Mapping[str, Any]) -> tuple[float, float]:
    marks = [number(rewrite.get(name)) or 0.0 for name in MARKS]
    return math.prod(marks), sum(marks)


def _median(runs: list[Entry]) -> Entry:
    return sorted(runs, key=lambda entry: entry.value)[len(runs) // 2]


def _commands(table: ScoreTable, command: str | None) -> str:
    """The command that produced each row; rows with the same command are grouped."""
    rows: dict[str, list[str]] = {}
    for row in table.rows:
        runs = table.runs_of(row)
        made = _said(runs, command) if runs else "measured by every other run, beside its own prompt"
        rows.setdefault(made, []).append(row)
    return "\n".join(["Each row was made by:", "", *(f"- {', '.join(names)}: {made}" for made, names in rows.items())])


def _said(runs: list[Entry], command: str | None) -> str:
    commands = [command] if command else list(dict.fromkeys(entry.command for entry in runs))
    shown = ", ".join(f"`{_code(one)}`" for one in commands[:COMMANDS_SHOWN])
    more = len(commands) - COMMANDS_SHOWN
    return shown + (f" and {more} more like these (other splits and seeds)" if more > 0 else "")


def _code(text: str) -> str:
    """Text for a Markdown code span: one line, without backticks."""
    return " ".join(text.split()).replace("`", "'")


def _inert(text: str) -> str:
    """Escape markers in texts of a run, so that they cannot start or end a block."""
    return text.replace("<!--", "&lt;!--").replace("-->", "--&gt;")


if __name__ == "__main__":
    main()
