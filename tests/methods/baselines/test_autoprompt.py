"""AutoPrompt: HotFlip's first order against exact recomputation, and planted answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_toys import MAGIC, SEEDS, WORDS, WordTask, assert_resumes, planted, run, settings_with, worth_of
from PIL import Image

from pinprompt.errors import ModelError, SettingError
from pinprompt.methods import gradients
from pinprompt.methods.baselines.autoprompt import autoprompt, first_order
from pinprompt.methods.gradients import Gradients
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import AutoPromptSettings, Constraints, PolicySettings
from pinprompt.recipe.task_sections import InversionSettings
from pinprompt.tasks.inversion import InversionTask
from pinprompt.values import Prompt

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def method(constraints: dict[str, Any] | None = None, length: int = 2, **settings: Any) -> Any:
    policy = PolicySettings(length=length, constraints=Constraints(**(constraints or {})))

    def search(search: Search) -> Outcome:
        return autoprompt(replace(search, policy=policy), settings_with(AutoPromptSettings, **settings))

    return search


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_first_order_scores_are_finite_differences(tmp_path: Path, kind: str) -> None:
    task = planted(kind)
    view = task.differentiable()
    ids = view.tokenizer.convert_tokens_to_ids(["river", "so"])
    vectors, rows, place = view.embeddings[torch.tensor(ids)], list(range(16)), 1

    def gradient(search: Search) -> Any:
        return Gradients(search, view)(vectors, rows)

    with torch.no_grad():
        before = float(view.loss(vectors, rows))
    (loss, found), _, search = run(gradient, task, tmp_path / "run")
    assert loss == pytest.approx(before, abs=1e-6)
    assert search.evaluator.charged_calls == 48
    predicted = first_order(view.embeddings, found[place], ids[place])
    assert float(predicted[ids[place]]) == 0.0
    step = 1e-3
    for token in range(len(view.embeddings)):
        losses = []
        for sign in (1, -1):
            moved = vectors.clone()
            moved[place] += sign * step * (view.embeddings[token] - vectors[place])
            with torch.no_grad():
                losses.append(float(view.loss(moved.double().float(), rows)))
        assert float(predicted[token]) == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=2e-3, rel=2e-2)


def test_on_a_linear_loss_first_order_is_exact() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings, weights = torch.randn(30, 4, generator=random), torch.randn(3, 4, generator=random)
    ids = [4, 9, 11]

    def loss(tokens: list[int]) -> float:
        return float((embeddings[torch.tensor(tokens)] * weights).sum())

    for place in range(3):
        change = first_order(embeddings, weights[place], ids[place])
        for token in range(30):
            other = [*ids[:place], token, *ids[place + 1 :]]
            assert float(change[token]) == pytest.approx(loss(other) - loss(ids), abs=1e-4)


@pytest.mark.learning
@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_it_finds_the_word_that_the_model_wants(tmp_path: Path, kind: str) -> None:
    found = 0
    for seed in SEEDS:
        task = planted(kind, seed=seed)
        # Words drawn blindly, 2 of 45 in either place, would find it in one run of eight.
        outcome, events, search = run(method(steps=6, candidates=2), task, tmp_path / str(seed), seed=seed)
        best = outcome.candidates[0]
        better = events[-1].data["loss"] < events[0].data["loss"] / 2
        found += best.prompt.text.split()[-1] == MAGIC and best.score > 100 and better
        assert best.prompt.ids == ()
        masks = {"<mask>" in candidate.prompt.text for candidate in outcome.candidates}
        assert masks in ({True}, {False})  # prompts with masks left only where there is no other
        assert events[-1].data["calls"] == search.evaluator.charged_calls
    assert found >= 2


def test_one_position_with_all_words_as_candidates_is_brute_force(tmp_path: Path) -> None:
    task = planted("causal")
    words = [word for word in task.model.tokenizer.get_vocab() if word.strip("<>/") not in ("s", "pad", "unk")]
    words = [word for word in words if word not in WORDS.values()]
    everything = {word: worth_of(task, Prompt(word)) for word in words}
    outcome, _, _ = run(method(length=1, steps=1, candidates=100), task, tmp_path / "run")
    best = max(outcome.candidates, key=lambda candidate: candidate.score)
    assert best.prompt.text == max(everything, key=lambda word: everything[word])
    assert best.score == pytest.approx(max(everything.values()))


def test_masks_begin_and_constraints_begin_without(tmp_path: Path) -> None:
    _, _, search = run(method(steps=1, candidates=2), planted("masked"), tmp_path / "masks")
    assert search.evaluator.prompts_table()[0]["prompt"] == "<mask> <mask>"
    _, _, search = run(method({"required": ["so"]}, steps=4), planted("masked"), tmp_path / "words")
    for row in search.evaluator.prompts_table():
        assert "so" in row["prompt"].split()
        assert "<mask>" not in row["prompt"]


def test_filters_and_constraints_hold_for_every_prompt(tmp_path: Path) -> None:
    rules = {"banned": [MAGIC, "overall"], "no_repeats": "tokens"}
    asked = method(rules, length=3, steps=8, candidates=20)
    _, _, search = run(asked, planted("causal"), tmp_path / "run")
    texts = [row["prompt"].split() for row in search.evaluator.prompts_table()]
    assert len(texts) > 30
    for words in texts:
        assert len(set(words)) == 3
        assert not {MAGIC, "overall", *WORDS.values()} & set(words)


@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("die_at", [1, 4])
def test_it_resumes(tmp_path: Path, kind: str, die_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BATCH", 6)
    assert_resumes(method(steps=6, candidates=4), lambda: planted(kind), tmp_path, die_at)


def test_the_budget_is_kept(tmp_path: Path) -> None:
    # A step is 48 calls of gradient, 16 for each of 11 prompts, 16 on dev: one fits.
    outcome, events, search = run(method(steps=9), planted("causal"), tmp_path / "run", calls=250)
    assert outcome.stopped == "budget"
    assert search.evaluator.charged_calls == 240
    assert outcome.steps == len(events) == 1
    assert outcome.candidates


def test_gradient_passes_go_over_the_rows_at_most_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BATCH", 5)
    _, _, search = run(method(steps=1, candidates=1), planted("causal"), tmp_path / "all")
    assert search.evaluator.charged_calls == 3 * 16 + 2 * 16 + 16
    monkeypatch.setattr(gradients, "BATCH", 1)
    _, _, search = run(method(steps=1, candidates=1), planted("causal"), tmp_path / "some")
    assert search.evaluator.charged_calls == 3 * 10 + 2 * 16 + 16


@pytest.mark.learning
def test_it_finds_words_for_a_picture(tmp_path: Path) -> None:
    Image.new("RGB", (48, 48), "red").save(tmp_path / "red.png")
    task = InversionTask.build(InversionSettings(images=(str(tmp_path / "red.png"),), model="emoji-clip"))
    outcome, events, search = run(method(length=3, steps=6), task, tmp_path / "run")
    first = search.evaluator.prompts_table()[0]["train"]
    assert outcome.candidates[0].score > first + 0.05
    assert worth_of(task, outcome.candidates[0].prompt) == pytest.approx(outcome.candidates[0].score)
    assert events[-1].data["score_best"] == pytest.approx(outcome.candidates[0].score, abs=1e-5)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="60 prompt vectors leave no room"):
        run(method(length=60, steps=1), planted("causal"), tmp_path / "long")
    with pytest.raises(SettingError, match="loosen"):
        run(method({"max_chars": 1}), planted("causal"), tmp_path / "none")
    with pytest.raises(ModelError, match="'autoprompt' needs gradients"):
        run(method(steps=1), WordTask(len), tmp_path / "black")


def test_the_words_tried_are_those_of_the_greatest_promise(tmp_path: Path) -> None:
    task = planted("causal")
    view = task.differentiable()
    _, _, search = run(method(length=1, steps=1, candidates=4), task, tmp_path / "run")
    start, *tried = [row["prompt"] for row in search.evaluator.prompts_table()]
    ids = view.tokenizer.convert_tokens_to_ids([start])
    point = view.embeddings[torch.tensor(ids)].clone().requires_grad_(True)
    view.loss(point, range(16)).backward()
    words = [word for word in view.tokenizer.get_vocab() if word not in {start, *WORDS.values(), *SPECIAL}]
    change = {
        word: float((view.embeddings[view.tokenizer.convert_tokens_to_ids(word)] - point[0]).detach() @ point.grad[0])
        for word in words
    }
    assert tried == sorted(words, key=lambda word: change[word])[:4]
