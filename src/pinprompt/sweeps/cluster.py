"""Cells side by side on Ray, embedded on this machine or on a cluster."""

from __future__ import annotations

import os
from typing import Any

from pinprompt.errors import MissingExtra, SettingError
from pinprompt.sweeps.grid import Cell, Sweep
from pinprompt.sweeps.inline import Tell

RETRIES = 5
"""How often a cell whose worker or node died is started again; it resumes from its own folder."""

LAST_BREATH = 60.0
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
    from pathlib import Path

    from pinprompt import recipe as recipes
    from pinprompt.sweeps.grid import Cell
    from pinprompt.sweeps.inline import run_cell

    outcome = run_cell(Cell(recipes.validate(recipe), Path(folder), {}), device, threads, LAST_BREATH)
    # Only unfinished cells are sent here: an earlier try finished this one, and its node was lost before it said so.
    return "finished" if outcome == "already finished" else outcome
