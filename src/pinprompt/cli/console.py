"""Options shared by several commands, and output.

Each shared option is declared once. Answers go to stdout (with `--json`, one JSON object), everything else to stderr.
"""

from __future__ import annotations

import errno
import inspect
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer import Argument, Option

from pinprompt.errors import PinpromptError, errno_of
from pinprompt.models.sources import trusting
from pinprompt.run import consent
from pinprompt.wording import visible

Run = Annotated[Path, Argument(help="A run folder.")]
Runs = Annotated[list[Path], Argument(help="Run folders, or folders that hold run folders.")]
NoReport = Annotated[
    bool,
    Option(
        "--no-report", help="Stop once a prompt is found and scored on dev: no test, no comparison, no report.html."
    ),
]
TestRows = Annotated[int | None, Option("--test-rows", min=1, help="Use at most N test rows in the report.")]
Seed = Annotated[int | None, Option("--seed", min=0, help="The random seed.")]
NoMemo = Annotated[bool, Option("--no-memo", help="Do not use the cache of scores kept across runs.")]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of every command."""

    as_json: Annotated[bool, Option("--json", help="Print one JSON object to stdout, everything else to stderr.")] = (
        False
    )
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print no progress.")] = False
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False


@dataclass(frozen=True, kw_only=True)
class Trust(Output):
    """Options of commands that may run code, ask servers or read files named in a recipe or run folder."""

    trust: Annotated[
        bool,
        Option(
            "--trust", help="Allow the code, server, files and large models that the recipe or run names; remembered."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Machine(Trust):
    """Options of commands that run models."""

    threads: Annotated[int | None, Option(min=1, help="Number of CPU threads.")] = None
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1 or mps; default: the best available.")] = None
    model_code: Annotated[bool, Option("--trust-remote-code", help="Run the Python code that comes with a model.")] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Machine):
    """Options of every search."""

    out: Annotated[Path | None, Option("--out", "-o", help="The run folder; default: runs/<name>.")] = None
    resume: Annotated[bool, Option("--resume", help="Continue the run in the run folder.")] = False
    calls: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum number of model calls (one per example) in the search, see --estimate; for a model behind "
            "an API: in all.",
        ),
    ] = None
    minutes: Annotated[
        float | None, Option(min=0.01, help="Maximum minutes for the search; of restyle: with its report.")
    ] = None
    sets: Annotated[list[str] | None, Option("--set", help="Change any setting, such as policy.k=256.")] = None
    no_memo: NoMemo = False
    no_report: NoReport = False
    test_rows: TestRows = None
    private: Annotated[
        bool, Option("--private", help="Keep your texts and pictures out of the run folder and report.")
    ] = False
    estimate: Annotated[bool, Option("--estimate", help="Print what the run would cost, then exit.")] = False
    seed: Seed = None


@dataclass(frozen=True, kw_only=True)
class FolderSearch(SearchOptions):
    """Options of a search that never overwrites an earlier run unless told to."""

    force: Annotated[bool, Option("--force", help="Delete the run in the run folder and start over.")] = False


@dataclass(frozen=True, kw_only=True)
class TaskSearch(FolderSearch):
    """Options of a search without a recipe file."""

    method: Annotated[
        str | None, Option(help="Search method (see `pinprompt methods`); default: guided for invert, race otherwise.")
    ] = None
    profile: Annotated[str, Option(help="quick: minutes on a laptop; paper: the published settings.")] = "quick"


def expand(verb: Callable[..., None]) -> Callable[..., None]:
    """The command as typer expects it: `options`, of one of the classes above, become parameters; `console` is made."""
    hints = get_type_hints(verb, include_extras=True)
    group = hints["options"]
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [
        parameter.replace(annotation=hints[name], kind=kind)
        for name, parameter in inspect.signature(verb).parameters.items()
        if name not in ("console", "options")
    ]
    annotations, defaults = get_type_hints(group, include_extras=True), {f.name: f.default for f in fields(group)}
    # --help lists a command's own options first and those of all commands last.
    names = [name for part in group.__mro__[:-1] for name in inspect.get_annotations(part)]
    shared = [inspect.Parameter(name, kind, default=defaults[name], annotation=annotations[name]) for name in names]
    kept = own + shared

    @wraps(verb)
    def expanded(**given: Any) -> None:
        options = group(**{name: given.pop(name) for name in names})
        with session(options) as console:
            verb(console=console, options=options, **given)

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


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Any:
    """A rich table without a frame; no header without heads. Cells are Text, so nothing in them is interpreted."""
    from rich.table import Table
    from rich.text import Text

    made = Table(*heads, show_edge=False, show_header=bool(heads))
    for row in rows:
        made.add_row(*map(Text, row))
    return made


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


def _set_up_threads(threads: int | None) -> None:
    """Set what libraries read from the environment once, when torch is imported; the user's own values are kept."""
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # OpenMP threads spin while they wait, unless told otherwise. On a busy machine they then take CPU time from the
    # thread they wait for: with one other busy process, a step took up to ten times as long. On an idle machine
    # sleeping costs at most a tenth (benchmarks/neighbour.py).
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


@contextmanager
def session(options: Output) -> Iterator[Console]:
    """The context of every command: errors become one-line messages and exit codes, not tracebacks."""
    _set_up_threads(options.threads if isinstance(options, Machine) else None)
    console = Console(options.as_json, options.quiet)
    can_ask = sys.stdin.isatty() and sys.stderr.isatty() and not options.as_json
    try:
        agreed = isinstance(options, Trust) and options.trust
        with (
            _models_heard(console),
            trusting(isinstance(options, Machine) and options.model_code),
            consent.answering(agreed, console.ask if can_ask else None),
        ):
            yield console
    except PinpromptError as error:
        if options.debug:
            raise
        console.refuse(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.refuse(
            "stopped" + ("; continue with the same command and --resume" * isinstance(options, SearchOptions))
        )
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None
    except Exception as error:
        sentence = system_sentence(error)
        if options.debug or not sentence:
            raise
        console.refuse(f"{sentence}; --debug shows where")
        raise typer.Exit(1) from None


ADVICE = {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EMFILE: "close other programs, or raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs, or raise the limit of open files (ulimit -n)",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "it may have been moved or removed meanwhile",
}


def system_sentence(error: Exception) -> str:
    """What the machine refused, in one sentence; '' for an error that is ours to mend."""
    if isinstance(error, MemoryError):
        return "there is not enough memory; use a smaller model, fewer texts, or close other programs"
    number = errno_of(error)
    if number is not None:
        named = str(getattr(error, "filename", None) or "")
        what = f"{named if len(named) <= 120 else named[:120] + '...'}: " if named else ""
        advice = ADVICE.get(number)
        return f"{what}{getattr(error, 'strerror', None) or error}" + (f"; {advice}" if advice else "")
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # Path.home()
        return "there is no home directory to keep the cache in; set the environment variable HOME to a folder"
    if type(error).__name__ == "SafetensorError":
        return f"a file of weights is damaged or incomplete ({error}); delete it, so that it is fetched again"
    return ""


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
