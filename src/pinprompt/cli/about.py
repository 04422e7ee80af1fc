"""Verbs that tell: methods, models, doctor."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pinprompt.cli.console import Device, Json, Quiet, Seed, Threads, door


def methods(
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None
) -> None:
    """List the search methods."""
    with door(as_json, quiet, threads) as console:
        from rich.table import Table

        from pinprompt.methods.catalogue import CARDS

        table = Table("method", "what it does", "needs gradients", "gives", "reference", show_edge=False)
        for card in CARDS:
            table.add_row(card.name, card.line, "yes" if card.gradients else "no", card.output, card.reference)
        console.answer({"methods": [asdict(card) for card in CARDS]}, table)


def models(
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None
) -> None:
    """List the models that need no hub, and what is cached."""
    with door(as_json, quiet, threads) as console:
        from rich.table import Table

        from pinprompt.models.sources import catalogue_of_models, home

        rows = catalogue_of_models()
        table = Table(show_edge=False)
        for name in rows[0] if rows else ():
            table.add_column(name)
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        console.answer({"home": str(home()), "models": rows}, table, f"cache: {home()}")


def doctor(
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None
) -> None:
    """Check this machine, and say what to install for what."""
    with door(as_json, quiet, threads) as console:
        from pinprompt.doctor import examine

        found = examine()
        console.answer(found, *_shown(found))


def _shown(found: dict[str, Any]) -> list[Any]:
    from rich.table import Table

    table = Table(show_edge=False, show_header=False)
    for name, value in found.items():
        if not isinstance(value, dict | list):
            table.add_row(name, _cell(value))
        elif isinstance(value, dict):
            for inner, part in value.items():
                table.add_row(f"{name}: {inner}", _cell(part))
    extras = Table("extra", "what for", "", show_edge=False)
    for row in found.get("extras", []):
        extras.add_row(row["name"], row["for"], "installed" if row["installed"] else row["install"])
    problems = [f"- {problem}" for problem in found.get("problems", [])]
    return [table, "", extras, "", *(problems or ["no problems found"])]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


VERBS = (methods, models, doctor)
