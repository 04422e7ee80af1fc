"""A simulation of scheduling, retries and back-off with a thousand workers, stragglers, lost nodes and rate limits.

The scheduling code is the real one: `answers.executors.Ray` and its `Worker`, `sweeps.run_on_ray`,
`remote.client.RemoteClient`. Time, Ray below its interface, and the server are simulated (`simulated.py`).
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.simulated import Clock, Driver, Lost, Server, SimulatedRay, in_place_of_ray
from pinprompt.answers.executors import Job, Ray
from pinprompt.errors import ServerDown
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import BadAnswer, RemoteClient
from pinprompt.remote.http import Response
from pinprompt.run.build import share_of_rate
from pinprompt.sweeps import Cell, Sweep, run_on_ray
from pinprompt.tasks.protocol import TaskInfo
from pinprompt.values import Answers, Draw, Prompt

WORKERS = 1000
NODE = 8
"""Workers on one node, which are lost together."""
LOADING = 30.0
"""Seconds until a new worker has loaded its model."""
REPEATED = 120.0
"""Seconds of work that a cell repeats when it resumes from its last checkpoint."""
MEASURED = Driver(send=3e-4, wait=4e-4, wait_each=9e-7, get=2e-4)
"""CPU seconds of a real Ray driver on two cores of an AMD EPYC (`ray_costs.py`, 2026-11-16)."""


@dataclass
class Fleet:
    """What happens to workers: how long a piece of work takes, and when each node fails."""

    seed: int
    stragglers: float = 0.01
    """The share of pieces of work that take `slow` times as long."""
    slow: float = 20.0
    hours_to_loss: float = 24.0
    """Mean hours until a node is lost."""
    lost: int = 0
    given: float = 0.0
    """Seconds of work assigned so far."""
    nodes: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def seconds(self, usual: float) -> float:
        """How long a piece of work takes this time."""
        factor = self.slow if self._random.random() < self.stragglers else 1.0
        seconds = usual * factor * self._random.lognormvariate(0, 0.2)
        self.given += seconds
        return seconds

    def work(self, clock: Clock, node: int, seconds: float) -> None:
        """Work on a node; raises `Lost` if the node fails first."""
        if node not in self.nodes:
            self.nodes[node] = clock.now + self._random.expovariate(1 / (3600 * self.hours_to_loss))
        left = self.nodes[node] - clock.now
        if left < seconds:
            clock.sleep(max(0.0, left))
            self.lost += 1
            raise Lost(f"node {node} was lost")
        clock.sleep(seconds)


class _SlowTask:
    """A task whose scores take simulated time; a score is the prompt's number, so that the order can be checked."""

    info = TaskInfo("simulated", "simulated")

    def __init__(self, clock: Clock, fleet: Fleet, node: int, seconds: float) -> None:
        self.clock, self.fleet, self.node, self.usual = clock, fleet, node, seconds
        self.ready = False

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        """Wait, then return the prompts' numbers."""
        loading = 0.0 if self.ready else LOADING
        self.fleet.work(self.clock, self.node, loading + self.fleet.seconds(self.usual * len(prompts)))
        self.ready = True
        return [Answers(tuple(rows), [float(prompt.text)]) for prompt in prompts]


def _jobs(texts: Sequence[str]) -> list[Job]:
    return [Job(Prompt(text), (0,), Draw()) for text in texts]


