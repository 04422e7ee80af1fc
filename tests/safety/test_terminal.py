"""What data, servers and run folders say is shown as text: it moves no cursor, and is no markup."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from pinprompt.cli import console as consoles
from pinprompt.cli.console import Console

HOSTILE = "[/neg] [bold]x[/] \x1b[2J\x1b]0;title\x07 \x9b31m \u202eevil \r over"
CONTROLS = {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


def harmless(said: str) -> bool:
    return not CONTROLS & set(said)


def test_tables_texts_and_lines_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE, "b", title=None)
    table.add_row(HOSTILE, Text(HOSTILE))
    Console(False, False).answer({}, table, HOSTILE, Text(HOSTILE), "plain")
    said = capsys.readouterr().out
    assert harmless(said)
    assert said.count("[/neg]") == 5
    assert said.count("[bold]x[/]") == 5
    assert said.endswith("plain\n")


def test_json_stays_json_and_says_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Console(True, False).answer({"label": HOSTILE, "é": "ünï 😀"})
    said = capsys.readouterr().out
    assert harmless(said)
    assert json.loads(said) == {"label": HOSTILE, "é": "ünï 😀"}
    assert "ünï 😀" in said


def test_notes_and_refusals_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(False, False)
    console.note(f"the server says {HOSTILE}")
    console.refuse(f"no: {HOSTILE}")
    said = capsys.readouterr().err
    assert harmless(said)
    assert said.count("[/neg]") == 2


def test_colours_of_ours_stay_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(consoles.sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Console(False, False).answer({}, Text("a\x1b[2Jb", style="bold"))
    said = screen.getvalue()
    assert "\x1b[1m" in said
    assert "\x1b[2J" not in said
    assert "␛[2J" in said


@pytest.mark.parametrize("words", [HOSTILE, "", "a\nb\tc", "ünï 😀"])
def test_the_bar_shows_words_as_text(words: str) -> None:
    from rich.console import Console as Rich

    from pinprompt.cli.shown import _escaped

    out = io.StringIO()
    shown: Any = _escaped(words)
    Rich(file=out, markup=True, width=200).print(shown)
    assert harmless(out.getvalue())
    for part in ("[/neg]", "[bold]x[/]"):
        assert (part in out.getvalue()) == (part in words)
