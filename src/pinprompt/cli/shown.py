"""Answers as people read them: tables and sentences from plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from pinprompt.records.verdict import judge_result
from pinprompt.run.running import Result

REWRITES = 10
"""Texts that are shown before and after."""


def shown_result(result: Result) -> Iterator[Any]:
    """A run's answer: the prompt beside hand-written ones, what was spent, and where the report is."""
    data, primary = result.data, str(result.data.get("primary", "score"))
    splits = [split for split in ("dev", "test") if data.get(split)] or ["train"]
    table = Table(title=None, show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("prompt", overflow="fold", max_width=60)
    columns: list[tuple[str, str]] = []
    for split in splits:
        measured = data.get(split) or {}
        rows = measured.get("rows")
        for name in (primary, f"raw_{primary}"):
            if name == primary or name in measured:
                columns.append((split, name))
                said = f"{name.replace('_', ' ')} on {split}" + (f" ({rows} rows)" if rows else "")
                table.add_column(said, justify="right")
    compared = {"found": {"prompt": result.prompt, **{split: data.get(split) for split in splits}}}
    for name, row in {**compared, **data.get("baselines", {})}.items():
        cells = [_metric(row.get(split), name) for split, name in columns]
        table.add_row(name, Text(str(row.get("prompt", ""))), *cells, style="bold" if name == "found" else "")
    yield table
    verdict = judge_result(data, primary)
    if verdict is not None:
        yield f"{verdict.sentence} {verdict.details}"
    if data.get("pruned"):
        yield Text(f"shortened from '{data['pruned']['from']}': without these words it scores more on train and dev")
    yield from _shown_rewrites(data)
    spent = f"{data.get('calls', 0):,} calls, {data.get('prompts', 0):,} prompts, {data.get('seconds', 0):.0f} seconds"
    yield f"searched with {data.get('method')}: {spent}; stopped: {data.get('stopped')}"
    if data.get("reported", True):
        yield f"report: {result.report}"
    else:
        yield f"no report was asked for; `pinprompt resume {result.folder}` makes it"


def _shown_rewrites(data: Mapping[str, Any]) -> Iterator[Any]:
    """Texts before and after, with who judged them; nothing for a task that rewrites nothing."""
    rewrites = data.get("tables", {}).get("rewrites")
    if not rewrites:
        return
    table = Table(title=None, show_edge=False, pad_edge=False)
    for head in ("before", "after"):
        table.add_column(head, overflow="fold", max_width=50)
    for head in ("content", "style"):
        table.add_column(head, justify="right")
    for row in rewrites[:REWRITES]:
        table.add_row(Text(row["source"]), Text(row["rewrite"]), f"{row['content']:.0f}", f"{row['style']:.0f}")
    yield table
    yield "judges: " + "; ".join(f"{what}: {who}" for what, who in data.get("judges", {}).items())


def _metric(facts: Mapping[str, Any] | None, primary: str) -> str:
    if not facts or facts.get(primary) is None:
        return ""
    ends = facts.get("intervals", {}).get(primary)
    return f"{facts[primary]:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


def shown_estimate(figures: Mapping[str, Any]) -> str:
    """What a run would spend, in one line."""
    parts = [f"{figures['calls']:,} calls for the search"]
    if figures.get("tokens"):
        parts.append(f"{figures['tokens']:,} tokens")
    if figures.get("money"):
        parts.append(f"{figures['money']:.4g} money")
    if figures.get("minutes") is not None:
        parts.append(f"about {figures['minutes']:.1f} minutes")
    note = figures.get("note")
    return "would spend at most " + ", ".join(parts) + (f" ({note})" if note else "")
