"""Updates the tables of docs/results.md and of the README from run folders.

A page has blocks between `<!-- results:begin NAME -->` and `<!-- results:end -->`. A sweep's folder fills the blocks
of its name; everything outside the markers, and every other block, is kept.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pinprompt.errors import RunError, SettingError
from pinprompt.files import csv_safe, write_atomically
from pinprompt.records.compare import Comparison, ScoreTable, compare
from pinprompt.records.entries import Entry
from pinprompt.records.reading import mapping, number, read_run
from pinprompt.records.tables import Grid, Spot, amount, grid_markdown, grids
from pinprompt.records.wording import digits, text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_BLOCK = re.compile(
    r"(?P<begin><!-- results:begin (?P<name>\S+) -->)(?P<body>.*?)(?P<end><!-- results:end -->)", re.DOTALL
)
COMMANDS_SHOWN = 3
EXAMPLES = 2
"""Number of best and of worst rewrites that are shown."""
MARKS = ("content", "style", "fluency")


def regenerate(
    source: Path | str | Iterable[Path | str],
    results_md: Path,
    readme: Path,
    *,
    name: str | None = None,
    command: str | None = None,
) -> list[Path]:
    """Rewrite the blocks of a sweep in both pages from its run folders; returns the files that changed.

    Every found prompt is in a CSV file beside results.md (results/NAME.csv), which the block links to.

    `name` is the block's name, by default the sweep folder's. `command` is the command that produced the whole sweep,
    if there is one; otherwise each row shows the commands of its runs. A block that results.md does not have is
    appended; the README is only changed if it has the block.
    """
    folders = [source] if isinstance(source, str | Path) else list(source)
    if not folders:
        raise RunError("No run folders were given. Name the folder of a sweep.")
    label = name or Path(folders[0]).resolve().name
    if not _NAME.fullmatch(label):
        raise SettingError(f"'{label}' cannot name a block of results: use letters, digits, '.', '_' and '-'.")
    comparison = compare(folders)
    prompts, listed = results_md.with_suffix("") / f"{label}.csv", _every_prompt(comparison)
    link = f"Every found prompt: [{prompts.parent.name}/{prompts.name}]({prompts.parent.name}/{prompts.name})."
    everything = full(comparison, command) + (f"\n\n{link}" if listed else "")
    contents = {
        results_md: replace_block(_read(results_md), label, everything, add=True),
        readme: replace_block(_read(readme), label, short(comparison, command), add=False),
    }
    if listed:
        contents[prompts] = listed
    changed = [path for path, content in contents.items() if content != _read(path)]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, contents[path].encode("utf-8"))
    return changed


def replace_block(page: str, name: str, body: str, *, add: bool) -> str:
    """The page with the blocks of that name updated; with `add`, a block is appended if there is none."""
    _check_markers(page)
    newline = "\r\n" if "\r\n" in page else "\n"
    inner = newline + body.strip().replace("\n", newline) + newline
    found = False

    def fill(match: re.Match[str]) -> str:
        nonlocal found
        if match["name"] != name:
            return match[0]
        found = True
        return f"{match['begin']}{inner}{match['end']}"

    filled = _BLOCK.sub(fill, page)
    if found or not add:
        return filled
    gap = "" if not page else newline if page.endswith(newline * 2) else newline * (1 if page.endswith(newline) else 2)
    return f"{page}{gap}## {name}{newline}{newline}<!-- results:begin {name} -->{inner}<!-- results:end -->{newline}"


def full(comparison: Comparison, command: str | None = None) -> str:
    """The full comparison: scores, significance, readability, the prompt of each row's median run, the commands."""
    parts = []
    for table in comparison.tables:
        parts += [grid_markdown(grid) for grid in grids(table)]
        parts += [_prompts(table), _rewrites(table), _commands(table, command)]
    parts += [f"*{_inert(note)}*" for note in comparison.notes]
    return _inert("\n\n".join(part for part in parts if part))


def short(comparison: Comparison, command: str | None = None) -> str:
    """For the README: the score tables and the commands of their rows."""
    parts = []
    for table in comparison.tables:
        parts += [grid_markdown(grids(table)[0]), _commands(table, command)]
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
        tables = mapping(read_run(middle.folder, prompts=False, events=False).result.get("tables"))
        made = [mapping(one) for one in tables.get("rewrites") or []]
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
        rows.setdefault(made, []).append(_inert(row))
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


def _check_markers(page: str) -> None:
    begins, ends = len(re.findall(r"<!-- results:begin \S+ -->", page)), page.count("<!-- results:end -->")
    whole = [match for match in _BLOCK.finditer(page) if "<!-- results:begin" not in match["body"]]
    if begins != ends or len(whole) != begins:
        raise SettingError(
            f"The page has {begins} '<!-- results:begin NAME -->' and {ends} '<!-- results:end -->' that do not pair "
            "up. Correct the markers, then run this again."
        )


def _read(page: Path) -> str:
    try:
        return page.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{page} cannot be read as text: {error}. Name the page with --results or --readme.") from None
