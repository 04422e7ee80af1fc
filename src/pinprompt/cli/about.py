"""The verb `bench`: speed as ratios in one run on this machine."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any

import typer

from pinprompt.cli.console import Device, Json, Quiet, Seed, Threads, door
from pinprompt.errors import SettingError, did_you_mean

# Verbs that tell: methods, models, doctor.


def methods(
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None
) -> None:
    """List the search methods."""
    with door(as_json, quiet, threads) as console:
        from rich.table import Table

        from pinprompt.methods.table import CARDS

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


# The verb `cache`: what the memo of scores holds and saved, and how to make it smaller.


def cache(
    prune_days: Annotated[float | None, typer.Option("--older-than", min=0, help="Forget what is older, days.")] = None,
    max_mb: Annotated[float | None, typer.Option("--max-mb", min=0, help="Forget the least used until this.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Forget everything.")] = False,
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Show the memo of scores: its size, hits, and what it saved; and prune it."""
    with door(as_json, quiet, threads) as console:
        from dataclasses import asdict

        from rich.table import Table

        from pinprompt.models.sources import home
        from pinprompt.scoring.memo import Memo

        memo = Memo(home() / "memo.sqlite", warn=console.note)
        removed = 0
        if clear or prune_days is not None or max_mb is not None:
            removed = memo.prune(older_than_days=prune_days, max_mb=max_mb, everything=clear)
        found = {"path": str(home() / "memo.sqlite"), **asdict(memo.stats()), "removed": removed}
        memo.close()
        table = Table(show_edge=False, show_header=False)
        for name, value in found.items():
            table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
        console.answer(found, table)


BENCHES = {
    "update": "one update of psi against the released formulation",
    "step": "one whole step at OPT-125M's shape",
    "write": "writing prompts with and without the tree of prefixes",
    "score": "scoring prompts with and without each saving",
    "generate": "rewriting texts against the model's own generate",
    "clip": "scoring prompts against a picture, trimmed against padded",
}


def bench(
    what: Annotated[str, typer.Argument(help="all, or: " + ", ".join(BENCHES))] = "all",
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Measure speed on this machine."""
    with door(as_json, quiet, threads) as console:
        if what != "all" and what not in BENCHES:
            raise SettingError(f"there is no bench '{what}': {did_you_mean(what, [*BENCHES, 'all'])}")
        from pinprompt.run import build

        build.set_threads(threads)
        figures: dict[str, Any] = {}
        for name in BENCHES if what == "all" else [what]:
            console.note(f"{name}: {BENCHES[name]}; this takes a minute or two")
            figures[name] = import_module(f"pinprompt.bench.{name}").measure()
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