def scoring(
    workers: int = WORKERS, prompts: int = 20_000, request: int | None = None, seconds: float = 2.0,
    driver: Driver = MEASURED, hours_to_loss: float = 24.0, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Prompts scored by workers on Ray, `request` at a time (a step of a search), or all at once if it is None."""
    clock, fleet = Clock(), Fleet(seed, hours_to_loss=hours_to_loss)
    ray = SimulatedRay(clock, slots=workers, driver=driver)
    built = [0]

    def build() -> Any:
        built[0] += 1
        return _SlowTask(clock, fleet, (built[0] - 1) // NODE, seconds)

    texts = [str(number) for number in range(prompts)]
    size, got = request or prompts, list[float]()
    with in_place_of_ray(ray):
        executor = Ray(build, workers, _threads())
        # All models are loaded before timing starts: a search loads them once, whatever it scores.
        list(executor.run(_jobs(["0"] * workers), lambda: False))
        began, busy, fleet.given = clock.now, ray.busy, 0.0
        for start in range(0, prompts, size):
            part = _jobs(texts[start : start + size])
            got += [answers.contents[0] for answers in executor.run(part, lambda: False)]
    spent = clock.now - began
    return {
        "workers": workers,
        "prompts": prompts,
        "at_a_time": size,
        "seconds": spent,
        "prompts_per_second": prompts / spent,
        "share_of_ideal": fleet.given / workers / spent,
        "driver_share": (ray.busy - busy) / spent,
        "lost_workers": fleet.lost,
        "replaced": ray.hired - workers,
        "in_order": got == [float(text) for text in texts],
    }


def sweep(
    cells: Sequence[Cell], hours: Mapping[str, float], workers: int = WORKERS, hours_to_loss: float = 24.0,
    stragglers: float = 0.02, slow: float = 3.0, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """A sweep on Ray whose cells take these hours, by folder name; a cell whose node is lost resumes."""
    clock, fleet = Clock(), Fleet(seed, stragglers, slow, hours_to_loss)
    left: dict[str, float] = {}
    nodes = itertools.count()

    def on_a_node(arguments: tuple[Any, ...], tries: int) -> str:
        name = Path(arguments[1]).name
        left.setdefault(name, fleet.seconds(3600 * hours[name]))
        began = clock.now
        try:
            # Every try has its own node; `scoring` simulates several workers that are lost together.
            fleet.work(clock, next(nodes), LOADING + left[name])
        except Lost:
            left[name] = max(0.0, left[name] - max(0.0, clock.now - began - LOADING - REPEATED))
            raise
        return "finished"

    ray = SimulatedRay(clock, slots=workers, task=on_a_node)
    with in_place_of_ray(ray):
        outcomes = run_on_ray(Sweep("simulated", Path("simulated"), list(cells), 1), lambda *_: None)
    work = [hours[cell.folder.name] for cell in cells]
    ideal = max(sum(work) / workers, max(work))
    return {
        "workers": workers,
        "cells": len(cells),
        "finished": sum(outcome == "finished" for outcome in outcomes.values()),
        "failed": sum(outcome != "finished" for outcome in outcomes.values()),
        "lost_nodes": fleet.lost,
        "restarts": ray.retried,
        "hours_of_work": sum(work),
        "longest_cell_hours": max(work),
        "hours": clock.now / 3600,
        "ideal_hours": ideal,
        "share_of_ideal": ideal * 3600 / clock.now,
    }


class _AskingTask:
    """A task that sends each of its rows to the server, with the real client."""

    info = TaskInfo("asking", "asking")

    def __init__(self, client: RemoteClient, rows: int) -> None:
        self.client, self.rows = client, rows

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        """One request per row; the score is the share of rows without an answer."""
        scores = []
        for prompt in prompts:
            failed = 0
            for _ in range(self.rows):
                try:
                    self.client.complete(prompt.text, 1)
                except BadAnswer:
                    failed += 1
            scores.append(Answers(tuple(rows), [failed / self.rows]))
        return scores


class _Line:
    """One worker's connection to the server; the worker ends when its run has been stopped."""

    def __init__(self, server: Server, wanted: Callable[[], bool]) -> None:
        self.server, self.wanted = server, wanted

    def sleep(self, seconds: float) -> None:
        """Wait on the simulated clock."""
        self.server.clock.sleep(seconds)
        self._check()

    def post(self, path: str, body: dict[str, Any], fresh: bool) -> Response:
        """Send one request."""
        self._check()
        answer = self.server.post(path, body, fresh)
        self._check()
        return answer

    def alive(self) -> bool:
        """Whether the server accepts connections."""
        return self.server.alive()

    def _check(self) -> None:
        if not self.wanted():
            raise Lost("the run was stopped")


def limited(
    workers: int = WORKERS, prompts: int = 1000, rows: int = 4, per_minute: float = 6000.0, told: str = "shared",
    retry_after: bool = True, outage: float = 0.0, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Workers that share a server with a limit on requests per minute.

    `told` is "nothing" if the workers do not know the limit, or "shared" if every worker keeps to its share of it, as a
    run with `requests_per_minute` does. `outage` is the number of seconds for which the server is down, starting at
    half time. A run that the outage stops is resumed when the server is up again.
    """
    clock = Clock()
    away = prompts * rows / per_minute * 60 / 2
    server = Server(clock, per_minute, 0.5, seed, retry_after, (away, away + outage))
    ray = SimulatedRay(clock, slots=workers, apart=False, driver=MEASURED)
    rate = None if told == "nothing" else per_minute
    settings = RemoteSettings(key_env="", requests_per_minute=rate)
    settings = share_of_rate(settings, workers)
    number = itertools.count()

    stopped: list[float] = []

    def build() -> Any:
        mine = len(stopped)
        line = _Line(server, lambda: len(stopped) == mine)
        client = RemoteClient(settings, "simulated", next(number), line.sleep, clock.time)
        client._connections = line  # type: ignore[assignment]  # the simulated server in place of connections
        return _AskingTask(client, rows)

    scores = list[Answers]()
    with in_place_of_ray(ray):
        while len(scores) < prompts:
            executor = Ray(build, workers, _threads())
            part = _jobs(["text"] * (prompts - len(scores)))
            try:
                scores.extend(executor.run(part, lambda: False))
            except ServerDown:
                stopped.append(clock.now)
                clock.at(away + outage, lambda: None)
                clock.run_until(lambda: clock.now >= min(away, stopped[-1]) + outage)
    ideal = prompts * rows / per_minute * 60
    sent = server.answered + server.refused + server.unheard
    return {
        "workers": workers,
        "told": told,
        "retry_after": retry_after,
        "outage_seconds": outage,
        "requests": prompts * rows,
        "minutes": clock.now / 60,
        "ideal_minutes": ideal / 60,
        "share_of_limit": ideal / clock.now,
        "refused_share": server.refused / sent,
        "rows_without_answer": round(sum(answers.contents[0] for answers in scores) * rows),
        "stops": len(stopped),
    }


def measure(workers: int = WORKERS) -> dict[str, Any]:
    """Every simulation except that of the paper's sweep, whose hours come from its recipes."""
    crowds = sorted({1, 16, 100, workers})
    return {
        "scoring_all_at_once": [scoring(count, prompts=200 * count) for count in crowds[:-1]] + [scoring(workers)],
        "scoring_steps_of_16": [scoring(count, prompts=320, request=16) for count in crowds],
        "lost_nodes": scoring(workers, hours_to_loss=0.5, seed=1),
        "limits": [
            limited(workers, told="nothing"),
            limited(workers, told="nothing", retry_after=False),
            limited(workers, told="shared"),
            limited(workers, told="shared", outage=10.0),
            limited(workers, told="shared", outage=300.0),
        ],
    }


def _threads() -> int:
    """The number of threads that the simulated workers set in this process: its current number."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else int(torch.get_num_threads())
