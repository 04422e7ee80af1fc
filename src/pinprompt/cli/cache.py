"""The verb `cache`: what the memo of scores holds and saved, and how to make it smaller."""

from __future__ import annotations

from typing import Annotated

import typer

from pinprompt.cli.console import Device, Json, Quiet, Seed, Threads, door


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


VERBS = (cache,)
