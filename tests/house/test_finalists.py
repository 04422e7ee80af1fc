"""Finalists of a stochastic task: none is left untried, and no dev score is paid for twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from pinprompt.files import read_lines
from pinprompt.run import running
from pinprompt.values import Prompt, Score
from tests.house.tiny import FindTheWords, recipe

CALLS = {"train": 3, "dev": 12}


class Dice(FindTheWords):
    """Each score is the words in their places and a throw of dice; dev is dearer than train."""

    stochastic = True
    splits = ("train", "dev")

    def __init__(self) -> None:
        self.on_dev: list[str] = []

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        self.on_dev += [prompt.text for prompt in prompts if split == "dev"]
        return [
            Score(self.value(prompt.text) + random.Random(f"{prompt.text}/{seed}").random(), CALLS[split])
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def calls(self, split: str = "train") -> int:
        return CALLS[split]


@pytest.mark.parametrize("calls", [700, 1000, 100])
def test_every_finalist_is_tried_and_no_dev_score_is_paid_for_twice(
    lm_folder: Path, tmp_path: Path, calls: int
) -> None:
    task = Dice()
    settings = {"steps": 40, "eval_every": 4, "finalists": 8}
    made = recipe(lm_folder, q_learning=settings, budget={"calls": calls})
    result = running.run(made, tmp_path / "run", task=task, device="cpu", threads=1)
    events = list(read_lines(tmp_path / "run" / "events.jsonl"))
    greedy = [row["prompt"] for row in events if row["event"] == "greedy"]
    finalists = [row for row in events if row["event"] == "finalist"]
    assert result.calls <= calls
    assert result.data["stopped"] == "budget"
    assert all(row["dev"] is not None for row in finalists)
    sampled = [row["prompt"] for row in finalists if row["source"] == "sampled"]
    # On dev: the greedy prompts when they were tried, the sampled ones at the end, and nothing else.
    assert Counter(task.on_dev) == Counter([*greedy, *sampled])
    first = {row["prompt"]: row["dev"] for row in reversed(events) if row["event"] == "greedy"}
    assert {row["prompt"]: row["dev"] for row in finalists if row["source"] == "greedy"} == first
    if calls >= 700:  # enough to set all aside
        assert len(sampled) + len(set(greedy) & set(result_best(tmp_path / "run"))) >= 8


def result_best(run: Path) -> list[str]:
    """The eight best prompts that were sampled, by their mean score."""
    totals: dict[str, list[float]] = {}
    for row in read_lines(run / "checkpoint" / "trials.jsonl"):
        if "score" in row:
            totals.setdefault(row["text"], []).append(row["score"])
    return sorted(totals, key=lambda text: -sum(totals[text]) / len(totals[text]))[:8]
