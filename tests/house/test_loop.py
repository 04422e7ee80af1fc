"""What a step of Algorithm 1 tells the writer and the task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lines import read_lines

from pinprompt.recipe.recipe import resolve
from pinprompt.run import running
from pinprompt.values import Answers, Draw, Prompt, Row
from tests.house.tiny import FindTheWords, recipe


class Drawing(FindTheWords):
    """Draws one of its rows for each prompt of a step, and notes what it is asked."""

    rows = tuple(Row("train", number) for number in range(5))

    def __init__(self) -> None:
        self.drawn: list[tuple[int, int]] = []
        self.asked: list[tuple[int, ...]] = []

    def rows_of_step(self, step: int, place: int) -> tuple[int, ...]:
        self.drawn.append((step, place))
        return ((3 * step + place) % 5,)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        self.asked += [tuple(rows)] * len(prompts)
        return super().ask(prompts, rows, draws)


def search(lm_folder: Path, out: Path, task: FindTheWords, **learning: Any) -> list[dict[str, Any]]:
    settings = recipe(lm_folder, q_learning={"prompts": 8, "eval_every": 100, **learning})
    running.run(settings, out, task=task, device="cpu", threads=1)
    return [row for row in read_lines(out / "events.jsonl") if row["event"] == "step"]


def test_the_cut_to_the_largest_q_begins_after_as_many_prompts_as_asked(lm_folder: Path, tmp_path: Path) -> None:
    cut = {"steps": 4, "entropy": "shannon", "top_q": 2}
    steps = search(lm_folder, tmp_path / "late", FindTheWords(), **cut, top_q_from=16)
    assert [max(step["support"]) > 2 for step in steps] == [True, True, False, False]
    steps = search(lm_folder, tmp_path / "at once", FindTheWords(), **cut)
    assert all(max(step["support"]) <= 2 for step in steps)


def test_the_filter_of_what_is_sampled_begins_after_as_many_prompts_as_asked(lm_folder: Path, tmp_path: Path) -> None:
    found = {}
    for start in (0, 16):
        learning = {"prompts": 8, "steps": 4, "entropy": "shannon", "filter_from": start}
        settings = recipe(lm_folder, policy={"k": 3}, q_learning=learning)
        running.run(settings, tmp_path / str(start), task=FindTheWords(), device="cpu", threads=1)
        steps = [row for row in read_lines(tmp_path / str(start) / "events.jsonl") if row["event"] == "step"]
        found[start] = [max(step["support"]) > 3 for step in steps]
    assert found == {0: [False] * 4, 16: [True, True, False, False]}


def test_the_control_writes_as_pin_does_until_its_first_update_and_never_learns(
    lm_folder: Path, tmp_path: Path
) -> None:
    short = {"prompts": 8, "batch": 24, "steps": 6, "updates": 2, "eval_every": 100}
    asked, result, losses = {}, {}, {}
    for method in ("pin", "pin-untrained"):
        out = tmp_path / method
        result[method] = running.run(recipe(lm_folder, method=method, q_learning=short), out, task=FindTheWords()).data
        asked[method] = [row["prompt"] for row in read_lines(out / "prompts.jsonl")]
        losses[method] = [row["loss"] for row in read_lines(out / "events.jsonl") if row["event"] == "step"]
    # pin waits for 24 prompts: three steps of eight, the third of which ends with its first update.
    assert asked["pin"][:20] == asked["pin-untrained"][:20]
    assert [loss is None for loss in losses["pin"]] == [True, True, False, False, False, False]
    assert losses["pin-untrained"] == [None] * 6
    assert [result[method]["updates"] for method in result] == [8, 0]
    assert [result[method]["share_after_update"] for method in result] == [0.5, 0]
    # Twice the 24 prompts, and the greedy one at the end; the task has no dev split.
    assert result["pin"]["enough_calls"] == 49


class SixtyFourRows(FindTheWords):
    """As many rows as a classification of two classes has by default."""

    rows = tuple(Row(split, number) for split in ("train", "dev") for number in range(32))


def test_a_short_search_learns_from_most_of_its_prompts(lm_folder: Path, tmp_path: Path) -> None:
    quick = resolve({"method": "pin", "profile": "quick", "task": {"kind": "classification"}}).q_learning
    schedule = {name: getattr(quick, name) for name in ("prompts", "batch", "updates", "steps", "eval_every")}
    settings = recipe(lm_folder, q_learning=schedule, budget={"calls": 1000})
    result = running.run(settings, tmp_path / "run", task=SixtyFourRows(), device="cpu", threads=1).data
    assert result["updates"] >= 8
    assert result["share_after_update"] > 0.5
    assert result["calls"] >= result["enough_calls"]


def test_a_task_draws_rows_for_each_prompt_of_a_step(lm_folder: Path, tmp_path: Path) -> None:
    task = Drawing()
    search(lm_folder, tmp_path / "run", task, steps=2)
    assert set(task.drawn) == {(step, place) for step in range(2) for place in range(8)}
    # A prompt of a step is asked on its one row; only a finalist is asked on all.
    assert {len(rows) for rows in task.asked[:8]} == {1}
    assert set(task.asked[:8]) <= {(place % 5,) for place in range(8)}
