"""Random search: the LM's own samples, nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_toys import WordTask, assert_resumes, run, writer

from pinprompt.methods.baselines import untrained
from pinprompt.methods.baselines.untrained import random_search
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import UntrainedSettings
from pinprompt.values import derive


def worth(text: str) -> float:
    """The sum of the made-up words' numbers."""
    return float(sum(int(word[1:]) for word in text.split() if word[1:].isdigit()))


def method(batch: int = 16, **settings: Any) -> Any:
    made = writer()

    def search(search: Search) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(untrained, "BATCH", batch)
            return random_search(replace(search, writer=lambda: made), UntrainedSettings(**settings))

    return search


def test_it_is_the_lm_itself(tmp_path: Path) -> None:
    task = WordTask(worth)
    outcome, events, _ = run(method(prompts=10, batch=4), task, tmp_path / "run", seed=7)
    stream = torch.Generator().manual_seed(derive(7, "sampled"))
    expected = [prompt.text for count in (4, 4, 2) for prompt in writer().lm_sample(count, stream)]
    assert list(dict.fromkeys(task.asked)) == list(dict.fromkeys(expected))
    assert outcome.stopped == "finished"
    assert outcome.steps == 3
    assert [event.step for event in events] == [0, 1, 2]
    assert outcome.candidates[0].score == max(map(worth, expected))
    assert outcome.candidates[0].prompt.ids
    assert outcome.candidates[0].source == "sampled"


def test_it_finds_a_word_that_pays_in_enough_draws(tmp_path: Path) -> None:
    task = WordTask(lambda text: float("w30" in text.split()))
    outcome, events, _ = run(method(prompts=400, batch=50), task, tmp_path / "run")
    assert outcome.candidates[0].score == 1.0
    assert "w30" in outcome.candidates[0].prompt.text.split()
    assert events[-1].data["score_best"] == 1.0
    assert events[-1].data["distinct"] == len(set(task.asked))


def test_the_budget_ends_it_and_what_was_paid_for_counts(tmp_path: Path) -> None:
    task = WordTask(worth)
    outcome, events, search = run(method(prompts=100, batch=4), task, tmp_path / "run", calls=13)
    assert outcome.stopped == "budget"
    assert search.evaluator.charged_calls == 12
    assert len(outcome.candidates) == 6
    assert len(events) == 1
    assert outcome.steps == 1


def test_a_spent_run_continues_with_a_larger_budget_as_if_it_always_had_it(tmp_path: Path) -> None:
    run(method(prompts=20, batch=4), WordTask(worth), tmp_path / "run", calls=13)
    longer, _, _ = run(method(prompts=20, batch=4), WordTask(worth), tmp_path / "run")
    whole, _, _ = run(method(prompts=20, batch=4), WordTask(worth), tmp_path / "other")
    assert longer == whole
    assert (tmp_path / "run/events.jsonl").read_bytes() == (tmp_path / "other/events.jsonl").read_bytes()


@pytest.mark.parametrize("die_at", [1, 3])
def test_it_resumes(tmp_path: Path, die_at: int) -> None:
    assert_resumes(method(prompts=20, batch=4), lambda: WordTask(worth), tmp_path, die_at)


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    asked = []
    for number, seed in enumerate((0, 0, 1)):
        task = WordTask(worth)
        run(method(prompts=8, batch=8), task, tmp_path / str(number), seed=seed)
        asked.append(task.asked)
    assert asked[0] == asked[1] != asked[2]


def test_constraints_hold(tmp_path: Path) -> None:
    made = writer(constraints={"banned": ["w30", "w31"], "no_repeats": "tokens"})
    task = WordTask(worth)
    run(
        lambda search: random_search(replace(search, writer=lambda: made), UntrainedSettings(prompts=200)),
        task,
        tmp_path / "r",
    )
    assert task.asked
    for text in task.asked:
        words = text.split()
        assert not {"w30", "w31"} & set(words)
        assert len(set(words)) == len(words) == 3
