"""`pinprompt verify`: every changed file is named, a whole folder is said to be whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.house.tiny import FindTheWords, recipe
from typer.testing import CliRunner

from pinprompt import api
from pinprompt.cli import app
from pinprompt.errors import RunError
from pinprompt.files import FolderLock, sealed
from pinprompt.records.reading import read_run
from pinprompt.records.report import write_report
from pinprompt.run import running
from pinprompt.run.folder import FINISHED
from pinprompt.values import Event

SHORT: dict[str, Any] = {
    "q_learning": {"steps": 3, "prompts": 4, "batch": 8, "updates": 1, "eval_every": 2, "finalists": 2}
}


class Stopped(KeyboardInterrupt):
    """The process is killed here."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and a killed one."""
    base = tmp_path_factory.mktemp("verifying")

    def stop(event: Event) -> None:
        if event.kind == "finalist":
            raise Stopped

    asked = recipe(base, **SHORT)
    running.run(asked, base / "finished", task=FindTheWords(), device="cpu", threads=1)
    with pytest.raises(Stopped):
        running.run(asked, base / "killed", task=FindTheWords(), device="cpu", threads=1, listeners=[stop])
    return base


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "finished", tmp_path / "finished"))


@pytest.fixture
def killed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "killed", tmp_path / "killed"))


def test_whole_folders_are_whole(finished: Path, killed: Path) -> None:
    found = {one.folder.name: one for one in api.verify(finished.parent)}
    assert all(one.ok for one in found.values())
    assert {name: one.state for name, one in found.items()} == {"finished": "finished", "killed": "unfinished"}
    answer = CliRunner().invoke(app, ["verify", str(finished), str(killed), "--json"])
    assert answer.exit_code == 0
    assert [run["ok"] for run in json.loads(answer.output)["runs"]] == [True, True]


def test_every_file_of_a_finished_run_is_checked(finished: Path) -> None:
    present = [name for name in FINISHED if (finished / name).exists()]
    assert len(present) >= 10
    for name in [*present, "run.json"]:
        before = (finished / name).read_bytes()
        for place in (0, len(before) // 2, len(before) - 1):
            (finished / name).write_bytes(before[:place] + bytes([before[place] ^ 16]) + before[place + 1 :])
            [found] = api.verify(finished)
            assert any(name in finding.what for finding in found.findings), (name, place)
        (finished / name).unlink()
        [found] = api.verify(finished)
        assert any(name in finding.what for finding in found.findings), name
        (finished / name).write_bytes(before)
    assert api.verify(finished)[0].ok


def test_what_a_killed_run_goes_on_from_is_checked(killed: Path) -> None:
    for name in ("run.json", "recipe.toml", "scores.jsonl", "events.jsonl", "checkpoint/state.json",
                 "checkpoint/trials.jsonl", "checkpoint/state-3.safetensors"):  # fmt: skip
        before = (killed / name).read_bytes()
        (killed / name).write_bytes(before[:40] + bytes([before[40] ^ 16]) + before[41:])
        [found] = api.verify(killed)
        assert any(name in finding.what for finding in found.findings), name
        (killed / name).write_bytes(before)
    assert api.verify(killed)[0].ok


def test_the_command_says_what_to_do_and_fails(finished: Path) -> None:
    (finished / "prompts.csv").write_text("prompt\n")
    (finished / "report.html").write_text("")
    answer = CliRunner().invoke(app, ["verify", str(finished)])
    assert answer.exit_code == 1
    assert "prompts.csv was changed; `pinprompt resume` repairs it" in answer.output
    assert "report.html was changed; `pinprompt report` writes it again" in answer.output
    write_report(finished)
    assert [finding.what for finding in api.verify(finished)[0].findings] == [f"{finished / 'prompts.csv'} was changed"]
    with pytest.raises(RunError, match="not a run folder"):
        api.verify(finished.parent / "nothing")


def test_a_changed_result_is_no_answer(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    (finished / "result.json").write_text(json.dumps({**result, "prompt": "another"}))
    with pytest.raises(RunError, match=r"result.json was changed.*Resume"):
        running.result_of(finished)
    assert any("result.json was changed" in note for note in read_run(finished).notes)


def test_a_run_at_work_is_said_to_be_running(killed: Path) -> None:
    lock = FolderLock(killed)
    try:
        [found] = api.verify(killed)
    finally:
        lock.close()
    assert (found.state, found.ok) == ("running", True)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("checkpoint/state.json", {"sums": 5}),
        ("checkpoint/state.json", {"sums": {"../../outside": "00000000"}}),
        ("checkpoint/state.json", {"sums": {"a\0b": "00000000"}}),
        ("checkpoint/state.json", {"tensors": "a\0b"}),
        ("checkpoint/state.json", {"tensors": ["x"]}),
        ("checkpoint/state.json", {"sizes": []}),
        ("checkpoint/state.json", {"provided": {"evaluator": {"rows": 10**39}}}),
        ("run.json", {"files": {"\ud800": "x"}}),
        ("run.json", {"recipe": "\ud800"}),
        ("run.json", {"files": {"events.jsonl": 5}}),
        ("run.json", {"run": 5}),
    ],
)
def test_a_stranger_can_seal_what_no_run_writes(made: Path, killed: Path, name: str, change: dict[str, Any]) -> None:
    row = json.loads((killed / name).read_text())
    row.pop("crc")
    (killed / name).write_text(json.dumps(sealed({**row, **change})))
    answer = CliRunner().invoke(app, ["verify", str(killed)])
    assert isinstance(answer.exception, SystemExit), answer.exception
    assert answer.exit_code == 1
    for words in (["report", str(killed)], ["compare", str(killed)], ["ls", str(killed.parent)]):
        answer = CliRunner().invoke(app, words)
        assert answer.exception is None or isinstance(answer.exception, SystemExit), words
    again = running.run(recipe(made, **SHORT), killed, task=FindTheWords(), device="cpu", threads=1, resume=True)
    assert again.prompt
    assert api.verify(killed)[0].ok
