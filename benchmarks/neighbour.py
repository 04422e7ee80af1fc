"""How much a run slows down when another process keeps one core busy.

Two ways of waiting are compared. OpenMP threads that spin while they wait use up time slices that other threads need;
threads that sleep do not. The command line selects the second way.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

WAYS = {"passive": "PASSIVE", "spinning": "ACTIVE"}
"""Values of OMP_WAIT_POLICY by the name of the measurement."""


def measure(rounds: int = 5, passes: int = 6, threads: int | None = None) -> dict[str, Any]:
    """Seconds for some passes of a model, alone and next to a busy process, with sleeping and with spinning threads.

    The four measurements alternate. Each round gives a ratio, and the median of the rounds counts. On a busy machine
    the ratio is smaller, since "alone" then has neighbours too.
    """
    import torch

    threads = threads or torch.get_num_threads()
    seconds: dict[str, list[float]] = {f"{way}_{when}": [] for way in WAYS for when in ("alone", "beside")}
    with _worker("passive", passes, threads) as passive, _worker("spinning", passes, threads) as spinning:
        workers = {"passive": passive, "spinning": spinning}
        for _ in range(rounds):
            for way, worker in workers.items():
                seconds[f"{way}_alone"].append(_ask(worker))
            with _busy_process():
                for way, worker in workers.items():
                    seconds[f"{way}_beside"].append(_ask(worker))
    ratios = {
        way: [b / a for a, b in zip(seconds[f"{way}_alone"], seconds[f"{way}_beside"], strict=True)] for way in WAYS
    }
    return {
        "slowdown": statistics.median(ratios["passive"]),
        "slowdown_spinning": statistics.median(ratios["spinning"]),
        "slowdown_rounds": ratios["passive"],
        "slowdown_spinning_rounds": ratios["spinning"],
        "seconds": {name: statistics.median(found) for name, found in seconds.items()},
        "threads": threads,
        "passes": passes,
    }


@contextmanager
def _worker(way: str, passes: int, threads: int) -> Iterator[Connection]:
    """A process that runs the passes on request, with OpenMP's waiting policy set before torch is loaded."""
    start = multiprocessing.get_context("spawn")
    ours, theirs = start.Pipe()
    names = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ["OMP_WAIT_POLICY"] = WAYS[way]
    process = start.Process(target=_serve, args=(theirs, passes, threads), daemon=True)
    try:
        process.start()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    theirs.close()  # so that a worker that dies ends the wait below with an error
    try:
        ours.recv()  # the model is ready
        yield ours
    finally:
        process.terminate()
        process.join()


def _ask(worker: Connection) -> float:
    worker.send(True)
    return float(worker.recv())


def _serve(pipe: Connection, passes: int, threads: int) -> None:
    """For each message, time passes of 64 rows through layers of SmolLM2's shape."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=576, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=9,
        num_key_value_heads=3,
    )  # fmt: skip
    model, ids = LlamaModel(config).eval(), torch.randint(256, (64, 1))
    with torch.no_grad():
        model(input_ids=ids)
        pipe.send(None)
        while pipe.recv():
            began = time.perf_counter()
            for _ in range(passes):
                model(input_ids=ids)
            pipe.send(time.perf_counter() - began)


@contextmanager
def _busy_process() -> Iterator[None]:
    """Run another process that keeps one core busy."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _spin() -> None:
    while True:
        pass
