"""A cell whose folder another process still has: told at once, or waited for."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pinprompt import sweeps
from pinprompt.files import FolderLock
from pinprompt.folder import identity as identities
from pinprompt.folder.folder import verify
from pinprompt.recipe.recipe import resolve
from pinprompt.sweeps import Cell, run_cell
from tests.house.tiny import make_lm


def short_cell(folder: Path) -> Cell:
    recipe = resolve(
        {
            "method": "random",
            "task": {"kind": "custom", "function": "tests.sweeps.slow_task:slow_vowels"},
            "policy": {"model": str(make_lm(folder)), "length": 2, "k": "none"},
            "untrained": {"prompts": 4},
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


@pytest.mark.parametrize("state", ["no report", "no checksums", "an empty result", "a changed result"])
def test_a_cell_is_done_only_when_it_is_whole(tmp_path: Path, state: str) -> None:
    cell = short_cell(tmp_path)
    assert run_cell(cell, "cpu", 1) == "finished"
    assert cell.done
    whole = {path.name: path.read_bytes() for path in cell.folder.iterdir() if path.is_file()}
    if state in ("no report", "no checksums"):  # as after a kill between the result and what follows it
        identity = identities.read(cell.folder)
        assert identity is not None
        identities.write(cell.folder, replace(identity, files=None))
    if state == "no report":
        (cell.folder / "report.html").unlink()
    if state == "an empty result":
        (cell.folder / "result.json").write_bytes(b"")
    if state == "a changed result":
        (cell.folder / "result.json").write_bytes(whole["result.json"].replace(b'"calls": ', b'"calls": 1', 1))
    assert not cell.done
    assert run_cell(cell, "cpu", 1) == "finished"
    assert cell.done
    assert verify(cell.folder).ok
    before, after = json.loads(whole["result.json"]), json.loads((cell.folder / "result.json").read_bytes())
    assert before["prompt"] == after["prompt"]
    assert before["calls"] == after["calls"]
