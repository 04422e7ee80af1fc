"""Run folders and checkpoints: never overwritten, never torn, held by one process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lines import read_lines
from tests.house.tiny import FindTheWords, recipe
from typer.testing import CliRunner

from pinprompt import api, files
from pinprompt.answers.log import Log
from pinprompt.cli import app
from pinprompt.errors import RunError
from pinprompt.files import FolderLock, seal, write_atomically, write_tensors
from pinprompt.folder import checkpoint as checkpoints
from pinprompt.folder.checkpoint import Checkpoint
from pinprompt.folder.folder import FINISHED, RunFolder
from pinprompt.folder.reading import read_run
from pinprompt.reports.report import write_report
from pinprompt.run import running
from pinprompt.values import Event


def test_a_run_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as run:
        run.begin("seed = 1\n")
        run.record(Event("start", 0, {"a": 1}))
    with pytest.raises(RunError, match=r"--resume.*--force"):
        RunFolder(tmp_path / "run")
    (tmp_path / "run" / "mine.txt").write_text("keep me")
    with RunFolder(tmp_path / "run", force=True) as run:
        assert not (run.path / "events.jsonl").exists()
    assert (tmp_path / "run" / "mine.txt").read_text() == "keep me"


def test_events_and_costs_are_kept_apart(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.begin("")
        run.record(Event("step", 3, {"score": 1.5, "prompt": "größe"}, {"write": 0.1}))
    assert list(read_lines(tmp_path / "events.jsonl")) == [
        {"event": "step", "step": 3, "score": 1.5, "prompt": "größe"}
    ]
    cost = json.loads((tmp_path / "costs.jsonl").read_text())
    assert cost["write"] == 0.1
    assert cost["elapsed"] >= 0


def test_two_runs_on_one_folder_the_second_gets_an_error_that_names_the_first(tmp_path: Path) -> None:
    code = "import sys; from pinprompt.folder.folder import RunFolder; RunFolder(sys.argv[1])"
    with RunFolder(tmp_path):
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert f"in use by process {os.getpid()}" in other.stderr
    again = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr


def test_resume_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.begin("")
        run.record(Event("step", 0, {"n": 0}, {"write": 1}))
        run.checkpoint.log("episodes").append({"ids": [1, 2]})
        run.checkpoint.save(1, {"greedy": []}, {"psi": torch.arange(3.0)})
        run.record(Event("step", 1, {"n": 1}, {"write": 1}))
        run.checkpoint.log("episodes").append({"ids": [3, 4]})
    with RunFolder(tmp_path, resume=True) as run:
        assert len(list(read_lines(tmp_path / "events.jsonl"))) == 2, "opening alone changes nothing"
        run.begin("")
        step, state, tensors = run.checkpoint.load() or (None, None, None)
        assert (step, state) == (1, {"greedy": []})
        assert tensors["psi"].tolist() == [0, 1, 2]
        assert list(run.checkpoint.stream("episodes")) == [{"ids": [1, 2]}]
        run.record(Event("step", 1, {"n": 5}, {"write": 5}))
        run.checkpoint.log("episodes").append({"ids": [5, 6]})
        run.checkpoint.save(2, {}, {"psi": torch.zeros(1)})
    assert [row["n"] for row in read_lines(tmp_path / "events.jsonl")] == [0, 5]
    assert [row["write"] for row in read_lines(tmp_path / "costs.jsonl")] == [1, 5]
    saved = Checkpoint(tmp_path / "checkpoint", run=run.run)
    assert saved.damage == ""
    assert [row["ids"] for row in saved.stream("episodes")] == [[1, 2], [5, 6]]


def test_a_run_without_a_checkpoint_starts_from_nothing(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.begin("")
        run.record(Event("start", 0))
    with RunFolder(tmp_path, resume=True) as run:
        assert run.checkpoint.load() is None
        run.begin("")
        run.record(Event("start", 1))
    assert [row["step"] for row in read_lines(tmp_path / "events.jsonl")] == [1]


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": ')
    assert list(read_lines(path)) == [{"a": 1}, {"a": 2}]
    assert list(read_lines(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize("content", [b"", b"{", b"x" * 40])
def test_a_damaged_checkpoint_gives_a_clear_error(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / checkpoints.FILE).write_bytes(content)
    assert "damaged" in Checkpoint(folder).damage
    assert Checkpoint(folder).load() is None


def test_every_byte_of_a_checkpoint_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    tensors = {"psi": torch.arange(3.0), "rng": torch.arange(4, dtype=torch.uint8), "step": torch.tensor(2)}
    Checkpoint(folder, run="one").save(1, {"greedy": []}, tensors)
    assert "another run" in Checkpoint(folder, run="two").damage
    whole = (folder / checkpoints.FILE).read_bytes()
    for place in range(len(whole)):
        (folder / checkpoints.FILE).write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert Checkpoint(folder, run="one").damage, place
    (folder / checkpoints.FILE).write_bytes(whole)
    step, state, loaded = Checkpoint(folder, run="one").load() or (None, None, {})
    assert (step, state) == (1, {"greedy": []})
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "old")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir()] == ["result.json"]
    saving = Checkpoint(tmp_path / "checkpoint")
    with pytest.raises(RunError, match="No space left"):
        saving.save(1, {}, {"psi": torch.zeros(2)})
    assert not list((tmp_path / "checkpoint").iterdir())


def test_a_folder_that_cannot_be_made_gives_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be created"):
        RunFolder(tmp_path / "file" / "run")


def test_saving_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    saving = Checkpoint(tmp_path / "checkpoint", least_seconds=5)
    assert not saving.due()
    now[0] = 5.0
    assert saving.due()
    # A save that takes 2 s may come again after 2 / 0.04 = 50 s.
    monkeypatch.setattr(
        "pinprompt.folder.checkpoint.write_tensors", lambda path, tensors, about: now.__setitem__(0, now[0] + 2.0)
    )
    saving.save(1, {}, {})
    now[0] += 49.0
    assert not saving.due()
    now[0] += 1.0
    assert saving.due()


def test_seconds_continue_after_resuming(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.begin("")
        run.seconds_before = 100.0
        run.checkpoint.save(1, {}, {"x": torch.zeros(1)})
    with RunFolder(tmp_path, resume=True) as run:
        assert run.seconds() >= 100.0


def test_prompts_are_a_csv_that_spreadsheets_read(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.save_prompts([{"prompt": 'say "hi",\nyou', "train": 1.0}, {"prompt": "b", "dev": 2.0}])
        run.save_prompts([{"prompt": 'say "hi",\nyou', "train": 1.0}, {"prompt": "b", "dev": 2.0}])
    assert (tmp_path / "prompts.csv").read_text() == 'prompt,train,dev\n"say ""hi"",\nyou",1.0,\nb,,2.0\n'


def test_lines_that_are_no_objects_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n[1, 2]\n"text"\n{"a": 2}\n')
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"a": 1}, {"a": 2}]
    assert list(read_lines(tmp_path / "none.jsonl")) == []
    with pytest.raises(RunError, match="cannot be read"):
        list(read_lines(tmp_path))


def test_what_cannot_be_written_gives_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="free some space or choose another folder"):
        write_atomically(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = Log(tmp_path / "events.jsonl")
    file.append({"event": "start"})
    monkeypatch.setattr(files.os, "fsync", broken)
    with pytest.raises(RunError, match=r"Input/output error.*resume the run"):
        file.sync()
    monkeypatch.undo()
    file.close()


def test_a_link_in_the_place_of_a_part_is_removed_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("keep me")
    with RunFolder(tmp_path / "run") as run:
        run.begin("")
    (tmp_path / "run" / "drawings").symlink_to(outside)
    with RunFolder(tmp_path / "run", force=True):
        assert not (tmp_path / "run" / "drawings").exists()
    assert (outside / "mine.txt").read_text() == "keep me"


def test_a_lock_that_cannot_be_made_gives_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(RunError, match=r"cannot be written: .*--out"):
        RunFolder(tmp_path)


SHORT: dict[str, Any] = {
    "q_learning": {"steps": 3, "prompts": 4, "batch": 8, "updates": 1, "eval_every": 2},
    "scoring": {"finalists": 2},
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
    running.run(asked, base / "finished", task=FindTheWords(), device="cpu", threads=1, reporter=write_report)
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
    assert len(present) >= 8
    for name in [*present, "run.json"]:
        before = (finished / name).read_bytes()
        for place in (0, len(before) // 2, len(before) - 1):
            (finished / name).write_bytes(before[:place] + bytes([before[place] ^ 16]) + before[place + 1 :])
            [found] = api.verify(finished)
            assert any(name in finding for finding in found.findings), (name, place)
        (finished / name).unlink()
        [found] = api.verify(finished)
        assert any(name in finding for finding in found.findings), name
        (finished / name).write_bytes(before)
    assert api.verify(finished)[0].ok


def test_what_a_killed_run_resumes_from_is_checked(killed: Path) -> None:
    for name in (
        "run.json",
        "answers.jsonl",
        "events.jsonl",
        "checkpoint/trials.jsonl",
        "checkpoint/state.safetensors",
    ):
        before = (killed / name).read_bytes()
        (killed / name).write_bytes(before[:40] + bytes([before[40] ^ 16]) + before[41:])
        [found] = api.verify(killed)
        assert any(name in finding for finding in found.findings), name
        (killed / name).write_bytes(before)
    assert api.verify(killed)[0].ok


def test_the_command_says_what_was_changed_and_fails(finished: Path) -> None:
    (finished / "prompts.csv").write_text("prompt\n")
    (finished / "report.html").write_text("")
    answer = CliRunner().invoke(app, ["verify", str(finished)])
    assert answer.exit_code == 1
    assert "prompts.csv was changed" in answer.output
    assert "report.html was changed" in answer.output
    write_report(finished)
    assert api.verify(finished)[0].findings == (f"{finished / 'prompts.csv'} was changed",)
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
    "change",
    [
        {"logs": 5},
        {"logs": {"../../outside": [1, "00000000"]}},
        {"logs": {"a\0b": [1, "00000000"]}},
        {"logs": {"events": 3}},
        {"provided": {"evaluator": {"rows": 10**39}}},
        {"provided": {"evaluator": {"lines": [[0, 10**12]], "crc": ""}}},
    ],
)
def test_a_stranger_can_seal_what_no_run_writes(made: Path, killed: Path, change: dict[str, Any]) -> None:
    owner = json.loads((killed / "run.json").read_text())["run"]
    saved = Checkpoint(killed / "checkpoint", run=owner)
    state = seal({**(saved._state or {}), **change}, owner).decode()
    write_tensors(killed / "checkpoint" / checkpoints.FILE, saved._tensors, {"state": state})
    answer = CliRunner().invoke(app, ["verify", str(killed)])
    assert isinstance(answer.exception, SystemExit), answer.exception
    assert answer.exit_code == 1
    again = running.run(recipe(made, **SHORT), killed, task=FindTheWords(), device="cpu", threads=1, resume=True)
    assert again.prompt
    assert api.verify(killed)[0].ok


@pytest.mark.parametrize("change", [{"run": 5}, {"fingerprint": None}, {"recipe": []}])
def test_a_stranger_can_seal_an_identity_that_no_run_has(made: Path, killed: Path, change: dict[str, Any]) -> None:
    known = json.loads((killed / "run.json").read_text())
    known.pop("crc")
    (killed / "run.json").write_bytes(seal({**known, **change}))
    assert CliRunner().invoke(app, ["verify", str(killed)]).exit_code == 1
    for words in (["report", str(killed)], ["compare", str(killed)], ["ls", str(killed.parent)]):
        answer = CliRunner().invoke(app, words)
        assert answer.exception is None or isinstance(answer.exception, SystemExit), words
    with pytest.raises(RunError, match=r"run.json is damaged"):
        running.run(recipe(made, **SHORT), killed, task=FindTheWords(), device="cpu", threads=1, resume=True)
