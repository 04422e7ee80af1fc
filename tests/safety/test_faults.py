"""What goes wrong around a run: a disk that is full or read-only, a clock that jumps, two runs on one folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pinprompt.errors import RunError
from pinprompt.folder.checkpoint import Checkpoint
from pinprompt.folder.folder import RunFolder
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import RemoteClient
from pinprompt.reports.report import write_report
from pinprompt.run import running
from pinprompt.values import Answers, Draw, Prompt
from tests.house.tiny import FindTheWords, recipe
from tests.safety.remote_runs import call

from children import child, wait_until  # isort: skip
from remote_servers import refuse, reply, said, serving  # isort: skip

SHORT: dict[str, Any] = {"q_learning": {"steps": 8, "prompts": 8, "batch": 16, "updates": 1, "eval_every": 3}}
ROOT = Path(__file__).parents[2]


def go(lm_folder: Path, out: Path, **more: Any) -> running.Result:
    made = recipe(lm_folder, **{**SHORT, **more.pop("over", {})})
    return running.run(made, out, task=FindTheWords(), device="cpu", reporter=write_report, **more)


@pytest.fixture
def whole(tmp_path: Path, lm_folder: Path) -> Path:
    go(lm_folder, tmp_path / "whole")
    return tmp_path / "whole"


@pytest.fixture
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "due", lambda self: True)


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("room", [300, 1500, 2500, 20_000])
def test_a_full_disk_stops_the_run_which_resumes_when_there_is_room(
    whole: Path, tmp_path: Path, lm_folder: Path, room: int
) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file may grow beyond this; the kernel's own refusal, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(RunError, match=r"cannot (be written|write)"):
            go(lm_folder, tmp_path / "run", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    go(lm_folder, tmp_path / "run", resume=True)
    for name in ("events.jsonl", "prompts.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()
    assert not list((tmp_path / "run").rglob("*.tmp"))


@pytest.fixture
def _read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything under the folder of the test can be read and not written, even by root."""
    really_open, really_make = os.open, os.mkdir

    def refusing(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return really_open(path, flags, *rest, **more)

    def making(path: Any, *rest: Any, **more: Any) -> None:
        if str(path).startswith(str(tmp_path)) and not os.path.exists(path):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        really_make(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        patch.setattr(os, "mkdir", making)
        yield


@pytest.mark.usefixtures("_read_only")
def test_a_read_only_folder_gives_a_clear_error(
    request: pytest.FixtureRequest, tmp_path: Path, lm_folder: Path
) -> None:
    with pytest.raises(RunError, match=r"cannot be created: Read-only file system; choose another with --out"):
        go(lm_folder, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_became_read_only_can_be_looked_at(
    whole: Path, lm_folder: Path, request: pytest.FixtureRequest
) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    request.getfixturevalue("_read_only")
    for more in ({"resume": True}, {"force": True}, {}):
        with pytest.raises(RunError, match=r"Read-only file system|contains a run"):
            go(lm_folder, whole, **more)
    with pytest.raises(RunError, match="Read-only file system"):
        write_report(whole)
    assert running.result_of(whole).prompt
    assert call("compare", whole).exit_code == 0
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.fixture
def _jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that somebody sets: years ahead, years back, at every look."""
    real, looks = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + (1 if next(looks) % 2 else -1) * 3e8)


@pytest.mark.usefixtures("_jumping")
def test_a_clock_that_jumps_changes_nothing(whole: Path, tmp_path: Path, lm_folder: Path) -> None:
    found = go(lm_folder, tmp_path / "run", over={"budget": {"minutes": 600.0}})
    assert found.data["stopped"] == "finished"
    assert 0 < found.seconds < 1e7  # the clock jumps by 3e8
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == (whole / "events.jsonl").read_bytes()
    costs = [json.loads(line) for line in (tmp_path / "run" / "costs.jsonl").read_text("utf-8").splitlines()]
    elapsed = [row["elapsed"] for row in costs]
    assert elapsed == sorted(elapsed)


@pytest.mark.usefixtures("_jumping")
def test_a_clock_that_jumps_neither_hurries_nor_stalls_a_client() -> None:
    naps: list[float] = []

    def script(number: int, path: str, body: dict[str, Any]) -> Any:
        date = "Fri, 01 Jan 2038 00:00:00 GMT"
        return refuse(429, Retry_After=date) if number == 0 else reply(said("hi"))

    with serving(script) as server:
        settings = RemoteSettings(base_url=server.url, key_env="", requests_per_minute=600)
        client = RemoteClient(settings, "toy", sleep=naps.append, clock=lambda: 0.0)
        client.longest_wait = 7
        for _ in range(3):
            client.chat([{"role": "user", "content": "hi"}], 1)
    assert max(naps) <= 7 + 3 * 0.1 + 1e-6
    assert min(naps) >= 0


def test_two_runs_on_one_folder(tmp_path: Path, lm_folder: Path) -> None:
    recipe(lm_folder)  # the model, before two processes want it
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.house.child", str(lm_folder), str(tmp_path / "run"), "hold"]
    with child(command, cwd=ROOT, env=environment) as first:
        events = tmp_path / "run" / "events.jsonl"
        wait_until(lambda: events.exists() and events.stat().st_size, "the first run has begun", first)
        for more in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(RunError, match=rf"in use by process {first.pid}; wait for it"):
                go(lm_folder, tmp_path / "run", **more)
    assert json.loads(events.read_text("utf-8").splitlines()[0])["event"] == "start"
    RunFolder(tmp_path / "run", resume=True).close()  # a dead process holds nothing


def test_the_list_for_all_runs_leaves_its_seal(
    tmp_path: Path, lm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    go(lm_folder, tmp_path / "free")
    assert "ban_list" not in json.loads((tmp_path / "free" / "environment.json").read_text("utf-8"))
    (tmp_path / "banned").write_text("blue\n\n cat \n", "utf-8")
    monkeypatch.setenv("PINPROMPT_BAN_FILE", str(tmp_path / "banned"))
    go(lm_folder, tmp_path / "bound")
    sealed = json.loads((tmp_path / "bound" / "environment.json").read_text("utf-8"))["ban_list"]
    digest = subprocess.run(["sha256sum"], input=b"blue\ncat", capture_output=True, check=True).stdout.split()[0]
    assert sealed == {"set_by": "PINPROMPT_BAN_FILE", "phrases": 2, "sha256": digest.decode()}
    assert "blue" not in (tmp_path / "bound" / "prompts.csv").read_text("utf-8")
    assert sealed["sha256"] in (tmp_path / "bound" / "report.html").read_text("utf-8")


class Disturbed(FindTheWords):
    """A task during which somebody does something to the run folder."""

    def __init__(self, after: int, deed: Callable[[], None]) -> None:
        super().__init__()
        self.left, self.deed = after, deed

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        self.left -= 1
        if self.left == 0:
            self.deed()
        return super().ask(prompts, rows, draws)


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("after", [1, 20, "the report"])
@pytest.mark.parametrize("deed", ["removed", "moved", "replaced"])
def test_a_folder_that_changes_under_a_run_is_left_alone(
    whole: Path, tmp_path: Path, lm_folder: Path, deed: str, after: Any
) -> None:
    out = tmp_path / "run"

    def act() -> None:
        if deed == "removed":
            shutil.rmtree(out)
        else:
            out.rename(tmp_path / "moved")
        if deed == "replaced":
            shutil.copytree(whole, out)

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    if after == "the report":
        reporter = lambda folder: act()  # noqa: E731
        task = FindTheWords()
    else:
        reporter, task = write_report, Disturbed(after, act)
    with pytest.raises((RunError, FileNotFoundError), match=r"removed|No such file"):
        running.run(recipe(lm_folder, **SHORT), out, task=task, device="cpu", reporter=reporter)
    if deed == "replaced":
        assert contents(out) == contents(whole)
    else:
        assert not out.exists()
    if deed != "removed":
        go(lm_folder, tmp_path / "moved", resume=True)
        assert (tmp_path / "moved" / "events.jsonl").read_bytes() == (whole / "events.jsonl").read_bytes()
