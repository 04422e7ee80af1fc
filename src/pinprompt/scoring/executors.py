"""Where prompts are scored: in this process (`Inline`), or by Ray actors that each hold the task (`Ray`).

An executor returns scores in the order of the request. It calls `stop` before it sends more work; results of work that
was sent are always returned, so that no paid score is lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pinprompt import errors
from pinprompt.errors import MissingExtra, PinpromptError, ServerDown, TaskError
from pinprompt.tasks.protocol import Task, complete
from pinprompt.values import Evaluation, Prompt, Score

Stop = Callable[[], bool]


class Executor(Protocol):
    """From prompts to scores, in order."""

    def run(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str, stop: Stop) -> Iterator[Score]:
        """Scores of the prompts, in order; fewer of them only if `stop` became true on the way."""

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int) -> list[Evaluation]:
        """The task's evaluations of several prompts, in order."""

    def close(self) -> None:
        """Stop the workers."""


class Inline:
    """Scores in this process, one prompt after the other.

    Prompts are scored in chunks of `Task.chunk`: one at a time, so that each score is journalled and the clock checked
    immediately, or several if that is much faster.
    """

    def __init__(self, task: Task, chunk: int | None = None) -> None:
        self.task = complete(task)
        self.chunk = max(1, self.task.chunk) if chunk is None else chunk

    def run(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str, stop: Stop) -> Iterator[Score]:
        """Scores of the prompts, in order."""
        for start in range(0, len(prompts), self.chunk):
            if stop():
                return
            part = list(prompts[start : start + self.chunk])
            yield from score_part(self.task, part, list(seeds[start : start + self.chunk]), split)

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int) -> list[Evaluation]:
        """The task's evaluations of several prompts, in order."""
        return self.task.evaluate_many(prompts, split, seed)

    def close(self) -> None:
        """Nothing to close."""


def score_part(task: Any, prompts: list[Prompt], seeds: list[int], split: str) -> list[Score]:
    """One call of the task, with the number of its answers checked."""
    scores = task.score(prompts, seeds, split)
    if not isinstance(scores, Sequence) or len(scores) != len(prompts):
        given = f"{len(scores)} scores" if isinstance(scores, Sequence) else type(scores).__name__
        raise TaskError(f"the task '{task.name}' gave {given} for {len(prompts)} prompts; give one score per prompt")
    return list(scores)


# Scoring by Ray actors that each hold the task: more workers, the same scores in the same order.


DEATHS = 3
"""How often a chunk may lose its worker before the run stops: a prompt that crashes its worker would crash them all."""


class Worker:
    """The actor: builds and holds the task. Failures are returned as text, as not every exception can be sent."""

    def __init__(self, build: bytes, paths: list[str], threads: int) -> None:
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

    def score(self, prompts: list[Prompt], seeds: list[int], split: str) -> tuple[list[Score], tuple[str, str] | None]:
        """Scores, or an error."""
        try:
            return score_part(self._held(), prompts, seeds, split), None
        except Exception as error:
            return [], (type(error).__name__, str(error))

    def evaluate(self, prompt: Prompt, split: str, seed: int) -> tuple[Evaluation | None, tuple[str, str] | None]:
        """An evaluation, or an error."""
        try:
            return self._held().evaluate(prompt, split, seed), None
        except Exception as error:
            return None, (type(error).__name__, str(error))

    def process(self) -> int:
        """The worker's process id."""
        return os.getpid()


class Ray:
    """N actors that score prompts for one run; Ray is started if necessary, and then stopped at the end."""

    def __init__(
        self, build: Callable[[], Task], workers: int = 1, threads: int = 1, chunk: int = 1, address: str | None = None
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("ray", "scoring on several workers (engine 'ray')") from error
        self._ray: Any = ray
        # Only for messages between our own processes; never written to or read from a file.
        self._build: bytes = ray.cloudpickle.dumps(build)
        self._threads, self.chunk = threads, chunk
        self._started = not ray.is_initialized()
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Workers share the machine's cores, even if there are fewer cores than workers.
            cpus = None if address else max(workers * threads, os.cpu_count() or 1)
            ray.init(
                address=address, num_cpus=cpus, include_dashboard=False, log_to_driver=False, configure_logging=False
            )
        # On a cluster with fewer cores Ray would wait for ever, so the workers share the cores.
        cores = float(ray.cluster_resources().get("CPU", 1))
        share = threads if workers * threads <= cores else cores / workers
        self._actor = ray.remote(Worker).options(num_cpus=share, max_restarts=0)
        self.workers: list[Any] = [self._hire() for _ in range(workers)]

    def run(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str, stop: Stop) -> Iterator[Score]:
        """Scores of the prompts, in order, including all that were sent before `stop`."""
        chunks = [
            (list(prompts[start : start + self.chunk]), list(seeds[start : start + self.chunk]), split)
            for start in range(0, len(prompts), self.chunk)
        ]
        for scores in self._shared_out("score", chunks, stop):
            yield from scores

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int) -> list[Evaluation]:
        """Several prompts' evaluations, shared among the workers."""
        return list(self._shared_out("evaluate", [(prompt, split, seed) for prompt in prompts], lambda: False))

    def _shared_out(self, method: str, jobs: Sequence[tuple[Any, ...]], stop: Stop) -> Iterator[Any]:
        """The workers' answers to the jobs, in order; after `stop` no further job is sent."""
        free = list(range(len(self.workers)))
        sent: dict[Any, tuple[int, int]] = {}
        done: dict[int, tuple[Any, tuple[str, str] | None]] = {}
        deaths = [0] * len(jobs)
        next_to_send = next_to_give = 0
        open_door = True

        def send(number: int, worker: int) -> None:
            sent[getattr(self.workers[worker], method).remote(*jobs[number])] = (number, worker)

        while next_to_give < len(jobs):
            while open_door and free and next_to_send < len(jobs):
                if stop():
                    open_door = False
                    break
                send(next_to_send, free.pop(0))
                next_to_send += 1
            if not sent:
                return
            (ready, *_), _ = self._ray.wait(list(sent), num_returns=1)
            number, worker = sent.pop(ready)
            try:
                done[number] = self._ray.get(ready)
                free.append(worker)
            except self._ray.exceptions.RayError as error:
                deaths[number] += 1
                self._bury(worker, deaths[number], error)
                send(number, worker)
            while next_to_give in done:
                answer, failure = done.pop(next_to_give)
                if failure is not None:
                    raise _as_error(failure)
                next_to_give += 1
                yield answer

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
        return self._actor.remote(self._build, list(sys.path), self._threads)

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
