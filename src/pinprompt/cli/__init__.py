"""The command line. Only the files in this folder print."""

from __future__ import annotations

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
    app(prog_name="pinprompt")
