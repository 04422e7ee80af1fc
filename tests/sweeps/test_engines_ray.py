"""Sweeps on a real Ray: embedded, with a worker and then the driver killed; and on two nodes, one of them lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from children import child, end, family, gone, wait_until
from patient_ray import started

from pinprompt.reports.compare import compare
from pinprompt.reports.tables import comma_separated
from pinprompt.sweeps import Sweep, read_sweep, run_inline, run_on_ray
from tests.house.tiny import make_lm
from tests.sweeps.slow_task import HOLD

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
ROOT = Path(__file__).parents[2]


def write_sweep(folder: Path, seeds: int) -> Path:
    path = folder / "sweep.toml"
    path.write_text(
        f"""
[base]
method = "pin"
[base.task]
kind = "custom"
function = "tests.sweeps.slow_task:slow_vowels"
[base.policy]
model = "{make_lm(folder)}"
length = 3
k = "none"
hidden = 16
[base.q_learning]
steps = 4
prompts = 8
batch = 16
eval_every = 2
[base.scoring]
memo = false
finalists = 2
[grid]
method = ["pin", "pin-no-fluency"]
seed = {list(range(seeds))}
"""
    )
    return path


def answers(sweep: Sweep) -> dict[str, Any]:
    """What each cell found; times aside."""
    found = {}
    for cell in sweep.cells:
        result = json.loads((cell.folder / "result.json").read_text())
        found[cell.folder.name] = (result["prompt"], result["score"], result["calls"], result["top"])
    return found


def paths() -> str:
    """Where Ray's workers find this tree."""
    return os.pathsep.join([str(ROOT), str(ROOT / "src")])


@pytest.mark.timeout(3600)
def test_a_worker_and_then_the_driver_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, seeds=6)
    whole = read_sweep(path, tmp_path / "inline")
    assert len(whole.cells) == 12
    assert set(run_inline(whole, lambda cell, what: None, "cpu").values()) == {"finished"}

    torn = read_sweep(path, tmp_path / "ray")
    command = [sys.executable, "-m", "tests.sweeps.drive", str(path), str(tmp_path / "ray")]
    environment = {**os.environ, "PYTHONPATH": paths(), "RAY_DEDUP_LOGS": "0", HOLD: str(tmp_path / "hold")}
    with child(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as driver:
        cluster: list[psutil.Process] = []
        try:
            # Two cells are at work and stand still, until the one's worker is killed and the rest are let go.
            (tmp_path / "hold").touch()
            wait_until(lambda: len(at_work(torn)) == 2, "two cells are at work", driver)
            victim = at_work(torn)[0]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in at_work(torn) and len(at_work(torn)) == 2, "its cell goes on", driver)
            (tmp_path / "hold").unlink()
            wait_until(lambda: any(cell.done for cell in torn.cells), "a cell is done", driver)
            (tmp_path / "hold").touch()
            cluster = family(driver.pid)
            driver.kill()
            wait_until(lambda: all(map(gone, cluster)), "Ray has ended with its driver")
        finally:
            end(cluster)
    assert not all(cell.done for cell in torn.cells), "the driver was to be killed mid-way"
    (tmp_path / "hold").unlink()
    with child(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as again:
        said, _ = again.communicate()
    assert again.returncode == 0
    assert "failed" not in said
    assert all(cell.done for cell in torn.cells)
    assert answers(torn) == answers(whole)
    tables = [comma_separated(compare([sweep.out])) for sweep in (torn, whole)]
    assert tables[0] == tables[1]


def at_work(sweep: Sweep) -> list[int]:
    """The processes that hold cells which have begun and are not done."""
    found = []
    for cell in sweep.cells:
        words = (cell.folder / ".lock").read_text().split() if (cell.folder / ".lock").exists() else []
        if words and (cell.folder / "events.jsonl").exists() and not cell.done and psutil.pid_exists(int(words[-1])):
            found.append(int(words[-1]))
    return found


@pytest.mark.timeout(3600)
def test_two_nodes_and_a_lost_one_costs_only_its_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    path = write_sweep(tmp_path, seeds=2)
    sweep = read_sweep(path, tmp_path / "cluster")
    monkeypatch.setenv("PYTHONPATH", paths())
    cluster = Cluster()
    try:
        started(lambda: cluster.add_node(num_cpus=1, include_dashboard=False))
        second = started(lambda: cluster.add_node(num_cpus=1))
        started(lambda: ray.init(address=cluster.address, log_to_driver=False))
        lost: list[str] = []

        def tell(cell: Any, what: str) -> None:
            if not lost:
                lost.append(cell.folder.name)
                cluster.remove_node(second, allow_graceful=False)

        outcomes = run_on_ray(sweep, tell, device="cpu", address=cluster.address)
        assert lost
        assert set(outcomes.values()) == {"finished"}, outcomes
        assert all(cell.done for cell in sweep.cells)
    finally:
        ray.shutdown()
        cluster.shutdown()
