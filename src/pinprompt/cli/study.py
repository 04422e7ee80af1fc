"""Commands on many runs: sweep, ls, verify, compare, figures, studio."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pinprompt.cli.console import Console, Machine, Output, Runs, Seed, table


def sweep(
    console: Console,
    options: Machine,
    file: Annotated[Path, Argument(help="A sweep: a TOML file (recipes/ has examples).")],
    engine: Annotated[str, Option(help="inline: one after the other; ray: in parallel.")] = "inline",
    address: Annotated[str | None, Option(help="A Ray cluster; default: this machine.")] = None,
    workers: Annotated[
        int | None, Option(min=1, help="Number of parallel runs on this machine, or in the estimate.")
    ] = None,
    gpus: Annotated[float, Option(min=0, help="GPUs per run.")] = 0.0,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder for the runs.")] = None,
    sets: Annotated[
        list[str] | None, Option("--set", help="A setting for all runs that does not vary in the sweep.")
    ] = None,
    only: Annotated[
        list[str] | None, Option(help="Run only the cells with this value of a varied setting: method=pin. Repeatable.")
    ] = None,
    seed: Seed = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="List the runs with their calls and what they lack, then exit.")
    ] = False,
) -> None:
    """Run many recipes; finished runs are skipped and interrupted ones are resumed."""
    from pinprompt import api
    from pinprompt.recipe import recipe as recipes

    settings = recipes.parse_overrides(sets or [])
    chosen: dict[str, list[Any]] = {}
    for setting, value in map(recipes.parse_override, only or []):
        chosen.setdefault(setting, []).append(value)
    if dry_run:
        cells = api.plan_sweep(file, out=out, seed=seed, settings=settings, only=chosen)
        rows = []
        for cell in cells:
            varied = ", ".join(f"{name}={value}" for name, value in cell["varied"].items())
            counts = ["no limit" if cell[name] is None else f"{cell[name]:,}" for name in ("prompts", "calls")]
            state = "finished" if cell["done"] else "cannot run" if cell["missing"] else ""
            rows.append((cell["cell"], varied, *counts, state))
        left = sum(not cell["done"] for cell in cells)
        heads = ("cell", "varied", "most prompts", "most calls", "")
        lacking = Counter(sentence for cell in cells for sentence in cell["missing"])
        told = [f"missing for {count} of them: {sentence}" for sentence, count in lacking.items()]
        console.answer({"cells": cells}, table(heads, rows), f"{len(cells)} cells, {left} to run", *told)
        if lacking:
            raise typer.Exit(1)
        return
    swept = api.sweep(
        file, out=out, engine=engine, address=address, workers=workers, gpus=gpus, seed=seed, settings=settings,
        only=chosen, device=options.device, threads=options.threads, notes=console.note,
    )  # fmt: skip
    total, failed = len(swept.cells), swept.failed
    shown = [f"{total - len(failed)} of {total} cells are finished in {swept.folder}"]
    shown += [f"{name}: {outcome}" for name, outcome in failed.items()]
    console.answer({"folder": str(swept.folder), "cells": swept.cells, "failed": len(failed)}, *shown)
    if failed:
        raise typer.Exit(1)


def ls(
    console: Console,
    options: Output,
    folder: Annotated[Path, Argument(help="A folder that holds run folders.")] = Path("runs"),
) -> None:
    """List the runs in a folder, with the prompt that each found."""
    from pinprompt import api
    from pinprompt.wording import by_role

    runs = api.ls(folder)
    rows = [
        (*(str(run[name] or "") for name in ("folder", "task", "method")), by_role(str(run["prompt"] or "")),
         run["score"] or run["state"])
        for run in runs
    ]  # fmt: skip
    console.answer({"runs": runs}, table(("run", "task", "method", "prompt", "score"), rows))


def verify(console: Console, options: Output, runs: Runs) -> None:
    """Check run folders against their checksums; exit code 1 if a file was changed."""
    from pinprompt import api

    checked = api.verify(runs)
    shown = []
    for one in checked:
        count = f"{len(one.findings)} problem" + "s" * (len(one.findings) != 1)
        whole = "unchanged" if one.ok else f"changed ({count})"
        shown.append(f"{one.folder}: {one.state}, {whole}")
        shown += [f"  {finding}" for finding in one.findings]
    console.answer({"runs": [one.data() for one in checked]}, *shown)
    if not all(one.ok for one in checked):
        raise typer.Exit(1)


def compare(
    console: Console,
    options: Output,
    runs: Runs,
    metric: Annotated[str | None, Option(help="Which metric; default: the task's own.")] = None,
    form: Annotated[str, Option("--format", help="text, markdown, csv or latex.")] = "text",
) -> None:
    """Compare runs: mean and standard error over splits and seeds, significance, readability."""
    from pinprompt import api
    from pinprompt.reports import tables

    found = api.compare(runs, metric)
    shown = tables.rich_tables(found) if form == "text" else [tables.write_as(found, form)]
    console.answer(tables.as_json(found), *shown, *(f"note: {note}" for note in found.notes))


def figures(
    console: Console,
    options: Output,
    runs: Runs,
    out: Annotated[Path, Option("--out", "-o", help="Folder for the figures.")] = Path("figures"),
) -> None:
    """Draw learning curves and ablations of runs, as SVG."""
    from pinprompt import api

    written = [str(path) for path in api.figures(runs, out)]
    console.answer({"figures": written}, *written)


def studio(
    console: Console,
    options: Output,
    folder: Annotated[Path, Argument(help="The folder of the runs to show; new runs go there too.")] = Path("runs"),
    port: Annotated[
        int | None, Option(min=0, max=65535, help="Port; default: 8765, or a free port if that is taken.")
    ] = None,
    host: Annotated[
        str, Option(help="The address to listen on; other machines can connect unless it is local.")
    ] = "127.0.0.1",
    no_open: Annotated[bool, Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Open a web page to start, watch, compare and try runs."""
    from pinprompt import api

    def ready(address: str) -> None:
        console.answer({"address": address}, f"pinprompt studio: {address}")
        console.note("Press Ctrl-C to stop; a running search stops too and can be resumed.")
        if not no_open:
            import webbrowser

            webbrowser.open(address)

    waiting = api.studio(folder, host=host, port=port, ready=ready)
    for command in waiting:
        console.note(f"was still queued: {command}")


VERBS = (sweep, ls, verify, compare, figures, studio)
