"""Finalists of a stochastic task: none is left untried, and no dev score is paid for twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from lines import read_lines

from pinprompt.run import running
from pinprompt.tasks.protocol import TaskInfo
from pinprompt.values import Answers, Draw, Prompt, Row
from tests.house.tiny import FindTheWords, recipe

CALLS = {"train": 3, "dev": 12}


class Dice(FindTheWords):
    """Each answer is the words in their places and a throw of dice; dev is dearer than train."""

    info = TaskInfo("dice", "dice-1", stochastic=True)
    rows = (Row("train", 0, calls=CALLS["train"]), Row("dev", 0, calls=CALLS["dev"]))

    def __init__(self) -> None:
        self.on_dev: list[str] = []

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        searched = zip(prompts, draws, strict=True)
        self.on_dev += [prompt.text for prompt, draw in searched if 1 in rows and not draw.report]
        return [
            Answers(
                tuple(rows),
                [self.value(prompt.text) + random.Random(f"{prompt.text}/{draw.seed}").random()] * len(rows),
            )
            for prompt, draw in zip(prompts, draws, strict=True)
        ]


@pytest.mark.parametrize("calls", [700, 1000, 100])
def test_every_finalist_is_tried_and_no_dev_score_is_paid_for_twice(
    lm_folder: Path, tmp_path: Path, calls: int
) -> None:
    task = Dice()
    settings = {"steps": 40, "eval_every": 4}
    made = recipe(lm_folder, q_learning=settings, scoring={"finalists": 8}, budget={"calls": calls})
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
    known = {(line["draw"], line["text"]): line["contents"][0] for line in read_lines(run / "answers.jsonl")}
    totals: dict[str, list[float]] = {}
    for row in read_lines(run / "checkpoint" / "trials.jsonl"):
        for text, _, _, draw in row.get("tried", ()):
            totals.setdefault(text, []).append(known[draw, text])
    return sorted(totals, key=lambda text: -sum(totals[text]) / len(totals[text]))[:8]


def test_the_greedy_prompt_alone_is_chosen_as_published(lm_folder: Path, tmp_path: Path) -> None:
    task = FindTheWords()
    chosen = recipe(lm_folder, q_learning={"steps": 8, "eval_every": 4}, scoring={"choose": "greedy"})
    running.run(chosen, tmp_path / "run", task=task, device="cpu", threads=1)
    events = list(read_lines(tmp_path / "run" / "events.jsonl"))
    greedy = {row["prompt"] for row in events if row["event"] == "greedy"}
    assert {row["prompt"] for row in events if row["event"] in ("finalist", "selected")} == greedy
