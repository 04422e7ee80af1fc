"""GrIPS: phrases, edits against the whole neighbourhood, what is climbed, and planted answers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baseline_toys import MAGIC, SEEDS, WordTask, assert_resumes, planted, run, settings_with, writer

from pinprompt.errors import SettingError
from pinprompt.methods.baselines import grips as grips_module
from pinprompt.methods.baselines.grips import ByWriter, Draft, TextRules, _Edits, grips, merit_of
from pinprompt.methods.baselines.grips_phrases import phrases
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import Constraints, GripsSettings, PolicySettings
from pinprompt.tasks.protocol import Labelling
from pinprompt.values import Answers, Row

INSTRUCTION = (
    'In this task, you are given sentences from movie reviews. The task is to classify a sentence as "great" if the '
    "sentiment is positive."
)


def other_words(edits: _Edits, phrase: str) -> list[str]:
    """Paraphrases that the tests can foresee."""
    return [f"truly {phrase}", f"really {phrase}"]


@pytest.fixture(autouse=True)
def _foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Edits, "paraphrases", other_words)


@pytest.fixture
def _by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word is a phrase."""
    monkeypatch.setattr("pinprompt.methods.baselines.grips.phrases", str.split)


def method(constraints: dict[str, Any] | None = None, **settings: Any) -> Any:
    settings = {"steps": 30, **settings}

    def search(search: Search) -> Outcome:
        policy = PolicySettings(constraints=Constraints(**(constraints or {})))
        return grips(replace(search, policy=policy), settings_with(GripsSettings, **settings))

    return search


# Phrases


@pytest.mark.parametrize("text", [INSTRUCTION, "It was", "one, two; three: (four) five!", "Say it  in\nother words"])
def test_pieces_are_the_text(text: str) -> None:
    assert " ".join(phrases(text)).split() == text.split()


def test_phrases_read_like_phrases() -> None:
    found = phrases(INSTRUCTION)
    for phrase in ("In this task,", "from movie reviews.", "The task", "a sentence", 'as "great"', "if the sentiment"):
        assert phrase in found
    assert all(len(phrase.split()) <= 6 for phrase in found)


# Edits


def test_every_edit_is_one_of_the_whole_neighbourhood(tmp_path: Path) -> None:
    draft = Draft(("one", "two", "three"), " {text}", ("zero",))
    deletes = {"two three", "one three", "one two"}
    swaps = {"two one three", "three two one", "one three two"}
    adds = {"zero one two three", "one zero two three", "one two zero three", "one two three zero"}
    substitutes = {
        " ".join(f"{how} {word}" if word == changed else word for word in draft.pieces)
        for changed in draft.pieces
        for how in ("truly", "really")
    }

    def look(search: Search) -> Any:
        edits = _Edits(search, GripsSettings())
        return [edits.edited(draft) for _ in range(400)]

    found, _, _ = run(look, WordTask(len, "one two three"), tmp_path / "run")
    assert {one.head for one in found} == deletes | swaps | adds | substitutes
    assert all(one.text == one.head + " {text}" for one in found)
    for one in found:
        if one.head in deletes:
            [gone] = set(draft.pieces) - set(one.pieces)
            assert one.deleted == ("zero", gone)
        elif one.head in adds:
            assert one.deleted == ()


def test_nothing_is_put_back_before_something_was_deleted(tmp_path: Path) -> None:
    draft = Draft(("one", "two", "three"))

    def look(search: Search) -> Any:
        edits = _Edits(search, GripsSettings())
        return [edits.edited(draft) for _ in range(100)]

    found, _, _ = run(look, WordTask(len, "one two three"), tmp_path / "run")
    assert max(len(one.pieces) for one in found) == 3


# What is climbed


def test_the_score_by_hand() -> None:
    # Two classes, 3 of 4 and 1 of 2 right: 62.5; predicted 4 to 2: H = -(2/3 ln 2/3 + 1/3 ln 1/3) = 0.636514.
    table = np.array([[3, 1], [1, 1]])
    assert merit_of(table) == pytest.approx(62.5 + 6.36514168)


class Called(WordTask, Labelling):
    """A task whose model calls a row by the first word of the prompt that is a label; it has counts to show."""

    rows = tuple(Row("train", index) for index in range(6))

    def confusion(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        said = int(answers.on(rows)[0])
        return np.array([[3, 0], [3 - said, said]])


def test_it_climbs_by_balanced_accuracy_and_entropy_where_there_are_labels(tmp_path: Path) -> None:
    """Called by its words, "b" has two of three positives right: (1 + 2/3) / 2, and 4 of 6 are called negative."""

    def look(search: Search) -> Any:
        edits = _Edits(search, GripsSettings())
        edits.begin()
        return edits.base_merit

    task = Called(lambda text: 2.0 if "b" in text else 0.0, "a b c")
    task.rows = Called.rows
    merit, _, _ = run(look, task, tmp_path / "run")
    assert merit == pytest.approx(83.33 - 10 * (4 / 6 * math.log(4 / 6) + 2 / 6 * math.log(2 / 6)), abs=1e-6)


def test_counts_of_a_classification_task() -> None:
    task = planted("causal", rows=6)  # neg, pos, neg, pos, neg, pos
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2], [0.9, 0.1]])
    rows = tuple(range(6))
    # All three negatives are right, one of three positives is.
    assert task.confusion(Answers(rows, np.log(p)), rows).tolist() == [[3, 0], [2, 1]]


