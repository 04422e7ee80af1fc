"""From prompts to scores: cells are paid for once, failures count as the worst, and killed runs go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answer_toys import CALLS, Toy, noisy, prompts

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.answers.executors import Inline, Job, Stop
from pinprompt.answers.log import Log
from pinprompt.answers.memo import Memo
from pinprompt.answers.requests import Requests
from pinprompt.answers.table import Table
from pinprompt.errors import BudgetSpent, RunError, ServerDown, SettingError, TaskError
from pinprompt.files import seal
from pinprompt.recipe.sections import BudgetSettings, Price
from pinprompt.values import Answers, Draw, Evaluation, Prompt, Score, derive

TRAIN, DEV = tuple(range(4)), (4, 5)  # the rows of a toy


def make(task: Any, calls: int | None = None, path: Path | None = None, **more: Any) -> Evaluator:
    """An evaluator; with a path its table is on disk, and a second one there goes on with it."""
    table = None if path is None else Table(Log(path, "one"))
    return Evaluator(task, Budget(BudgetSettings(calls=calls)), table=table, **more)


def values(scores: Sequence[Score]) -> list[float]:
    return [score.value for score in scores]


def lines(path: Path) -> list[dict[str, Any] | None]:
    return Log(path, "one").lines


class ByRow(Toy):
    """A prompt is worth its length and, on row n, n hundredths more."""

    def _answers(self, text: str, rows: tuple[int, ...], draw: Draw) -> Answers:
        return Answers(rows, np.array([len(text) + row / 100 for row in rows]))


# What is asked and charged.


def test_repeats_are_asked_and_charged_once() -> None:
    task = Toy()
    evaluator = make(task)
    assert values(evaluator.score(prompts("a", "bbb", "a", "cc"))) == [1, 3, 1, 2]
    assert values(evaluator.score(prompts("cc", "dddd"))) == [2, 4]
    assert [text for text, _, _ in task.asked] == ["a", "bbb", "cc", "dddd"]
    assert (evaluator.charged_calls, evaluator.report_calls, evaluator.paid_calls) == (16, 0, 16)
    assert (evaluator.memo_hits, evaluator.distinct) == (0, 4)


def test_only_cells_that_are_not_known_are_asked_and_charged() -> None:
    task = ByRow()
    evaluator = make(task)
    assert values(evaluator.score(prompts("a"), (1, 3))) == pytest.approx([1.02])
    (score,) = evaluator.score(prompts("a"), (3, 0, 1, 2))
    assert score.rows == (3, 0, 1, 2)
    assert score.values == pytest.approx([1.03, 1.0, 1.01, 1.02])
    assert evaluator.charged_calls == evaluator.paid_calls == task.cells == 4
    evaluator.score(prompts("a", "b"), "train")
    assert evaluator.charged_calls == task.cells == 8
    # Rows of its own for each prompt, and the answers themselves.
    each = evaluator.score_each(prompts("a", "b"), [(0, 4), (4,)])
    assert values(each) == pytest.approx([1.02, 1.04])
    (answers,) = evaluator.ask(prompts("b"), (4, 5))
    assert list(answers.on((4, 5))) == pytest.approx([1.04, 1.05])
    assert evaluator.charged_calls == task.cells == 11


def test_rows_may_cost_several_calls() -> None:
    evaluator = make(Toy(calls=3), calls=11)
    with pytest.raises(BudgetSpent, match="11 calls has 2 left, 3 needed") as spent:
        evaluator.score(prompts("a", "bb", "ccc", "d"), (0,))
    assert values(spent.value.scores) == [1, 2, 3]
    assert evaluator.charged_calls == 9


def test_splits_are_different_rows() -> None:
    evaluator = make(Toy())
    evaluator.score(prompts("a"))
    assert evaluator.known(Prompt("a"), "dev") is None
    evaluator.score(prompts("a"), "dev")
    assert evaluator.known(Prompt("a"), "dev") is not None
    assert evaluator.known(Prompt("b")) is None
    assert evaluator.charged_calls == CALLS["train"] + CALLS["dev"]
    assert evaluator.distinct == 1


def test_an_unknown_split_gives_a_clear_error() -> None:
    with pytest.raises(SettingError, match="no split 'deb'; did you mean 'dev'"):
        make(Toy()).score(prompts("a"), "deb")


class Fitted(ByRow):
    """A value is compared with the prompt's mean on train, or on the rows that it may be fitted on."""

    fit_rows = TRAIN

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return np.asarray(answers.on(rows)) - np.mean(answers.on(fit))


