"""The command line. Only the files in this folder print."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import Annotated

import typer

from pinprompt.cli import about, search, study, use
from pinprompt.cli.console import expand

app = typer.Typer(
    name="pinprompt",
    help="Finds short, readable prompts for a model that can only be called, not trained.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("pinprompt"))
        raise typer.Exit


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for verb in (*search.VERBS, *use.VERBS, *study.VERBS, *about.VERBS):
    app.command()(expand(verb))


def main() -> None:
    """The entry point of `pinprompt`."""
    watch_parent()
    _streams()
    try:
        app(prog_name="pinprompt")
    finally:
        _flush()


def _streams() -> None:
    """Make sure that there are streams to read and write, which can write any character."""
    # A closed stream is None, and the next file that is opened would take its place.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stderr.write("pinprompt: stdout is closed, so the answer cannot be written; redirect it to a file\n")
        raise SystemExit(1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _flush() -> None:
    """Write out what was printed; if that is not possible, say so once and exit with code 1."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"pinprompt: the output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None


def watch_parent() -> None:
    """If the studio started this process, stop like after Ctrl-C once the studio is gone, even if it was killed."""
    given = os.environ.pop("PINPROMPT_PARENT_PIPE", "")
    if not given.isdecimal():
        return

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(int(given), 1)  # returns when the last writing end is closed
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()
