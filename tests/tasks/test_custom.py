from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from pinprompt.errors import SettingError, TaskError
from pinprompt.recipe.task_sections import CustomSettings
from pinprompt.tasks.custom import CustomTask, import_function, takes_a_list
from pinprompt.tasks.protocol import Task, check_task
from pinprompt.values import Prompt

AB = [Prompt("a"), Prompt("bbb")]


def length(text: str) -> float:
    return float(len(text))


def lengths(texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


class Callable:
    def __call__(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]


@pytest.mark.parametrize("function", [length, lengths, Callable(), lambda text: len(text), len])
def test_a_function_is_a_task(function: object) -> None:
    task = CustomTask(function)  # type: ignore[arg-type]
    assert isinstance(task, Task)
    assert [score.value for score in task.score(AB, [0, 0])] == [1.0, 3.0]
    assert task.evaluate(AB[1], "train").metrics == {"score": 3.0}
    assert check_task(task) == []


def test_batches_are_told_by_annotation_or_by_hand() -> None:
    assert takes_a_list(lengths)
    assert takes_a_list(Callable())
    assert not takes_a_list(length)
    assert not takes_a_list(lambda text: 0)
    task = CustomTask(lambda texts: [len(text) for text in texts], batch=True)
    assert [score.value for score in task.score(AB, [0, 0])] == [1.0, 3.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, "3", "x", [1, 2]])
def test_one_bad_value_is_a_recorded_failure(bad: object) -> None:
    scores = CustomTask(lambda text: bad if text == "a" else 2.0).score(AB, [0, 0])
    assert math.isnan(scores[0].value)
    assert "'a'" in scores[0].failures[0]
    assert (scores[1].value, scores[1].failures) == (2.0, ())


def test_one_exception_is_a_recorded_failure() -> None:
    def fragile(text: str) -> float:
        if text == "a":
            raise ValueError("no vowels please")
        return 1.0

    task = CustomTask(fragile)
    assert "no vowels please" in task.score(AB, [0, 0])[0].failures[0]
    with pytest.raises(TaskError, match="no vowels please"):
        task.evaluate(AB[0])
    assert "no vowels please" in check_task(task, ["a"], raise_error=False)[0]


def test_the_evaluator_takes_a_failure_as_the_worst_and_refuses_where_nothing_could_be_scored() -> None:
    from pinprompt.recipe.sections import BudgetSettings
    from pinprompt.scoring.budget import Budget
    from pinprompt.scoring.evaluator import Evaluator

    def fragile(text: str) -> float:
        return math.nan if text == "a" else float(len(text))

    def scored(function: object, prompts: list[Prompt]) -> list[float]:
        evaluator = Evaluator(CustomTask(function), Budget(BudgetSettings()))  # type: ignore[arg-type]
        return [score.value for score in evaluator.score(prompts)]

    assert scored(fragile, [*AB, Prompt("cc")]) == [2.0, 3.0, 2.0]
    with pytest.raises(TaskError, match="not finite"):
        scored(lambda text: math.inf, AB)


@pytest.mark.parametrize(("answer", "match"), [([1.0], "1 scores for 2 prompts"), (3.0, "answered 3.0")])
def test_a_broken_batch(answer: object, match: str) -> None:
    with pytest.raises(TaskError, match=match):
        CustomTask(lambda texts: answer, batch=True).score(AB, [0, 0])


def test_from_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_task.py").write_text(
        "RATE = 3\ndef score(text: str) -> float:\n    return -abs(len(text) - 3)\n", encoding="utf-8"
    )
    (tmp_path / "broken_own_task.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    task = CustomTask.build(CustomSettings(function="my_own_task:score", calls_per_prompt=2, context="Say"))
    assert [score.value for score in task.score(AB, [0, 0])] == [-2.0, 0.0]
    assert (task.calls(), task.context()) == (2, "Say")
    for place, match in (
        ("my_own_task", "must be 'module:name'"),
        ("my_own_task:scor", "did you mean 'score'"),
        ("my_own_task:RATE", "not a function"),
        ("no_such_task:score", "no module 'no_such_task'"),
        ("broken_own_task:score", "ZeroDivisionError"),
    ):
        with pytest.raises(SettingError, match=match):
            import_function(place)


def test_the_fingerprint_is_the_functions_source() -> None:
    assert CustomTask(length).fingerprint == CustomTask(length).fingerprint
    assert CustomTask(length).fingerprint != CustomTask(lengths).fingerprint


def test_check_task_finds_what_is_wrong() -> None:
    class Leaky(CustomTask):
        def score(self, prompts, seeds=(), split="train"):  # type: ignore[no-untyped-def]
            scores = super().score(prompts, seeds, split)
            return scores if len(prompts) > 1 else [type(scores[0])(99.0)]

    with pytest.raises(TaskError, match="must not depend on the other prompts"):
        check_task(Leaky(length))
    calls = iter(range(1000))
    assert "stochastic" in check_task(CustomTask(lambda text: next(calls)), raise_error=False)[0]
    assert check_task(CustomTask(lambda text: next(calls), stochastic=True)) == []
    assert any("no method 'evaluate'" in finding for finding in check_task(object(), raise_error=False))