def test_rows_that_values_are_fitted_on_are_asked_too() -> None:
    task = Fitted()
    evaluator = make(task)
    # On dev the rows are 4 and 5, on train 0 to 3: the means are 0.045 and 0.015 more than the length.
    assert values(evaluator.score(prompts("a", "bb"), "dev")) == pytest.approx([0.03, 0.03])
    assert evaluator.charged_calls == task.cells == 2 * (4 + 2)
    assert values(evaluator.score(prompts("a"), (4,), fit=(4, 5))) == pytest.approx([-0.005])
    assert evaluator.charged_calls == 12
    evaluator.score(prompts("c"), (0,), fit=(0,))
    assert evaluator.charged_calls == 13
    assert evaluator.known(Prompt("c"), "train") is None


@pytest.mark.parametrize(("calls", "whole"), [(3, 0), (5, 0), (6, 1), (11, 1), (14, 1), (17, 2)])
def test_a_budget_that_ends_between_fitting_and_scoring_gives_whole_scores_only(calls: int, whole: int) -> None:
    """Four calls for each prompt's rows to fit on, as many prompts as fit, then two for each one's rows of dev."""
    evaluator = make(Fitted(), calls=calls)
    with pytest.raises(BudgetSpent) as spent:
        evaluator.score(prompts("a", "bb", "ccc"), "dev")
    assert len(spent.value.scores) == whole
    assert evaluator.charged_calls <= calls
    assert evaluator.budget.reserved.calls == 0


def test_a_stochastic_task_is_asked_every_time_with_its_own_seed() -> None:
    task = Toy(noisy, stochastic=True)
    evaluator = make(task, seed=7)
    first = values(evaluator.score(prompts("a", "a")))
    second = values(evaluator.score(prompts("a")))
    seeds = [derive(7, "task", 0, 0), derive(7, "task", 0, 1), derive(7, "task", 1, 0)]
    assert [seed for _, _, seed in task.asked] == seeds
    assert len({*first, *second}) == 3
    assert evaluator.charged_calls == 12
    last = evaluator.known(Prompt("a"))
    assert last is not None
    assert last.value == second[0]


def test_named_requests_of_a_stochastic_task_draw_the_same_for_all_prompts() -> None:
    """So that prompts are compared on the same draws, and a prompt that comes back costs nothing."""
    task = Toy(noisy, stochastic=True)
    evaluator = make(task, seed=7)
    first = values(evaluator.score(prompts("a", "b"), (0, 1), name="block"))
    assert len({seed for _, _, seed in task.asked}) == 1
    evaluator.score(prompts("a"))
    assert values(evaluator.score(prompts("b", "a"), (0, 1), name="block")) == first[::-1]
    assert task.cells == evaluator.charged_calls == 2 * 2 + 4


def test_evaluations_share_their_draws_and_are_made_once() -> None:
    task = Toy(noisy, stochastic=True)
    evaluator = make(task, seed=3)
    evaluator.score(prompts("a"), "test")
    first = evaluator.evaluate(prompts("a"), "test")
    assert evaluator.evaluate(prompts("a", "b"), "test")[:1] == first
    assert len(task.asked) == 3  # the search's own draw is not what the report shows
    assert task.asked[1][2] == task.asked[2][2]
    assert evaluator.report_calls == 2 * CALLS["test"]


# Budgets.


def test_the_budget_ends_a_batch_where_it_must() -> None:
    task = Toy()
    evaluator = make(task, calls=11)
    with pytest.raises(BudgetSpent, match="11 calls has 3 left, 4 needed") as spent:
        evaluator.score(prompts("a", "bb", "a", "ccc", "a"))
    assert values(spent.value.scores) == [1, 2, 1]
    assert evaluator.charged_calls == task.cells == 8
    assert values(evaluator.score(prompts("bb", "a"))) == [2, 1]  # what is known stays free
    assert evaluator.budget.reserved.calls == 0


def test_a_report_is_never_refused_for_calls() -> None:
    evaluator = make(Toy(), calls=4)
    evaluator.score(prompts("a"))
    assert values(evaluator.score(prompts("bb", "ccc"), "dev", report=True)) == [2, 3]
    (shown,) = evaluator.evaluate(prompts("a"), "test")
    assert shown.metrics == {"accuracy": 0.1}
    assert evaluator.charged_calls == 4
    assert evaluator.report_calls == 2 * CALLS["dev"] + CALLS["test"]
    assert evaluator.paid_calls == 4 + evaluator.report_calls
    assert evaluator.distinct == 1  # what only the report asked about is not the search's
    assert [row["prompt"] for row in evaluator.prompts_table()] == ["a"]


