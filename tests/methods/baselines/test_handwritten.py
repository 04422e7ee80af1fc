from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.baselines.handwritten import NAMES, fixed
from pinprompt.methods.protocol import Search
from pinprompt.tasks.custom import CustomTask
from pinprompt.values import Event


def search(task: CustomTask, events: list[Event], *, spent: bool = False) -> Search:
    def score(prompts: Any, split: str = "train") -> Any:
        if spent:
            raise BudgetSpent("nothing is left")
        return task.score(prompts, [0] * len(prompts), split)

    evaluator: Any = SimpleNamespace(score=score)
    nothing: Any = None
    return Search(task, evaluator, events.append, nothing, seed=0, device="cpu", folder=Path())


@pytest.mark.parametrize("name", NAMES)
def test_answers_with_the_tasks_baseline(name: str) -> None:
    events: list[Event] = []
    task = CustomTask(len, baselines={known: known * 2 for known in NAMES})
    outcome = fixed(name)(search(task, events))
    (candidate,) = outcome.candidates
    assert (candidate.prompt.text, candidate.source, candidate.score) == (name * 2, name, 2 * len(name))
    assert outcome.stopped == "finished"
    assert [event.kind for event in events] == ["step"]


def test_budget_and_missing_baselines() -> None:
    task = CustomTask(len, baselines={"manual": "It was"})
    outcome = fixed("manual")(search(task, [], spent=True))
    assert (outcome.candidates, outcome.stopped) == ([], "budget")
    with pytest.raises(SettingError, match="no baseline 'in-context'; it has: manual"):
        fixed("in-context")(search(task, []))
    with pytest.raises(SettingError, match="did you mean 'manual'"):
        fixed("manuel")
