"""Searches started by the studio: each in its own process, one at a time, the others queued."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pinprompt.studio.forms import SearchCommand
from pinprompt.studio.guard import Refused
from pinprompt.wording import text

PATIENCE = 20.0
"""Seconds that a search has to stop by itself before it is killed; it can be resumed either way."""
MAX_ENDED_JOBS = 50
LAST_WORDS = 16 * 1024
PARENT_PIPE = "PINPROMPT_PARENT_PIPE"
"""The environment variable that names the pipe by which a child notices that the studio has ended."""
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class Job:
    """One search, queued, running or ended."""

    number: int
    search: SearchCommand
    run: str
    state: str = "waiting"
    """waiting, running, stopping, finished, stopped, failed or withdrawn."""
    message: str = ""
    doing: str = ""
    """The last line that its process printed."""
    asked: float = field(default_factory=time.time)
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        return self.state in ("finished", "stopped", "failed", "withdrawn")

    def data(self) -> dict[str, Any]:
        search = {"title": self.search.title, "command": self.search.command}
        kept = {name: getattr(self, name) for name in ("number", "run", "state", "message", "doing")}
        return kept | search


class Jobs:
    """The queue of searches, with listeners."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.all: list[Job] = []
        self.version = 0
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def add(self, search: SearchCommand) -> Job:
        run = search.folder.relative_to(self.root).as_posix()
        if any(job.run == run and not job.over for job in self.all):
            raise Refused(409, "That run is already running or queued.")
        job = Job(next(self._numbers), search, run)
        done = [old for old in self.all if old.over]
        self.all = [old for old in self.all if not old.over or old in done[-MAX_ENDED_JOBS:]] + [job]
        self._next()
        self.tell()
        return job

    def of(self, run: str) -> Job | None:
        return next((job for job in reversed(self.all) if job.run == run), None)

    def stop(self, run: str) -> Job:
        """Stop a search that this studio started; it can be resumed."""
        job = self.of(run)
        if job is None or job.over:
            raise Refused(409, "This studio did not start that search. Stop it where it was started.")
        if job.process is None:
            job.state = "withdrawn"
        elif job.state == "running":
            job.state = "stopping"
            _interrupt(job.process)
            self._spawn(self._end(job))
        self.tell()
        return job

    async def close(self) -> list[Job]:
        """Stop everything; returns the searches that were still queued."""
        waiting = [job for job in self.all if job.state == "waiting"]
        for job in waiting:
            job.state = "withdrawn"
        running = [job for job in self.all if job.process is not None and not job.over]
        for job in running:
            if job.state == "running":
                job.state = "stopping"
                _interrupt(job.process)
        await asyncio.gather(*(self._end(job) for job in running))
        return waiting

    def abandon(self) -> None:
        """Interrupt running searches without waiting, after a second Ctrl-C."""
        for job in self.all:
            if job.process is not None and not job.over:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job.process.pid, signal.SIGINT)

    def tell(self) -> None:
        """Wake every waiting listener."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def news(self, seconds: float) -> None:
        """Wait until something changes, or for the given time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _next(self) -> None:
        if any(job.state in ("running", "stopping") for job in self.all):
            return
        for job in [job for job in self.all if job.state == "waiting"][:1]:
            job.state = "running"
            self._spawn(self._run(job))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job) -> None:
        try:
            job.process = await start(job.search.process("--json"))
            if job.state == "stopping":
                _interrupt(job.process)
            self.tell()
            said = await self._heard(job)
            code = await job.process.wait()
        except OSError as error:
            job.state, job.message = "failed", f"The search could not be started: {error.strerror}."
        else:
            if code == 0:
                job.state = "finished"
            elif job.state == "stopping" or code == 130:
                job.state, job.message = "stopped", "Stopped. It can be resumed."
            else:
                job.state, job.message = "failed", reason(said, code)
        self._next()
        self.tell()

    async def _heard(self, job: Job) -> str:
        """What a search prints, to its end; its last line is shown meanwhile."""
        kept = b""
        assert job.process is not None
        assert job.process.stderr is not None
        while part := await job.process.stderr.read(4096):
            kept = (kept + part)[-LAST_WORDS:]
            lines = [line for line in kept.decode("utf-8", "replace").splitlines() if line.strip()]
            job.doing = text(re.sub(r"^\[ *[\d.]+ s\] ", "", lines[-1]), 300) if lines else ""
            self.tell()
        return kept.decode("utf-8", "replace")

    async def _end(self, job: Job) -> None:
        process = job.process
        assert process is not None
        try:
            await asyncio.wait_for(process.wait(), PATIENCE)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


async def start(command: list[str], *, listen: bool = False) -> asyncio.subprocess.Process:
    """A child in its own session, so that Ctrl-C in the terminal does not reach it directly.

    It holds one end of a pipe of ours and stops when we are gone, however we ended (`cli.watch_parent`).
    """
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    watched, _ = _lifeline()
    return await asyncio.create_subprocess_exec(
        *command, stdin=pipe if listen else nothing, stdout=pipe if listen else nothing, stderr=pipe,
        env={**os.environ, **ENVIRONMENT, PARENT_PIPE: str(watched)}, pass_fds=(watched,), start_new_session=True,
        limit=1 << 24,
    )  # fmt: skip


@cache
def _lifeline() -> tuple[int, int]:
    """A pipe whose writing end only this process has: children read its end of file when this process ends."""
    return os.pipe()


async def ask_once(command: list[str], seconds: float) -> tuple[int, bytes, str]:
    """Run a command to its end; returns exit code, stdout and the reason if it failed."""
    process = await start(command, listen=True)
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except (TimeoutError, asyncio.CancelledError):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    code = process.returncode or 0
    return code, out, reason(err[-LAST_WORDS:].decode("utf-8", "replace"), code) if code else ""


def reason(said: str, code: int) -> str:
    """Why a command failed: its error message, otherwise the end of its output."""
    refusals = re.findall(r"^pinprompt: (.+)$", said, re.MULTILINE)
    if refusals:
        return text(refusals[-1], 600)
    lines = [line for line in said.splitlines() if line.strip()]
    if code < 0:
        name = signal.Signals(-code).name if -code in {one.value for one in signal.Signals} else str(-code)
        return f"The process was ended by {name}. It can be resumed."
    return text(lines[-1], 600) if lines else f"The process ended with exit code {code} and no message."


def _interrupt(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