def test_an_evaluation_on_what_the_search_has_asked_costs_nothing() -> None:
    task = Toy()
    evaluator = make(task)
    evaluator.score(prompts("a", "bb"), "dev")
    assert [one.metrics["accuracy"] for one in evaluator.evaluate(prompts("bb", "a"), "dev")] == [0.2, 0.1]
    assert evaluator.report_calls == 0
    assert task.cells == 2 * CALLS["dev"]


def test_minutes_end_a_batch_between_two_prompts_but_no_report() -> None:
    now = [0.0]

    class Slow(Toy):
        def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
            now[0] += 25
            return super().ask(prompts, rows, draws)

    evaluator = Evaluator(Slow(), Budget(BudgetSettings(minutes=1.0), lambda: now[0]))
    with pytest.raises(BudgetSpent, match="minutes") as spent:
        evaluator.score(prompts(*"abcdef"))
    assert len(spent.value.scores) == 3
    assert evaluator.charged_calls == 12
    assert evaluator.budget.reserved.calls == 0
    assert len(evaluator.evaluate(prompts(*"uvwxyz"), "test")) == 6


def test_charge_books_or_refuses() -> None:
    evaluator = make(Toy(), calls=10)
    evaluator.charge(7)
    with pytest.raises(BudgetSpent):
        evaluator.charge(4)
    assert evaluator.charged_calls == evaluator.paid_calls == 7


class Remote(Toy):
    """A billed model: a prompt's row takes 150 tokens in and 5 out, at the worst 250 and 25."""

    billed = "dear"

    def most_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        return 250 * len(rows), 25 * len(rows)

    likely_tokens = most_tokens

    def attach(self, meter: Requests) -> bool:
        return False

    def _answers(self, text: str, rows: tuple[int, ...], draw: Draw) -> Answers:
        return Answers(rows, np.ones(len(rows)), {}, (150 * len(rows), 5 * len(rows)))


def remote(path: Path, **limits: Any) -> tuple[int, Evaluator]:
    """How many of ten prompts a budget pays for."""
    memo = Memo(path)
    prices = {"dear": Price(input=10.0, output=100.0)}
    evaluator = Evaluator(Remote(), Budget(BudgetSettings(prices=prices, **limits)), memo=memo)
    with pytest.raises(BudgetSpent) as spent:
        evaluator.score(prompts(*"abcdefghij"))
    memo.close()
    return len(spent.value.scores), evaluator


def test_tokens_and_money(tmp_path: Path) -> None:
    # On four rows a prompt costs 0.006 + 0.002 = 0.008, at the worst 0.01 + 0.01 = 0.02: with 0.05, four fit
    # (0.032 + 0.02 > 0.05).
    count, evaluator = remote(tmp_path / "memo.sqlite", money=0.05)
    assert count == 4
    assert str(evaluator.budget.spent.money) == "0.032"
    # The memo knows these four: they cost nothing, so four more fit, and tokens are charged for all of them.
    count, evaluator = remote(tmp_path / "memo.sqlite", money=0.05)
    assert count == 8
    assert evaluator.budget.spent.tokens == 8 * 620
    assert evaluator.paid_calls == 16


def test_a_budget_of_tokens_gives_the_same_run_whatever_the_memo_knows(tmp_path: Path) -> None:
    # 620 each and 1100 at the worst: three fit for sure, and the fourth after they took less than their worst.
    for paid in (16, 0):
        count, evaluator = remote(tmp_path / "memo.sqlite", tokens=3000)
        assert (count, evaluator.charged_calls, evaluator.paid_calls) == (4, 16, paid)
        assert (evaluator.budget.spent.tokens_in, evaluator.budget.spent.tokens_out) == (2400, 80)
        assert evaluator.table.get("a").tokens == (600, 20)  # what a report says of a prompt
    assert evaluator.budget.spent.money == 0


def test_an_evaluation_has_the_tokens_of_its_own_split() -> None:
    class Telling(Remote):
        def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
            return Evaluation("test", {"accuracy": 1.0}, len(rows), tables={"usage": list(answers.tokens)})

    evaluator = make(Telling())
    evaluator.score(prompts("a"))
    evaluator.score(prompts("a"), (6, 7, 8))  # some rows of test, as in a race
    (found,) = evaluator.evaluate(prompts("a"), "test")
    assert found.tables["usage"] == [150 * 8, 5 * 8]


