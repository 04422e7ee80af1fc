"""How the command line speaks: answers on stdout, everything else on stderr, one JSON object where asked for."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from pinprompt.cli.options import Machine, Output, Search, Threads
from pinprompt.errors import PinpromptError
from pinprompt.models.sources import trusting


class Console:
    """The voice of one command."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.terminal = sys.stderr.isatty() and not quiet
        self._answered = False

    def note(self, text: str) -> None:
        """A remark on stderr, unless quiet."""
        if not self.quiet:
            sys.stderr.write(text.rstrip() + "\n")
            sys.stderr.flush()

    def answer(self, data: Mapping[str, Any], *shown: Any) -> None:
        """The command's answer: `data` as JSON, or what is `shown` (rich things) for people."""
        self._answered = True
        if self.as_json:
            sys.stdout.write(json.dumps(data, ensure_ascii=False, default=str) + "\n")
        else:
            from rich.console import Console as Rich

            # Without markup: square brackets in labels, prompts and install lines are text.
            rich = Rich(markup=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)
            for thing in shown:
                rich.print(thing, highlight=False)
        sys.stdout.flush()

    def refuse(self, message: str) -> None:
        """An error: one sentence on stderr, and one object on stdout where JSON was asked for."""
        sys.stderr.write(f"pinprompt: {message}\n")
        if self.as_json and not self._answered:
            sys.stdout.write(json.dumps({"error": message}) + "\n")


@contextmanager
def door(options: Output) -> Iterator[Console]:
    """Every verb goes through here: errors become sentences and exit codes, never tracebacks."""
    if isinstance(options, Threads) and options.threads is not None:
        # Before torch is imported; libraries read it once.
        os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = Console(options.as_json, options.quiet)
    try:
        with _models_heard(console), trusting(isinstance(options, Machine) and options.trust):
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
    """Prints progress, at most every few seconds, where there is no terminal to draw on."""

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
