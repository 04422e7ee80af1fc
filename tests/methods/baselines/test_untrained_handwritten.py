from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.baselines.untrained import answer, in_context, instructions, manual
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import PolicySettings
from pinprompt.tasks.custom import CustomTask
from pinprompt.values import Event


def search(task: CustomTask, events: list[Event], *, spent: bool = False) -> Search:
    def score(prompts: Any, split: str = "train") -> Any:
        if spent:
            raise BudgetSpent("nothing is left")
        return task.score(prompts, [0] * len(prompts), split)

    evaluator: Any = SimpleNamespace(score=score)
    nothing: Any = None
    return Search(task, evaluator, events.append, nothing, 0, "cpu", Path(), PolicySettings(), nothing)


METHODS = {"manual": manual, "instructions": instructions, "in-context": in_context}


@pytest.mark.parametrize("name", METHODS)
def test_answers_with_the_tasks_baseline(name: str) -> None:
    events: list[Event] = []
    task = CustomTask(len, baselines={known: known * 2 for known in METHODS})
    outcome: Outcome = METHODS[name](search(task, events))
    (candidate,) = outcome.candidates
    assert (candidate.prompt.text, candidate.source, candidate.score) == (name * 2, name, 2 * len(name))
    assert outcome.stopped == "finished"
    assert [event.kind for event in events] == ["step"]


def test_budget_and_missing_baselines() -> None:
    task = CustomTask(len, baselines={"manual": "It was"})
    outcome = answer(search(task, [], spent=True), "manual")
    assert (outcome.candidates, outcome.stopped) == ([], "budget")
    with pytest.raises(SettingError, match="no baseline 'in-context'; it has: manual"):
        in_context(search(task, []))
