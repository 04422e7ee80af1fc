"""A simulated clock, and a simulated Ray and server that run on it, for `scale.py`.

Work that other workers can influence while it runs is done in threads, of which one runs at a time. A thread yields
when it sleeps on the clock, and the clock advances to the earliest wake-up. Other work is done immediately, and its end
is scheduled on the clock. So a day of a thousand workers takes seconds to simulate and is the same every time.
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
        """The simulated time, for code that takes a clock function."""
        return self.now

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action; actions at the same time run in the order in which they were scheduled."""
        self._number += 1
        heapq.heappush(self._events, (when, self._number, action))

    def sleep(self, seconds: float) -> None:
        """Sleep on the simulated clock, in place of `time.sleep`."""
        if self._ahead:
            self.now += seconds
            return
        woken = _shut()
        self.at(self.now + seconds, lambda: self._resume(woken))
        self._turn_over.release()
        woken.acquire()

    def start(self, work: Callable[[], None]) -> None:
        """Run work in a separate thread, starting now, whenever it is its turn."""
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
        """Do work immediately without moving the clock; returns the simulated time at which it ends."""
        now, self._ahead = self.now, True
        try:
            work()
            return self.now
        finally:
            self.now, self._ahead = now, False

    def run_until(self, done: Callable[[], bool]) -> None:
        """Advance the clock until `done()` is true; only for the main thread, which `start` did not start."""
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
    """A closed gate that one thread opens for another; a plain lock is many times faster than a semaphore."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Lost(BaseException):
    """A worker was lost; a BaseException, so that no worker code handles it."""


class RayError(Exception):
    """The error that the driver receives for a lost worker."""


@dataclass(frozen=True)
class Driver:
    """CPU seconds that a real Ray driver needs per operation, as `ray_costs.py` measures them."""

    send: float = 0.0
    wait: float = 0.0
    """One call of `ray.wait`; `wait_each` is added for every reference in the call."""
    wait_each: float = 0.0
    get: float = 0.0


@dataclass(eq=False)
class Reference:
    """The reference that a Ray call returns immediately."""

    value: Any = None
    error: RayError | None = None
    done: bool = False


@dataclass(eq=False)
class _Job:
    """A submitted task: a cell of a sweep."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    reference: Reference
    tries: int = 0


@dataclass
class SimulatedRay:
    """The part of Ray's interface that `answers/executors.py` and `sweeps.py` use, on a simulated clock.

    Actors are instances of the real class, and their calls run in threads. Tasks are not run: `task` is called instead,
    with the arguments and the number of the try, and sleeps on the clock for as long as the task would take. It raises
    `Lost` if the node fails; such a task is started again, up to `max_retries` times. At most `slots` tasks run at
    once. `apart` means that workers cannot influence one another, so that no threads are needed.
    """

    clock: Clock
    slots: int = 1
    apart: bool = True
    driver: Driver = field(default_factory=Driver)
    task: Callable[[tuple[Any, ...], int], Any] | None = None
    retried: int = 0
    hired: int = 0
    busy: float = 0.0
    """Seconds for which the driver was busy."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __post_init__(self) -> None:
        self._parcels: list[Any] = []
        self._queue: deque[_Job] = deque()
        self._running = self._ended = 0
        self.cloudpickle = SimpleNamespace(dumps=self._dumps, loads=self._loads)

    def is_initialized(self) -> bool:
        """Always true, so that the code under test neither starts nor stops Ray."""
        return True

    def cluster_resources(self) -> dict[str, float]:
        """The cluster's CPUs: one per slot."""
        return {"CPU": float(self.slots)}

    def remote(self, what: Any) -> Any:
        """A class of actors, or a function that becomes a task."""
        make = self._actor if isinstance(what, type) else self._submit
        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(remote=lambda *given: make(what, options, given))
        )

    def wait(self, references: Sequence[Reference], num_returns: int) -> tuple[list[Reference], list[Reference]]:
        """Wait until `num_returns` references are ready; the second list stays empty, since no caller uses it."""
        self._spend(self.driver.wait + self.driver.wait_each * len(references))
        ready = [one for one in references if one.done]
        while len(ready) < num_returns:
            before = self._ended
            self.clock.run_until(lambda before=before: self._ended > before)
            ready = [one for one in references if one.done]
        return ready[:num_returns], []

    def get(self, reference: Reference) -> Any:
        """Return the value of a finished reference, or raise its error."""
        self._spend(self.driver.get)
        if reference.error is not None:
            raise reference.error
        return reference.value

    def kill(self, actor: Any) -> None:
        """Nothing to do: a simulated actor holds no resources."""

    def _spend(self, seconds: float) -> None:
        """Keep the driver busy; events on the clock still happen in the meantime."""
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

        return SimpleNamespace(ask=method("ask"))

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
        """Start work now, and call `end` when it is done."""
        if self.apart:
            self.clock.at(self.clock.ahead(work), end)
        else:
            self.clock.start(partial(_both, work, end))

    def _end(self, reference: Reference) -> None:
        reference.done = True
        self._ended += 1

    def _ran(self, job: _Job, tried: Reference) -> None:
        """A task has ended: queue it again if its node was lost, then fill the free slot."""
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
    """Inside this context, `import ray` gives the simulation, installed or not; environment variables are restored."""
    names = {"ray": ray, "ray.cloudpickle": ray.cloudpickle}
    before, environment = {name: sys.modules.get(name) for name in names}, dict(os.environ)
    sys.modules.update(names)
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
    """A server with a limit on requests per minute (a token bucket); requests beyond it are refused."""

    def __init__(
        self, clock: Clock, per_minute: float, seconds: float, seed: int, tells: bool, down: tuple[float, float]
    ) -> None:
        self.clock, self.per_minute, self.seconds, self.tells, self.down = clock, per_minute, seconds, tells, down
        self.answered = self.refused = self.unheard = 0
        self._random = random.Random(seed)
        self._left, self._since = per_minute / 60, 0.0

    def post(self, path: str, body: dict[str, Any], fresh: bool) -> Response:
        """Answer one request, with the interface of `remote.http.Connections.post`."""
        if self.down[0] <= self.clock.now < self.down[1]:
            self.unheard += 1
            self.clock.sleep(0.05)
            raise NoAnswer("connection refused", billed=False)
        rate = self.per_minute / 60
        # The bucket holds at most one second's worth of requests.
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
        """Whether the server accepts connections."""
        return not self.down[0] <= self.clock.now < self.down[1]
