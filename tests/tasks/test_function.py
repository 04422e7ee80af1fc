"""Functions as tasks: of a prompt, of a list of prompts, and of a prompt and a row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines import read_lines
from tests.house.tiny import recipe

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.answers.memo import Memo
from pinprompt.errors import SettingError, TaskError
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.recipe.task_sections import CustomSettings
from pinprompt.run import running
from pinprompt.tasks.function import FunctionTask, import_function, takes_a_list
from pinprompt.tasks.protocol import Draft, Task, check_task, split_rows, splits
from pinprompt.values import Answers, Draw, Prompt

AB = [Prompt("a"), Prompt("bbb")]


def length(text: str) -> float:
    return float(len(text))


def lengths(texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


class Callable:
    def __call__(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]


def numbers(task: FunctionTask, prompts: Sequence[Prompt] = AB) -> list[float]:
    """What the function says of each prompt."""
    return [float(answers.contents[0]) for answers in task.ask(prompts, (0,))]


def evaluated(task: FunctionTask, **more: Any) -> Evaluator:
    return Evaluator(task, Budget(BudgetSettings(calls=more.pop("calls", None))), **more)


# Functions of a prompt.


@pytest.mark.parametrize("function", [length, lengths, Callable(), lambda text: len(text), len])
def test_a_function_is_a_task(function: Any) -> None:
    task = FunctionTask(function)
    assert isinstance(task, Task)
    assert numbers(task) == [1.0, 3.0]
    [answers] = task.ask(AB[1:], (0,))
    assert task.metrics(answers, (0,)).metrics == {"score": 3.0}
    assert check_task(task) == []


def test_batches_are_chosen_by_annotation_or_argument() -> None:
    assert takes_a_list(lengths)
    assert takes_a_list(Callable())
    assert not takes_a_list(length)
    assert not takes_a_list(lambda text: 0)
    assert numbers(FunctionTask(lambda texts: [len(text) for text in texts], batch=True)) == [1.0, 3.0]
    with pytest.raises(SettingError, match="must be callable"):
        FunctionTask(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, "3", "x", [1, 2]])
def test_one_bad_value_is_a_recorded_failure(bad: object) -> None:
    bad_one, good_one = FunctionTask(lambda text: bad if text == "a" else 2.0).ask(AB, (0,))
    assert "'a'" in bad_one.failures[0]
    assert (float(good_one.contents[0]), good_one.failures) == (2.0, {})


def test_one_exception_is_a_recorded_failure() -> None:
    def fragile(text: str) -> float:
        if text == "a":
            raise ValueError("no vowels please")
        return 1.0

    task = FunctionTask(fragile)
    answers = task.ask(AB, (0,))[0]
    assert "no vowels please" in answers.failures[0]
    with pytest.raises(TaskError, match="no vowels please"):
        task.metrics(answers, (0,))
    assert "no vowels please" in check_task(task, ["a"], raise_error=False)[0]


def test_the_evaluator_takes_a_failure_as_the_worst_and_refuses_where_nothing_could_be_scored() -> None:
    def fragile(text: str) -> float:
        return math.nan if text == "a" else float(len(text))

    def scored(function: Any, prompts: list[Prompt]) -> list[float]:
        return [score.value for score in evaluated(FunctionTask(function)).score(prompts)]

    assert scored(fragile, [*AB, Prompt("cc")]) == [2.0, 3.0, 2.0]
    with pytest.raises(TaskError, match="not finite"):
        scored(lambda text: math.inf, AB)


@pytest.mark.parametrize(("answer", "match"), [([1.0], "1 scores for 2 prompts"), (3.0, "answered 3.0")])
def test_a_broken_batch(answer: object, match: str) -> None:
    with pytest.raises(TaskError, match=match):
        FunctionTask(lambda texts: answer, batch=True).ask(AB, (0,))

    def broken(texts: list[str]) -> list[float]:
        raise ValueError("no")

    with pytest.raises(TaskError, match=r"raised ValueError: no for 2 prompts.*fails as a whole"):
        FunctionTask(broken).ask(AB, (0,))


def test_from_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_task.py").write_text(
        "RATE = 3\ndef score(text: str) -> float:\n    return -abs(len(text) - 3)\n", encoding="utf-8"
    )
    (tmp_path / "broken_own_task.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    task = FunctionTask.build(CustomSettings(function="my_own_task:score", stochastic=True))
    assert numbers(task) == [-2.0, 0.0]
    assert (task.info.stochastic, task.context()) == (True, "")
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
    assert FunctionTask(length).info.fingerprint == FunctionTask(length).info.fingerprint
    assert FunctionTask(length).info.fingerprint != FunctionTask(lengths).info.fingerprint


def test_check_task_finds_what_is_wrong() -> None:
    class Leaky(FunctionTask):
        def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
            answers = super().ask(prompts, rows, draws)
            return answers if len(prompts) > 1 else [Answers(tuple(rows), np.array([99.0]))]

    with pytest.raises(TaskError, match="must not depend on the other prompts"):
        check_task(Leaky(length))
    calls = iter(range(1000))
    assert "stochastic" in check_task(FunctionTask(lambda text: next(calls)), raise_error=False)[0]
    assert check_task(FunctionTask(lambda text: next(calls), stochastic=True)) == []


# Functions of a prompt and a row.

ROWS = [{"text": "x" * number, "number": number} for number in range(12)]


def product(text: str, row: dict[str, Any]) -> float:
    return float(len(text) * row["number"])


def test_rows_are_split_at_random_into_thirds() -> None:
    task = FunctionTask(product, rows=ROWS)
    assert {split: len(split_rows(task, split)) for split in splits(task)} == {"train": 4, "dev": 4, "test": 4}
    assert sorted(row.input["number"] for row in task.rows) == list(range(12))  # each row once
    assert [row.input for row in FunctionTask(product, rows=ROWS).rows] == [row.input for row in task.rows]
    assert [row.input["number"] for row in task.rows] != list(range(12))
    assert "12 rows, split at random: 4 for training, 4 for choosing, 4 for the report" in task.info.notes[0]
    assert check_task(task) == []


def test_what_does_not_divide_by_three_is_for_training() -> None:
    task = FunctionTask(product, rows=iter(ROWS[:11]))
    assert {split: len(split_rows(task, split)) for split in splits(task)} == {"train": 5, "dev": 3, "test": 3}


def test_few_rows_are_all_for_training() -> None:
    task = FunctionTask(product, rows=ROWS[:7])
    assert splits(task) == ("train",)
    assert len(task.rows) == 7
    assert check_task(task) == []


def test_rows_can_say_their_split() -> None:
    named = [{**row, "split": split} for row, split in zip(ROWS, ["test", "train", "train", "dev"], strict=False)]
    task = FunctionTask(product, rows=named)
    assert [(row.split, row.index, row.input["number"]) for row in task.rows] == [
        ("train", 0, 1),
        ("train", 1, 2),
        ("dev", 0, 3),
        ("test", 0, 0),
    ]
    assert task.info.notes == ()
    with pytest.raises(SettingError, match="no row has the split 'train'"):
        FunctionTask(product, rows=[{"split": "test"}])


def test_rows_may_be_anything() -> None:
    """A row need not be a mapping, nor JSON."""
    task = FunctionTask(lambda text, row: row[1], rows=[("a", 1.0), ("b", 2.0), (object(), 4.0)])
    [answers] = task.ask(AB[:1], (0, 2))
    assert list(answers.contents) == [1.0, 4.0]


def test_wrong_rows_are_sentences() -> None:
    with pytest.raises(SettingError, match="rows is empty"):
        FunctionTask(product, rows=[])
    with pytest.raises(SettingError, match="one prompt at a time"):
        FunctionTask(lengths, rows=ROWS)


def test_a_score_is_the_mean_over_rows_and_a_call_is_a_row() -> None:
    task = FunctionTask(product, rows=ROWS, calls_per_prompt=2)
    evaluator = evaluated(task)
    mean = np.mean([task.rows[row].input["number"] for row in split_rows(task, "dev")])
    scores = evaluator.score([Prompt("ab"), Prompt("c")], "dev")
    assert [score.value for score in scores] == pytest.approx([2 * mean, mean])
    assert evaluator.charged_calls == 2 * 4 * 2


def test_a_report_has_the_mean_its_interval_and_every_row() -> None:
    """Of a hundred rows with the values 0 and 1 the interval is that of the binomial."""
    rows = [{"right": number % 4 > 0, "split": "test"} for number in range(100)] + [{"split": "train"}]
    task = FunctionTask(lambda text, row: float(row.get("right", 0)), rows=rows)
    (found,) = evaluated(task).evaluate([Prompt("a")], "test")
    assert (found.split, found.rows, found.metrics) == ("test", 100, {"score": 0.75})
    assert Counter(found.outcomes["score"]) == {1.0: 75, 0.0: 25}
    spread = 1.96 * math.sqrt(0.75 * 0.25 / 100)
    assert found.intervals["score"] == pytest.approx((0.75 - spread, 0.75 + spread), abs=0.02)
    assert found.tables == {}


def fragile(text: str, row: dict[str, Any]) -> float:
    """Fails on some rows, and with some prompts on all."""
    if row["number"] in (3, 7) or "!" in text:
        raise ValueError(f"no {row['number']}")
    return product(text, row)


def test_a_failing_row_counts_as_the_prompts_worst_and_not_as_more() -> None:
    task = FunctionTask(fragile, rows=ROWS[:5])
    evaluator = evaluated(task)
    (score,) = evaluator.score([Prompt("ab")])
    # 0, 2, 4 and 8 for the rows 0, 1, 2 and 4; the row 3 failed and counts as 0.
    assert sorted(score.values) == [0.0, 0.0, 2.0, 4.0, 8.0]
    assert score.value == pytest.approx(14 / 5)
    assert score.failures == ("it raised ValueError: no 3 (prompt 'ab')",)
    (found,) = evaluator.evaluate([Prompt("ab")], "train")
    assert found.metrics["score"] == pytest.approx(14 / 5)
    assert found.tables == {"failures": ["it raised ValueError: no 3 (prompt 'ab')"]}
    assert evaluator.prompts_table()[0]["failures"] == 1


def test_a_prompt_that_fails_on_every_row_is_as_bad_as_the_worst() -> None:
    evaluator = evaluated(FunctionTask(fragile, rows=ROWS[:5]))
    scores = evaluator.score([Prompt("a!"), Prompt("abc"), Prompt("a")])
    assert scores[0].value == scores[2].value < scores[1].value
    with pytest.raises(TaskError, match="could not score the prompt: it raised ValueError"):
        evaluator.evaluate([Prompt("a!")], "train")


def test_answers_on_rows_are_kept_across_runs(tmp_path: Path) -> None:
    """Also if there are other rows beside them; an edited function is another one."""

    def paid(function: Any, rows: list[Any], **more: Any) -> int:
        evaluator = evaluated(FunctionTask(function, rows=rows, **more), memo=Memo(tmp_path / "memo.sqlite"))
        evaluator.score([Prompt("ab")])
        return evaluator.paid_calls

    assert paid(product, ROWS[:5]) == 5
    assert paid(product, ROWS[:7]) == 2
    assert paid(fragile, ROWS[:3]) == 3
    assert paid(product, ROWS[:5], stochastic=True) == 5
    one, other = FunctionTask(product, rows=ROWS[:5]), FunctionTask(product, rows=ROWS[:6])
    assert one.info.fingerprint != other.info.fingerprint


class Liking:
    """Likes a prompt the better, the more of a row's letters it has; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()

    def __call__(self, text: str, row: dict[str, Any]) -> float:
        self.asked[text, row["text"]] += 1
        return float(sum(letter in text for letter in row["text"]))


