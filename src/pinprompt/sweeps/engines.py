"""How the cells of a sweep are run: one after the other in this process, or side by side on Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt.errors import FolderInUse, MissingExtra, PinpromptError, SettingError
from pinprompt.run import running
from pinprompt.sweeps.grid import Cell, Sweep

Tell = Callable[[Cell, str], None]


@dataclass(frozen=True)
class Swept:
    """What became of each cell, by its folder's name: 'finished', 'already finished' or 'failed: ...'."""

    folder: Path
    cells: dict[str, str]

    @property
    def failed(self) -> dict[str, str]:
        """The cells that could not be run, each with the reason."""
        return {name: outcome for name, outcome in self.cells.items() if outcome.startswith("failed")}


def run_sweep(
    sweep: Sweep,
    notes: Callable[[str], None],
    *,
    engine: str = "inline",
    device: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_cell: float = 0.0,
) -> Swept:
    """Run a sweep's cells with an engine, with a note whenever one ends."""

    def tell(cell: Cell, what: str) -> None:
        done = sum(other.done for other in sweep.cells)
        notes(f"[{done}/{len(sweep.cells)}] {cell.folder.name}: {what}")

    if engine == "inline":
        return Swept(sweep.out, run_inline(sweep, tell, device))
    if engine == "ray":
        return Swept(sweep.out, run_on_ray(sweep, tell, device, address, workers, gpus_per_cell))
    raise SettingError(f"there is no engine '{engine}': choose inline or ray")


def run_cell(cell: Cell, device: str | None, threads: int, patience: float = 0.0) -> str:
    """Run, resume or skip one cell; returns its state. A cell that cannot run does not end the sweep.

    `patience` is how many seconds it waits for a process that still has the cell's folder.
    """
    until = time.monotonic() + patience
    while not cell.done:
        try:
            running.run(cell.recipe, cell.folder, device=device, threads=threads, resume=True)
        except FolderInUse as error:
            if time.monotonic() >= until:
                return f"failed: {error}"
            time.sleep(0.2)
        except PinpromptError as error:
            return f"failed: {error}"
        else:
            return "finished"
    return "already finished"


def run_inline(sweep: Sweep, tell: Tell, device: str | None = None) -> dict[str, str]:
    """Run a sweep's cells in order; Ctrl-C leaves everything resumable."""
    outcomes = {}
    for cell in sweep.cells:
        tell(cell, "starts")
        outcomes[cell.folder.name] = run_cell(cell, device, sweep.threads)
        tell(cell, outcomes[cell.folder.name])
    return outcomes


RETRIES = 5
"""How often a cell whose worker or node died is started again; it resumes from its own folder."""

LAST_BREATH = 300.0
"""Seconds that a cell which is started again waits for the process of its lost node, which may not have noticed yet."""


def run_on_ray(
    sweep: Sweep,
    tell: Tell,
    device: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_cell: float = 0.0,
) -> dict[str, str]:
    """Run a sweep's cells on Ray; each declares its threads as CPUs, so that cells do not fight over cores.

    On a cluster the sweep's folder must be one that every node sees.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "--engine ray") from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not ray.is_initialized():
        options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "warning"}
        try:
            if address:
                ray.init(address=address, log_to_driver=False, logging_level="warning")
            else:
                ray.init(num_cpus=workers and workers * sweep.threads, **options)
        except ConnectionError as error:
            raise SettingError(
                f"no Ray cluster answers at '{address}': {error}; leave --address out to use this machine"
            ) from None
    whole = Sweep(sweep.name, sweep.out.resolve(), sweep.cells, sweep.threads)
    remote = ray.remote(_run_cell).options(
        num_cpus=sweep.threads, num_gpus=gpus_per_cell, max_retries=RETRIES, retry_exceptions=False
    )
    outcomes: dict[str, str] = {}
    waiting: dict[Any, Cell] = {}
    for cell in whole.cells:
        if cell.done:
            outcomes[cell.folder.name] = "already finished"
            tell(cell, "already finished")
        else:
            recipe = cell.recipe.model_dump(mode="json")
            waiting[remote.remote(recipe, str(cell.folder.resolve()), device, sweep.threads)] = cell
    try:
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            cell = waiting.pop(ready[0])
            outcomes[cell.folder.name] = _outcome(ray, ready[0])
            tell(cell, outcomes[cell.folder.name])
    except KeyboardInterrupt:
        for reference in waiting:
            ray.cancel(reference, force=True)
        raise
    return outcomes


def _outcome(ray: Any, reference: Any) -> str:
    try:
        return str(ray.get(reference))
    except ray.exceptions.RayError as error:
        return f"failed: {str(error).splitlines()[0]}"


def _run_cell(recipe: dict[str, Any], folder: str, device: str | None, threads: int) -> str:
    """What runs on a worker: the same as inline, in a process of its own."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    from pinprompt.recipe import recipe as recipes

    outcome = run_cell(Cell(recipes.validate(recipe), Path(folder), {}), device, threads, LAST_BREATH)
    # Only unfinished cells are sent here: an earlier try finished this one, and its node was lost before it said so.
    return "finished" if outcome == "already finished" else outcome
