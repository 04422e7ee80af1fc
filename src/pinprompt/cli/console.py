"""Options shared by several commands, and output.

Each shared option is declared once. Answers go to stdout (with `--json`, one JSON object), everything else to stderr.
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

Run = Annotated[Path, typer.Argument(help="A run folder; commands that only read it also take a zip file.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.")]
NoReport = Annotated[
    bool,
    typer.Option(
        "--no-report", help="Stop once a prompt is found and scored on dev: no test, no comparison, no report.html."
    ),
]
TestRows = Annotated[int | None, typer.Option("--test-rows", min=1, help="Use at most N test rows in the report.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The random seed.")]
NoMemo = Annotated[bool, typer.Option("--no-memo", help="Do not use the cache of scores kept across runs.")]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of every command."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to stdout, everything else to stderr.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False


@dataclass(frozen=True, kw_only=True)
class Trust(Output):
    """Options of commands that may run code, ask servers or read files named in a recipe or run folder."""

    trust: Annotated[
        bool, typer.Option("--trust", help="Allow the code, server and files that the recipe or run names; remembered.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Threads(Output):
    """Options of commands that compute."""

    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Number of CPU threads.")] = None


@dataclass(frozen=True, kw_only=True)
class Machine(Threads, Trust):
    """Options of commands that run models."""

    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1 or mps; default: the best available.")
    ] = None
    model_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code that comes with a model.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Machine):
    """Options of every search."""

    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default: runs/<name>.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the run folder.")] = False
    calls: Annotated[
        int | None,
        typer.Option(
            "--calls",
            min=1,
            help="Maximum number of model calls (one per example) in the search; the report adds some, see --estimate.",
        ),
    ] = None
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.01, help="Maximum minutes for the search.")] = None
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change any setting, such as policy.k=256.")] = None
    no_memo: NoMemo = False
    no_report: NoReport = False
    test_rows: TestRows = None
    private: Annotated[
        bool, typer.Option("--private", help="Keep your texts and pictures out of the run folder and report.")
    ] = False
    estimate: Annotated[bool, typer.Option("--estimate", help="Print what the run would cost, then exit.")] = False
    seed: Seed = None


@dataclass(frozen=True, kw_only=True)
class FolderSearch(SearchOptions):
    """Options of a search that never overwrites an earlier run unless told to."""

    force: Annotated[bool, typer.Option("--force", help="Delete the run in the run folder and start over.")] = False


@dataclass(frozen=True, kw_only=True)
class TaskSearch(FolderSearch):
    """Options of a search without a recipe file."""

    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="Search method (see `pinprompt methods`); default: guided for invert, race otherwise.",
        ),
    ] = None
    profile: Annotated[
        str, typer.Option("--profile", help="quick: minutes on a laptop; paper: the published settings.")
    ] = "quick"


def expand(verb: Callable[..., None]) -> Callable[..., None]:
    """The command as typer expects it: a parameter typed with one of the classes above becomes that class's options."""
    hints = get_type_hints(verb, include_extras=True)
    kept, groups = [], {}
    for name, parameter in inspect.signature(verb).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
        else:
            kept.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    for group in groups.values():
        annotations, defaults = get_type_hints(group, include_extras=True), {f.name: f.default for f in fields(group)}
        # --help lists a command's own options first and those of all commands last.
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
    """Prints the output of one command."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.terminal = sys.stderr.isatty() and not quiet
        self._answered = False
        self._noted: set[str] = set()

    def note(self, text: str) -> None:
        """Print a remark to stderr, unless quiet; each remark is printed once."""
        if not self.quiet and text not in self._noted:
            self._noted.add(text)
            sys.stderr.write(visible(text.rstrip()) + "\n")
            sys.stderr.flush()

    @property
    def can_ask(self) -> bool:
        """Whether a user at a terminal can answer a question."""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json

    def ask(self, question: str) -> bool:
        """Ask a question on the terminal; anything but yes means no."""
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def answer(self, data: Mapping[str, Any], *shown: Any) -> None:
        """Print the answer: `data` as JSON, or the `shown` rich renderables for people."""
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
        """Print an error to stderr, and with `--json` one object to stdout."""
        sys.stderr.write(f"pinprompt: {visible(message)}\n")
        if self.as_json and not self._answered:
            sys.stdout.write(json.dumps({"error": message}) + "\n")


class _Shown:
    """A rich renderable with control characters made visible: its text may be untrusted. Colours are kept."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment
        from rich.text import Text

        thing = Text(self.thing) if isinstance(self.thing, str) else self.thing
        for segment in console.render(thing, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def _json(data: Mapping[str, Any]) -> str:
    """One line of JSON; further control characters that some terminals obey are escaped too."""
    line = json.dumps(data, ensure_ascii=False, default=str)
    return re.sub("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", lambda one: f"\\u{ord(one[0]):04x}", line)


@contextmanager
def door(options: Output) -> Iterator[Console]:
    """The context of every command: errors become one-line messages and exit codes, not tracebacks."""
    if isinstance(options, Threads) and options.threads is not None:
        # Before torch is imported: libraries read this once.
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
        console.refuse(
            "stopped" + ("; continue with the same command and --resume" * isinstance(options, SearchOptions))
        )
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None


@contextmanager
def _models_heard(console: Console) -> Iterator[None]:
    """Print what `pinprompt.models` logs: downloading a model takes a minute the first time."""

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
    """Limits progress lines to one every few seconds, for output that is not a terminal."""

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
