"""A thousand simulated workers around the real scheduling, retrying and backing off; and the clock that they run on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale, scale_page
from benchmarks.rough import elapsed
from benchmarks.simulated import Clock, Driver, Lost, SimulatedRay, in_place_of_ray
from pinprompt.answers.executors import DEATHS, Job, Ray
from pinprompt.errors import ServerDown
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.run.build import share_of_rate
from pinprompt.sweeps import RETRIES, Cell, longest_first, read_sweep
from pinprompt.tasks.protocol import TaskInfo
from pinprompt.values import Draw, Prompt

ROOT = Path(__file__).parents[2]
NO_COST = Driver()


def test_time_passes_only_when_everyone_sleeps() -> None:
    clock, told = Clock(), []

    def sleeper(name: str, seconds: float) -> None:
        for _ in range(2):
            clock.sleep(seconds)
            told.append((name, clock.now))

    clock.start(lambda: sleeper("slow", 3.0))
    clock.start(lambda: sleeper("quick", 1.0))
    clock.run_until(lambda: len(told) == 4)
    assert told == [("quick", 1.0), ("quick", 2.0), ("slow", 3.0), ("slow", 6.0)]
    with pytest.raises(RuntimeError, match="nothing is left"):
        clock.run_until(lambda: False)


def test_work_ahead_of_time_ends_when_it_would() -> None:
    clock = Clock()
    clock.now = 5.0
    assert clock.ahead(lambda: clock.sleep(2.5)) == 7.5
    assert clock.now == 5.0


def test_a_thousand_workers_give_every_score_in_order_though_nodes_are_lost() -> None:
    found = scale.scoring(1000, prompts=5000, hours_to_loss=0.25, seed=1)
    assert found["in_order"]
    assert found["lost_workers"] > 10
    assert found["replaced"] == found["lost_workers"]


def test_workers_share_what_is_sent_at_once_and_a_step_keeps_only_its_prompts_busy() -> None:
    quiet = {"driver": NO_COST, "hours_to_loss": 1e9}
    one, many = (scale.scoring(count, prompts=4000, **quiet) for count in (1, 100))
    assert one["share_of_ideal"] == pytest.approx(1)
    # The last straggler may keep the others waiting for its whole time, 40 seconds and some.
    assert many["seconds"] == pytest.approx(one["seconds"] / 100, abs=100)
    step = scale.scoring(1000, prompts=64, request=16, **quiet)
    assert step["share_of_ideal"] < 16 / 1000
    busy = scale.scoring(100, prompts=4000, driver=Driver(send=0.1), hours_to_loss=1e9)
    assert busy["prompts_per_second"] <= 10, "a driver that takes a tenth of a second sends ten in a second"


def test_the_same_seed_gives_the_same_simulation() -> None:
    assert scale.scoring(50, prompts=500, seed=3) == scale.scoring(50, prompts=500, seed=3)
    small = {"workers": 20, "prompts": 20, "rows": 2, "per_minute": 60.0, "told": "nothing"}
    assert scale.limited(**small) == scale.limited(**small)


def test_prompts_that_kill_every_worker_stop_the_run() -> None:
    class Deadly:
        info = TaskInfo("deadly", "deadly")

        def ask(self, *_: object) -> list[Any]:
            raise Lost("gone")

    ray = SimulatedRay(Clock(), slots=4)
    with in_place_of_ray(ray):
        executor = Ray(Deadly, 4)  # type: ignore[arg-type]
        with pytest.raises(ServerDown, match=f"{DEATHS} workers died"):
            list(executor.run([Job(Prompt("a"), (0,), Draw())], lambda: False))
    assert ray.hired == 4 + DEATHS - 1


@pytest.fixture(scope="module")
def paper() -> list[Cell]:
    parts = ("classification", "bootstrap", "calibrated")
    return [cell for part in parts for cell in read_sweep(ROOT / f"recipes/paper/table1-{part}.toml").cells]


def test_a_paper_size_sweep_finishes_on_a_thousand_workers(paper: list[Cell]) -> None:
    assert len(paper) == 13 * 7 * 5 * 3
    hours = {cell.folder.name: 0.5 + (number % 7) for number, cell in enumerate(paper)}
    found = scale.sweep(paper, hours, 1000)
    assert (found["finished"], found["failed"]) == (len(paper), 0)
    assert found["restarts"] == found["lost_nodes"] > 0
    assert found["hours"] >= found["ideal_hours"]
    calm = scale.sweep(paper, hours, 1000, hours_to_loss=1e9, stragglers=0)
    assert calm["hours"] < found["hours"]


def test_a_cell_that_no_node_survives_is_given_up_and_the_others_finish(paper: list[Cell]) -> None:
    few = paper[:3]
    hours = {cell.folder.name: cost for cell, cost in zip(few, (1.0, 10_000.0, 1.0), strict=True)}
    found = scale.sweep(few, hours, 3, hours_to_loss=24.0, stragglers=0)
    assert (found["finished"], found["failed"]) == (2, 1)
    assert found["restarts"] >= RETRIES


def test_the_longest_cells_begin_first(paper: list[Cell]) -> None:
    order = [cell.recipe.method for cell in longest_first(paper)]
    assert order[0] == "rlprompt", "it has twice the steps of pin"
    assert order[-1] in ("manual", "instructions", "in-context")
    # 3 and 3, then 2 and 2, then 2.
    assert elapsed([2, 2, 2, 3, 3], 2) == 7
    assert elapsed([1, 1, 4], 2) == 4


def test_workers_that_share_a_rate_are_not_refused() -> None:
    shared = scale.limited(1000, prompts=1000, rows=2, told="shared")
    assert (shared["rows_without_answer"], shared["stops"]) == (0, 0)
    assert shared["refused_share"] < 0.01
    assert shared["share_of_limit"] > 0.9
    loud = scale.limited(200, prompts=200, rows=2, per_minute=1200.0, told="nothing")
    assert loud["refused_share"] > 0.5


def test_a_short_outage_is_waited_for_and_a_long_one_stops_the_run_which_resumes() -> None:
    small = {"workers": 50, "prompts": 100, "rows": 4, "per_minute": 600.0}
    short, long = (scale.limited(**small, outage=seconds) for seconds in (5.0, 600.0))
    assert (short["stops"], short["rows_without_answer"]) == (0, 0)
    assert long["stops"] >= 1
    assert long["rows_without_answer"] == 0
    assert long["minutes"] > 10


def test_a_worker_keeps_its_share_of_the_rate() -> None:
    assert share_of_rate(RemoteSettings(requests_per_minute=600), 8).requests_per_minute == 75
    assert share_of_rate(RemoteSettings(), 8).requests_per_minute is None


def test_the_simulation_leaves_no_trace() -> None:
    environment, modules = dict(os.environ), {name: sys.modules.get(name) for name in ("ray", "ray.cloudpickle")}
    scale.scoring(2, prompts=4)
    assert dict(os.environ) == environment
    assert {name: sys.modules.get(name) for name in modules} == modules


def test_the_page_of_costs_is_up_to_date() -> None:
    page = scale_page.PAGE.read_text("utf-8")
    # The simulations of a whole page take a minute: those of the server are tested above.
    made = {"costs": scale_page.costs(), "small": scale_page.small()}
    made |= {"sweep": scale_page.swept(), "breaking": scale_page.breaking()}
    tables = {name: "\n".join(lines) for name, lines in made.items()}
    assert scale_page.written(page, tables) == page, "run `python -m benchmarks.scale_page`"
