"""`judge` and `draw` killed at every operation on the disk: the run is whole or repaired, and they work again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remote_servers import reply, said, serving
from tools.soak import Operations, in_child

from pinprompt import api
from pinprompt.folder.folder import verify
from pinprompt.reports import sharing
from pinprompt.reports.report import write_report
from pinprompt.run import running
from tests.cli.inversion_runs import invert, picture
from tests.models import test_images

pipeline = test_images.folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    return invert(folder, folder / "run", [picture(folder / "red.png", "red")]).folder


def kill_everywhere(run: Path, place: Path, work: Callable[[Path], Any], seen: Callable[[Path], Any]) -> int:
    """Kill the work at each of its disk operations, repeat it, and compare with the undisturbed work; how often."""
    shutil.copytree(run, place / "whole")
    operations, kills = Operations(), 0
    with operations.counted():
        work(place / "whole")
    for last in range(1, operations.count + 1):
        out = place / f"killed-{last}"
        shutil.copytree(run, out)

        def killed(out: Path = out, last: int = last) -> None:
            with Operations(last).counted():
                work(out)

        kills += in_child(killed).how == "killed"
        if not verify(out).ok:  # between a file and its checksum; `resume` repairs it
            running.run(running.recipe_of(out), out, device="cpu", resume=True, reporter=write_report)
            assert verify(out).ok
        work(out)
        assert verify(out).ok
        assert seen(out) == seen(place / "whole"), f"killed at operation {last}"
    return kills


def test_draw_under_kills(run: Path, tmp_path: Path, pipeline: str) -> None:
    def work(out: Path) -> None:
        sharing.draw(out, model=pipeline, images=2, steps=2, size=32, device="cpu", seed=3)

    def seen(out: Path) -> Any:
        return json.loads((out / "result.json").read_text())["drawings"], sorted(
            path.read_bytes() for path in (out / "drawings").glob("[!.]*")
        )

    assert kill_everywhere(run, tmp_path, work, seen) > 5


def test_judge_under_kills(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    answer = said(json.dumps({"relevance": 4, "interpretability": 2}), tokens=(1000, 20))
    with serving(lambda *_: reply(answer)) as server:

        def work(out: Path) -> None:
            monkeypatch.setenv("PINPROMPT_HOME", str(out.parent / f"home-{out.name}"))
            api.judge(out, model="remote:judge", settings={"remote": {"base_url": server.url}})

        def seen(out: Path) -> Any:
            return [one["opinions"] for one in json.loads((out / "judgements.json").read_text())["judgements"]]

        assert kill_everywhere(run, tmp_path, work, seen) > 3
