"""The contract: what a task must have, and what the checker says of members that are wrong."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from answer_toys import Toy, noisy

from pinprompt.errors import SettingError, TaskError
from pinprompt.tasks import protocol
from pinprompt.tasks.protocol import Draft, Task, TaskInfo, check_task, split_rows
from pinprompt.values import Answers, Draw, Evaluation, Prompt, Row


class Bare:
    """A task as somebody writes it who has read only what must be there."""

    info = TaskInfo("lengths", "1", "length")
    rows: Any = (Row("train", 0, "a text"), Row("train", 1, "another"), Row("test", 0, "a third"))

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        return [Answers(tuple(rows), [{"text": prompt.text, "on": row} for row in rows]) for prompt in prompts]

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return np.array([len(one["text"]) for one in answers.on(rows)], dtype=np.float64)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        lengths = [len(str(one)) for one in answers.on(rows)]
        return Evaluation(self.rows[rows[0]].split, {"length": float(np.mean(lengths))}, len(rows))

    def context(self) -> str:
        return ""

    def drafts(self) -> list[Draft]:
        return [Draft("It was", "manual")]


@pytest.mark.parametrize("task", [Bare(), Toy(), Toy(noisy, stochastic=True)])
def test_a_task_of_seven_members_keeps_the_contract(task: Any) -> None:
    assert isinstance(task, Task)
    assert check_task(task) == []


def test_what_it_does_not_have_is_not_asked_of_it() -> None:
    task = Bare()
    others = ("Billed", "Fitted", "Shown", "Judged", "DrawsRows", "Windowed", "Labelling", "Hinting", "Proposing")
    assert not any(isinstance(task, getattr(protocol, name)) for name in (*others, "WhiteBox"))
    assert protocol.splits(task) == ("train", "test")
    assert (protocol.fit_rows(task), protocol.billed(task)) == ((), None)
    assert protocol.hand_written(task) == {"manual": "It was"}
    assert split_rows(task, "test") == (2,)
    with pytest.raises(SettingError, match="no split 'tset'; did you mean 'test'"):
        split_rows(task, "tset")


def test_calls_are_those_of_the_rows() -> None:
    task = Bare()
    task.rows = (Row("train", 0, calls=3), Row("train", 1, calls=2, report_calls=5))
    assert (protocol.calls(task, (0, 1)), protocol.calls(task, (0, 1), report=True)) == (5, 8)


@pytest.mark.parametrize("member", ["info", "rows", "ask", "values", "metrics", "context", "drafts"])
def test_the_checker_says_what_is_missing(member: str) -> None:
    task = type("Lacking", (), {name: value for name, value in vars(Bare).items() if name != member})()
    assert check_task(task, raise_error=False) == [
        f"it has no {'' if member in ('info', 'rows') else 'method '}'{member}'"
    ]


def scored(value: Any) -> Any:
    return lambda answers, rows, fit=(), seed=0: value


def told(value: Any) -> Any:
    return lambda: value


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("info", "lengths", "'info' must be a pinprompt TaskInfo"),
        ("info", replace(Bare.info, fingerprint=""), "'info.fingerprint' is empty"),
        ("info", replace(Bare.info, notes="one"), "'info.notes' must be"),
        ("info", replace(Bare.info, notes=(1,)), "'info.notes' must be"),
        ("info", replace(Bare.info, chunk=0), "'info.chunk' must be"),
        ("info", replace(Bare.info, chunk=2.5), "'info.chunk' must be"),
        ("info", replace(Bare.info, primary="accuracy"), "have no 'accuracy' (the primary metric)"),
        ("rows", ("a", "b"), "'rows' must be pinprompt Rows"),
        ("rows", (Row("test", 0),), "no row has the split 'train'"),
        ("rows", (Row("train", 1), Row("train", 0)), "indices 0, 1, 2, ... in order"),
        ("rows", (Row("train", 0, calls=-1),), "'calls' of a row must be"),
        ("rows", (Row("train", 0, calls=0.5),), "'calls' of a row must be"),
        ("ask", lambda *_: 1 / 0, "ask raised ZeroDivisionError on 'train'"),
        ("ask", lambda *_: [], "ask must give a list of 3 Answers"),
        ("ask", lambda prompts, rows, draws: [1.0] * 3, "ask gave a float"),
        ("ask", lambda prompts, rows, draws: [Answers((0,), [1.0])] * 3, "ask must answer all 2 rows in order"),
        (
            "ask",
            lambda prompts, rows, draws: [Answers(rows, [1.0] * len(rows), {0: "down"})] * 3,
            "the first row could not be answered for 'It was' on 'train': down",
        ),
        ("values", scored(3.0), "must have one value per row"),
        ("values", scored([1.0]), "must have one value per row"),
        ("values", scored([1.0, np.nan]), "are not finite numbers"),
        ("values", scored(None), "one value per row"),
        ("metrics", scored({"length": 1.0}), "gave a dict, not a pinprompt Evaluation"),
        ("metrics", scored(Evaluation("train", {"length": np.inf}, 1)), "are not finite"),
        ("metrics", scored(Evaluation("train", {"length": 1.0}, 1, tables={"a": object()})), "not plain JSON"),
        ("context", told(None), "context() must give a text"),
        ("drafts", told(["It was"]), "drafts() must give pinprompt Drafts"),
        ("fit_rows", (7,), "'fit_rows' must be positions"),
        ("differentiable", told(object()), "its view has no embeddings"),
    ],
)
def test_the_checker_says_which_member_is_wrong(member: str, value: Any, said: str) -> None:
    task = Bare()
    setattr(task, member, value)
    with pytest.raises(TaskError, match=re.escape(said)):
        check_task(task)


@pytest.mark.parametrize(("name", "value"), [("exhibits", {"picture": object()}), ("shown_rows", []), ("exhibits", 5)])
def test_what_is_shown_must_be_json(name: str, value: Any) -> None:
    task: Any = Bare()
    task.exhibits, task.shown_rows, task.sent = dict, dict, lambda prompt, evaluation: {}
    assert check_task(task) == []
    setattr(task, name, told(value))
    with pytest.raises(TaskError, match=rf"{name}\(\) must give a dict of plain JSON values"):
        check_task(task)


class Numbers(Bare):
    """Answers with numbers that depend on what they should not, by so much."""

    def __init__(self, what: str, much: float) -> None:
        self.what, self.much = what, much
        self.times = itertools.count()

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        wrong = {"time": next(self.times), "prompts": len(prompts), "rows": len(rows)}
        seen = [wrong.get(self.what, place) for place in range(len(prompts))]
        numbers = [len(prompt.text) + self.much * extra for prompt, extra in zip(prompts, seen, strict=True)]
        return [Answers(tuple(rows), np.full(len(rows), number)) for number in numbers]

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return answers.on(rows)


@pytest.mark.parametrize(
    ("what", "much", "said"),
    [
        ("time", 1e-6, "set info.stochastic to True"),
        ("prompts", 1e-6, "must not depend on the other prompts"),
        ("place", 1e-6, "must not depend on the other prompts"),
        ("rows", 1.0, "must not depend on the other prompts and rows"),
        ("rows", 1e-6, None),  # a model that computes several rows at once rounds differently
    ],
)
def test_the_checker_finds_answers_that_depend_on_their_neighbours(what: str, much: float, said: str | None) -> None:
    findings = check_task(Numbers(what, much), raise_error=False)
    if said is None:
        assert findings == []
    else:
        assert said in findings[0]


def test_a_stochastic_task_may_answer_differently() -> None:
    task = Numbers("time", 1e-6)
    task.info = replace(Bare.info, stochastic=True)  # type: ignore[misc]
    assert check_task(task) == []
