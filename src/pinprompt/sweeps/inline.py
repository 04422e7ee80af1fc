"""Cells one after the other in this process."""

from __future__ import annotations

import time
from collections.abc import Callable

from pinprompt import running
from pinprompt.errors import FolderInUse, PinpromptError
from pinprompt.sweeps.grid import Cell, Sweep

Tell = Callable[[Cell, str], None]


def run_cell(cell: Cell, device: str | None, threads: int, patience: float = 0.0) -> str:
    """Run, resume or skip one cell; returns what became of it. A cell that cannot run does not end the sweep.

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
