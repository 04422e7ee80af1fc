"""What the machine refuses is one sentence and an exit code; `--debug` shows the traceback."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import label_runs
import pytest
import run_samples
from safetensors.torch import save_file
from typer.testing import CliRunner

from pinprompt import api
from pinprompt.cli import app
from pinprompt.errors import ModelError
from pinprompt.models import cache
from pinprompt.recipe import recipe as recipes

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


@pytest.mark.parametrize(("closed", "code"), [((1,), 1), ((0,), 0), ((2,), 0), ((0, 1, 2), 1)])
def test_closed_streams(closed: tuple[int, ...], code: int) -> None:
    def close() -> None:
        for stream in closed:
            os.close(stream)

    command = [sys.executable, "-m", "pinprompt", "methods"]
    done = subprocess.run(command, preexec_fn=close, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert ("stdout is closed" in done.stderr) == (1 in closed and 2 not in closed)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "shift_jis", "koi8-r", "utf-16"])
def test_terminals_with_other_characters_than_ours(encoding: str, tmp_path: Path) -> None:
    """A letter that the terminal does not have is written as its code; no letter ends a command."""
    run_samples.classification(tmp_path / "日本語 ☃ é")
    narrow = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    for verb in (["ls", str(tmp_path)], ["verify", "☃"], ["report", str(tmp_path / "日本語 ☃ é")]):
        command = [sys.executable, "-m", "pinprompt", *verb]
        done = subprocess.run(command, env={**os.environ, **narrow}, capture_output=True, check=False)
        assert done.returncode == (2 if verb[0] == "verify" else 0), done.stderr
        assert b"Traceback" not in done.stderr


def test_no_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> object:
        raise KeyError(number)

    for name in ("HOME", "PINPROMPT_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    done = CliRunner().invoke(app, ["cache"])
    assert done.exit_code == 1
    assert "set the environment variable HOME" in done.output


@pytest.mark.skipif(sys.platform != "linux", reason="file descriptors are limited as on Linux")
@pytest.mark.parametrize("most", [5, 6, 7, 8, 12])
def test_few_file_descriptors(most: int, tmp_path: Path) -> None:
    import resource

    recipe = tmp_path / "recipe.toml"
    raw = label_runs.settings_of(tmp_path, method="random", budget={"calls": 60}, untrained={"prompts": 4})
    recipe.write_text(recipes.to_toml(recipes.resolve(raw)), "utf-8")
    command = [sys.executable, "-m", "pinprompt", "tune", str(recipe), "--out", str(tmp_path / "run"), "--trust"]
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (most, most))
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "Too many open files" in done.stderr
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr


def test_a_cache_on_a_full_disk_costs_time_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses every file beyond a few bytes, as a full disk does."""
    resource = pytest.importorskip("resource")
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path))

    def fill(target: Path) -> None:
        with cache.place(target, "a model") as folder:
            assert folder is not None
            save_file({"weights": torch.ones(1000)}, folder / "model.safetensors")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        kept = cache.kept_tensor("0" * 64, "a tensor", lambda: torch.ones(1000))
        with pytest.raises(ModelError, match="into the cache"):
            fill(tmp_path / "models" / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert float(kept.sum()) == 1000
    assert list((tmp_path / "tmp").iterdir()) == []
