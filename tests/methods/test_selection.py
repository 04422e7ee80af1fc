"""The choice of the answer among candidates whose values are worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.methods.protocol import Candidate, Search
from pinprompt.methods.selection import select
from pinprompt.recipe.sections import BudgetSettings, PolicySettings, ScoringSettings
from pinprompt.tasks.protocol import Draft, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Event, Prompt, Row

DEV = {"a": 1.0, "b": 3.0, "c": 3.0, "d": 2.0}


class Looked:
    """A task whose values are looked up: on each row of train, and on each row of dev."""

    info = TaskInfo("looked-up", "looked-up")

    def __init__(
        self,
        values: Mapping[str, tuple[float, ...]] | None = None,
        splits: Sequence[str] = ("train", "dev"),
        calls: int = 1,
        drafts: Sequence[Draft] = (),
    ) -> None:
        self.worth = values or {text: (value, value) for text, value in DEV.items()}
        self.rows = [Row(split, splits[:place].count(split), calls=calls) for place, split in enumerate(splits)]
        self._drafts = list(drafts)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        return [Answers(tuple(rows), [self.worth[prompt.text][row] for row in rows]) for prompt in prompts]

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return np.array(answers.on(rows))

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        return Evaluation(self.rows[rows[0]].split, {"score": float(np.mean(answers.on(rows)))}, len(rows))

    def context(self) -> str:
        return ""

    def drafts(self) -> list[Draft]:
        return self._drafts


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
    found, _ = chosen(Looked(calls=9), 2, {"a": 9.0, "b": 1.0})
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
    found, _ = chosen(Looked(splits=("train",)), None, {"a": 1.0, "b": 4.0})
    assert found == [("b", None), ("a", None)]


def by_rows(candidates: str, calls: int | None = None) -> list[tuple[str, str, float | None]]:
    """The choice on two rows of train and one of dev; people write b."""
    values = {"a": (1.0, 1.0, 9.0), "b": (4.0, 4.0, 1.0), "c": (3.5, 3.5, 2.0)}
    drafts = [Draft("b", "manual"), Draft("x", "in-context")]
    task = Looked(values, ("train", "train", "dev"), drafts=drafts)
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
