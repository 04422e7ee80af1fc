"""The book of a search: means, order, and what a resumed run gets back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from baseline_toys import WordTask, opened

from pinprompt.errors import BudgetSpent
from pinprompt.methods.bookkeeping import Book
from pinprompt.values import Prompt, Score


class Lucky(WordTask):
    """A stochastic task that answers with numbers given in advance, whatever it is asked."""

    stochastic = True

    def __init__(self, *answers: float) -> None:
        super().__init__(len)
        self.answers = list(answers)

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        return [Score(self.answers.pop(0), calls=2) for _ in prompts]


def texts(book: Book, count: int = 9) -> list[tuple[str, float]]:
    return [(one.prompt.text, one.score) for one in book.best(count)]


def test_a_prompt_counts_with_its_mean_not_with_its_luckiest_draw(tmp_path: Path) -> None:
    with opened(Lucky(10.0, 6.0, 0.0, 6.0), tmp_path) as (search, _):
        book = Book(search, "sampled")
        book.score([Prompt("lucky"), Prompt("steady")])
        assert book.new == 2
        book.score([Prompt("lucky"), Prompt("late")])
        assert book.new == 1
        assert texts(book, 2) == [("steady", 6.0), ("late", 6.0)]
        assert book.mean_of(Prompt("lucky")) == 5.0
        assert book.mean_of(Prompt("never")) is None
        assert len(book) == 3


def test_dev_decides_before_merit_and_merit_before_the_score(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path) as (search, _):
        book = Book(search, "sampled")
        book.score([Prompt("a"), Prompt("bb"), Prompt("ccc"), Prompt("dddd")])
        assert [text for text, _ in texts(book)] == ["dddd", "ccc", "bb", "a"]
        book.rank(Prompt("bb"), 9.0)
        assert [text for text, _ in texts(book)] == ["bb", "dddd", "ccc", "a"]
        assert book.score_on_dev(Prompt("a")) == 1.0
        assert [text for text, _ in texts(book)] == ["a", "bb", "dddd", "ccc"]
        assert texts(book, 1) == [("a", 1.0)]


def test_a_resumed_book_says_the_same(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path) as (search, _):
        book = Book(search, "sampled", ("policy", "replay"))
        book.score([Prompt("a", (1,)), Prompt("bb", (2, 3)), Prompt("a", (1,))])
        book.annotate([{"reward": -1.0}, {"reward": 1.0}, {"reward": -2.0}])
        book.rank(Prompt("a"), 5.0)
        book.score_on_dev(Prompt("bb"))
        torch.rand(3, generator=book.streams["replay"])
        book.remember(4, {"own": "state"}, {"own": torch.ones(2)})
        expected, drawn = texts(book), torch.rand(2, generator=book.streams["replay"])
        book.save()
    with opened(WordTask(len), tmp_path) as (search, _):
        again = Book(search, "sampled", ("policy", "replay"))
        resumed = again.resume()
        assert resumed is not None
        assert resumed[0] == {"own": "state"}
        assert resumed[1]["own"].tolist() == [1.0, 1.0]
        assert again.step == 4
        assert texts(again) == expected
        assert [(row["text"], row["ids"], row["reward"]) for row in again.rows()] == [
            ("a", [1], -1.0),
            ("bb", [2, 3], 1.0),
            ("a", [1], -2.0),
        ]
        assert torch.equal(torch.rand(2, generator=again.streams["replay"]), drawn)
        fresh = torch.rand(1, generator=Book(search, "sampled", ("policy",)).streams["policy"])
        assert torch.equal(torch.rand(1, generator=again.streams["policy"]), fresh)


def test_a_step_that_the_budget_cut_short_is_undone_but_what_it_paid_for_counts(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path, calls=6) as (search, _):
        book = Book(search, "sampled")
        book.score([Prompt("a"), Prompt("bb")])
        book.remember(1)
        place = book.random.get_state()
        torch.rand(5, generator=book.random)
        with pytest.raises(BudgetSpent):
            book.score([Prompt("ccc"), Prompt("dddd")])
        outcome = book.finish("budget", 9)
        assert [one.prompt.text for one in outcome.candidates] == ["ccc", "bb", "a"]
        assert outcome.steps == 1
    with opened(WordTask(len), tmp_path) as (search, _):
        again = Book(search, "sampled")
        again.resume()
        assert texts(again) == [("bb", 2.0), ("a", 1.0)]
        assert torch.equal(again.random.get_state(), place)


@pytest.mark.parametrize(("lazy", "kept"), [(False, 0.0), (True, 1.0)])
def test_tensors_are_copied_when_remembered_and_a_function_is_asked_when_saving(
    tmp_path: Path, lazy: bool, kept: float
) -> None:
    vectors = torch.zeros(1)
    with opened(WordTask(len), tmp_path) as (search, _):
        book = Book(search, "sampled")
        tensors = {"vectors": vectors}
        book.remember(1, None, (lambda: tensors) if lazy else tensors)
        vectors += 1
        book.save()
    with opened(WordTask(len), tmp_path) as (search, _):
        resumed = Book(search, "sampled").resume()
        assert resumed is not None
        assert resumed[1]["vectors"].item() == kept


def test_a_step_is_told_with_its_scores_the_best_so_far_and_what_it_took(tmp_path: Path) -> None:
    with opened(WordTask(len), tmp_path) as (search, events):
        book = Book(search, "sampled")
        with book.phase("write"), book.phase("learn"):
            book.score([Prompt("a"), Prompt("bb")])
        book.tell(3, [1.0, 2.0], {"tree_hits": 7}, loss=1 / 3, width=5)
        book.tell(4, [])
    first, second = events
    assert (first.kind, first.step) == ("step", 3)
    assert dict(first.data) == {
        "score_mean": 1.5, "score_best": 2.0, "best_prompt": "bb", "distinct": 2, "loss": 0.333333, "width": 5,
        "calls": 4,
    }  # fmt: skip
    assert {"write", "learn", "seconds", "paid_calls", "memo_hits", "tree_hits"} == set(first.costs)
    assert (second.data["score_mean"], second.data["loss"]) == (None, None)
    assert "write" not in second.costs
