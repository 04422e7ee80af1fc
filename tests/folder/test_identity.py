"""Old scores never stand in a new run, and a damaged run repairs itself from what is left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lines import read_lines
from tests.house.tiny import FindTheWords, recipe

from pinprompt import api
from pinprompt.errors import RunError
from pinprompt.files import seal
from pinprompt.folder import folder
from pinprompt.folder import identity as identities
from pinprompt.folder.checkpoint import Checkpoint
from pinprompt.folder.folder import OURS, RunFolder
from pinprompt.run import build, running
from pinprompt.tasks.protocol import TaskInfo
from pinprompt.values import Answers, Draw, Event, Prompt, Row

SHORT: dict[str, Any] = {
    "q_learning": {"steps": 4, "prompts": 4, "batch": 8, "updates": 1, "eval_every": 2},
    "scoring": {"finalists": 3},
}


class WithDev(FindTheWords):
    rows = (Row("train", 0, key="train"), Row("dev", 0, key="dev"))


class Other(FindTheWords):
    """Another function: it likes what the first one does not."""

    info = TaskInfo("find-the-words", "find-no-words")

    def value(self, text: str) -> float:
        return 3.0 - super().value(text)


class Stopped(KeyboardInterrupt):
    """The process is killed here."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(autouse=True)
def _saved_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(Checkpoint, "due", lambda self: True)


def run(models: Path, out: Path, task: Any = None, notes: list[str] | None = None, **more: Any) -> running.Result:
    over = {name: more.pop(name) for name in ("budget", "method", "random", "seed") if name in more}
    return running.run(
        recipe(models, **SHORT, **over), out, task=task or FindTheWords(), device="cpu", threads=1,
        notes=(lambda note: None) if notes is None else notes.append, **more,
    )  # fmt: skip


def stop_at(number: int, kind: str = "step") -> Callable[[Event], None]:
    """A listener that ends the run at the nth event of a kind."""
    left = [number]

    def listen(event: Event) -> None:
        left[0] -= event.kind == kind
        if not left[0]:
            raise Stopped

    return listen


def told(path: Path) -> tuple[bytes, dict[str, Any], bytes]:
    """All that a run's user sees of it, without what may differ from run to run."""
    result = json.loads((path / "result.json").read_text())
    for name in ("seconds", "paid_calls"):
        result.pop(name)
    result["spent"].pop("sent")
    return (path / "events.jsonl").read_bytes(), result, (path / "prompts.csv").read_bytes()


