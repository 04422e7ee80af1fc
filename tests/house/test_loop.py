"""What a step of Algorithm 1 tells the writer and the task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pinprompt.files import read_lines
from pinprompt.run import running
from pinprompt.values import Prompt, Score
from tests.house.tiny import FindTheWords, recipe


class Watched(FindTheWords):
    """Notes which step and place each prompt comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[tuple[int, int] | None] = []

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        self.draws += [prompt.draw for prompt in prompts]
        return super().score(prompts, seeds, split)


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


def test_each_prompt_says_which_step_wrote_it_and_where_it_stands_there(lm_folder: Path, tmp_path: Path) -> None:
    task = Watched()
    search(lm_folder, tmp_path / "run", task, steps=2)
    drawn = [draw for draw in task.draws if draw is not None]
    assert {step for step, _ in drawn} == {0, 1}
    assert all(0 <= place < 8 for _, place in drawn)
    assert len(set(drawn)) == len(drawn)