def test_prompts_are_raced_over_the_rows_of_a_function(tmp_path: Path) -> None:
    """Few rows for many prompts, all rows of train and dev for the best, and no row twice."""
    rows = [{"text": "".join(chr(97 + (7 * number + 5 * place) % 26) for place in range(6))} for number in range(24)]
    settings = {
        "method": "race",
        "policy": {"length": 4, "constraints": {"dictionary": False}},
        "race": {"first_block": 2, "max_perplexity": None, "batch": 3, "least": 2},
        "budget": {"calls": 120},
    }
    function = Liking()
    task = FunctionTask(function, rows=rows, drafts=[Draft("red cat", "manual")])
    result = running.run(recipe(tmp_path, **settings), tmp_path / "run", task=task, device="cpu", threads=1)
    assert set(function.asked.values()) == {1}
    assert result.calls <= 120
    steps = [row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "step"]
    assert [(steps[0]["rows"], steps[-1]["rows"])] == [(2, 16)]
    assert steps[0]["runners"] < max(row["runners"] for row in steps) > steps[-1]["runners"]
    # The report is on the eight rows that the search has not seen, with an interval.
    assert result.data["test"]["rows"] == 8
    low, high = result.data["test"]["intervals"]["score"]
    assert low < result.data["test"]["score"] < high
    held_out = [task.rows[row].input["text"] for row in split_rows(task, "test")]
    assert {text for text, row in function.asked if row in held_out} <= {result.prompt, "red cat", *_shown(result)}
    mean = np.mean([sum(letter in result.prompt for letter in text) for text in held_out])
    assert result.data["test"]["score"] == pytest.approx(mean)


def _shown(result: Any) -> list[str]:
    return [one["prompt"] for one in result.data["top"]]
