"""The studio's "Try it": a separate process holds the task of a run and answers questions.

It is a separate process so that a slow model never blocks the page and a crash only gives a message. `TryWorker` is the
studio's side: it starts the process and ends it when idle. `TriedRun` runs in the process. Questions come on stdin,
answers go to stdout, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt import api
from pinprompt.errors import PinpromptError, RunError, SettingError
from pinprompt.run import consent
from pinprompt.run.running import recipe_of
from pinprompt.studio.forms import shown
from pinprompt.studio.guard import Refused
from pinprompt.studio.jobs import reason, start
from pinprompt.tasks.protocol import report_fit_rows
from pinprompt.values import Answers, Prompt

if TYPE_CHECKING:
    from pinprompt.answers.evaluator import Evaluator

SECONDS = 300.0
"""Timeout of a question in seconds."""
IDLE = 300.0


class TryWorker:
    """A process that holds the task of one run."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, folder: Path, question: dict[str, Any]) -> dict[str, Any]:
        """Ask the worker of a run; if it died, an error is returned and the next question starts a new one."""
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                return await asyncio.wait_for(self._asked(folder, question), SECONDS)
            except TimeoutError:
                await self._end()
                raise Refused(504, f"There was no answer within {SECONDS / 60:.0f} minutes.") from None
            except asyncio.CancelledError:
                # Its late answer would be mistaken for the next question's.
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
            self._process = await start(
                [sys.executable, "-P", "-m", "pinprompt.studio.trying", str(folder)], listen=True
            )
            self._folder = folder
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        # stderr is read continuously: a full pipe would block the process.
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
    """Refuse to load a run with code, a server or files that the user has not consented to."""
    if not consent.known(recipe_of(folder), folder):
        raise Refused(
            400,
            "This run was not made here, and asks to run code, to send texts to a server or to read files elsewhere. "
            f"To see what, and to agree, use the terminal: pinprompt evaluate {shlex.quote(shown(folder))}",
        )


MOST_PROMPTS = 60


def main() -> None:
    """Answer until stdin ends."""
    folder, channel = Path(sys.argv[1]), os.fdopen(os.dup(1), "w", encoding="utf-8")
    if hasattr(os, "nice"):
        os.nice(5)  # a running search has priority
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    run = TriedRun(folder)
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            answer = {"ok": run.answer(json.loads(line))}
        except PinpromptError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the process keeps running; the page shows what happened
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


class TriedRun:
    """A run's task, loaded on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.recipe = folder, api.recipe_of(folder)
        consent.agree(self.recipe, folder)
        self._evaluator: Evaluator | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        prompts = [str(one) for one in question.get("prompts", [])][:MOST_PROMPTS]
        asked = str(question.get("text", ""))
        kind = question.get("do")
        if kind == "predict":
            return self.predict(prompts, asked)
        if kind == "score":
            return self.score(prompts, str(question.get("split", "dev")))
        if kind == "rewrite":
            return self.rewrite(prompts, asked)
        if kind == "picture":
            return self.picture(prompts, Path(str(question.get("file"))))
        raise SettingError(f"unknown question '{kind}'")

    @property
    def evaluator(self) -> Evaluator:
        """The run's task with the run's answers, so that no question is asked twice; built once."""
        if self._evaluator is None:
            from pinprompt.answers.budget import Budget
            from pinprompt.answers.evaluator import Evaluator
            from pinprompt.recipe.sections import BudgetSettings
            from pinprompt.run import build

            task = build.build_task(self.recipe, build.choose_device(None))
            self._evaluator = Evaluator(task, Budget(BudgetSettings()), table=self._answers(task))
        return self._evaluator

    def _answers(self, task: Any) -> Any:
        """The answers in the run's folder; none if its data or model have changed since."""
        from pinprompt.answers.log import Log
        from pinprompt.answers.table import Table, unpack_answers
        from pinprompt.folder import identity
        from pinprompt.folder.checkpoint import ANSWERS

        table, known = Table(), identity.read(self.folder)
        if known is None or known.fingerprint != task.info.fingerprint:
            return table
        for line in Log(self.folder / ANSWERS, known.run).lines:
            answers = Answers() if line is None else unpack_answers(line)
            if line is not None and table.get(line["text"], line["draw"]).missing(answers.rows) == answers.rows:
                table.add(Prompt(line["text"]), answers, line["draw"], 0, True, {})
        return table

    @property
    def task(self) -> Any:
        return self.evaluator.task

    def predict(self, prompts: list[str], text: str) -> dict[str, Any]:
        """Label and probabilities of one text with each prompt."""
        if self.recipe.task.kind != "classification":
            raise SettingError("only a classification run labels texts")
        before, answers = self.evaluator.report_calls, []
        for prompt in prompts:
            [(label, probabilities)] = self.task.predict(Prompt(prompt), [text], self.readout(prompt))
            answers.append({"prompt": prompt, "label": label, "probabilities": probabilities})
        calls = len(prompts) + self.evaluator.report_calls - before
        return {"answers": answers, "words": dict(self.task.data.words), "calls": calls}

    def score(self, prompts: list[str], split: str) -> dict[str, Any]:
        """The metrics of each prompt on a split, with their cost."""
        split = split if split in self.evaluator.splits else self.evaluator.splits[-1]
        before, answers = self.evaluator.report_calls, []
        for prompt in prompts:
            [found] = self.evaluator.evaluate([Prompt(prompt)], split)
            intervals = {name: list(ends) for name, ends in found.intervals.items()}
            answers.append(
                {"prompt": prompt, "metrics": dict(found.metrics), "intervals": intervals, "rows": found.rows}
            )
        calls = self.evaluator.report_calls - before
        return {"answers": answers, "split": split, "primary": self.task.info.primary, "calls": calls}

    def readout(self, prompt: str) -> Any:
        """How labels are read from a prompt's answers: as in the run, or measured on the rows of train and dev."""
        if not (fit := report_fit_rows(self.task)):
            return None
        with contextlib.suppress(RunError):  # an unfinished run has no answer yet
            if api.found_prompt(self.folder).text == prompt:
                return api.readout_of(self.folder)
        [answers] = self.evaluator.ask([Prompt(prompt)], fit, report=True)
        return self.task.measured(answers)

    def rewrite(self, prompts: list[str], text: str) -> dict[str, Any]:
        """The best rewrites of one text with each prompt."""
        if self.recipe.task.kind != "style-transfer":
            raise SettingError("only a style run rewrites texts")
        answers = []
        for prompt in prompts:
            made = self.task.rewrite(prompt, text, 3)
            rewrites = [{"text": one.text, "content": one.content, "style": one.style} for one in made]
            answers.append({"prompt": prompt, "rewrites": rewrites})
        return {"answers": answers, "calls": len(prompts) * int(getattr(self.recipe.task, "samples", 1))}

    def picture(self, prompts: list[str], file: Path) -> dict[str, Any]:
        """How well each prompt fits another picture."""
        from pinprompt.models.images import load_picture

        if self.recipe.task.kind != "inversion":
            raise SettingError("only an inversion run can score another picture")
        clip = self.task.clip
        [seen] = clip.image_features([load_picture(file).image])
        found = [float((vector * seen).sum()) for vector in clip.text_features(prompts)]
        own = self.task.similarities(prompts)
        answers = [
            {"prompt": prompt, "similarity": here, "own": there}
            for prompt, here, there in zip(prompts, found, own, strict=True)
        ]
        return {"answers": answers, "calls": 2 * len(prompts)}


if __name__ == "__main__":
    main()
