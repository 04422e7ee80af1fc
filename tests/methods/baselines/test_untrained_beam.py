"""Beam search over the writer, against every prompt there is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from baseline_toys import WordTask, assert_resumes, run, writer

from pinprompt.methods.baselines import untrained
from pinprompt.methods.baselines.untrained import beam, beams
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import UntrainedSettings


def every(made: Writer) -> list[tuple[tuple[int, ...], float]]:
    """All prompts of two tokens with their log-probabilities, likeliest first, one prefix at a time."""
    first = made.lm_logprobs([()])[0]
    found = []
    for one in range(len(first)):
        if first[one] > float("-inf"):
            second = made.lm_logprobs([(one,)])[0]
            found += [((one, two), float(first[one]) + float(second[two])) for two in range(len(second))]
    return sorted([pair for pair in found if pair[1] > float("-inf")], key=lambda pair: -pair[1])


def method(made: Writer, batch: int = 16, width: int = 16, **settings: Any) -> Any:
    def search(search: Search) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(untrained, "BATCH", batch)
            patch.setattr(untrained, "WIDTH", width)
            return beam(replace(search, writer=lambda: made), UntrainedSettings(**settings))

    return search


def test_a_beam_as_wide_as_the_vocabulary_is_exact() -> None:
    made = writer(length=2)
    found = beams(made, 60)
    assert found == [ids for ids, _ in every(made)[:60]]


def test_a_narrow_beam_is_greedy() -> None:
    made = writer(length=2)
    first = int(made.lm_logprobs([()])[0].argmax())
    assert beams(made, 1) == [(first, int(made.lm_logprobs([(first,)])[0].argmax()))]


def test_it_keeps_filter_and_constraints() -> None:
    made = writer(length=2, k=7, constraints={"no_repeats": "tokens"})
    kept = {ids for ids, _ in every(made)}
    found = beams(made, 1000)
    assert len(found) == len(kept) == len(set(found))
    assert set(found) == kept
    assert all(one != two for one, two in found)


def test_it_widens_until_every_prompt_was_scored_and_finds_the_planted_one(tmp_path: Path) -> None:
    made = writer(length=2, k=6)
    prompts = [made.prompt(ids).text for ids, _ in every(made)]
    rare = prompts[-1]
    task = WordTask(lambda text: float(text == rare))
    outcome, events, _ = run(method(made, width=2, batch=5), task, tmp_path / "run")
    assert outcome.candidates[0].prompt.text == rare
    assert sorted(task.asked) == sorted(prompts)  # each once
    assert [event.data["width"] for event in events] == sorted(event.data["width"] for event in events)
    assert outcome.stopped == "finished"


def test_it_stops_at_the_number_of_prompts_and_at_the_budget(tmp_path: Path) -> None:
    made = writer(length=2)
    task = WordTask(len)
    outcome, _, _ = run(method(made, width=4, prompts=11, batch=4), task, tmp_path / "one")
    assert len(task.asked) == 11
    assert outcome.stopped == "finished"
    outcome, _, search = run(method(made, width=4), WordTask(len), tmp_path / "two", calls=15)
    assert outcome.stopped == "budget"
    assert search.evaluator.charged_calls == 14
    assert len(outcome.candidates) == 7


@pytest.mark.parametrize("die_at", [1, 4])
def test_it_resumes(tmp_path: Path, die_at: int) -> None:
    made = writer(length=2)
    assert_resumes(method(made, width=4, prompts=30, batch=4), lambda: WordTask(len), tmp_path, die_at)


def test_a_budget_that_ends_within_the_first_prompts_can_be_resumed(tmp_path: Path) -> None:
    made, folder = writer(length=2), tmp_path / "run"
    first, again = (run(method(made), WordTask(len), folder, calls=15)[0] for _ in range(2))
    assert first.stopped == again.stopped == "budget"
    assert first.candidates == again.candidates


def test_products_of_words_are_what_is_beamed() -> None:
    made = writer(length=3, k=3)
    found = beams(made, 27)
    assert len(found) == 27
    firsts = {ids[0] for ids in found}
    assert len(firsts) == 3
    assert len(list(itertools.groupby(sorted(found), key=lambda ids: ids[:2]))) == 9
