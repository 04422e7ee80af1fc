"""Sweeps on a real Ray: embedded, with a worker and then the driver killed; and on two nodes, one of them lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pinprompt.records.compare import compare
from pinprompt.records.tables import comma_separated
from pinprompt.sweeps.engines import run_inline, run_on_ray
from pinprompt.sweeps.grid import Sweep, read_sweep
from tests.house.tiny import make_lm

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
finalists = 2
[base.scoring]
memo = false
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


@pytest.mark.timeout(500)
def test_a_worker_and_then_the_driver_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, seeds=6)
    whole = read_sweep(path, tmp_path / "inline")
    assert len(whole.cells) == 12
    assert set(run_inline(whole, lambda cell, what: None, "cpu").values()) == {"finished"}

    torn = read_sweep(path, tmp_path / "ray")
    command = [sys.executable, "-m", "tests.sweeps.drive", str(path), str(tmp_path / "ray")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_DEDUP_LOGS": "0"}
    driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: any((cell.folder / "events.jsonl").exists() for cell in torn.cells), driver)
    os.kill(worker_of(torn), signal.SIGKILL)
    wait_until(lambda: sum(cell.done for cell in torn.cells) >= 3, driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not all(cell.done for cell in torn.cells), "the driver was to be killed mid-way"
    time.sleep(2)  # Ray takes a moment to end the workers of a dead driver
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=300, text=True)
    assert again.returncode == 0, again.stderr
    assert "failed" not in again.stdout
    assert all(cell.done for cell in torn.cells)
    assert answers(torn) == answers(whole)
    tables = [comma_separated(compare([sweep.out])) for sweep in (torn, whole)]
    assert tables[0] == tables[1]


def worker_of(sweep: Sweep) -> int:
    """The process that holds a cell which has begun and is not done."""
    for cell in sweep.cells:
        lock = cell.folder / ".lock"
        if lock.exists() and not cell.done:
            return int(lock.read_text().split()[-1])
    raise AssertionError("no cell is at work")


def wait_until(ready: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while not ready():
        assert process.poll() is None, process.stderr and process.stderr.read().decode()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(400)
def test_two_nodes_and_a_lost_one_costs_only_its_cells(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    path = write_sweep(tmp_path, seeds=2)
    sweep = read_sweep(path, tmp_path / "cluster")
    os.environ["PYTHONPATH"] = str(ROOT)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
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
