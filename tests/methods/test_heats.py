"""Heats: who gets more rows, what a prompt that stops early is worth, and that all rows give the plain score."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pinprompt.errors import BudgetSpent
from pinprompt.methods.heats import Heats, score_whole, train_blocks
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.scoring.budget import Budget
from pinprompt.scoring.evaluator import Evaluator
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Prompt, Score

TRAIN, DEV = (0, 1, 2, 3), (4, 5)
ROWS = {"train": TRAIN, "dev": DEV, "one": (0, 1), "two": (2, 3), "three": (4, 5)}
WORTH = {
    "best": (4, 4, 6, 6, 5, 5),
    "good": (3, 3, 5, 5, 4, 4),
    "fair": (2, 2, 4, 4, 3, 3),
    "poor": (1, 1, 9, 9, 9, 9),
}
"""What each prompt is worth on rows 0 to 5; poor is good only on rows that it does not get to."""


class Listed(Task):
    """Prompts with a fixed value on each row; two blocks of train and one of dev."""

    name, fingerprint, primary, stochastic = "listed", "listed-1", "score", False
    splits: tuple[str, ...] = ("train", "dev")
    blocks = ("one", "two", "three")

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        self.asked += [(prompt.text, split) for prompt in prompts]
        return [self._score(prompt.text, split) for prompt in prompts]

    def _score(self, text: str, split: str) -> Score:
        values = [WORTH[text][row] for row in ROWS[split]]
        return Score(sum(values) / len(values), len(values), answers=bytes(values))

    def pooled(self, scores: Sequence[Score]) -> list[float]:
        return [float(value) for score in scores for value in score.answers]

    def whole_splits(self, scores: Sequence[Score]) -> dict[str, Score]:
        values = self.pooled(scores)
        return {"train": Score(sum(values[:4]) / 4)} if len(values) >= 4 else {}

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        return Evaluation(split, {"score": self._score(prompt.text, split).value}, 1, 1)

    def calls(self, split: str = "train") -> int:
        return len(ROWS[split])

    def context(self) -> str:
        return ""

    def baselines(self) -> dict[str, str]:
        return {}


def heats(keep: int, calls: int | None = None) -> tuple[Heats, Listed, Evaluator]:
    task = Listed()
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=calls)))
    return Heats(task, evaluator, keep), task, evaluator


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text) for text in texts]


def test_the_blocks_of_train_are_those_that_hold_its_rows() -> None:
    assert train_blocks(Listed()) == ("one", "two")


def test_only_the_best_of_all_so_far_get_more_rows() -> None:
    race, task, evaluator = heats(keep=1)
    first = race.score(prompts("fair", "poor"))
    assert task.asked == [("fair", "one"), ("poor", "one"), ("fair", "two")]
    # fair: (2 + 2 + 4 + 4) / 4. poor has 1 on two rows; fair gained one point after as many, so poor counts as 2.
    assert [one.score.value for one in first] == [3.0, 2.0]
    assert [one.means for one in first] == [(2.0, 3.0), (1.0,)]
    assert [one.score.calls for one in first] == [4, 2]
    second = race.score(prompts("good", "best"))
    assert task.asked[3:] == [("good", "one"), ("best", "one"), ("best", "two")]
    assert [one.score.value for one in second] == [4.0, 5.0]
    assert evaluator.charged_calls == len(task.asked) * 2
    # A repeat asks nothing, and has no better chance than the first time.
    assert race.score(prompts("poor"))[0].means == (1.0,)
    assert len(task.asked) == 6


def test_with_room_for_all_it_is_the_plain_score_at_the_plain_price() -> None:
    race, task, evaluator = heats(keep=4)
    raced = [one.score.value for one in race.score(prompts(*WORTH))]
    plain = Evaluator(task, Budget(BudgetSettings()))
    assert raced == [score.value for score in plain.score(prompts(*WORTH))]
    assert evaluator.charged_calls == plain.charged_calls == 16


def test_a_tie_at_the_mark_advances() -> None:
    race, task, _ = heats(keep=1)
    race.score(prompts("good", "good"))
    assert ("good", "two") in task.asked
    WORTH["twin"] = WORTH["good"]
    try:
        assert len(race.score(prompts("twin"))[0].means) == 2
    finally:
        del WORTH["twin"]


def test_a_spent_budget_keeps_what_was_paid_for() -> None:
    race, _, evaluator = heats(keep=4, calls=10)
    with pytest.raises(BudgetSpent) as spent:
        race.score(prompts("best", "good", "fair", "poor"))
    assert [len(one.means) for one in spent.value.scores] == [2, 1, 1, 1]
    assert evaluator.charged_calls == 10
    race, _, evaluator = heats(keep=4, calls=5)
    with pytest.raises(BudgetSpent) as spent:
        race.score(prompts("best", "good", "fair", "poor"))
    assert [len(one.means) for one in spent.value.scores] == [1, 1]


def test_what_was_entered_again_after_a_kill_is_as_if_it_had_just_been_scored() -> None:
    race, _, _ = heats(keep=1)
    first = race.score(prompts("fair", "poor"))
    again, task, _ = heats(keep=1)
    for prompt, one in zip(prompts("fair", "poor"), first, strict=True):
        again.enter(prompt.text, one.means)
    assert [one.score.value for one in again.score(prompts("good", "best"))] == [4.0, 5.0]
    assert task.asked == [("good", "one"), ("best", "one"), ("best", "two")]


def test_a_finalist_gets_the_rows_that_it_has_not_had() -> None:
    race, task, evaluator = heats(keep=1)
    race.score(prompts("fair", "poor"))
    score_whole(task, evaluator, prompts("fair", "poor"))
    assert task.asked[3:] == [("poor", "two")]
    assert [score.value for score in evaluator.score(prompts("fair", "poor"))] == [3.0, 5.0]
    assert len(task.asked) == 4
