"""The verb `studio`: a page on this machine to search from, watch, compare and try prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pinprompt.cli.console import door
from pinprompt.cli.options import Output


def studio(
    options: Output,
    folder: Annotated[Path, typer.Argument(help="The folder whose runs are shown, and where new ones go.")] = Path(
        "runs"
    ),
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Default: 8765, or a free one where that is taken.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen at; any but this one lets other machines in.")
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Open a page to search from, watch, compare and try prompts."""
    with door(options) as console:
        from pinprompt import api

        def ready(address: str) -> None:
            console.answer({"address": address}, f"pinprompt studio: {address}")
            console.note("Ctrl-C ends it; a search that is at work then stops and can be resumed.")
            if not no_open:
                import webbrowser

                webbrowser.open(address)

        waiting = api.studio(folder, host=host, port=port, ready=ready)
        for command in waiting:
            console.note(f"not started: {command}")


VERBS = (studio,)
