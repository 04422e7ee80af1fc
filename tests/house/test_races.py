"""A raced run keeps the promises of any run: rows are counted truthfully, and kills and a memo change no byte."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinprompt.errors import SettingError
from pinprompt.files import read_lines
from pinprompt.methods.protocol import Candidate
from pinprompt.methods.variations import without
from pinprompt.run import running
from pinprompt.tasks.custom import CustomTask
from pinprompt.values import Prompt, Score
from tests.house.race_child import in_heats, note_asked, raced

ROOT = Path(__file__).parents[2]
KILLS = 3
ROWS = {"train-1-2": 2, "train-3-4": 2, "dev-1-4": 4}
"""Rows of each block: two of each class on train, as many on dev."""


def test_a_call_is_a_row_and_no_row_is_asked_twice(
    lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinprompt.tasks.classification import ClassificationTask

    monkeypatch.setattr(ClassificationTask, "score", ClassificationTask.score)  # put back after the test
    note_asked(tmp_path / "asked")
    recipe, folder = raced(lm_folder, race={"prune": 0}), tmp_path / "run"
    result = running.run(recipe, folder, device="cpu", threads=1, report=False)
    asked = Counter((tmp_path / "asked").read_text("utf-8").splitlines())
    assert set(asked.values()) == {1}
    blocks = {question: ROWS[question.split("/")[0]] for question in asked if question.split("/")[0] in ROWS}
    assert sum(blocks.values()) == result.calls <= 90
    assert result.calls > 70
    steps = [row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "step"]
    assert [row["step"] for row in steps] == list(range(len(steps)))
    assert [row["calls"] for row in steps] == sorted({row["calls"] for row in steps})
    assert steps[-1]["calls"] == result.calls
    assert result.data["steps"] == len(steps)
    assert result.data["spent"]["search"]["calls"] == result.calls
    # In the journal a prompt on a block is a row; its cost is that of the rows.
    journal = [row for row in read_lines(tmp_path / "run" / "scores.jsonl") if row["split"] in ROWS]
    assert sorted(f"{row['split']}/{row['text']}" for row in journal) == sorted(blocks)
    assert all(row["calls"] == ROWS[row["split"]] for row in journal)
    # Nor does the report ask for them again: of the blocks' rows it asks for those of the prompt without a word.
    running.run(recipe, folder, device="cpu", threads=1, resume=True)
    again = Counter((tmp_path / "asked").read_text("utf-8").splitlines())
    assert set(again.values()) == {1}
    words = result.prompt.split()
    shorter = {without(words, place) for place in range(len(words))}
    assert {question.split("/")[1] for question in again - asked if question.split("/")[0] in ROWS} <= shorter


@pytest.mark.parametrize("method", ["random", "beam", "pin"])
def test_any_method_can_be_raced_and_asks_no_row_twice(
    lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from pinprompt.tasks.classification import ClassificationTask

    monkeypatch.setattr(ClassificationTask, "score", ClassificationTask.score)  # put back after the test
    note_asked(tmp_path / "asked")
    recipe = in_heats(lm_folder, method)
    result = running.run(recipe, tmp_path / "run", device="cpu", threads=1, report=False)
    asked = Counter((tmp_path / "asked").read_text("utf-8").splitlines())
    assert set(asked.values()) == {1}
    first = {question.removeprefix("train-1-2/") for question in asked if question.startswith("train-1-2/")}
    second = {question.removeprefix("train-3-4/") for question in asked if question.startswith("train-3-4/")}
    assert second < first  # some stopped early
    # Rows of train are asked block by block, those of dev together.
    whole = {question.removeprefix("train/") for question in asked if question.startswith("train/")}
    assert not whole & first
    assert result.prompt in second
    assert result.calls <= 90


def test_a_hand_written_answer_of_a_method_that_learns_has_words_and_no_q(lm_folder: Path) -> None:
    """With `scoring.choose = "rows"` a prompt that no writer wrote can win, and there are no ids to explain."""
    asked: list[str] = []

    def score(prompts: list[Prompt], report: bool) -> list[Score]:
        assert report
        known.update({prompt.text: Score(float(len(prompt.text)), 1) for prompt in prompts})
        asked.extend(prompt.text for prompt in prompts)
        return [known[prompt.text] for prompt in prompts]

    def writer() -> Any:
        raise AssertionError("the writer was asked about a prompt that it did not write")

    known = {"It was": Score(9.0, 1)}  # on train; it was chosen by rows of dev too, which its own score (7.0) counts
    evaluator = SimpleNamespace(score=score, known=lambda prompt, split: known.get(prompt.text))
    search: Any = SimpleNamespace(evaluator=evaluator, task=SimpleNamespace(blocks=()))
    recipe = in_heats(lm_folder, "pin", scoring={"choose": "rows"})
    assert running._tokens(recipe, search, Candidate(Prompt("It was"), "manual", 7.0), writer) == [
        {"token": "It", "score_with": 9.0, "score_without": 3.0},
        {"token": "was", "score_with": 9.0, "score_without": 2.0},
    ]
    assert asked == ["Was", "It"]


@pytest.mark.parametrize("method", ["grips", "autoprompt", "manual"])
def test_what_compares_on_all_rows_is_not_raced(lm_folder: Path, tmp_path: Path, method: str) -> None:
    with pytest.raises(SettingError, match=rf"{method} compares prompts on all rows.* scoring\.race to 0"):
        running.run(in_heats(lm_folder, method), tmp_path / "run", device="cpu", threads=1)
    assert not (tmp_path / "run").exists()


def test_a_task_without_rows_is_not_raced(lm_folder: Path, tmp_path: Path) -> None:
    task = CustomTask(lambda prompt: float(len(prompt)))
    with pytest.raises(SettingError, match=r"scoring\.race needs a task whose rows can be scored in parts"):
        running.run(in_heats(lm_folder, "random"), tmp_path / "run", task=task, device="cpu", threads=1)


@pytest.mark.parametrize(("method", "memo"), [("race", False), ("race", True), ("random", False), ("pin", True)])
def test_killed_at_any_moment_it_ends_as_if_nothing_had_happened(
    lm_folder: Path, tmp_path: Path, method: str, memo: bool
) -> None:
    raced(lm_folder)  # the models are made here, once
    environment = {**os.environ, "PINPROMPT_HOME": str(tmp_path / "home")}

    def child(name: str, moment: int, memo: bool) -> subprocess.CompletedProcess[str]:
        given = [str(lm_folder), str(tmp_path / name), str(moment), method]
        command = [sys.executable, "-m", "tests.house.race_child", *given]
        return subprocess.run(
            [*command, *(["memo"] if memo else [])], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    whole = child("whole", 0, memo=False)
    assert whole.returncode == 0, whole.stderr
    moments, chance = int(whole.stdout), random.Random(0)
    for number in range(KILLS):
        torn = child("torn", chance.randint(moments // 4, moments * 9 // 10), memo)
        if number and torn.returncode == 0:
            break  # a run that goes on from a checkpoint has less to do, and may end before that
        assert torn.returncode == -signal.SIGKILL, torn.stderr
    ended = child("torn", 0, memo)
    assert ended.returncode == 0, ended.stderr
    for name in ("events.jsonl", "prompts.csv"):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text("utf-8")) for name in ("torn", "whole"))
    for name in ("prompt", "score", "calls", "prompts", "top", "dev", "test", "calibration"):
        assert ours[name] == theirs[name], name
    asked = [Counter((tmp_path / f"{name}.asked").read_text("utf-8").splitlines()) for name in ("torn", "whole")]
    assert set(asked[0]) == set(asked[1])
    # Only what was under way at a kill is asked once more: one chunk of prompts.
    assert (asked[0] - asked[1]).total() <= KILLS * 16


def test_a_memo_changes_nothing_but_what_is_paid(
    lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    results = []
    for name, memo in (("off", False), ("first", True), ("second", True)):
        recipe = raced(lm_folder, scoring={"memo": memo})
        results.append(running.run(recipe, tmp_path / name, device="cpu", threads=1))
    events = {(tmp_path / name / "events.jsonl").read_bytes() for name in ("off", "first", "second")}
    assert len(events) == 1
    assert len({result.calls for result in results}) == 1
    assert results[1].data["paid_calls"] == results[0].data["paid_calls"] > 0
    assert results[2].data["paid_calls"] == 0
    assert results[2].data["spent"]["search"] == results[0].data["spent"]["search"]


def test_a_race_that_cannot_begin_leaves_no_folder(lm_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"a race needs \d+ calls"):
        running.run(raced(lm_folder, budget={"calls": 3}), tmp_path / "run", device="cpu", threads=1)
    assert not (tmp_path / "run").exists()


def test_a_pool_that_is_too_unlikely_is_said_aloud(lm_folder: Path, tmp_path: Path) -> None:
    result = running.run(raced(lm_folder, race={"max_perplexity": 1.0}), tmp_path / "run", device="cpu", threads=1)
    assert "less likely than race.max_perplexity (1)" in result.data["problem"]
    told = [row["reason"] for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "problem"]
    assert told == [result.data["problem"]]
    assert "written by hand" in result.data["found_by"]


def test_a_budget_that_is_too_small_to_be_sure_is_said_before_it_is_spent(lm_folder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    small = raced(lm_folder, budget={"calls": 30})
    running.run(small, tmp_path / "small", device="cpu", threads=1, notes=notes.append)
    assert any("30 calls are few" in note and "48 are enough" in note for note in notes), notes
    notes.clear()
    running.run(
        raced(lm_folder, budget={"calls": 48}), tmp_path / "enough", device="cpu", threads=1, notes=notes.append
    )
    assert not any("calls are few" in note for note in notes)
    rows = [row for row in read_lines(tmp_path / "enough" / "events.jsonl") if row["event"] == "step"]
    assert rows[-1]["rows"] == sum(ROWS.values())
