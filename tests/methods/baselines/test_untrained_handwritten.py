from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import SettingError
from pinprompt.methods.baselines.untrained import answer, in_context, instructions, manual
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import BudgetSettings, PolicySettings
from pinprompt.tasks.function import FunctionTask
from pinprompt.tasks.protocol import Draft
from pinprompt.values import Event


def search(task: FunctionTask, events: list[Event], *, calls: int | None = None) -> Search:
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=calls)))
    nothing: Any = None
    return Search(task, evaluator, events.append, nothing, 0, "cpu", Path(), PolicySettings(), nothing)


METHODS = {"manual": manual, "instructions": instructions, "in-context": in_context}


@pytest.mark.parametrize("name", METHODS)
def test_answers_with_the_tasks_draft(name: str) -> None:
    events: list[Event] = []
    task = FunctionTask(len, drafts=[Draft(known * 2, known) for known in METHODS])
    outcome: Outcome = METHODS[name](search(task, events))
    (candidate,) = outcome.candidates
    assert (candidate.prompt.text, candidate.source, candidate.score) == (name * 2, name, 2 * len(name))
    assert outcome.stopped == "finished"
    assert [event.kind for event in events] == ["step"]


def test_budget_and_missing_drafts() -> None:
    task = FunctionTask(len, drafts=[Draft("It was", "manual")], calls_per_prompt=2)
    outcome = answer(search(task, [], calls=1), name="manual")
    assert (outcome.candidates, outcome.stopped) == ([], "budget")
    with pytest.raises(SettingError, match="no prompt 'in-context'; it has: manual"):
        in_context(search(task, []))
