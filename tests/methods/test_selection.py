"""Choosing the answer: dev decides, ties go to the training score, an ended budget leaves the untried last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pinprompt.methods.protocol import Candidate, Search
from pinprompt.methods.selection import select
from pinprompt.recipe.sections import BudgetSettings, PolicySettings, ScoringSettings
from pinprompt.scoring.budget import Budget
from pinprompt.scoring.evaluator import Evaluator
from pinprompt.values import Evaluation, Event, Prompt, Score

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
