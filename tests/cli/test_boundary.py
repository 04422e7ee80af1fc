"""What the machine refuses is one sentence and an exit code; `--debug` shows the traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pinprompt import api
from pinprompt.cli import app

LONG = "x" * 300


@pytest.mark.parametrize(
    "command", ["classify vader-products --out", "verify", "predict", "report", "ls", "use", "compare", "tune"]
)
def test_names_that_no_file_system_takes(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *options = command.split()
    more = ["text"] if verb == "predict" else []
    done = CliRunner().invoke(app, [verb, *options, LONG, *more])
    assert done.exit_code in (1, 2)
    assert "Traceback" not in done.output
    assert "too long" in done.output


@pytest.mark.parametrize(
    ("error", "words"),
    [(MemoryError(), "not enough memory"), (OSError(28, "No space left on device", "somewhere"), "free some space")],
)
def test_what_the_machine_refuses_is_one_sentence(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "ls", refused)
    done = CliRunner().invoke(app, ["ls"])
    assert done.exit_code == 1
    assert words in done.output
    debugged = CliRunner().invoke(app, ["ls", "--debug"])
    assert debugged.exception is error


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(api, "ls", wrong)
    assert isinstance(CliRunner().invoke(app, ["ls"]).exception, ValueError)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pinprompt", "methods"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_went_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pinprompt", "methods"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert "Traceback" not in done.stderr
