"""The studio's side of "Try it": one worker process for the run that is being tried, ended when idle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from pinprompt.run import consent
from pinprompt.run.running import recipe_of
from pinprompt.studio.guard import Refused
from pinprompt.studio.jobs import reason, start
from pinprompt.studio.orders import shown

SECONDS = 300.0
"""The longest that one question may take."""
IDLE = 300.0


class Worker:
    """A process that holds the task of one run."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, folder: Path, question: dict[str, Any]) -> dict[str, Any]:
        """Put a question to the worker of a run; a worker that died is a sentence, and the next question starts one."""
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                return await asyncio.wait_for(self._asked(folder, question), SECONDS)
            except TimeoutError:
                await self._end()
                raise Refused(504, f"There was no answer within {SECONDS / 60:.0f} minutes.") from None
            except asyncio.CancelledError:
                # Its answer would be taken for the next question's.
                await self._end()
                raise
            finally:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(IDLE, lambda: loop.create_task(self.close()))

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _asked(self, folder: Path, question: dict[str, Any]) -> dict[str, Any]:
        if self._folder != folder or self._process is None or self._process.returncode is not None:
            await self._end()
            self._process = await start([sys.executable, "-m", "pinprompt.studio.worker", str(folder)], listen=True)
            self._folder = folder
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # Its notes are read all the time, or a full pipe would make it wait for ever.
        notes = asyncio.ensure_future(process.stderr.read())
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
            line = await process.stdout.readline()
            if not line:
                said = (await notes)[-16384:].decode("utf-8", "replace")
                raise Refused(500, reason(said, await process.wait()))
        finally:
            if not notes.done():
                notes.cancel()
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(400, answer["error"])
        return dict(answer["ok"])

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def check_agreed(folder: Path) -> None:
    """Refuse to load a run that asks for code, a server or files that its user has not agreed to."""
    if not consent.known(recipe_of(folder), folder):
        raise Refused(
            400,
            "This run was not made here, and asks to run code, to send texts to a server or to read files elsewhere. "
            f"To see what, and to agree, use the terminal: pinprompt evaluate {shlex.quote(shown(folder))}",
        )