@pytest.mark.usefixtures("_by_words")
def test_it_finds_the_planted_instruction(tmp_path: Path) -> None:
    # Words that hurt are to go, and the word that helps is to stand first.
    def worth(text: str) -> float:
        words = text.split()
        return -float(sum(word in ("never", "wrong", "bad") for word in words)) + 5.0 * (words[0] == "Decide")

    task = WordTask(worth, "never bad Decide wrong")
    outcome, events, _ = run(method(patience=10, candidates=8), task, tmp_path / "run", seed=1)
    assert outcome.candidates[0].score == 5.0
    best = outcome.candidates[0].prompt.text.split()
    assert best[0] == "Decide"
    assert not {"never", "wrong", "bad"} & set(best)
    assert events[0].data["best_prompt"] == "never bad Decide wrong"
    assert [event.step for event in events] == list(range(len(events)))


@pytest.mark.learning
@pytest.mark.usefixtures("_by_words")
@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_it_finds_what_the_model_wants(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grips_module, "OPERATIONS", ("delete", "swap"))
    # The magic word stands first, where it does nothing. One swap in six, or three deletions in a row, put it last.
    asked = method(patience=10, candidates=3)
    climbed = 0
    for seed in SEEDS:
        task = planted(kind, seed=seed, manual=f"{MAGIC} river stone table")
        outcome, events, _ = run(asked, task, tmp_path / str(seed), seed=seed)
        best = outcome.candidates[0].prompt
        assert events[0].data["merit"] == 50  # all are called negative
        assert events[-1].data["merit"] >= 50
        climbed += best.text.split()[-1] == MAGIC and events[-1].data["merit"] > 90
    assert climbed >= 2


def test_the_place_for_the_text_stays(tmp_path: Path) -> None:
    task = WordTask(lambda text: -len(text), "Read this, then that: {text} It was {mask} .")
    run(method(patience=5), task, tmp_path / "run")
    assert len(task.asked) > 5
    assert all(text.endswith(" {text} It was {mask} .") for text in task.asked)
    assert len({text.split(" {text}")[0] for text in task.asked}) > 3


def test_patience_ends_it_after_two_failures_in_a_row(tmp_path: Path) -> None:
    outcome, events, _ = run(method(), WordTask(lambda text: 1.0, "one two three four"), tmp_path / "run")
    assert outcome.stopped == "patience"
    assert outcome.steps == 2
    assert len(events) == 3


# Budget, constraints, resuming, bad input


@pytest.mark.parametrize("die_at", [1, 2, 4])
def test_it_resumes(tmp_path: Path, die_at: int) -> None:
    def make() -> WordTask:
        return WordTask(lambda text: float(sum(map(ord, text)) % 97), "one two three, four five six")

    assert_resumes(method(patience=3, steps=6), make, tmp_path, die_at)


def test_the_budget_is_kept(tmp_path: Path) -> None:
    task = WordTask(lambda text: -len(text), "one two three, four five six")
    outcome, _, search = run(method(), task, tmp_path / "run", calls=15)
    assert outcome.stopped == "budget"
    assert search.evaluator.charged_calls == 14
    assert len(outcome.candidates) == 7
    assert outcome.steps == 1


@pytest.mark.usefixtures("_by_words")
def test_constraints_hold_for_every_prompt(tmp_path: Path) -> None:
    rules = {"banned": ["truly"], "required": ["task"], "max_chars": 40}
    task = WordTask(lambda text: len(text), "the task is one, two three four")
    run(method(rules, patience=9), task, tmp_path / "run")
    assert len(task.asked) > 10
    for text in task.asked:
        assert "truly" not in text
        assert re.search(r"\btask\b", text)
        assert len(text) <= 40


@pytest.mark.parametrize(
    ("rules", "text", "why"),
    [
        ({"banned": ["Bad Word"]}, "a bad word here", "bad word"),
        ({"charset": "tags"}, "page 3", "commas"),
        ({"required": ["now"]}, "not known", "'now'"),
        ({"max_chars": 4}, "hello", "5 characters"),
        ({"charset": "ascii"}, "café", "ASCII"),
        ({"charset": "letters"}, "yes!", "letters"),
        ({"no_repeats": "tokens"}, "Go go", "repeats"),
        ({}, " ", "empty"),
    ],
)
def test_what_a_text_breaks(rules: dict[str, Any], text: str, why: str) -> None:
    assert why in str(TextRules(Constraints(**rules)).broken(text))
    assert TextRules(Constraints(**rules)).broken("now") is None


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has none"):
        run(method(), WordTask(len), tmp_path / "none")
    with pytest.raises(SettingError, match=r"starts from violates a constraint: it contains the banned 'two'"):
        run(method({"banned": ["two"]}), WordTask(len, "one two"), tmp_path / "banned")
    with pytest.raises(SettingError, match="no phrase to edit"):
        run(method(), WordTask(len, "{text} {mask}"), tmp_path / "empty")


# Paraphrasers


def test_the_writer_rewrites_and_repeats_itself(tmp_path: Path) -> None:
    from pinprompt.policy.backbone import Backbone

    by = ByWriter(Backbone.load("smollm2"))
    found = by("classify the sentence", 6, torch.Generator().manual_seed(0))
    assert len(found) >= 2
    assert all(text and '"' not in text and "\n" not in text for text in found)
    assert "classify the sentence" not in found
    assert found == by("classify the sentence", 6, torch.Generator().manual_seed(0))
    assert found != by("classify the sentence", 6, torch.Generator().manual_seed(1))


def test_a_writer_without_a_quote_to_close_gives_nothing() -> None:
    assert ByWriter(writer().backbone)("w3 w4", 4, torch.Generator().manual_seed(0)) == []