def test_memo_on_and_off_give_the_same_run(tmp_path: Path) -> None:
    def run(memo: Memo | None) -> tuple[list[Any], Evaluator]:
        evaluator = make(ByRow(), calls=30, memo=memo)
        seen: list[Any] = []
        for step in range(9):
            try:
                seen.append(values(evaluator.score(prompts("a" * step, "b" * (step % 3), "c" * step), (step % 4, 3))))
            except BudgetSpent as spent:
                seen.append(("spent", values(spent.scores)))
        seen.append(evaluator.evaluate(prompts("a"), "test"))
        seen.append((evaluator.charged_calls, evaluator.report_calls, evaluator.distinct, evaluator.prompts_table()))
        return seen, evaluator

    path = tmp_path / "memo.sqlite"
    off, _ = run(None)
    cold, first = run(Memo(path))
    warm, second = run(Memo(path))
    assert off == cold == warm
    assert first.paid_calls == first.charged_calls + first.report_calls > CALLS["test"]
    assert second.paid_calls == 0
    assert second.memo_hits == first.paid_calls


def test_the_memo_has_single_cells_of_the_same_task(tmp_path: Path) -> None:
    """Another choice of rows takes what is known; another model, or a row with another text, is another question."""
    with_memo = Memo(tmp_path / "memo.sqlite")
    make(ByRow(), memo=with_memo).score(prompts("a"), (0, 2))
    task = ByRow()
    evaluator = make(task, memo=with_memo)
    assert values(evaluator.score(prompts("a"))) == pytest.approx([1.015])
    assert (evaluator.charged_calls, evaluator.paid_calls, task.cells, evaluator.memo_hits) == (4, 2, 2, 2)
    assert make(ByRow(fingerprint="toy-2"), memo=with_memo).memo is with_memo
    for other in (ByRow(fingerprint="toy-2"), ByRow(rows={"dev": 2, "train": 4})):
        asked = make(other, memo=with_memo)
        asked.score(prompts("a"), (0, 1))
        assert (other.cells, asked.memo_hits) == (2, 0)


def test_a_stochastic_task_has_no_memo(tmp_path: Path) -> None:
    with_memo = Memo(tmp_path / "memo.sqlite")
    make(Toy(noisy, stochastic=True), memo=with_memo).score(prompts("a"))
    assert with_memo.size()[0] == 0


# Failures and broken promises.


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_a_value_that_is_no_number_is_the_tasks_mistake(bad: float) -> None:
    with pytest.raises(TaskError, match=r"'toy'.*prompt 'a'"):
        make(Toy(lambda text, seed: bad)).score(prompts("a"))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([1.0], "float instead of Answers"),
        ([], "0 answers for 1"),
        (None, "NoneType for 1"),
        ([Answers((0,), [1.0])], "1 answers for 4 rows"),
        ([Answers((3, 2, 1, 0), [1.0] * 4)], "in order"),
        ([Answers((0, 1, 2, 3), [1.0])], "1 answers for 4 rows"),
        ([Answers((0, 1, 2, 3), [math.nan] * 4)], "finite number, or its answer must be a recorded failure"),
    ],
)
def test_broken_promises_are_sentences(answer: Any, words: str) -> None:
    task = Toy()
    task.ask = lambda *_: answer  # type: ignore[method-assign]
    evaluator = make(task)
    with pytest.raises(TaskError, match=words):
        evaluator.score(prompts("a"))
    assert evaluator.budget.reserved.calls == 0


def test_metrics_that_are_none_are_sentences() -> None:
    task = Toy()
    task.metrics = lambda *_: {"accuracy": 1.0}  # type: ignore[assignment, method-assign]
    with pytest.raises(TaskError, match="instead of an Evaluation"):
        make(task).evaluate(prompts("a"), "dev")
    task.metrics = lambda *_: Evaluation("dev", {"x": 1.0}, 1, tables={"a": object()})  # type: ignore[method-assign]
    with pytest.raises(TaskError, match="plain numbers and tables"):
        make(task).evaluate(prompts("a"), "dev")


def no_x(text: str, seed: int) -> float:
    """Prompts with an x in them cannot be answered."""
    return math.nan if "x" in text else float(len(text))


