"""The contract: what a task may leave out, what it then has, and what the checker says of members that are wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pinprompt
from pinprompt.errors import TaskError
from pinprompt.tasks.custom import CustomTask
from pinprompt.tasks.protocol import OPTIONAL, BareTask, Task, check_task, complete
from pinprompt.values import Evaluation, Prompt, Score


class Bare:
    """A task as somebody writes it who has read only what must be there."""

    name, stochastic, fingerprint, splits, primary = "lengths", False, "1", ("train",), "length"

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        return [Score(float(len(prompt.text)), calls=1) for prompt in prompts]

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        return Evaluation(split, {"length": float(len(prompt.text))}, rows=1, calls=1)

    def calls(self, split: str = "train") -> int:
        return 1

    def context(self) -> str:
        return ""

    def baselines(self) -> dict[str, str]:
        return {}


def test_a_bare_task_is_given_the_defaults() -> None:
    task = Bare()
    assert isinstance(task, BareTask)
    assert not isinstance(task, Task)
    whole = complete(task)
    assert complete(whole) is whole
    assert all(hasattr(whole, name) for name in OPTIONAL)
    assert (whole.chunk, whole.billed, whole.calibrates) == (1, None, False)
    assert (list(whole.notes), dict(whole.fingerprints)) == ([], {})
    assert (whole.judges(), whole.exhibits(), whole.shown_rows(), whole.differentiable()) == ({}, {}, {}, None)
    assert whole.tokens(Prompt("a")) == (0, 0)
    assert whole.row_values(Score(1.0), "train") == []
    whole.check_window(5)
    assert whole.score([Prompt("four")], [0])[0].value == 4.0
    with pytest.raises(AttributeError, match="nothing"):
        whole.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert check_task(task) == []


def test_members_that_are_there_are_used() -> None:
    class More(Bare):
        chunk = 7
        notes = ("a note",)

        def judges(self) -> dict[str, str]:
            return {"style": "me"}

    whole = complete(More())
    assert (whole.chunk, whole.notes, whole.judges(), whole.exhibits()) == (7, ("a note",), {"style": "me"}, {})


def test_a_task_of_ours_is_left_as_it_is() -> None:
    task = CustomTask(lambda prompt: float(len(prompt)))
    assert complete(task) is task
    assert all(hasattr(task, name) for name in OPTIONAL)


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("notes", "one", "'notes' must be"),
        ("notes", [1], "'notes' must be"),
        ("chunk", 0, "'chunk' must be"),
        ("chunk", 2.5, "'chunk' must be"),
        ("billed", 5, "'billed' must be"),
        ("calibrates", 1, "'calibrates' must be"),
        ("fingerprints", {"train": 1}, "'fingerprints' must"),
        ("data_fingerprint", None, "'data_fingerprint' must"),
        ("fingerprints", {"validation": "x"}, "'fingerprints' must"),
        ("tokens", lambda prompt, split: 5, "tokens() on 'train'"),
        ("tokens", lambda prompt, split: (1, -1), "tokens() on 'train'"),
        ("judges", lambda: {"style": 1}, "judges() must"),
        ("exhibits", lambda: {"picture": object()}, "exhibits() must"),
        ("shown_rows", list, "shown_rows() must"),
        ("differentiable", lambda: object(), "its view has no embeddings"),
        ("row_values", lambda score, split: [1.0, 2.0], "row_values() of"),
    ],
)
def test_the_checker_says_which_member_is_wrong(member: str, value: Any, said: str) -> None:
    task = Bare()
    setattr(task, member, value)
    with pytest.raises(TaskError, match=re.escape(said)):
        check_task(task)


def test_nobody_looks_for_these_members_behind_the_contract() -> None:
    names = "|".join(OPTIONAL)
    sought = re.compile(rf"""(?:getattr|hasattr)\([^()]*["'](?:{names})["']""")
    source = Path(pinprompt.__file__).parent
    found = [path.name for path in source.rglob("*.py") if sought.search(path.read_text(encoding="utf-8"))]
    assert found == []
