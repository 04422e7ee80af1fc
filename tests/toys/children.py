"""Child processes that end with the test that started them, and waiting for what they do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil

LIMIT = 900.0
"""Seconds after which a wait is given up: many, since the machine may be busy; they only end what would never end."""


def wait_until(happened: Callable[[], object], what: str, *processes: subprocess.Popen[Any]) -> None:
    """Look until something has happened; fails where one of the processes ends before it has."""
    end = time.monotonic() + LIMIT
    while not happened():
        ended = [process.returncode for process in processes if process.poll() is not None]
        assert not ended or happened(), f"the process ended with {ended[0]} before this happened: {what}"
        assert time.monotonic() < end, f"this never happened: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process for the time of a with-block; it and all that it started end there, whatever became of the test."""
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            end(family(process.pid))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started, as far as they live."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[psutil.Process]) -> None:
    """Kill what is left of these processes."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended; one that nobody asked for its exit code has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
