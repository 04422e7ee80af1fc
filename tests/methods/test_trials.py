"""The trials of a search: means, order, and what a resumed run gets back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from baseline_toys import WordTask, opened

from pinprompt.errors import BudgetSpent
from pinprompt.methods.trials import TIED, TIED_ROWS, Trials
from pinprompt.tasks.protocol import TaskInfo
from pinprompt.values import Answers, Draw, Prompt, Row


class Lucky(WordTask):
    """A stochastic task that answers with numbers given in advance, whatever it is asked."""

    info = TaskInfo("lucky", "lucky-1", stochastic=True)

    def __init__(self, *answers: float) -> None:
        super().__init__(len)
        self.numbers = list(answers)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        return [Answers(tuple(rows), [self.numbers.pop(0)]) for _ in prompts]


def texts(trials: Trials, count: int = 9) -> list[tuple[str, float]]:
    return [(one.prompt.text, one.score) for one in trials.best(count)]


def test_a_prompt_counts_with_its_mean_not_with_its_best_draw(tmp_path: Path) -> None:
    with opened(Lucky(10.0, 6.0, 0.0, 6.0), tmp_path) as (search, _):
        trials = Trials(search, "sampled")
        trials.score([Prompt("lucky"), Prompt("steady")])
        assert trials.new == 2
        trials.score([Prompt("lucky"), Prompt("late")])
        assert trials.new == 1
        assert texts(trials, 2) == [("steady", 6.0), ("late", 6.0)]
        assert trials.mean_of(Prompt("lucky")) == 5.0
        assert trials.mean_of(Prompt("never")) is None
        assert len(trials) == 3


def test_dev_decides_before_merit_and_merit_before_the_score(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path) as (search, _):
        trials = Trials(search, "sampled", merit=lambda prompt, score: 9.0 if prompt.text == "bb" else score.value)
        trials.score([Prompt("a"), Prompt("bb"), Prompt("ccc"), Prompt("dddd")])
        assert [text for text, _ in texts(trials)] == ["bb", "dddd", "ccc", "a"]
        assert trials.merit_of(Prompt("bb")) == 9.0
        assert trials.score_on_dev(Prompt("a")) == 1.0
        assert [text for text, _ in texts(trials)] == ["a", "bb", "dddd", "ccc"]
        assert texts(trials, 1) == [("a", 1.0)]


def test_resumed_trials_say_the_same(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path) as (search, _):
        trials = Trials(search, "sampled", ("policy", "replay"), merit=lambda prompt, _: -len(prompt.text))
        trials.score([Prompt("a", (1,)), Prompt("bb", (2, 3)), Prompt("a", (1,))])
        trials.score([Prompt("ccc", (4,))])
        trials.score_on_dev(Prompt("bb"))
        torch.rand(3, generator=trials.streams["replay"])
        trials.remember(4, {"own": "state"}, {"own": torch.ones(2)})
        expected, drawn = texts(trials), torch.rand(2, generator=trials.streams["replay"])
        trials.save()
    with opened(WordTask(len), tmp_path) as (search, _):
        again = Trials(search, "sampled", ("policy", "replay"), merit=lambda prompt, _: -len(prompt.text))
        resumed = again.resume()
        assert resumed is not None
        assert resumed[0] == {"own": "state"}
        assert resumed[1]["own"].tolist() == [1.0, 1.0]
        assert again.step == 4
        assert texts(again) == expected
        batches = [[(prompt, score.value) for prompt, score in batch] for batch in again.batches()]
        a, bb, ccc = Prompt("a", (1,)), Prompt("bb", (2, 3)), Prompt("ccc", (4,))
        assert batches == [[(a, 1.0), (bb, 2.0), (a, 1.0)], [(ccc, 3.0)]]
        assert search.evaluator.task.asked == []  # the scores follow from the table
        assert torch.equal(torch.rand(2, generator=again.streams["replay"]), drawn)
        fresh = torch.rand(1, generator=Trials(search, "sampled", ("policy",)).streams["policy"])
        assert torch.equal(torch.rand(1, generator=again.streams["policy"]), fresh)


def test_a_step_that_the_budget_cut_short_is_undone_but_what_it_paid_for_counts(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path, calls=6) as (search, _):
        trials = Trials(search, "sampled")
        trials.score([Prompt("a"), Prompt("bb")])
        trials.remember(1)
        place = trials.random.get_state()
        torch.rand(5, generator=trials.random)
        with pytest.raises(BudgetSpent):
            trials.score([Prompt("ccc"), Prompt("dddd")])
        outcome = trials.finish("budget")
        assert [one.prompt.text for one in outcome.candidates] == ["ccc", "bb", "a"]
        assert outcome.steps == 1
    with opened(WordTask(len), tmp_path) as (search, _):
        again = Trials(search, "sampled")
        again.resume()
        assert texts(again) == [("bb", 2.0), ("a", 1.0)]
        assert torch.equal(again.random.get_state(), place)


@pytest.mark.parametrize(("lazy", "kept"), [(False, 0.0), (True, 1.0)])
def test_tensors_are_copied_when_remembered_and_a_function_is_asked_when_saving(
    tmp_path: Path, lazy: bool, kept: float
) -> None:
    vectors = torch.zeros(1)
    with opened(WordTask(len), tmp_path) as (search, _):
        trials = Trials(search, "sampled")
        tensors = {"vectors": vectors}
        trials.remember(1, None, (lambda: tensors) if lazy else tensors)
        vectors += 1
        trials.save()
    with opened(WordTask(len), tmp_path) as (search, _):
        resumed = Trials(search, "sampled").resume()
        assert resumed is not None
        assert resumed[1]["vectors"].item() == kept


def test_a_step_event_has_its_scores_the_best_so_far_and_what_it_took(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path) as (search, events):
        trials = Trials(search, "sampled")
        with trials.phase("write"), trials.phase("learn"):
            trials.score([Prompt("a"), Prompt("bb")])
        trials.tell(3, [1.0, 2.0], {"tree_hits": 7}, loss=1 / 3, width=5)
        trials.tell(4, [])
    first, second = events
    assert (first.kind, first.step) == ("step", 3)
    assert dict(first.data) == {
        "score_mean": 1.5, "score_best": 2.0, "best_prompt": "bb", "distinct": 2, "loss": 0.333333, "width": 5,
        "calls": 4,
    }  # fmt: skip
    assert {"write", "learn", "seconds", "paid_calls", "memo_hits", "tree_hits"} == set(first.costs)
    assert (second.data["score_mean"], second.data["loss"]) == (None, None)
    assert "write" not in second.costs


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_a_search_in_which_all_prompts_tie_ends_and_says_so(tmp_path: Path, spread: float) -> None:
    """Also if it is resumed in between; one prompt that differs is enough to go on."""
    task = WordTask(lambda text: spread * (text == "w1"))
    task.rows = tuple(Row("train", index) for index in range(TIED_ROWS))
    asked = 0
    for half in (0, 1):
        with opened(task, tmp_path, saving=True) as (search, events):
            trials = Trials(search, "sampled")
            trials.resume()
            try:
                for step in range(half * TIED // 2, (1 + half * 3) * TIED // 2):
                    trials.score([Prompt(f"w{step}")])
                    asked += 1
                    trials.remember(step + 1)
                trials.save()
            except BudgetSpent:
                trials.finish("budget")
    assert asked == (2 * TIED if spread else TIED)
    said = [event.data["reason"] for event in events if event.kind == "problem"]
    assert said == ([] if spread else [search.problem])
    if not spread:
        assert f"all {TIED} prompts have the same score (0) on {TIED_ROWS} rows" in search.problem
