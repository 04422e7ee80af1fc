"""How the command line speaks: answers on stdout, everything else on stderr, one JSON object where asked for."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from pinprompt.cli.options import Machine, Output, Search, Threads, Trust
from pinprompt.errors import PinpromptError
from pinprompt.models.sources import trusting
from pinprompt.records.wording import visible
from pinprompt.run import consent


class Console:
    """The voice of one command."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.terminal = sys.stderr.isatty() and not quiet
        self._answered = False
        self._noted: set[str] = set()

    def note(self, text: str) -> None:
        """A remark on stderr, unless quiet; the same remark is made once."""
        if not self.quiet and text not in self._noted:
            self._noted.add(text)
            sys.stderr.write(visible(text.rstrip()) + "\n")
            sys.stderr.flush()

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits at a terminal and can answer."""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json

    def ask(self, question: str) -> bool:
        """A question on the terminal; anything but a yes is a no."""
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def answer(self, data: Mapping[str, Any], *shown: Any) -> None:
        """The command's answer: `data` as JSON, or what is `shown` (rich things) for people."""
        self._answered = True
        if self.as_json:
            sys.stdout.write(_json(data) + "\n")
        else:
            from rich.console import Console as Rich

            # Without markup: square brackets in labels, prompts and install lines are text.
            rich = Rich(markup=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)
            for thing in shown:
                for column in getattr(thing, "columns", ()):
                    column.overflow = "fold"  # a narrow terminal breaks a long word, where rich would cut it off
                rich.print(_Shown(thing), highlight=False)
        sys.stdout.flush()

    def refuse(self, message: str) -> None:
        """An error: one sentence on stderr, and one object on stdout where JSON was asked for."""
        sys.stderr.write(f"pinprompt: {visible(message)}\n")
        if self.as_json and not self._answered:
            sys.stdout.write(json.dumps({"error": message}) + "\n")


class _Shown:
    """A rich thing whose texts, which may be a stranger's, cannot command the terminal; rich's own colours stay."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment
        from rich.text import Text

        thing = Text(self.thing) if isinstance(self.thing, str) else self.thing
        for segment in console.render(thing, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def _json(data: Mapping[str, Any]) -> str:
    """One line of JSON; characters that some terminals obey are escaped like those that JSON escapes itself."""
    line = json.dumps(data, ensure_ascii=False, default=str)
    return re.sub("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", lambda one: f"\\u{ord(one[0]):04x}", line)


@contextmanager
def door(options: Output) -> Iterator[Console]:
    """Every verb goes through here: errors become sentences and exit codes, never tracebacks."""
    if isinstance(options, Threads) and options.threads is not None:
        # Before torch is imported; libraries read it once.
        os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = Console(options.as_json, options.quiet)
    try:
        agreed = isinstance(options, Trust) and options.trust
        with (
            _models_heard(console),
            trusting(isinstance(options, Machine) and options.model_code),
            consent.answering(agreed, console.ask if console.can_ask else None),
        ):
            yield console
    except PinpromptError as error:
        console.refuse(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.refuse("stopped" + ("; continue with the same command and --resume" * isinstance(options, Search)))
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None


@contextmanager
def _models_heard(console: Console) -> Iterator[None]:
    """Fetching a model takes a minute the first time; the models room logs it, people want to read it."""

    class Voice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.note(record.getMessage())

    log, voice = logging.getLogger("pinprompt.models"), Voice()
    level = log.level
    log.addHandler(voice)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(voice)
        log.setLevel(level)


class Patience:
    """Says what is going on, at most every few seconds, where there is no terminal to draw on."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._spoken = float("-inf")

    def due(self) -> bool:
        """True when it is time for another line."""
        now = time.monotonic()
        if now - self._spoken < self._seconds:
            return False
        self._spoken = now
        return True
