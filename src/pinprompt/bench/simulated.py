"""A clock that no one waits for, and a Ray and a server that run on it: what `bench scale` puts around the real code.

Work that others can influence on its way is done in threads, of which one runs at a time: a thread gives the turn back
when it sleeps on the clock, and the clock moves to whoever wakes first. Other work is done ahead of time, and its end
put on the clock. So a day of a thousand workers takes seconds, and is the same every time.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from pinprompt.remote.http import NoAnswer, Response


class Clock:
    """Simulated time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._turn_over = _shut()
        self._ahead = False

    def time(self) -> float:
        """The time, as code that asks a clock gets it."""
        return self.now

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time; of two things at the same time, the one that was asked for first."""
        self._number += 1
        heapq.heappush(self._events, (when, self._number, action))

    def sleep(self, seconds: float) -> None:
        """What work calls in place of `time.sleep`."""
        if self._ahead:
            self.now += seconds
            return
        woken = _shut()
        self.at(self.now + seconds, lambda: self._resume(woken))
        self._turn_over.release()
        woken.acquire()

    def start(self, work: Callable[[], None]) -> None:
        """Run work in a thread of its own, from now on, whenever it is its turn."""
        begin = _shut()

        def body() -> None:
            begin.acquire()
            try:
                work()
            finally:
                self._turn_over.release()

        threading.Thread(target=body, daemon=True).start()
        self.at(self.now, lambda: self._resume(begin))

    def ahead(self, work: Callable[[], None]) -> float:
        """Do work at once, with the time that it sleeps on a clock of its own; returns when it ends."""
        now, self._ahead = self.now, True
        try:
            work()
            return self.now
        finally:
            self.now, self._ahead = now, False

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let time pass until something is so; it is for the one thread that `start` did not start."""
        while not done():
            if not self._events:
                raise RuntimeError("nothing is left to wait for in the simulation")
            when, _, action = heapq.heappop(self._events)
            self.now = max(self.now, when)
            action()

    def _resume(self, thread: threading.Lock) -> None:
        thread.release()
        self._turn_over.acquire()


def _shut() -> threading.Lock:
    """A gate that one thread opens for another; a plain lock, which is many times faster than a semaphore."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Lost(BaseException):
    """A worker that is gone; no code of a worker gets to handle it."""


class RayError(Exception):
    """What the driver is told of it."""


@dataclass(frozen=True)
class Driver:
    """What the driver of a real Ray spends, in seconds: `tools/ray_costs.py` measures it."""

    send: float = 0.0
    wait: float = 0.0
    """A call of `ray.wait`, and more for every reference that it is given."""
    wait_each: float = 0.0
    get: float = 0.0


@dataclass(eq=False)
class Reference:
    """What a call on Ray gives at once."""

    value: Any = None
    error: RayError | None = None
    done: bool = False


@dataclass(eq=False)
class _Job:
    """A task on its way: a cell of a sweep."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    reference: Reference
    tries: int = 0


