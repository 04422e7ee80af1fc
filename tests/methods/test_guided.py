"""Guided decoding, against every prompt there is: what it chooses, keeps, spends, and that it resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_toys import WordTask, assert_resumes, run, writer

from pinprompt.errors import SettingError
from pinprompt.methods import guided as guided_module
from pinprompt.methods.guided import guided
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import GuidedSettings

ALL = 60
"""More tokens than the small writer has."""


def method(made: Writer, **settings: Any) -> Callable[[Search], Outcome]:
    def search(search: Search) -> Outcome:
        given = replace(search, writer=lambda: made)
        return guided(given, GuidedSettings(**{"revisions": 0, **settings}))

    return search


def length_of_words(text: str) -> float:
    """A worth in which every word counts, and no two words count the same."""
    return sum(float(word[1:] or 0) / 100 for word in text.split() if word[1:].isdigit())


def every(made: Writer) -> dict[tuple[int, ...], float]:
    """All prompts of one and two tokens with the sum of their log-probabilities, one prefix at a time."""
    found = {}
    first = made.lm_logprobs([()])[0]
    for one in (first > float("-inf")).nonzero().flatten().tolist():
        found[(one,)] = float(first[one])
        second = made.lm_logprobs([(one,)])[0]
        for two in (second > float("-inf")).nonzero().flatten().tolist():
            found[one, two] = float(first[one]) + float(second[two])
    return found


def ends_of(made: Writer) -> list[int]:
    """Tokens of the small writer that may stand behind a finished prompt, by the text that they would add."""
    tokens = range(made.backbone.vocabulary_size)
    texts = {token: made.backbone.tokenizer.decode([token]).strip(" ") for token in tokens}
    special = set(made.backbone.tokenizer.all_special_ids)
    return [token for token in tokens if token in special or texts[token][:1] in ("\n", ".", "!", "?")]


def best_of_all(made: Writer, weight: float) -> str:
    """The best answer of one or two tokens by brute force."""
    ends = ends_of(made)

    def merit(ids: tuple[int, ...], logprob: float) -> float:
        after = made.backbone.logprobs(made.states([ids]).expand(made.batch, -1))[0]
        end = float(after[ends].double().logsumexp(-1))
        return length_of_words(made.prompt(ids).text) + weight * (logprob + end) / (len(ids) + 1)

    known = every(made)
    return made.prompt(max(known, key=lambda ids: merit(ids, known[ids]))).text


@pytest.mark.parametrize("weight", [0.0, 0.05, 0.3, 50.0])
def test_beams_as_many_as_there_are_tokens_find_the_best_of_all_prompts(tmp_path: Path, weight: float) -> None:
    made = writer(length=3)  # the third place is for the end
    task = WordTask(length_of_words)
    outcome, _, _ = run(method(made, beams=ALL, tokens=ALL, rounds=1, weight=weight), task, tmp_path / "run")
    assert outcome.candidates[0].prompt.text == best_of_all(made, weight)
    assert outcome.stopped == "finished"
    assert set(task.asked) == {made.prompt(ids).text for ids in every(made)}


def test_the_weight_of_the_likelihood_leads_from_score_to_likelihood(tmp_path: Path) -> None:
    made = writer(length=4)
    likelihoods, scores = [], []
    for weight in (0.0, 0.1, 50.0):
        task = WordTask(length_of_words)
        outcome, _, _ = run(method(made, beams=8, tokens=ALL, weight=weight), task, tmp_path / str(weight))
        best = outcome.candidates[0].prompt
        likelihoods.append(sum(_logprobs(made, best.ids)) / len(best.ids))
        scores.append(outcome.candidates[0].score)
    assert scores[0] >= scores[1] >= scores[2]
    assert scores[0] > scores[2]
    assert likelihoods[0] < likelihoods[2]


def _logprobs(made: Writer, ids: tuple[int, ...]) -> list[float]:
    return [float(made.lm_logprobs([ids[:place]])[0, token]) for place, token in enumerate(ids)]


def test_only_the_likeliest_tokens_are_tried(tmp_path: Path) -> None:
    made = writer(length=2)
    task = WordTask(length_of_words)
    run(method(made, beams=1, tokens=5, rounds=1), task, tmp_path / "run")
    likely = torch.topk(made.lm_logprobs([()])[0], 5).indices.tolist()
    assert sorted(set(task.asked)) == sorted(made.prompt((token,)).text for token in likely)


def test_a_further_round_has_twice_as_many_beams_and_asks_for_nothing_again(tmp_path: Path) -> None:
    made = writer(length=4)
    task = WordTask(length_of_words, splits=("train",))  # dev would ask for the finalists again
    _, events, _ = run(method(made, beams=2, tokens=6, rounds=3), task, tmp_path / "run")
    assert [(event.data["round"], event.data["beams"]) for event in events] == [
        (0, 2), (0, 2), (0, 2), (1, 4), (1, 4), (1, 4), (2, 6), (2, 8), (2, 8)
    ]  # fmt: skip
    assert len(task.asked) == len(set(task.asked))


def test_every_prompt_that_is_sent_keeps_the_constraints(tmp_path: Path) -> None:
    rules = {"banned": ["w30", "w31", "w59"], "required": ["w20"], "no_repeats": "tokens"}
    made = writer(length=4, constraints=rules)
    task = WordTask(length_of_words)
    outcome, _, _ = run(method(made, beams=4, tokens=ALL), task, tmp_path / "run")
    assert task.asked
    for text in task.asked:
        words = text.split()
        assert "w20" in words
        assert not {"w30", "w31", "w59"} & set(words)
        assert len(set(words)) == len(words) <= 4
    assert len(outcome.candidates[0].prompt.text.split()) > 1


def test_the_budget_holds_and_what_it_paid_for_is_an_answer(tmp_path: Path) -> None:
    made = writer(length=4)
    task = WordTask(length_of_words, splits=("train",))
    outcome, _, search = run(method(made, beams=3, tokens=10), task, tmp_path / "run", calls=15)
    assert outcome.stopped == "budget"
    assert search.evaluator.charged_calls == 14
    assert len(task.asked) == 7
    assert outcome.candidates[0].prompt.text in task.asked


def test_dev_decides_where_there_is_one_and_else_the_order_stands(tmp_path: Path) -> None:
    made = writer(length=3)
    with_dev, _, _ = run(method(made, beams=4, tokens=9), WordTask(length_of_words), tmp_path / "dev")
    assert with_dev.finalists is None
    task = WordTask(length_of_words, splits=("train",))
    without, _, _ = run(method(made, beams=4, tokens=9), task, tmp_path / "no-dev")
    assert without.finalists is not None
    assert [one.candidate for one in without.finalists] == without.candidates == with_dev.candidates


def test_words_of_a_single_token_can_be_asked_for(tmp_path: Path) -> None:
    made = writer(length=1)
    outcome, _, _ = run(method(made, tokens=ALL, weight=0.0), WordTask(length_of_words), tmp_path / "run")
    assert outcome.candidates[0].score == max(length_of_words(made.prompt((i,)).text) for (i,) in _singles(made))


def _singles(made: Writer) -> list[tuple[int, ...]]:
    return [(token,) for token in (made.lm_logprobs([()])[0] > float("-inf")).nonzero().flatten().tolist()]


def test_constraints_that_leave_nothing_are_a_sentence(tmp_path: Path) -> None:
    made = writer(length=3)
    made.vocabulary.obeys = lambda ids: False  # type: ignore[method-assign]
    with pytest.raises(SettingError, match="loosen them"):
        run(method(made), WordTask(length_of_words), tmp_path / "run")


@pytest.mark.parametrize("die_at", [1, 3, 5])
def test_it_resumes(tmp_path: Path, die_at: int) -> None:
    made = writer(length=4)
    assert_resumes(method(made, beams=2, tokens=6), lambda: WordTask(length_of_words), tmp_path, die_at)


class Hinting(WordTask):
    """A task that knows what single words are worth."""

    def hints(self) -> dict[str, float]:
        return {f"w{number}": number / 100 for number in range(2, ALL)}


def test_hints_bring_words_that_the_lm_finds_unlikely_and_count_as_calls(tmp_path: Path) -> None:
    made = writer(length=2)
    likely = {made.prompt((token,)).text for token in torch.topk(made.lm_logprobs([()])[0], 4).indices.tolist()}
    task = Hinting(length_of_words, splits=("train",))
    asked = {"beams": 1, "tokens": 8, "rounds": 1, "weight": 0.0}
    outcome, _, search = run(method(made, **asked), task, tmp_path / "run")
    # Half of the tokens are the likeliest, the others the best by themselves.
    assert set(task.asked) == likely | {"w59", "w58", "w57", "w56"}
    assert outcome.candidates[0].prompt.text == "w59"
    assert search.evaluator.charged_calls == 58 + 2 * len(task.asked)


def test_without_room_in_the_budget_there_are_no_hints(tmp_path: Path) -> None:
    made = writer(length=2)
    likely = [made.prompt((token,)).text for token in torch.topk(made.lm_logprobs([()])[0], 8).indices.tolist()]
    task = Hinting(length_of_words, splits=("train",))
    _, _, search = run(method(made, beams=1, tokens=8, rounds=1), task, tmp_path / "run", calls=100)
    assert sorted(task.asked) == sorted(likely)
    assert search.evaluator.charged_calls == 16


def test_with_hints_it_resumes_without_paying_for_them_again(tmp_path: Path) -> None:
    made = writer(length=4)
    assert_resumes(method(made, beams=2, tokens=6), lambda: Hinting(length_of_words), tmp_path, 3)


def test_a_revision_exchanges_words_and_leaves_them_out(tmp_path: Path) -> None:
    """One beam takes the wrong first word; the task pays for another one once the second stands."""

    def worth(text: str) -> float:
        words = text.split()
        return 3.0 if words == ["w7", "w9"] else 2.0 if words[1:] == ["w9"] else float(words[:1] == ["w5"])

    made = writer(length=3)
    task = WordTask(worth, splits=("train",))
    plain, _, _ = run(method(made, beams=1, tokens=ALL, rounds=1, weight=0.0), task, tmp_path / "plain")
    assert plain.candidates[0].prompt.text == "w5 w9"
    revised, _, _ = run(
        method(made, beams=1, tokens=ALL, rounds=1, weight=0.0, revisions=3), task, tmp_path / "revised"
    )
    assert revised.candidates[0].prompt.text == "w7 w9"
    task.worth = lambda text: {"w5": 1.0, "w5 w9": 2.0, "w9": 3.0}.get(text, 0.5 if text == "w5 w8" else 0.0)
    made = writer(length=3, constraints={"banned": ["w9 w9"]})
    shorter, events, _ = run(
        method(made, beams=1, tokens=ALL, rounds=1, weight=0.0, revisions=3), task, tmp_path / "shorter"
    )
    assert shorter.candidates[0].prompt.text == "w9"
    assert len(events) <= 2 + 3


@pytest.mark.parametrize("die_at", [7, 8])
def test_it_resumes_while_it_revises(tmp_path: Path, die_at: int) -> None:
    made = writer(length=4)
    asked = method(made, beams=2, tokens=6, revisions=4, weight=0.01)
    assert_resumes(asked, lambda: WordTask(lambda text: length_of_words(text) + len(text) % 3), tmp_path, die_at)


def test_an_answer_needs_evidence_for_each_of_its_words() -> None:
    hints = {"sun": 0.4, "rays": 0.3, "birth": 0.1}
    assert guided_module._evidence("A sun with rays", hints, 0.28) == pytest.approx(0.35)
    assert guided_module._evidence("The sun", hints, 0.28) == pytest.approx(0.4)
    for without in ("A sun with birth", "A sun with unheard words", "with the", "An sun", "A sun in the"):
        assert guided_module._evidence(without, hints, 0.28) == float("-inf")


def test_words_that_fit_only_together_are_no_answer_but_the_best_score_never_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together w2 and w3 have the highest score; by itself w59 is the best word."""
    monkeypatch.setattr(guided_module, "words", str.split)  # the words of the small writer have digits
    made = writer(length=3)
    task = Hinting(lambda text: 9.0 if text in ("w2 w3", "w3 w2") else length_of_words(text) / 9, splits=("train",))
    outcome, events, _ = run(method(made, beams=ALL, tokens=ALL, rounds=1, weight=0.0), task, tmp_path / "run")
    assert {"w2 w3", "w3 w2"} & set(task.asked)
    assert set(outcome.candidates[0].prompt.text.split()).isdisjoint({"w2", "w3"})
    best = [event.data["score_best"] for event in events]
    assert best == sorted(best)
    assert best[-1] == 9.0
