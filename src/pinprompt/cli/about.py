"""Commands about this installation: methods, models, doctor, cache, bench."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pinprompt.bench import BENCHES
from pinprompt.cli.console import Output, Threads, door


def methods(options: Output) -> None:
    """List the search methods."""
    with door(options) as console:
        from rich.table import Table

        from pinprompt import api

        rows = api.methods()
        facts = ("name", "line", "gradients", "output", "reference")
        table = Table("method", "what it does", "needs gradients", "gives", "reference", show_edge=False)
        for row in rows:
            table.add_row(row.name, row.line, "yes" if row.gradients else "no", row.output, row.reference)
        console.answer({"methods": [{name: getattr(row, name) for name in facts} for row in rows]}, table)


def models(options: Output) -> None:
    """List the models that need no hub, and which are cached."""
    with door(options) as console:
        from rich.table import Table

        from pinprompt import api
        from pinprompt.models.sources import home

        rows = api.models()
        table = Table(show_edge=False)
        for name in rows[0] if rows else ():
            table.add_column(name)
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        console.answer({"home": str(home()), "models": rows}, table, f"cache: {home()}")


def doctor(
    options: Output,
    deep: Annotated[bool, typer.Option("--deep", help="Also check the hashes of cached weights.")] = False,
) -> None:
    """Check this machine and list what to install for which feature; exit code 1 if something is wrong."""
    with door(options) as console:
        from pinprompt import api

        found = api.doctor(deep)
        console.answer(found, *_shown(found))
        if not found["ok"]:
            raise typer.Exit(1)


def _shown(found: dict[str, Any]) -> list[Any]:
    from rich.table import Table

    table = Table(show_edge=False, show_header=False)
    for name, value in found.items():
        if not isinstance(value, dict | list):
            table.add_row(name, _cell(value))
        elif isinstance(value, dict):
            for inner, part in value.items():
                table.add_row(f"{name}: {inner}", _cell(part))
    extras = Table("extra", "used for", "", show_edge=False)
    for row in found.get("extras", []):
        extras.add_row(row["name"], row["for"], "installed" if row["installed"] else row["install"])
    problems = [f"- {problem}" for problem in found.get("problems", [])]
    return [table, "", extras, "", *(problems or ["no problems found"])]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def cache(
    options: Output,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Delete scores older than N days.")
    ] = None,
    max_mb: Annotated[
        float | None, typer.Option("--max-mb", min=0, help="Delete the least used scores above N MB.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all scores.")] = False,
) -> None:
    """Show the cache of scores kept across runs (size, hits, savings), or delete entries from it."""
    with door(options) as console:
        from rich.table import Table

        from pinprompt import api

        found = api.cache(older_than_days=older_than, max_mb=max_mb, clear=clear, notes=console.note)
        table = Table(show_edge=False, show_header=False)
        for name, value in found.items():
            table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
        console.answer(found, table)


def bench(
    options: Threads,
    what: Annotated[str, typer.Argument(help="all, or one of: " + ", ".join(BENCHES))] = "all",
    target: Annotated[
        str | None, typer.Option("--target", help="For step: monte-carlo or bootstrap; default: both.")
    ] = None,
) -> None:
    """Measure speed on this machine."""
    with door(options) as console:
        from pinprompt import api

        figures = api.bench(what, target=target, threads=options.threads, notes=console.note)
        shown = [line for name, found in figures.items() for line in (f"{name}:", *_lines(found, "  "))]
        console.answer(figures if what == "all" else figures[what], *shown)


def _lines(found: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{name}:")
            lines += [indent + "  " + ", ".join(f"{key} {_short(one)}" for key, one in row.items()) for row in value]
        else:
            lines.append(f"{indent}{name}: {_short(value)}")
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


VERBS = (methods, models, doctor, cache, bench)