@dataclass
class SimulatedRay:
    """The part of Ray's interface that `scoring/executors.py` and `sweeps.py` use, on a simulated clock.

    Actors are instances of the real class, whose calls run in threads. Tasks are not run: `task` is called in their
    place, with the arguments and the number of the try, and sleeps on the clock as long as the task would take. It
    raises `Lost` where the node dies; Ray starts such a task again, up to `max_retries` times. At most `slots` tasks
    run at once. `apart`: no worker can influence another, so that no threads are needed.
    """

    clock: Clock
    slots: int = 1
    apart: bool = True
    driver: Driver = field(default_factory=Driver)
    task: Callable[[tuple[Any, ...], int], Any] | None = None
    retried: int = 0
    hired: int = 0
    busy: float = 0.0
    """Seconds that the driver spent."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __post_init__(self) -> None:
        self._parcels: list[Any] = []
        self._queue: deque[_Job] = deque()
        self._running = self._ended = 0
        self.cloudpickle = SimpleNamespace(dumps=self._dumps, loads=self._loads)

    def is_initialized(self) -> bool:
        """Somebody else has started it, so nobody stops it."""
        return True

    def cluster_resources(self) -> dict[str, float]:
        """What the cluster has."""
        return {"CPU": float(self.slots)}

    def remote(self, what: Any) -> Any:
        """A class of actors, or a function that becomes a task."""
        make = self._actor if isinstance(what, type) else self._submit
        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(remote=lambda *given: make(what, options, given))
        )

    def wait(self, references: Sequence[Reference], num_returns: int) -> tuple[list[Reference], list[Reference]]:
        """Wait until so many are there; the others are not named, since nobody asks."""
        self._spend(self.driver.wait + self.driver.wait_each * len(references))
        ready = [one for one in references if one.done]
        while len(ready) < num_returns:
            before = self._ended
            self.clock.run_until(lambda before=before: self._ended > before)  # type: ignore[misc]
            ready = [one for one in references if one.done]
        return ready[:num_returns], []

    def get(self, reference: Reference) -> Any:
        """A value that is there, or the error in its place."""
        self._spend(self.driver.get)
        if reference.error is not None:
            raise reference.error
        return reference.value

    def kill(self, actor: Any) -> None:
        """An actor is not wanted any more."""

    def _spend(self, seconds: float) -> None:
        """The driver is busy; what happens meanwhile happens."""
        self.busy += seconds
        until = self.clock.now + seconds
        reached: list[bool] = []
        self.clock.at(until, lambda: reached.append(True))
        self.clock.run_until(lambda: bool(reached))

    def _dumps(self, value: Any) -> bytes:
        self._parcels.append(value)
        return str(len(self._parcels) - 1).encode()

    def _loads(self, parcel: bytes) -> Any:
        return self._parcels[int(parcel)]

    def _actor(self, kind: type, options: dict[str, Any], given: tuple[Any, ...]) -> Any:
        self.hired += 1
        actor = kind(*given)

        def method(name: str) -> Any:
            def call(*arguments: Any) -> Reference:
                self._spend(self.driver.send)
                reference = Reference()
                self._begin(
                    partial(_into, reference, lambda: getattr(actor, name)(*arguments)), partial(self._end, reference)
                )
                return reference

            return SimpleNamespace(remote=call)

        return SimpleNamespace(score=method("score"), evaluate=method("evaluate"))

    def _submit(self, _: Any, options: dict[str, Any], given: tuple[Any, ...]) -> Reference:
        self._spend(self.driver.send)
        job = _Job(given, options, Reference())
        self._queue.append(job)
        self._fill()
        return job.reference

    def _fill(self) -> None:
        while self._queue and self._running < self.slots:
            job = self._queue.popleft()
            self._running += 1
            job.tries += 1
            assert self.task is not None, "a simulation with tasks says what they do"
            tried = Reference()
            self._begin(
                partial(_into, tried, partial(self.task, job.arguments, job.tries)), partial(self._ran, job, tried)
            )

    def _begin(self, work: Callable[[], None], end: Callable[[], None]) -> None:
        """Do work from now on, and something more when it ends."""
        if self.apart:
            self.clock.at(self.clock.ahead(work), end)
        else:
            self.clock.start(partial(_both, work, end))

    def _end(self, reference: Reference) -> None:
        reference.done = True
        self._ended += 1

    def _ran(self, job: _Job, tried: Reference) -> None:
        """A task has ended: start it again where its node was lost, and another one in any case."""
        self._running -= 1
        if tried.error is not None and job.tries <= job.options["max_retries"]:
            self.retried += 1
            self._queue.appendleft(job)
        else:
            job.reference.value, job.reference.error = tried.value, tried.error
            self._end(job.reference)
        self._fill()


def _both(first: Callable[[], None], then: Callable[[], None]) -> None:
    first()
    then()


def _into(reference: Reference, work: Callable[[], Any]) -> None:
    try:
        reference.value = work()
    except Lost as error:
        reference.error = RayError(str(error))


@contextlib.contextmanager
def in_place_of_ray(ray: SimulatedRay) -> Iterator[None]:
    """Within this, `import ray` gives the simulation, whether Ray is installed or not; the environment stays."""
    names = {"ray": ray, "ray.cloudpickle": ray.cloudpickle}
    before, environment = {name: sys.modules.get(name) for name in names}, dict(os.environ)
    sys.modules.update(names)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)


class Server:
    """A server with a limit of requests a minute, like a bucket that fills steadily; what is too much is refused."""

    def __init__(
        self, clock: Clock, per_minute: float, seconds: float, seed: int, tells: bool, down: tuple[float, float]
    ) -> None:
        self.clock, self.per_minute, self.seconds, self.tells, self.down = clock, per_minute, seconds, tells, down
        self.answered = self.refused = self.unheard = 0
        self._random = random.Random(seed)  # nosec B311
        self._left, self._since = per_minute / 60, 0.0

    def post(self, path: str, body: dict[str, Any], fresh: bool) -> Response:
        """One request, as `remote.http.Door.post` has it."""
        if self.down[0] <= self.clock.now < self.down[1]:
            self.unheard += 1
            self.clock.sleep(0.05)
            raise NoAnswer("connection refused", billed=False)
        rate = self.per_minute / 60
        # A second's worth is the most that it saves up.
        self._left = min(rate, self._left + (self.clock.now - self._since) * rate)
        self._since = self.clock.now
        if self._left < 1:
            self.refused += 1
            self.clock.sleep(0.05)
            return Response(429, b"slow down", "1" if self.tells else None)
        self._left -= 1
        self.clock.sleep(self.seconds * self._random.lognormvariate(0, 0.5))
        self.answered += 1
        usage = {"prompt_tokens": 70, "completion_tokens": 1}
        return Response(200, json.dumps({"choices": [{"text": "great"}], "usage": usage}).encode(), None)

    def alive(self) -> bool:
        """Does anybody listen?"""
        return not self.down[0] <= self.clock.now < self.down[1]
