"""Cells one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable

from pinprompt import running
from pinprompt.errors import PinpromptError
from pinprompt.sweeps.grid import Cell, Sweep

Tell = Callable[[Cell, str], None]


def run_cell(cell: Cell, device: str | None, threads: int) -> str:
    """Run, resume or skip one cell; returns what became of it. A cell that cannot run does not end the sweep."""
    if cell.done:
        return "already finished"
    try:
        running.run(cell.recipe, cell.folder, device=device, threads=threads, resume=True)
    except PinpromptError as error:
        return f"failed: {error}"
    return "finished"


def run_inline(sweep: Sweep, tell: Tell, device: str | None = None) -> dict[str, str]:
    """Run a sweep's cells in order; Ctrl-C leaves everything resumable."""
    outcomes = {}
    for cell in sweep.cells:
        tell(cell, "starts")
        outcomes[cell.folder.name] = run_cell(cell, device, sweep.threads)
        tell(cell, outcomes[cell.folder.name])
    return outcomes
