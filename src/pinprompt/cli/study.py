"""Verbs over many runs: sweep, compare, figures, results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pinprompt.cli.console import Device, Json, Quiet, Seed, Threads, Trust, door
from pinprompt.errors import SettingError

Folders = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.")]


def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep: a TOML file (recipes/ has examples).")],
    engine: Annotated[str, typer.Option("--engine", help="inline: one after the other; ray: side by side.")] = "inline",
    address: Annotated[str | None, typer.Option("--address", help="A Ray cluster; left out: this machine.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Cells side by side on this machine.")] = None,
    gpus: Annotated[float, typer.Option("--gpus", min=0, help="GPUs per cell.")] = 0.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the cells.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="A setting under all cells.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells with an estimate, and stop.")] = False,
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Run many recipes; finished cells are never run again, killed ones resume."""
    with door(as_json, quiet, threads, trust) as console:
        from dataclasses import replace

        from pinprompt.sweeps.grid import read_sweep

        read = read_sweep(file, out, [*(sets or []), *([] if seed is None else [f"seed={seed}"])])
        if threads is not None:
            read = replace(read, threads=threads)
        if dry_run:
            console.answer(*_planned(read, device))
            return

        def tell(cell: Any, what: str) -> None:
            done = sum(other.done for other in read.cells)
            console.note(f"[{done}/{len(read.cells)}] {cell.folder.name}: {what}")

        if engine == "inline":
            from pinprompt.sweeps.engines import run_inline

            outcomes = run_inline(read, tell, device)
        elif engine == "ray":
            from pinprompt.sweeps.engines import run_on_ray

            outcomes = run_on_ray(read, tell, device, address, workers, gpus)
        else:
            raise SettingError(f"there is no engine '{engine}': choose inline or ray")
        failed = {name: outcome for name, outcome in outcomes.items() if outcome.startswith("failed")}
        shown = [f"{len(outcomes) - len(failed)} of {len(outcomes)} cells are finished in {read.out}"]
        shown += [f"{name}: {outcome}" for name, outcome in failed.items()]
        console.answer({"folder": str(read.out), "cells": outcomes, "failed": len(failed)}, *shown)
        if failed:
            raise typer.Exit(1)


def _planned(read: Any, device: str | None) -> tuple[dict[str, Any], Any, str]:
    from rich.table import Table

    from pinprompt.run.estimating import multiplications, rough

    table = Table("cell", "varied", "prompts", "calls", "minutes", "", show_edge=False)
    rows, speed = [], multiplications(device)
    for cell in read.cells:
        figures = rough(cell.recipe, speed)
        varied = ", ".join(f"{name}={value}" for name, value in cell.varied.items())
        counts = ["?" if figures[name] is None else f"{figures[name]:,}" for name in ("prompts", "calls")]
        spent = figures["minutes"]
        minutes = "?" if spent is None else "under 1" if spent < 1 else f"{spent:,.0f}"
        table.add_row(cell.folder.name, varied, *counts, minutes, "finished" if cell.done else "")
        rows.append({"cell": cell.folder.name, "varied": dict(cell.varied), **figures, "done": cell.done})
    left = [row for row in rows if not row["done"]]
    calls, total_minutes = (sum(row[name] or 0 for row in left) for name in ("calls", "minutes"))
    unknown = "" if all(row["minutes"] is not None for row in left) else ", and more for cells marked ?"
    ahead = f"at most {calls:,} calls, roughly {total_minutes / 60:,.1f} hours{unknown}"
    total = f"{len(rows)} cells, {len(left)} to run: {ahead}"
    return {"cells": rows, "calls": calls, "minutes": total_minutes}, table, total


def compare(
    runs: Folders,
    metric: Annotated[str | None, typer.Option("--metric", help="Which metric; left out: the task's own.")] = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown, csv or latex.")] = "text",
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Compare runs: mean and standard error over splits and seeds, significance, readability."""
    with door(as_json, quiet, threads) as console:
        from pinprompt.records import tables
        from pinprompt.records.compare import compare as compare_runs

        found = compare_runs(runs, metric)
        shown = tables.rich_tables(found) if form == "text" else [tables.write_as(found, form)]
        console.answer(tables.as_json(found), *shown, *(f"note: {note}" for note in found.notes))


def figures(
    runs: Folders,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.")] = Path("figures"),
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Draw learning curves and ablations of runs, as SVG and PNG."""
    with door(as_json, quiet, threads) as console:
        from pinprompt.records.figures import write_figures

        written = [str(path) for path in write_figures(runs, out)]
        console.answer({"figures": written}, *written)


def results(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")],
    page: Annotated[Path, typer.Option("--results", help="The page of all results.")] = Path("docs/results.md"),
    readme: Annotated[Path, typer.Option("--readme", help="Has the same block, or not.")] = Path("README.md"),
    name: Annotated[str | None, typer.Option("--name", help="The block's name; left out: the folder's.")] = None,
    command: Annotated[str | None, typer.Option("--command", help="The command that made the runs.")] = None,
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Write a sweep's tables into docs/results.md and the README, so that no number is typed by hand."""
    with door(as_json, quiet, threads) as console:
        from pinprompt.records.pages import regenerate

        changed = [str(path) for path in regenerate(folder, page, readme, name=name, command=command)]
        console.answer({"changed": changed}, *(changed or ["nothing changed"]))


VERBS = (sweep, compare, figures, results)