def test_a_failure_counts_as_the_worst_so_far_and_is_not_asked_again(tmp_path: Path) -> None:
    path, memo = tmp_path / "answers.jsonl", Memo(tmp_path / "memo.sqlite")
    evaluator = make(Toy(no_x), path=path, memo=memo)
    assert values(evaluator.score(prompts("xxxxxx", "aaa", "aaaa"))) == [3, 3, 4]
    assert values(evaluator.score(prompts("a", "xx"))) == [1, 1]
    (failed,) = evaluator.score(prompts("xxxxxx"))
    assert (failed.value, failed.failures) == (3, ("no number for xxxxxx",))  # once said, it stays
    assert evaluator.charged_calls == 20
    position = evaluator.position()
    assert memo.size()[0] == 3 * 4  # failures are not kept for other runs
    evaluator.close()
    task = Toy(no_x)
    other = make(task, path=path)
    other.restore(position)
    assert values(other.score(prompts("xxxxxx", "xx", "xxx"))) == [3, 1, 1]
    assert [text for text, _, _ in task.asked] == ["xxx"]
    assert other.prompts_table()[0] == {
        "prompt": "xxxxxx",
        "ids": "120 120 120 120 120 120",
        "first": 0,
        "rows": 4,
        "train": 3.0,
        "dev": None,
        "test": None,
        "failures": 4,
    }


def test_where_nothing_can_be_answered_the_run_stops_and_what_was_paid_stays_paid(tmp_path: Path) -> None:
    evaluator = make(Toy(no_x), path=tmp_path / "answers.jsonl")
    with pytest.raises(TaskError, match=r"could not answer a single prompt.*no number for x"):
        evaluator.score(prompts("x"))
    evaluator.close()
    task = Toy(no_x)
    again = make(task, path=tmp_path / "answers.jsonl")
    assert values(again.score(prompts("x", "aa"))) == [2, 2]
    assert [text for text, _, _ in task.asked] == ["aa"]


def test_prompts_table_has_means_for_stochastic_tasks() -> None:
    draws: Iterator[float] = iter([1.0, 5.0, 7.0])
    evaluator = make(Toy(lambda text, seed: next(draws), stochastic=True))
    evaluator.score(prompts("a", "a"))
    evaluator.score(prompts("a"), "dev")
    (row,) = evaluator.prompts_table()
    assert (row["train"], row["dev"], row["test"]) == (3.0, 7.0, None)


# Kills.


class Dying(Inline):
    """An executor that dies after the given number of answers."""

    def __init__(self, task: Toy, after: int) -> None:
        super().__init__(task)
        self.left = after

    def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[Answers]:
        for answers in super().run(jobs, stop):
            if self.left == 0:
                raise ServerDown("gone")
            self.left -= 1
            yield answers


def test_an_executor_that_stops_early_without_a_reason_gives_a_clear_error() -> None:
    class Lazy(Inline):
        def run(self, jobs: Sequence[Job], stop: Stop) -> Iterator[Answers]:
            yield from list(super().run(jobs, stop))[:1]

    task = Toy()
    evaluator = make(task, executor=Lazy(task))
    with pytest.raises(TaskError, match="'toy' gave too few answers for 3 prompts"):
        evaluator.score(prompts("a", "bb", "ccc"))
    evaluator.close()


