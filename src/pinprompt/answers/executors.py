"""Where the task model is asked: in this process (`Inline`), or by Ray actors that each hold the task (`Ray`).

An executor returns answers in the order of the questions. It calls `stop` before it sends more work; results of work
that was sent are always returned, so that no paid answer is lost.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from pinprompt import errors
from pinprompt.errors import BudgetSpent, MissingExtra, PinpromptError, ServerDown, TaskError
from pinprompt.tasks.protocol import Task
from pinprompt.values import Answers, Draw, Prompt

Stop = Callable[[], bool]
FEW_SECONDS = 2.0


def never() -> bool:
    """For work that must not stop."""
    return False


@contextlib.contextmanager
def on_the_clock(stop: Stop) -> Iterator[None]:
    """Raise BudgetSpent inside a torch model, before any of its layers, once the time is over.

    One pass over long texts can take minutes.
    """
    if stop is never or "torch" not in sys.modules:
        yield
        return

    def look(module: Any, given: Any) -> None:
        if stop():
            raise BudgetSpent("the minutes of the budget are used up")

    hook = sys.modules["torch"].nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        hook.remove()


class Job(NamedTuple):
    """One prompt to be asked about on some rows."""

    prompt: Prompt
    rows: tuple[int, ...]
    draw: Draw


class Executor(Protocol):
    """From questions to answers, in order."""

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[Answers]:
        """The answers to the jobs, in order; fewer of them only if `stop` became true on the way."""

    def close(self) -> None:
        """Stop the workers."""


class Inline:
    """Asks in this process, one chunk of prompts after the other.

    A chunk has up to `TaskInfo.chunk` prompts: one at a time, so that each answer is stored and the clock checked
    immediately, or several if that is much faster. Where time is limited, chunks are small enough to take a few
    seconds, since a chunk that the clock interrupts is lost.
    """

    def __init__(self, task: Task, chunk: int | None = None) -> None:
        self.task = task
        self.chunk = max(1, task.info.chunk) if chunk is None else chunk
        self._quick = 1
        """Number of prompts that were answered within a few seconds."""

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[Answers]:
        """The answers to the jobs, in order."""
        done: dict[int, Answers] = {}
        given, left = 0, list(range(len(jobs)))
        while left:
            if stop():
                return
            size = self.chunk if stop is never else min(self.chunk, self._quick)
            part = [left[at] for at in chunks([jobs[number] for number in left], size)[0]]
            started = time.monotonic()
            with on_the_clock(stop):
                done |= dict(zip(part, ask_part(self.task, [jobs[number] for number in part]), strict=True))
            taken = time.monotonic() - started
            self._quick = 2 * len(part) if taken < FEW_SECONDS else max(1, len(part) // 2)
            asked = set(part)
            left = [number for number in left if number not in asked]
            while given in done:
                yield done.pop(given)
                given += 1

    def close(self) -> None:
        """Nothing to close."""


def chunks(jobs: Sequence[Job], size: int) -> list[list[int]]:
    """The jobs by their numbers: those on the same rows, at most `size` together, in order of the first of them."""
    found: list[list[int]] = []
    open_: dict[tuple[int, ...], list[int]] = {}
    for number, job in enumerate(jobs):
        part = open_.get(job.rows)
        if part is None or len(part) == size:
            part = open_[job.rows] = []
            found.append(part)
        part.append(number)
    return found


def ask_part(task: Task, jobs: Sequence[Job]) -> list[Answers]:
    """One call of the task for jobs on the same rows, with the number of its answers checked."""
    answers: Any = task.ask([job.prompt for job in jobs], jobs[0].rows, [job.draw for job in jobs])
    if not isinstance(answers, Sequence) or len(answers) != len(jobs):
        given = f"{len(answers)} answers" if isinstance(answers, Sequence) else type(answers).__name__
        raise TaskError(f"the task '{task.info.name}' gave {given} for {len(jobs)} prompts; give one per prompt")
    return list(answers)


# Asking by Ray actors that each hold the task: more workers, the same answers in the same order.


DEATHS = 3
"""How often a chunk may lose its worker before the run stops: a prompt that crashes its worker would crash them all."""


def start_ray(**options: Any) -> None:
    """Start Ray, or connect to it, such that its workers import nothing from the working folder.

    Ray puts the folder that it is started in before everything else on the workers' path.
    """
    import ray

    with contextlib.chdir(os.sep):
        ray.init(log_to_driver=False, **options)


def work_in(folder: str) -> None:
    """Work in the driver's folder, where relative paths lead to its files; a cluster's node may not have it."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


