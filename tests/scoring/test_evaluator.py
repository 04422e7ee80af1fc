"""From prompts to scores: sieves, charges, failures, and runs that are killed and go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scoring_toys import CALLS, Toy, noisy, prompts

from pinprompt.errors import BudgetSpent, RunError, ServerDown, SettingError, TaskError
from pinprompt.recipe.sections import BudgetSettings, Price
from pinprompt.scoring.budget import Budget
from pinprompt.scoring.evaluator import Evaluator
from pinprompt.scoring.executors import Inline, Stop
from pinprompt.scoring.journal import Journal, read_rows
from pinprompt.scoring.memo import Memo
from pinprompt.values import Evaluation, Prompt, Score, derive

GOOD: dict[str, Any] = {
    "kind": "score",
    "n": 0,
    "place": 0,
    "split": "train",
    "text": "a",
    "ids": [97],
    "spent": {"money": "0", "seconds": 1.0, "paid_calls": 4},
    "value": 1.0,
    "calls": 4,
    "group": "",
    "details": {},
    "failures": [],
    "evaluation": {"split": "dev", "metrics": {}, "rows": 1, "calls": 1, "intervals": {}, "tables": {}},
}


def make(task: Toy, calls: int | None = None, **more: Any) -> Evaluator:
    return Evaluator(task, Budget(BudgetSettings(calls=calls)), **more)


def values(scores: Sequence[Score]) -> list[float]:
    return [score.value for score in scores]


def test_repeats_are_asked_and_charged_once() -> None:
    task = Toy()
    evaluator = make(task)
    assert values(evaluator.score(prompts("a", "bbb", "a", "cc"))) == [1, 3, 1, 2]
    assert values(evaluator.score(prompts("cc", "dddd"))) == [2, 4]
    assert [text for text, _, _ in task.asked] == ["a", "bbb", "cc", "dddd"]
    assert (evaluator.charged_calls, evaluator.report_calls, evaluator.paid_calls) == (16, 0, 16)
    assert (evaluator.memo_hits, evaluator.repeats, evaluator.distinct) == (0, 2, 4)


def test_splits_are_different_questions() -> None:
    task = Toy()
    evaluator = make(task)
    evaluator.score(prompts("a"))
    evaluator.score(prompts("a"), "dev")
    assert evaluator.charged_calls == CALLS["train"] + CALLS["dev"]
    assert evaluator.distinct == 1


def test_an_unknown_split_is_a_sentence() -> None:
    with pytest.raises(SettingError, match="no split 'deb'; did you mean 'dev'"):
        make(Toy()).score(prompts("a"), "deb")


def test_a_stochastic_task_is_asked_every_time_with_its_own_seed() -> None:
    task = Toy(noisy, stochastic=True)
    evaluator = make(task, seed=7)
    first = values(evaluator.score(prompts("a", "a")))
    second = values(evaluator.score(prompts("a")))
    seeds = [derive(7, "task", 0, 0), derive(7, "task", 0, 1), derive(7, "task", 1, 0)]
    assert [seed for _, _, seed in task.asked] == seeds
    assert len({*first, *second}) == 3
    assert evaluator.charged_calls == 12
    assert evaluator.repeats == 0


def test_a_stochastic_task_can_be_memoised_on_request() -> None:
    task = Toy(noisy, stochastic=True)
    evaluator = make(task, memoise_stochastic=True)
    assert len(set(values(evaluator.score(prompts("a", "a", "a"))))) == 1
    assert len(task.asked) == 1


def test_the_budget_ends_a_batch_where_it_must() -> None:
    task = Toy()
    evaluator = make(task, calls=11)
    with pytest.raises(BudgetSpent, match="11 calls has 3 left, 4 needed") as spent:
        evaluator.score(prompts("a", "bb", "a", "ccc", "a"))
    assert values(spent.value.scores) == [1, 2, 1]
    assert evaluator.charged_calls == 8
    assert values(evaluator.score(prompts("bb", "a"))) == [2, 1]  # what is known stays free
    assert evaluator.budget.reserved.calls == 0


def test_what_a_prompt_leaves_of_its_worst_case_is_used() -> None:
    class Frugal(Toy):
        def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
            return [Score(1.0, 1) for _ in prompts]

    evaluator = make(Frugal(), calls=6)
    with pytest.raises(BudgetSpent) as spent:
        evaluator.score(prompts(*"abcdefgh"))
    # Each reserves 4 and takes 1: with 6 in all the third is admitted at 2 spent, the fourth would need 3 + 4.
    assert len(spent.value.scores) == 3
    assert evaluator.charged_calls == 3


def test_a_report_is_never_refused() -> None:
    evaluator = make(Toy(), calls=4)
    evaluator.score(prompts("a"))
    assert values(evaluator.score(prompts("bb", "ccc"), "dev", report=True)) == [2, 3]
    assert evaluator.evaluate(prompts("a")[0], "test").metrics == {"accuracy": 0.1}
    assert evaluator.charged_calls == 4
    assert evaluator.report_calls == 2 * CALLS["dev"] + CALLS["test"]
    assert evaluator.paid_calls == 4 + evaluator.report_calls


def test_evaluations_are_made_once_on_the_same_draws() -> None:
    task = Toy(stochastic=True)
    evaluator = make(task, seed=3)
    first = evaluator.evaluate(Prompt("a"), "test")
    assert evaluator.evaluate(Prompt("a"), "test") is first
    evaluator.evaluate(Prompt("b"), "test")
    assert len(task.evaluated) == 2
    assert task.evaluated[0][2] == task.evaluated[1][2]


def test_minutes_end_a_batch_between_two_prompts() -> None:
    now = [0.0]

    class Slow(Toy):
        def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
            now[0] += 25
            return super().score(prompts, seeds, split)

    evaluator = Evaluator(Slow(), Budget(BudgetSettings(minutes=1.0), lambda: now[0]))
    with pytest.raises(BudgetSpent, match="minutes") as spent:
        evaluator.score(prompts(*"abcdef"))
    assert len(spent.value.scores) == 3
    assert evaluator.charged_calls == 12
    assert evaluator.budget.reserved.calls == 0


def test_charge_books_or_refuses() -> None:
    evaluator = make(Toy(), calls=10)
    evaluator.charge(7)
    with pytest.raises(BudgetSpent):
        evaluator.charge(4)
    assert evaluator.charged_calls == evaluator.paid_calls == 7


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_the_tasks_mistake(bad: float) -> None:
    with pytest.raises(TaskError, match=r"'toy'.*prompt 'a'"):
        make(Toy(lambda text, seed: bad)).score(prompts("a"))


def test_other_broken_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, words in [
        ([1.0], "float instead of a Score"),
        ([], "0 scores for 1"),
        (None, "NoneType for 1"),
        ([Score("much")], "not a number"),  # type: ignore[arg-type]
        ([Score(1.0, -2)], "took -2 calls"),
        ([Score(1.0, 99)], "declares at most 4"),
    ]:
        task = Toy()
        monkeypatch.setattr(task, "score", lambda *_, answer=answer: answer, raising=False)
        with pytest.raises(TaskError, match=words):
            make(task).score(prompts("a"))
    task = Toy()
    monkeypatch.setattr(task, "evaluate", lambda *_: {"accuracy": 1.0}, raising=False)
    with pytest.raises(TaskError, match="instead of an Evaluation"):
        make(task).evaluate(Prompt("a"), "dev")
    monkeypatch.setattr(
        task, "evaluate", lambda *_: Evaluation("dev", {"x": 1.0}, 1, tables={"a": object()}), raising=False
    )
    with pytest.raises(TaskError, match="plain numbers and tables"):
        make(task).evaluate(Prompt("a"), "dev")


class Failing(Toy):
    """Cannot score prompts with an x in them."""

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        scores = super().score(prompts, seeds, split)
        return [
            Score(math.nan, 4, failures=("the server said no",)) if "x" in prompt.text else score
            for prompt, score in zip(prompts, scores, strict=True)
        ]


def test_a_failure_counts_as_the_worst_so_far(tmp_path: Path) -> None:
    evaluator = make(Failing(), journal=Journal(tmp_path / "scores.jsonl"), memo=Memo(tmp_path / "memo.sqlite"))
    assert values(evaluator.score(prompts("xxxxxx", "aaa", "aaaa"))) == [3, 3, 4]
    assert values(evaluator.score(prompts("a", "xx"))) == [1, 1]
    assert values(evaluator.score(prompts("xxxxxx"))) == [3]  # once said, it stays
    position = evaluator.position()
    evaluator.close()
    other = make(Failing(), journal=Journal(tmp_path / "scores.jsonl"), memo=Memo(tmp_path / "memo.sqlite"))
    other.restore(position)
    assert values(other.score(prompts("xxxxxx", "xx", "xxx"))) == [3, 1, 1]
    assert other.prompts_table()[0] == {
        "prompt": "xxxxxx",
        "ids": "120 120 120 120 120 120",
        "first": 0,
        "train": 3.0,
        "dev": None,
        "test": None,
        "scored": 1,
        "failures": 1,
    }
    assert other._known.memo is not None
    assert other._known.memo.stats().entries == 3


def test_where_nothing_can_be_scored_the_run_stops_and_asks_again_when_resumed(tmp_path: Path) -> None:
    evaluator = make(Failing(), journal=Journal(tmp_path / "scores.jsonl"))
    with pytest.raises(TaskError, match=r"could not score a single prompt on train.*the server said no"):
        evaluator.score(prompts("x"))
    evaluator.close()
    task = Toy()
    assert values(make(task, journal=Journal(tmp_path / "scores.jsonl")).score(prompts("x"))) == [1]
    assert len(task.asked) == 1


def test_memo_on_and_off_give_the_same_run(tmp_path: Path) -> None:
    def run(memo: Memo | None) -> tuple[list[Any], Evaluator]:
        evaluator = make(Toy(), calls=30, memo=memo)
        seen: list[Any] = []
        for step in range(9):
            try:
                seen.append(values(evaluator.score(prompts("a" * step, "b" * (step % 3), "c" * step))))
            except BudgetSpent as spent:
                seen.append(("spent", values(spent.scores)))
        seen.append(evaluator.evaluate(Prompt("a"), "test"))
        seen.append((evaluator.charged_calls, evaluator.report_calls, evaluator.distinct, evaluator.repeats))
        return seen, evaluator

    path = tmp_path / "memo.sqlite"
    off, _ = run(None)
    cold, first = run(Memo(path))
    warm, second = run(Memo(path))
    assert off == cold == warm
    assert first.paid_calls == first.charged_calls + first.report_calls == 28 + 8
    assert second.paid_calls == 0
    assert second.memo_hits == 8


def test_tokens_and_money(tmp_path: Path) -> None:
    class Remote(Toy):
        billed = "dear"

        def tokens(self, prompt: Prompt, split: str) -> tuple[int, int]:
            return 1000, 100

        def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
            self.asked += [(prompt.text, split, 0) for prompt in prompts]
            return [Score(1.0, 4, details={"tokens_in": 600, "tokens_out": 20}) for _ in prompts]

    def run(**limits: Any) -> tuple[int, Evaluator]:
        prices = {"dear": Price(input=10.0, output=100.0)}
        memo = Memo(tmp_path / "memo.sqlite")
        evaluator = Evaluator(Remote(), Budget(BudgetSettings(prices=prices, **limits)), memo)
        with pytest.raises(BudgetSpent) as spent:
            evaluator.score(prompts(*"abcdefghij"))
        memo.close()
        return len(spent.value.scores), evaluator

    # A score costs 0.006 + 0.002 = 0.008, at the worst 0.01 + 0.01 = 0.02: with 0.05, four fit (0.032 + 0.02 > 0.05).
    count, evaluator = run(money=0.05)
    assert count == 4
    assert str(evaluator.budget.spent.money) == "0.032"
    # The memo knows these four: they cost nothing, so four more fit, and tokens are charged for all of them.
    count, evaluator = run(money=0.05)
    assert count == 8
    assert evaluator.budget.spent.tokens == 8 * 620
    assert evaluator.paid_calls == 16
    # A budget of tokens gives the same run whatever the memo knows: 620 each, 1100 at the worst.
    for _ in range(2):
        count, evaluator = run(tokens=3000)
        assert count == 4
    assert evaluator.budget.spent.money == 0
    assert Memo(tmp_path / "memo.sqlite").stats().money_saved == pytest.approx(0.008 * 12)


def test_prompts_table_has_means_for_stochastic_tasks() -> None:
    draws: Iterator[float] = iter([1.0, 5.0, 7.0])
    evaluator = make(Toy(lambda text, seed: next(draws), stochastic=True))
    evaluator.score(prompts("a", "a"))
    evaluator.score(prompts("a"), "dev")
    (row,) = evaluator.prompts_table()
    assert (row["train"], row["dev"], row["scored"]) == (3.0, 7.0, 3)


class Dying(Inline):
    """An executor that dies after so many scores."""

    def __init__(self, task: Toy, after: int) -> None:
        super().__init__(task)
        self.left = after

    def run(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str, stop: Stop) -> Iterator[Score]:
        for score in super().run(prompts, seeds, split, stop):
            if self.left == 0:
                raise ServerDown("gone")
            self.left -= 1
            yield score


def test_an_executor_that_stops_early_without_a_reason_is_a_sentence() -> None:
    class Lazy(Inline):
        def run(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str, stop: Stop) -> Iterator[Score]:
            yield from list(super().run(prompts, seeds, split, stop))[:1]

    task = Toy()
    evaluator = make(task, executor=Lazy(task))
    with pytest.raises(TaskError, match="'toy' gave too few scores for 3 prompts"):
        evaluator.score(prompts("a", "bb", "ccc"))
    evaluator.close()


@pytest.mark.parametrize("spent", [{"money": "NaN"}, {"money": "Infinity"}, {"seconds": math.inf}])
def test_a_journal_with_an_endless_sum_is_a_sentence(tmp_path: Path, spent: dict[str, Any]) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text(json.dumps(GOOD | {"spent": GOOD["spent"] | spent}) + "\n")
    with pytest.raises(RunError, match="start the run again"):
        make(Toy(), journal=Journal(path)).score(prompts("a"))


def script(evaluator: Evaluator, save: Any, start: int = 0) -> list[Any]:
    """A search of six requests that saves its place every second one."""
    seen = []
    for step in range(start, 6):
        seen.append(values(evaluator.score(prompts("a", "b" * step, "c" * (step // 2), "d" * step))))
        if step % 2 == 1:
            save(step + 1, json.loads(json.dumps(evaluator.position())))
    seen.append(evaluator.evaluate(Prompt("a"), "test"))
    return seen


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("lives", [1, 2, 3, 5, 8])
def test_a_run_that_is_killed_again_and_again_is_the_same_run(tmp_path: Path, stochastic: bool, lives: int) -> None:
    whole_task = Toy(noisy, stochastic)
    whole = make(whole_task, seed=5, journal=Journal(tmp_path / "whole.jsonl"))
    expected = script(whole, lambda *_: None)
    saved: list[tuple[int, Any]] = [(0, None)]
    asked: list[Any] = []
    history: dict[int, Any] = {}
    for _ in range(100):
        task = Toy(noisy, stochastic)
        evaluator = make(task, seed=5, journal=Journal(tmp_path / "scores.jsonl"), executor=Dying(task, lives))
        start, position = saved[-1]
        if position is not None:
            evaluator.restore(position)
        try:
            rest = script(evaluator, lambda step, at: saved.append((step, at)), start)
            history |= dict(enumerate(rest, start))
            break
        except ServerDown:
            continue
        finally:
            # One answer is thrown away by the death itself, before it reached the evaluator.
            asked += task.asked[:lives]
            if evaluator.journal is not None and evaluator.journal._file is not None:
                evaluator.journal._file.close()
    assert rest == expected[start:]
    assert asked == whole_task.asked  # nothing was paid for twice
    assert evaluator.charged_calls == whole.charged_calls
    assert evaluator.paid_calls == whole.paid_calls
    assert evaluator.repeats == whole.repeats
    assert evaluator.prompts_table() == whole.prompts_table()
    strip = [{key: row[key] for key in row if key != "spent"} for row in read_rows(tmp_path / "scores.jsonl")]
    assert strip == [{key: row[key] for key in row if key != "spent"} for row in read_rows(tmp_path / "whole.jsonl")]


def test_money_and_minutes_of_a_killed_session_stay_spent(tmp_path: Path) -> None:
    now = [0.0]

    class Slow(Toy):
        billed = "m"

        def tokens(self, prompt: Prompt, split: str) -> tuple[int, int]:
            return 100, 0

        def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
            now[0] += 10
            return super().score(prompts, seeds, split)

    def start() -> Evaluator:
        settings = BudgetSettings(money=1.0, prices={"m": Price(input=100.0)})
        return Evaluator(Slow(), Budget(settings, lambda: now[0]), journal=Journal(tmp_path / "scores.jsonl"))

    first = start()
    first.score(prompts("a"))
    position = first.position()
    first.score(prompts("b", "c"))
    for _ in range(2):
        again = start()
        again.restore(position)
        assert str(again.budget.spent.money) == "0.03"
        assert again.budget.seconds() == 30
        assert again.charged_calls == 4
        assert again.paid_calls == 12
    again.score(prompts("b", "c", "d"))
    assert str(again.budget.spent.money) == "0.04"
    assert again.paid_calls == 16


def test_evaluations_survive_a_kill_and_are_counted_once(tmp_path: Path) -> None:
    first = make(Toy(), journal=Journal(tmp_path / "scores.jsonl"))
    first.score(prompts("a"))
    before = first.position()
    told = first.evaluate(Prompt("a"), "test")
    after = first.position()
    first.close()
    for position in (before, after, before):
        task = Toy()
        again = make(task, journal=Journal(tmp_path / "scores.jsonl"))
        if position is after:
            # Only a journal that still has the row can go on from there.
            with pytest.raises(RunError, match="the checkpoint counts 2"):
                again.restore(position)
            continue
        again.restore(position)
        assert again.evaluate(Prompt("a"), "test") == told
        assert task.evaluated == []
        assert again.report_calls == CALLS["test"]
        assert again.paid_calls == CALLS["train"] + CALLS["test"]
        assert again.journal is not None
        again.journal.split_at(1)


def test_a_run_that_spent_its_budget_goes_on_with_more(tmp_path: Path) -> None:
    first = make(Toy(), calls=10, journal=Journal(tmp_path / "scores.jsonl"))
    first.score(prompts("a"))
    position = first.position()
    with pytest.raises(BudgetSpent):
        first.score(prompts("b", "cc"))
    first.close()
    task = Toy()
    second = make(task, calls=20, journal=Journal(tmp_path / "scores.jsonl"))
    second.restore(position)
    assert values(second.score(prompts("b", "cc"))) == [1, 2]
    assert [text for text, _, _ in task.asked] == ["cc"]


ODD = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(0, 2))
    | st.just({"a": 1})
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.dictionaries(st.sampled_from(sorted(GOOD)), ODD, max_size=2))
@pytest.mark.parametrize("kind", ["score", "evaluation"])
def test_any_journal_is_read_or_refused(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    path = tmp_path / "scores.jsonl"
    path.with_name("scores.spare.jsonl").unlink(missing_ok=True)
    path.write_text((json.dumps({**GOOD, "kind": kind, **changes}) + "\n") * 2)
    position = make(Toy()).position() | {"rows": 1}
    evaluator = make(Toy(), journal=Journal(path))
    try:
        evaluator.restore(position)
        assert math.isfinite(evaluator.score(prompts("a"))[0].value)
    except RunError as error:
        assert "scores.jsonl" in str(error)  # noqa: PT017
    finally:
        assert evaluator.journal is not None
        evaluator.journal.close()


def test_damaged_places_and_journals_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="position in the checkpoint"):
        make(Toy()).restore({"rows": 1})
    used = make(Toy())
    used.score(prompts("a"))
    with pytest.raises(RunError, match="before it has scored"):
        used.restore(None)
    path = tmp_path / "scores.jsonl"
    for row in ({"n": 0}, {"kind": "score", "n": 0, "place": 0, "split": "train", "text": "a", "value": None}):
        path.write_text(json.dumps(row) + "\n")
        Journal(path).spare_path.unlink(missing_ok=True)
        with pytest.raises(RunError, match="start the run again"):
            make(Toy(), journal=Journal(path)).score(prompts("a"))