def script(evaluator: Evaluator, save: Any, start: int = 0) -> list[Any]:
    """A search of six requests, some on parts of the rows, that saves its place every second one."""
    seen = []
    for step in range(start, 6):
        rows = TRAIN[step % 2 :: 2] if step < 3 else TRAIN
        asked = prompts("a", "b" * step, "c" * (step // 2), "d" * step)
        seen.append(values(evaluator.score(asked, rows, name="block" if step == 4 else "")))
        if step % 2 == 1:
            save(step + 1, json.loads(json.dumps(evaluator.position())))
    seen.append(evaluator.evaluate(prompts("a", "bbb"), "test"))
    return seen


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("lives", [1, 2, 3, 5, 8])
def test_a_run_that_is_killed_again_and_again_is_the_same_run(tmp_path: Path, stochastic: bool, lives: int) -> None:
    whole_task = Toy(noisy, stochastic)
    whole = make(whole_task, seed=5, path=tmp_path / "whole.jsonl")
    expected = script(whole, lambda *_: None)
    whole.close()
    saved: list[tuple[int, Any]] = [(0, None)]
    asked: list[Any] = []
    for _ in range(100):
        task = Toy(noisy, stochastic)
        evaluator = make(task, seed=5, path=tmp_path / "torn.jsonl", executor=Dying(task, lives))
        start, position = saved[-1]
        if position is not None:
            evaluator.restore(position)
        try:
            rest = script(evaluator, lambda step, at: saved.append((step, at)), start)
            break
        except ServerDown:
            continue
        finally:
            # One answer is thrown away by the death itself, before it reached the evaluator.
            asked += task.asked[:lives]
            evaluator.table.log.close()  # type: ignore[union-attr]
    assert rest == expected[start:]
    assert asked == whole_task.asked  # nothing was paid for twice
    assert evaluator.charged_calls == whole.charged_calls
    assert evaluator.paid_calls == whole.paid_calls
    assert evaluator.prompts_table() == whole.prompts_table()
    torn, all_ = (
        [{key: line[key] for key in line if key != "spent"} for line in lines(tmp_path / name) if line is not None]
        for name in ("torn.jsonl", "whole.jsonl")
    )
    assert torn == all_


def test_money_and_minutes_of_a_killed_session_stay_spent(tmp_path: Path) -> None:
    now = [0.0]

    class Slow(Remote):
        def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
            now[0] += 10
            return super().ask(prompts, rows, draws)

    def start() -> Evaluator:
        settings = BudgetSettings(money=1.0, prices={"dear": Price(input=10.0, output=100.0)})
        table = Table(Log(tmp_path / "answers.jsonl", "one"))
        return Evaluator(Slow(), Budget(settings, lambda: now[0]), table=table)

    first = start()
    first.score(prompts("a"))
    position = first.position()
    first.score(prompts("b", "c"))
    for _ in range(2):
        again = start()
        again.restore(position)
        assert str(again.budget.spent.money) == "0.024"
        assert again.budget.seconds() == 30
        assert again.charged_calls == 4
        assert again.paid_calls == 12
    again.score(prompts("b", "c", "d"))
    assert str(again.budget.spent.money) == "0.032"
    assert again.paid_calls == 16


def test_evaluations_survive_a_kill_and_are_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = make(Toy(), path=path)
    first.score(prompts("a"))
    before = first.position()
    told = first.evaluate(prompts("a"), "test")
    after = first.position()
    first.close()
    for position in (before, after, before):
        task = Toy()
        again = make(task, path=path)
        again.restore(position)
        assert again.evaluate(prompts("a"), "test") == told
        assert task.asked == []
        assert again.report_calls == CALLS["test"]
        assert again.paid_calls == CALLS["train"] + CALLS["test"]
        again.close()
    assert len(lines(path)) == 2


def test_a_run_that_spent_its_budget_continues_with_more(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = make(Toy(), calls=10, path=path)
    first.score(prompts("a"))
    position = first.position()
    with pytest.raises(BudgetSpent):
        first.score(prompts("b", "cc"))
    first.close()
    task = Toy()
    second = make(task, calls=20, path=path)
    second.restore(position)
    assert values(second.score(prompts("b", "cc"))) == [1, 2]
    assert [text for text, _, _ in task.asked] == ["cc"]


def test_damaged_positions_are_sentences() -> None:
    good = make(Toy()).position()
    for name in good.keys() - {"crc"}:  # checked before
        with pytest.raises(RunError, match="in the checkpoint"):
            make(Toy()).restore({key: value for key, value in good.items() if key != name})
    with pytest.raises(RunError, match="position in the checkpoint"):
        make(Toy()).restore(good | {"worst": {"a": "b"}})
    used = make(Toy())
    used.score(prompts("a"))
    with pytest.raises(RunError, match="before it has asked"):
        used.restore(None)


@pytest.mark.parametrize(
    "spent", [{"money": "NaN"}, {"money": "Infinity"}, {"seconds": math.inf}, {"paid_calls": None}]
)
def test_an_impossible_sum_in_a_line_gives_a_clear_error(tmp_path: Path, spent: dict[str, Any]) -> None:
    path = tmp_path / "answers.jsonl"
    first = make(Toy(), path=path)
    first.score(prompts("a"))
    first.close()
    (line,) = lines(path)
    assert line is not None
    path.write_bytes(seal({**line, "spent": line["spent"] | spent}, "one") + b"\n")
    with pytest.raises(RunError, match="costs of the run cannot be read"):
        make(Toy(), path=path).score(prompts("a"))
