"""A cell whose folder another process still has: told at once, or waited for."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from pinprompt import sweeps
from pinprompt.files import FolderLock
from pinprompt.recipe.recipe import resolve
from pinprompt.sweeps import Cell, run_cell
from tests.house.tiny import make_lm


def short_cell(folder: Path) -> Cell:
    recipe = resolve(
        {
            "method": "random",
            "task": {"kind": "custom", "function": "tests.sweeps.slow_task:slow_vowels"},
            "policy": {"model": str(make_lm(folder)), "length": 2, "k": "none"},
            "random": {"prompts": 4},
        }
    )
    cell = Cell(recipe, folder / "cell", {})
    cell.folder.mkdir()
    return cell


def test_a_folder_in_use_fails_the_cell(tmp_path: Path) -> None:
    cell = short_cell(tmp_path)
    with closing(FolderLock(cell.folder)):
        assert "is in use by process" in run_cell(cell, "cpu", 1)
    assert run_cell(cell, "cpu", 1) == "finished"


def test_a_cell_waits_for_a_process_that_is_about_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = short_cell(tmp_path)
    dying, naps = FolderLock(cell.folder), iter(range(3))

    def nap(seconds: float) -> None:
        if next(naps) == 2:
            dying.close()

    monkeypatch.setattr(sweeps, "time", SimpleNamespace(monotonic=time.monotonic, sleep=nap))
    assert run_cell(cell, "cpu", 1, patience=900) == "finished"
    assert next(naps, None) is None  # it looked three times in vain
    assert run_cell(cell, "cpu", 1, patience=900) == "already finished"
