"""How the command line is spoken to, and how it answers.

Options that several verbs share are each declared once. Answers go to stdout, everything else to stderr; one JSON
object where asked for.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from pinprompt.errors import PinpromptError
from pinprompt.models.sources import trusting
from pinprompt.records.wording import visible
from pinprompt.run import consent

Run = Annotated[Path, typer.Argument(help="A run folder, or a zip file of one where it is only read.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.")]
NoReport = Annotated[
    bool,
    typer.Option(
        "--no-report", help="End with the found prompt and its dev score: no test, comparison or report.html."
    ),
]
TestRows = Annotated[int | None, typer.Option("--test-rows", min=1, help="Report on at most N test rows.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Root of all randomness.")]
NoMemo = Annotated[bool, typer.Option("--no-memo", help="Neither use nor keep scores of other runs.")]


@dataclass(frozen=True, kw_only=True)
class Output:
    """What every verb offers."""

    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")] = (
        False
    )
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False


@dataclass(frozen=True, kw_only=True)
class Trust(Output):
    """What verbs offer that do what a recipe or a run folder asks for."""

    trust: Annotated[
        bool, typer.Option("--trust", help="Agree to the code, server and files of a recipe or run; remembered.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Threads(Output):
    """What verbs that compute offer."""

    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads for torch.")] = None


@dataclass(frozen=True, kw_only=True)
class Machine(Threads, Trust):
    """What verbs that run models offer."""

    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps; default: the best one.")] = (
        None
    )
    model_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code that comes with a model run here.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Search(Machine):
    """What every search offers."""

    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default: runs/<name>.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False
    calls: Annotated[
        int | None,
        typer.Option(
            "--calls",
            min=1,
            help="Rows that the search may have answered (calls); the report takes more, see --estimate.",
        ),
    ] = None
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.01, help="Minutes that the search may take.")] = (
        None
    )
    sets: Annotated[list[str] | None, typer.Option("--set", help="Any setting of a recipe, such as policy.k=256.")] = (
        None
    )
    no_memo: NoMemo = False
    no_report: NoReport = False
    test_rows: TestRows = None
    private: Annotated[
        bool, typer.Option("--private", help="Keep texts and pictures of the data out of the run folder and report.")
    ] = False
    estimate: Annotated[bool, typer.Option("--estimate", help="Print what the run would spend, and stop.")] = False
    seed: Seed = None


@dataclass(frozen=True, kw_only=True)
class FolderSearch(Search):
    """What a search offers that must be told to remove an earlier run."""

    force: Annotated[bool, typer.Option("--force", help="Remove the run in the folder and start again.")] = False


@dataclass(frozen=True, kw_only=True)
class TaskSearch(FolderSearch):
    """What a search offers that has no recipe file."""

    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="How to search (`pinprompt methods`); default: race to classify and restyle, guided to invert.",
        ),
    ] = None
    profile: Annotated[
        str, typer.Option("--profile", help="quick: minutes on a laptop; paper: the published settings.")
    ] = "quick"


def expand(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer wants it: a parameter whose type is one of the classes above becomes that class's options."""
    hints = get_type_hints(verb, include_extras=True)
    kept, groups = [], {}
    for name, parameter in inspect.signature(verb).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
        else:
            kept.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    for group in groups.values():
        annotations, defaults = get_type_hints(group, include_extras=True), {f.name: f.default for f in fields(group)}
        # --help shows what is special to a verb first, what all verbs have last.
        names = [name for part in group.__mro__[:-1] for name in inspect.get_annotations(part)]
        kept += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotations[name]
            )
            for name in names
        ]

    @wraps(verb)
    def expanded(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**given, **made)

    expanded.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in kept}
    return expanded


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
