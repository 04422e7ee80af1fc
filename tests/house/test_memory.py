"""When a run has ended, its models are freed at once, so a sweep of many runs needs no more memory than one run."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from pinprompt.run import running
from tests.house.race_child import in_heats, raced


@pytest.mark.parametrize("method", ["race", "random", "pin", "guided", "grips", "autoprompt", "pez", "soft-prompt"])
def test_nothing_that_a_run_leaves_behind_waits_for_the_collector(lm_folder: Path, tmp_path: Path, method: str) -> None:
    """Its budget ends in the middle of a batch, so that exceptions with their frames are among what could be kept."""
    heats = {"race": 2 if method in ("random", "pin") else 0}
    recipe = raced(lm_folder) if method == "race" else in_heats(lm_folder, method, scoring=heats)
    running.run(recipe, tmp_path / "first", device="cpu", threads=1)  # imports leave cycles of their own
    gc.collect()
    gc.disable()
    try:
        running.run(recipe, tmp_path / "run", device="cpu", threads=1)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = {type(one).__qualname__ for one in gc.garbage if isinstance(one, torch.nn.Module | torch.Tensor)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == set()
