"""Commands about this installation: methods, models, doctor, cache."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Option

from pinprompt.cli.console import Console, Output, table


def methods(console: Console, options: Output) -> None:
    """List the search methods."""
    from pinprompt import api

    names = ("name", "line", "gradients", "output", "reference")
    rows = [{name: getattr(row, name) for name in names} for row in api.methods()]
    heads = ("method", "what it does", "needs gradients", "gives", "reference")
    console.answer({"methods": rows}, table(heads, [map(_cell, row.values()) for row in rows]))


def models(
    console: Console,
    options: Output,
    fetch: Annotated[
        str | None, Option("--fetch", metavar="NAME", help="Agree to download this one, and do so first.")
    ] = None,
) -> None:
    """List the models and data that need no hub, and which are cached."""
    from pinprompt import api
    from pinprompt.models.cache import home

    rows = api.models(fetch)
    shown = table(list(rows[0]), [map(_cell, row.values()) for row in rows])
    console.answer({"home": str(home()), "models": rows}, shown, f"cache: {home()}")


def doctor(
    console: Console,
    options: Output,
    deep: Annotated[bool, Option("--deep", help="Also check the hashes of cached weights.")] = False,
) -> None:
    """Check this machine and list what to install for which feature; exit code 1 if something is wrong."""
    from pinprompt import api

    found = api.doctor(deep)
    console.answer(found, *_shown(found))
    if not found["ok"]:
        raise typer.Exit(1)


def _shown(found: dict[str, Any]) -> list[Any]:
    facts: list[tuple[str, str]] = []
    for name, value in found.items():
        if not isinstance(value, dict | list):
            facts.append((name, _cell(value)))
        elif isinstance(value, dict):
            absent = {False: "not downloaded yet"} if name == "aliases" else {}
            facts += [(f"{name}: {inner}", absent.get(part, _cell(part))) for inner, part in value.items()]
    extras = [
        (row["name"], row["for"], "installed" if row["installed"] else row["install"])
        for row in found.get("extras", [])
    ]
    problems = [f"- {problem}" for problem in found.get("problems", [])]
    return [table((), facts), "", table(("extra", "used for", ""), extras), "", *(problems or ["no problems found"])]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def cache(
    console: Console,
    options: Output,
    clear: Annotated[bool, Option("--clear", help="Delete all answers.")] = False,
) -> None:
    """Show the size of the cache of answers kept across runs, or empty it."""
    from pinprompt import api

    found = api.cache(clear=clear, notes=console.note)
    rows = [
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
        for name, value in found.items()
    ]
    console.answer(found, table((), rows))


VERBS = (methods, models, doctor, cache)
