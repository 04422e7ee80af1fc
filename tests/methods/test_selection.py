"""Heats on rows that are worked by hand, and the choice of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pinprompt.errors import BudgetSpent
from pinprompt.methods.protocol import Candidate, Search
from pinprompt.methods.selection import Heats, score_whole, select, train_blocks
from pinprompt.recipe.sections import BudgetSettings, PolicySettings, ScoringSettings
from pinprompt.scoring.budget import Budget
from pinprompt.scoring.evaluator import Evaluator
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Event, Prompt, Score

TRAIN, DEV_ROWS = (0, 1, 2, 3), (4, 5)
ROWS = {"train": TRAIN, "dev": DEV_ROWS, "one": (0, 1), "two": (2, 3), "three": (4, 5)}
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


DEV = {"a": 1.0, "b": 3.0, "c": 3.0, "d": 2.0}


class Looked:
    """A task with a dev split whose scores are in a table."""

    name, stochastic, fingerprint, primary = "looked-up", False, "looked-up", "score"
    splits: tuple[str, ...] = ("train", "dev")

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        return [Score(DEV[prompt.text], calls=1) for prompt in prompts]

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        return Evaluation(split, {"score": DEV[prompt.text]}, 1)

    def calls(self, split: str = "train") -> int:
        return 1

    def context(self) -> str:
        return ""

    def baselines(self) -> dict[str, str]:
        return {}


def chosen(
    task: Any, calls: int | None, scores: dict[str, float]
) -> tuple[list[tuple[str, float | None]], list[Event]]:
    events: list[Event] = []
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=calls)))
    search = Search(task, evaluator, events.append, None, 0, "cpu", Path(), PolicySettings(), None)  # type: ignore[arg-type]
    candidates = [Candidate(Prompt(text), "sampled", score) for text, score in scores.items()]
    candidates.append(Candidate(Prompt("a"), "greedy", scores["a"]))
    return [(one.candidate.prompt.text, one.dev) for one in select(search, candidates, 7)], events


def test_dev_decides_and_ties_go_to_the_training_score() -> None:
    found, events = chosen(Looked(), None, {"a": 9.0, "b": 1.0, "c": 2.0, "d": 5.0})
    assert found == [("c", 3.0), ("b", 3.0), ("d", 2.0), ("a", 1.0)]
    assert [event.kind for event in events] == ["finalist"] * 4 + ["selected"]
    assert events[-1].data["prompt"] == "c"


def test_an_ended_budget_keeps_what_was_paid_for() -> None:
    found, _ = chosen(Looked(), 2, {"a": 9.0, "b": 1.0, "c": 2.0, "d": 5.0})
    assert found == [("b", 3.0), ("a", 1.0)]


def test_where_nothing_can_be_tried_the_training_score_decides() -> None:
    class Dear(Looked):
        def calls(self, split: str = "train") -> int:
            return 9

    found, _ = chosen(Dear(), 2, {"a": 9.0, "b": 1.0})
    assert found == [("a", None), ("b", None)]


def test_a_dev_score_that_was_paid_for_counts_as_it_is() -> None:
    evaluator = Evaluator(Looked(), Budget(BudgetSettings(calls=1)))
    events: list[Event] = []
    search = Search(Looked(), evaluator, events.append, None, 0, "cpu", Path(), PolicySettings(), None)  # type: ignore[arg-type]
    candidates = [Candidate(Prompt("a"), "greedy", 1.0, dev=2.5), Candidate(Prompt("b"), "sampled", 2.0)]
    found = [(one.candidate.prompt.text, one.dev) for one in select(search, candidates, 7)]
    assert found == [("b", 3.0), ("a", 2.5)]
    assert evaluator.charged_calls == 1


def test_without_a_dev_split_the_training_score_decides() -> None:
    task = Looked()
    task.splits = ("train",)
    found, _ = chosen(task, None, {"a": 1.0, "b": 4.0})
    assert found == [("b", None), ("a", None)]


class Written(Looked):
    """Two rows of train and one of dev; people write b."""

    VALUES: ClassVar = {"a": (1.0, 9.0), "b": (4.0, 1.0), "c": (3.5, 2.0)}

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        return [Score(self.VALUES[prompt.text][split == "dev"], calls=self.calls(split)) for prompt in prompts]

    def calls(self, split: str = "train") -> int:
        return 1 if split == "dev" else 2

    def row_values(self, score: Score, split: str) -> list[float]:
        return []

    def baselines(self) -> dict[str, str]:
        return {"manual": "b", "in-context": "x"}


def by_rows(candidates: str, calls: int | None = None) -> list[tuple[str, str, float | None]]:
    task: Any = Written()
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=calls)))
    search = Search(task, evaluator, lambda event: None, None, 0, "cpu", Path(), PolicySettings(), None)  # type: ignore[arg-type]
    search.scoring = ScoringSettings(choose="rows")
    found = [Candidate(Prompt(text), "sampled", score.value, None)
             for text in candidates for score in evaluator.score([Prompt(text)])]  # fmt: skip
    return [(one.candidate.prompt.text, one.candidate.source, one.dev) for one in select(search, found, 7)]


def test_all_rows_decide_and_what_people_write_takes_part() -> None:
    # Means over three rows: a (1 + 1 + 9) / 3, b (4 + 4 + 1) / 3, c (3.5 + 3.5 + 2) / 3. b and c tie: b is people's.
    assert by_rows("ca") == [("a", "sampled", 9.0), ("b", "manual", 1.0), ("c", "sampled", 2.0)]


def test_where_the_calls_do_not_allow_that_dev_decides() -> None:
    # Two for c, and one for c on dev: nothing is left for b on train.
    assert by_rows("c", calls=3) == [("c", "sampled", 2.0)]
