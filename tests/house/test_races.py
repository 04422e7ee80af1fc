"""A raced run keeps the promises of any run: rows are counted truthfully, and kills and a memo change no byte."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from answer_toys import Toy
from lines import read_lines

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import SettingError
from pinprompt.methods.protocol import Candidate, Outcome
from pinprompt.methods.variations import without
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.run import running
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.values import Answers, Prompt
from tests.house.race_child import note_asked, raced, searched

ROOT = Path(__file__).parents[2]
KILLS = 3
ROWS = {"train-1-2": 2, "train-3-4": 2, "dev-1-4": 4}
"""Rows of each block: two of each class on train, as many on dev. In the task they are the rows 0 to 7."""


def cells(path: Path) -> Counter[tuple[int, str]]:
    """How often each cell was asked for."""
    asked = (line.split("/", 1) for line in path.read_text("utf-8").splitlines())
    return Counter((int(row), text) for row, text in asked)


def test_a_call_is_a_row_and_no_row_is_asked_twice(
    lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassificationTask, "ask", ClassificationTask.ask)  # put back after the test
    note_asked(tmp_path / "asked")
    recipe, folder = raced(lm_folder, race={"prune": 0}), tmp_path / "run"
    result = running.run(recipe, folder, device="cpu", threads=1, report=False)
    asked = cells(tmp_path / "asked")
    assert set(asked.values()) == {1}
    assert 70 < result.calls <= 90
    steps = [row for row in read_lines(folder / "events.jsonl") if row["event"] == "step"]
    assert [row["step"] for row in steps] == list(range(len(steps)))
    assert [row["calls"] for row in steps] == sorted({row["calls"] for row in steps})
    assert steps[-1]["calls"] == result.calls
    assert result.data["steps"] == len(steps)
    assert result.data["spent"]["search"]["calls"] == result.calls
    # The table has every cell that was asked for, once; those of the search are its calls.
    table = [row for row in read_lines(folder / "answers.jsonl") if row is not None]
    written = Counter(
        (number, row["text"]) for row in table for first, end in row["rows"] for number in range(first, end)
    )
    assert written == asked
    searched = [row for row in table if not row["report"]]
    assert sum(end - first for row in searched for first, end in row["rows"]) == result.calls
    blocks = {tuple(number for first, end in row["rows"] for number in range(first, end)) for row in searched}
    assert {len(rows) for rows in blocks} == set(ROWS.values())
    assert {number for rows in blocks for number in rows} == set(range(8))
    # Nor does the report ask for them again: it asks for rows of test, and for those of the prompt without a word.
    running.run(recipe, folder, device="cpu", threads=1, resume=True)
    again = cells(tmp_path / "asked")
    assert set(again.values()) == {1}
    words = result.prompt.split()
    shorter = {without(words, place) for place in range(len(words))}
    assert {text for row, text in again - asked if row < 8} <= shorter


@pytest.mark.parametrize("method", ["random", "beam", "pin", "guided"])
def test_no_method_asks_for_a_cell_twice(
    lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(ClassificationTask, "ask", ClassificationTask.ask)  # put back after the test
    note_asked(tmp_path / "asked")
    result = running.run(searched(lm_folder, method), tmp_path / "run", device="cpu", threads=1)
    assert set(cells(tmp_path / "asked").values()) == {1}
    assert cells(tmp_path / "asked").total() == result.data["paid_calls"]
    assert result.calls <= 90


def test_a_hand_written_answer_of_a_method_that_learns_has_words_and_no_q(lm_folder: Path) -> None:
    """With `scoring.choose = "rows"` a prompt that no writer wrote can win, and there are no ids to explain."""

    def writer() -> Any:
        raise AssertionError("the writer was asked about a prompt that it did not write")

    task = Toy()  # a prompt is worth its length
    evaluator = Evaluator(task, Budget(BudgetSettings()))
    evaluator.score([Prompt("It was")])
    search: Any = SimpleNamespace(evaluator=evaluator, task=task, rows=evaluator.rows)
    recipe = searched(lm_folder, "pin", scoring={"choose": "rows"})
    found = Candidate(Prompt("It was"), "manual", 7.0)  # chosen by rows of dev too: not its score on train
    assert running._tokens(recipe, search, found, Outcome([found], "finished", 1), writer) == [
        {"token": "It", "score_with": 6.0, "score_without": 3.0},
        {"token": "was", "score_with": 6.0, "score_without": 2.0},
    ]
    assert [text for text, _, _ in task.asked] == ["It was", "Was", "It"]
    assert (evaluator.charged_calls, evaluator.report_calls) == (4, 8)


class Uneven(Toy):
    """The prompt is worth 0 on every row; without its first word what `gains` says of each row."""

    def __init__(self, gains: Sequence[float], dev: Sequence[float]) -> None:
        super().__init__(rows={"train": len(gains), "dev": len(dev)})
        self.gains = np.array([*gains, *dev])

    def _answers(self, text: str, rows: tuple[int, ...], draw: Any) -> Answers:
        return Answers(rows, self.gains[list(rows)] if text == "Was" else np.zeros(len(rows)))


@pytest.mark.parametrize(
    ("gains", "dev", "tried", "said"),
    [
        ((-1.0, -1.0, 1.0, 1.0), (5.0,), False, ""),  # removing it raises nothing
        ((3.0,), (5.0,), False, "kept: the search did not try the prompt without it"),  # one row has no standard error
        ((-9.0, 11.0, -9.0, 11.0), (5.0,), False, "on 4 training rows its removal gains 1.0, less than the standard"),
        ((3.0, 4.0, 3.0, 4.0), (5.0,), False, "did not try the prompt without it on the rows of dev"),
        ((3.0, 4.0), (-4.0, -3.0), True, "on the 4 rows that choose its removal gains 0.0"),
        ((3.0, 4.0), (3.0, 4.0), True, "although its removal gains 3.5 on the 4 rows that choose"),
    ],
)
def test_a_word_whose_removal_raises_the_score_stays_for_a_reason(
    gains: Sequence[float], dev: Sequence[float], tried: bool, said: str
) -> None:
    evaluator = Evaluator(Uneven(gains, dev), Budget(BudgetSettings()))
    for split in ("train", "dev") if tried else ("train",):
        evaluator.score([Prompt("It was"), Prompt("Was")], split)
    search: Any = SimpleNamespace(evaluator=evaluator, task=evaluator.task)
    why = running._why_it_stays(search, Prompt("It was"), Prompt("Was"))
    assert (said in why) if said else why == ""


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
    for name in ("prompt", "score", "calls", "prompts", "top", "dev", "test", "readout"):
        assert ours[name] == theirs[name], name
    torn_cells, whole_cells = cells(tmp_path / "torn.asked"), cells(tmp_path / "whole.asked")
    assert set(torn_cells) == set(whole_cells)
    # Only what was under way at a kill is asked once more: one chunk of prompts, each on at most a split.
    again = torn_cells - whole_cells
    assert len({text for _, text in again}) <= KILLS * 16
    assert max(again.values(), default=0) <= KILLS


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
    default = result.data["baselines"]["default"]["prompt"]
    with (result.folder / "prompts.csv").open(encoding="utf-8", newline="") as file:
        assert all(row["prompt"].endswith(default) for row in csv.DictReader(file))


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
