"""A real studio in a process of its own, and a real Chromium to look at it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pinprompt.run import consent
from tests.house.tiny import WORDS, make_lm

sys.path.append(str(Path(__file__).parents[1] / "records"))  # its attacks on pages are ours too

PATIENCE = 900_000
"""Milliseconds that a test waits for something to happen: on a busy machine everything takes its time."""


@dataclass
class Studio:
    """A studio at work: its folder, its address, and its process."""

    folder: Path
    url: str
    process: subprocess.Popen[str]

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def token(self) -> str:
        return urlsplit(self.url).path.strip("/")

    def stop(self) -> int:
        """End it as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENCE / 1000)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def environment(home: Path) -> dict[str, str]:
    """A quiet process with one thread, and caches of its own."""
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PINPROMPT_HOME": str(home)}
    return {**os.environ, **quiet}


@contextlib.contextmanager
def opened(folder: Path, home: Path, *options: str) -> Iterator[Studio]:
    home.mkdir(exist_ok=True)
    if consent._path().exists():  # whoever made the earlier runs opens the studio
        shutil.copy(consent._path(), home / "agreed.json")
    command = [sys.executable, "-m", "pinprompt", "studio", str(folder), "--no-open", "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(home),
        start_new_session=True, cwd=folder.parent,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, line
        studio = Studio(folder, line.split()[-1], process)
        yield studio
        studio.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small causal language model of the real class and format."""
    return make_lm(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def earlier(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two finished runs with different seeds, to be copied into a studio's folder."""
    from pinprompt import api
    from pinprompt.recipe import recipe as recipes

    place = tmp_path_factory.mktemp("earlier")
    words = {"animal": "cat", "thing": "stone"}
    task = {
        "train": str(table(place / "earlier.csv")),
        "text_column": "review",
        "label_column": "stars",
        "words": words,
    }
    found = {}
    for seed in (1, 2):
        over = recipes.merge(recipes.parse_overrides(settings(tiny, 4)), {"scoring": {"memo": False}})
        found[seed] = place / f"seed-{seed}"
        api.tune({**task, "model": str(tiny)}, out=found[seed], method="pin", seed=seed, settings=over, calls=600)
    return found


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    (tmp_path / "runs").mkdir()
    with opened(tmp_path / "runs", tmp_path / "home") as started:
        yield started


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A page in a fresh profile; a script's error, or a break of the content policy, fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    mistakes: list[str] = []
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("console", lambda message: mistakes.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    # A refused request is the test's business; everything else on the console is a mistake.
    assert [one for one in mistakes if "Failed to load resource" not in one] == []


def until(page: Any, expression: str, given: Any = None) -> None:
    """Wait until an expression is true in the page; playwright's own way of waiting is against the page's policy."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression, given):
        assert time.monotonic() < deadline, f"it never came true: {expression}"
        page.wait_for_timeout(100)


def table(path: Path, copies: int = 14) -> Path:
    """Labelled texts that the tiny model can read, in columns whose names have to be guessed."""
    lines = ["id,review,stars"]
    for number in range(copies):
        for place in range(0, 6, 2):
            animal, thing = WORDS[3 + place % 3], WORDS[8 + (place + number) % 8]
            lines.append(f"{len(lines)},the {animal} {WORDS[number % 3]} {number},animal")
            lines.append(f"{len(lines)},a {thing} and {WORDS[number % 3]} {number},thing")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def settings(tiny: Path, steps: int = 6, **more: Any) -> list[str]:
    """Settings of a search of seconds."""
    found = {"policy.model": tiny, "policy.context": "none", "policy.hidden": 32, "policy.length": 3}
    found |= {"q_learning.steps": steps}
    found |= {"q_learning.prompts": 8, "q_learning.batch": 16, "q_learning.eval_every": 3, "scoring.finalists": 3}
    return [f"{name}={value}" for name, value in (found | more).items()]