class Worker:
    """The actor: builds and holds the task. Failures are returned as text, as not every exception can be sent."""

    def __init__(self, build: bytes, folder: str, paths: list[str], threads: int) -> None:
        work_in(folder)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        # The user's modules are imported from the same path as in the driver.
        sys.path += [path for path in paths if path not in sys.path]
        self.build, self.threads = build, threads
        self.task: Task | None = None

    def _held(self) -> Task:
        # Built at the first request and not in __init__, where a failure would look like a dead worker.
        if self.task is None:
            import ray.cloudpickle

            self.task = ray.cloudpickle.loads(self.build)()
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self.threads)
        return self.task

    def ask(self, jobs: list[Job]) -> tuple[list[Answers], tuple[str, str] | None]:
        """Answers, or an error."""
        try:
            return ask_part(self._held(), jobs), None
        except Exception as error:
            return [], (type(error).__name__, str(error))

    def process(self) -> int:
        """The worker's process id."""
        return os.getpid()


class Ray:
    """N actors that score prompts for one run; Ray is started if necessary, and then stopped at the end."""

    def __init__(self, build: Callable[[], Task], workers: int = 1, threads: int = 1, chunk: int = 1) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("ray", "scoring on several workers (scoring.workers)") from error
        self._ray: Any = ray
        # Only for messages between our own processes; never written to or read from a file.
        self._build: bytes = ray.cloudpickle.dumps(build)
        self._threads, self.chunk = threads, chunk
        self._started = not ray.is_initialized()
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Workers share the machine's cores, even if there are fewer cores than workers.
            cpus = max(workers * threads, os.cpu_count() or 1)
            start_ray(num_cpus=cpus, include_dashboard=False, configure_logging=False)
        # On a cluster with fewer cores Ray would wait forever, so the workers share the cores.
        cores = float(ray.cluster_resources().get("CPU", 1))
        share = threads if workers * threads <= cores else cores / workers
        self._actor = ray.remote(Worker).options(num_cpus=share, max_restarts=0)
        self.workers: list[Any] = [self._hire() for _ in range(workers)]

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[Answers]:
        """The answers to the jobs, in order, including all that were sent before `stop`."""
        parts = chunks(jobs, self.chunk)
        free = list(range(len(self.workers)))
        sent: dict[Any, tuple[int, int]] = {}
        done: dict[int, Answers] = {}
        failed: dict[int, tuple[str, str]] = {}
        deaths = [0] * len(parts)
        next_to_send = next_to_give = 0
        sending = True

        def send(number: int, worker: int) -> None:
            sent[self.workers[worker].ask.remote([jobs[job] for job in parts[number]])] = (number, worker)

        while next_to_give < len(jobs):
            while sending and free and next_to_send < len(parts):
                if stop():
                    sending = False
                    break
                send(next_to_send, free.pop(0))
                next_to_send += 1
            if not sent:
                return
            (ready, *_), _ = self._ray.wait(list(sent), num_returns=1)
            number, worker = sent.pop(ready)
            try:
                answers, failure = self._ray.get(ready)
                free.append(worker)
            except self._ray.exceptions.RayError as error:
                deaths[number] += 1
                self._bury(worker, deaths[number], error)
                send(number, worker)
                continue
            if failure is None:
                done |= dict(zip(parts[number], answers, strict=True))
            else:
                failed |= dict.fromkeys(parts[number], failure)
            while next_to_give in done:
                yield done.pop(next_to_give)
                next_to_give += 1
            if next_to_give in failed:  # answers before it are given first: they are paid for
                raise _as_error(failed[next_to_give])

    def processes(self) -> list[int]:
        """The workers' process ids."""
        return list(self._ray.get([worker.process.remote() for worker in self.workers]))

    def close(self) -> None:
        """Stop the workers, and Ray if it was started here."""
        if self._ray.is_initialized():
            for worker in self.workers:
                self._ray.kill(worker)
            if self._started:
                self._ray.shutdown()
        self.workers = []

    def _hire(self) -> Any:
        return self._actor.remote(self._build, os.getcwd(), list(sys.path), self._threads)

    def _bury(self, worker: int, deaths: int, error: Exception) -> None:
        """Replace a worker that died, unless the same work has crashed too many already."""
        if deaths >= DEATHS:
            raise ServerDown(
                f"{deaths} workers died one after the other on the same prompts ({type(error).__name__}); is there "
                "memory enough for every worker's model? Use fewer workers, then resume the run"
            ) from error
        # It may only be unreachable: it must not keep working alongside its replacement.
        self._ray.kill(self.workers[worker])
        self.workers[worker] = self._hire()


def _as_error(failure: tuple[str, str]) -> PinpromptError:
    """A worker's failure as its original error, or as a TaskError if it is not one of ours."""
    name, message = failure
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PinpromptError):
        error = kind.__new__(kind)
        error.args = (message,)
        return error
    return TaskError(f"the task failed in a worker: {name}: {message}")