@pytest.fixture(scope="module")
def whole(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run(models, out)
    return out


@pytest.fixture(scope="module")
def killed(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its third step, saved after its second."""
    out = tmp_path_factory.mktemp("killed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "due", lambda self: True)
        with pytest.raises(Stopped):
            run(models, out, listeners=[stop_at(3)])
    return out


@pytest.fixture
def torn(killed: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(killed, tmp_path / "torn"))


def test_force_leaves_nothing_of_the_old_run(models: Path, torn: Path) -> None:
    run(models, torn, resume=True)
    (torn / "judgements.json").write_text("{}")
    (torn / "drawings").mkdir()
    (torn / "mine.txt").write_text("keep me")
    with RunFolder(torn, force=True) as record:
        assert sorted(path.name for path in record.path.iterdir()) == [".lock", "mine.txt"]


def test_force_that_was_killed_and_repeated_mixes_nothing(
    models: Path, torn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(torn, tmp_path / "copy")
    run(models, tmp_path / "fresh", task=Other())
    for last in range(len([name for name in OURS if (torn / name).exists()])):
        shutil.rmtree(torn)
        shutil.copytree(tmp_path / "copy", torn)
        left, unlink, rmtree = [last], Path.unlink, shutil.rmtree

        def counted(path: Path, _left: list[int] = left) -> None:
            if not _left[0]:
                raise Stopped
            _left[0] -= path.exists()

        def unlinked(path: Path, missing_ok: bool = False, _unlink: Any = unlink) -> None:
            counted(path)
            _unlink(path, missing_ok)

        def removed(path: Path, _rmtree: Any = rmtree) -> None:
            counted(path)
            _rmtree(path)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", unlinked)
            patch.setattr(folder.shutil, "rmtree", removed)
            with pytest.raises(Stopped):
                RunFolder(torn, force=True)
        run(models, torn, task=Other(), force=True)
        assert told(torn) == told(tmp_path / "fresh"), f"killed after {last} files"


def test_a_start_finds_what_a_killed_force_left(torn: Path) -> None:
    for name in ("run.json", "recipe.toml"):
        (torn / name).unlink()
    with RunFolder(torn) as record:
        assert [path.name for path in record.path.iterdir()] == [".lock"]


def test_another_function_cannot_resume_a_run(models: Path, torn: Path) -> None:
    with pytest.raises(RunError, match=r"scored by another task.*--force"):
        run(models, torn, task=Other(), resume=True)


def test_answers_and_checkpoints_of_another_run_are_refused(
    models: Path, torn: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        run(models, tmp_path / "other", task=Other(), listeners=[stop_at(3)])
    notes: list[str] = []
    for name in ("answers.jsonl", "checkpoint"):
        target = torn / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        shutil.copytree(tmp_path / "other" / name, target) if name == "checkpoint" else shutil.copy(
            tmp_path / "other" / name, target
        )
    run(models, torn, notes=notes, resume=True)
    assert told(torn) == told(whole)
    assert any("another run" in note for note in notes)


def test_another_machine_is_said_aloud_and_added(models: Path, torn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads((torn / "environment.json").read_text())
    assert before["cpu"]
    there = dict(build.environment("cpu", 1), cpu="ANOTHER")
    monkeypatch.setattr(build, "environment", lambda *_: there)
    notes: list[str] = []
    with pytest.raises(Stopped):
        run(models, torn, notes=notes, resume=True, listeners=[stop_at(1)])
    assert any(f"cpu {before['cpu']} -> ANOTHER" in note for note in notes)
    run(models, torn, notes=(again := []), resume=True)
    assert not any("ANOTHER" in note for note in again), "it is the same machine as last time"
    after = json.loads((torn / "environment.json").read_text())
    assert after == {**before, "resumed_on": [{"cpu": "ANOTHER"}]}


def test_a_note_on_another_machine_is_short(models: Path, torn: Path) -> None:
    kept = json.loads((torn / "environment.json").read_text())
    (torn / "environment.json").write_text(json.dumps({**kept, "cpu": "x" * 100_000}))
    notes: list[str] = []
    run(models, torn, notes=notes, resume=True)
    assert any("environment has changed since this run started (cpu xxx" in note for note in notes)
    assert sum(map(len, notes)) < 2000


@pytest.mark.parametrize("calls", [30, 41])
def test_what_is_held_for_dev_does_not_depend_on_where_it_was_killed(models: Path, tmp_path: Path, calls: int) -> None:
    more: dict[str, Any] = {"budget": {"calls": calls}}
    run(models, tmp_path / "whole", task=WithDev(), **more)
    for number in (1, 2, 3):
        out = tmp_path / f"killed-{number}"
        with pytest.raises(Stopped):
            run(models, out, task=WithDev(), listeners=[stop_at(number)], **more)
        run(models, out, task=WithDev(), resume=True, **more)
        assert told(out) == told(tmp_path / "whole")


def test_a_step_that_the_budget_cut_short_is_reported_once(models: Path, tmp_path: Path) -> None:
    """The budget ends after the greedy prompt of a step was scored, and before its other prompts are."""
    for calls in range(7, 16):
        small, more = {"budget": {"calls": calls}}, {"budget": {"calls": 40}}
        run(models, tmp_path / str(calls), **small)
        run(models, tmp_path / str(calls), resume=True, **more)
        greedy = [row["step"] for row in read_lines(tmp_path / str(calls) / "events.jsonl") if row["event"] == "greedy"]
        assert greedy == sorted(set(greedy)), f"stopped at {calls} calls"
    run(models, tmp_path / "at-once", **more)
    assert told(tmp_path / "15") == told(tmp_path / "at-once")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _lines_swapped(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[1::-1], *lines[2:]]))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flip": _flip, "empty": lambda path: path.write_bytes(b""), "gone": Path.unlink,
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "swap": _lines_swapped,
}  # fmt: skip
RUN_FILES = ("recipe.toml", "events.jsonl", "answers.jsonl", "environment.json", "checkpoint/trials.jsonl",
        "checkpoint/state.safetensors")  # fmt: skip


@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_found_and_repaired(models: Path, torn: Path, whole: Path, name: str, damage: str) -> None:
    before = (torn / name).read_bytes()
    DAMAGE[damage](torn / name)
    changed = not (torn / name).exists() or (torn / name).read_bytes() != before
    notes: list[str] = []
    run(models, torn, notes=notes, resume=True)
    assert told(torn) == told(whole)
    if changed and not (damage == "gone" and name in ("environment.json", "checkpoint/state.safetensors")):
        said = [Path(name).name]
        if name == "environment.json":  # what still is JSON after the damage reads like another machine's
            said.append("environment has changed")
        assert any(word in note for note in notes for word in said), notes
    [verified] = api.verify(torn)
    assert verified.findings == ()
    run(models, torn, notes=(again := []), resume=True)
    assert again == [f"the run in {torn} is already finished"]


@pytest.mark.parametrize("name", ["result.json", "events.jsonl", "prompts.csv", "answers.jsonl", "recipe.toml"])
def test_a_finished_run_that_was_damaged_is_made_again(models: Path, torn: Path, whole: Path, name: str) -> None:
    run(models, torn, resume=True)
    _flip(torn / name)
    notes: list[str] = []
    run(models, torn, notes=notes, resume=True)
    assert any(name in note for note in notes)
    assert told(torn) == told(whole)
    identity = identities.read(torn)
    assert identity is not None
    assert identity.files
    assert not identities.changed_files(torn, identity.files)
    assert api.verify(torn)[0].findings == ()


def test_resuming_by_name_puts_a_damaged_recipe_back(torn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, notes = (torn / "recipe.toml").read_text(), list[str]()
    monkeypatch.setattr(api, "tune", lambda recipe, **_: recipe)
    before = api.resume(torn, notes=notes.append)
    assert not notes
    for damaged in (text.replace("steps = 4", "steps = 5"), "steps = ["):
        (torn / "recipe.toml").write_text(damaged)
        assert api.resume(torn, notes=notes.append) == before
        assert (torn / "recipe.toml").read_text() == text
    assert len(notes) == 2


def test_more_budget_and_a_kill_do_not_make_the_old_answer_the_new_one(models: Path, tmp_path: Path) -> None:
    out, more = tmp_path / "run", {"budget": {"calls": 40}}
    run(models, out, budget={"calls": 9})
    with pytest.raises(Stopped):
        run(models, out, resume=True, listeners=[stop_at(1)], **more)
    run(models, out, resume=True, **more)
    run(models, tmp_path / "at-once", **more)
    assert told(out) == told(tmp_path / "at-once")


def test_a_stochastic_step_cut_short_is_repeated_with_its_own_seeds(models: Path, tmp_path: Path) -> None:
    class Noisy(FindTheWords):
        info = TaskInfo("noisy", "noisy", stochastic=True)

        def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
            return [
                Answers(tuple(rows), np.full(len(rows), self.value(one.text) + draw.seed % 97 / 97))
                for one, draw in zip(prompts, draws, strict=True)
            ]

    small, more = {"budget": {"calls": 11}}, {"budget": {"calls": 30}}
    run(models, tmp_path / "run", task=Noisy(), **small)
    run(models, tmp_path / "run", task=Noisy(), resume=True, **more)
    run(models, tmp_path / "at-once", task=Noisy(), **more)
    assert (tmp_path / "run/events.jsonl").read_bytes() == (tmp_path / "at-once/events.jsonl").read_bytes()


def test_an_identity_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    for number in (99, 2):
        (tmp_path / identities.FILE).write_bytes(seal({"format": number}))
        with pytest.raises(RunError, match=r"another version of pinprompt.*--force"):
            identities.read(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_a_run_without_its_identity_is_not_resumed(models: Path, torn: Path, damage: str) -> None:
    DAMAGE[damage](torn / "run.json")
    with pytest.raises(RunError, match=r"run.json is (damaged|missing).*--force"):
        run(models, torn, resume=True)
    [verified] = api.verify(torn)
    assert "run.json" in verified.findings[0]


def test_checksums_of_files_elsewhere_are_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "secret", tmp_path / "run"
    outside.write_text("x")
    folder.mkdir()
    found = identities.changed_files(folder, {str(outside): "0" * 64, "../secret": "0" * 64})
    assert all("is missing" in one for one in found)
    assert len(identities.changed_files(folder, {"result.json": "0" * 64})) == 1


def test_a_killed_run_with_a_reward_for_every_token_resumes_to_the_same_result(models: Path, tmp_path: Path) -> None:
    """Its table has prefixes between the prompts, which belong to no episode of their own."""
    by_prefix = recipe(models, q_learning={**SHORT["q_learning"], "rewards": "prefix", "target": "monte-carlo"})

    def search(out: Path, **more: Any) -> None:
        running.run(by_prefix, out, task=FindTheWords(), device="cpu", threads=1, **more)

    search(tmp_path / "whole")
    with pytest.raises(Stopped):
        search(tmp_path / "torn", listeners=[stop_at(3)])
    search(tmp_path / "torn", resume=True)
    assert told(tmp_path / "torn") == told(tmp_path / "whole")
