"""Soft prompts: what is learnt, agreement with peft, and an answer that is a tensor."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baseline_toys import SEEDS, WORDS, WordTask, answering, assert_resumes, examples, planted, run, settings_with
from safetensors.torch import load_file

from pinprompt.errors import ModelError, SettingError
from pinprompt.methods import gradients
from pinprompt.methods.baselines.soft_prompt import soft_prompt
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.models.labels import CausalLabels
from pinprompt.recipe.sections import PolicySettings, SoftPromptSettings
from pinprompt.recipe.task_sections import ClassificationSettings
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.labelled_data import LabelledData
from pinprompt.tasks.prompts import parse
from pinprompt.tasks.protocol import split_rows


def method(length: int = 2, **settings: Any) -> Any:
    def search(search: Search) -> Outcome:
        return soft_prompt(
            replace(search, policy=PolicySettings(length=length)), settings_with(SoftPromptSettings, **settings)
        )

    return search


def worth_on(task: ClassificationTask, vectors: torch.Tensor, split: str) -> float:
    """What the task says of vectors on a split."""
    rows, view = split_rows(task, split), task.differentiable()
    assert view is not None
    return float(np.mean(task.values(view.answers(vectors, rows), rows)))


@pytest.mark.learning
@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_it_learns_what_the_model_wants(tmp_path: Path, kind: str) -> None:
    learned = 0
    for seed in SEEDS:
        task = planted(kind, seed=seed)
        outcome, events, search = run(method(epochs=30, learning_rate=0.05), task, tmp_path / str(seed), seed=seed)
        before, after = events[0].data["score_mean"], outcome.extras["score"]
        losses = [event.data["loss"] for event in events if event.kind == "step" and event.data["loss"] is not None]
        better = after > before + 80 and losses[-1] < losses[0] / 2
        learned += better and outcome.extras["test"]["accuracy"] >= 0.85
        # Every epoch is 16 rows forward and backward; 7 scorings are 32 rows forward each.
        assert search.evaluator.charged_calls == 30 * 16 * 3 + 7 * 32
    assert learned >= 2


def test_the_answer_is_a_tensor_and_says_so(tmp_path: Path) -> None:
    task = planted("causal")
    outcome, events, search = run(method(epochs=10), task, tmp_path / "run")
    assert outcome.candidates == []
    assert outcome.extras["output"] == "tensor"
    vectors = load_file(tmp_path / "run" / outcome.extras["tensor"])["prompt"]
    assert vectors.shape == (2, 32)
    assert worth_on(task, vectors, "train") == pytest.approx(outcome.extras["score"], abs=1e-3)
    assert len(outcome.extras["nearest_words"]) == 2
    json.dumps(outcome.extras)
    assert all(event.data.get("best_prompt", "") == "" for event in events)
    assert search.evaluator.report_calls == 32
    assert [event.data["split"] for event in events if event.kind == "evaluation"] == ["dev", "test"]


def test_its_labels_are_read_as_those_of_a_text_prompt(tmp_path: Path) -> None:
    task = planted("causal", labels="learnt")
    outcome, _, search = run(method(epochs=10), task, tmp_path / "run")
    found = outcome.extras["test"]
    assert {"accuracy", "calibrated_accuracy", "raw_accuracy"} <= found.keys()
    assert outcome.extras["tables"]["readout"]
    assert search.evaluator.report_calls == 48  # train, dev and test; the first two teach


def test_the_best_on_dev_is_kept_not_the_last(tmp_path: Path) -> None:
    # Steps as large as these lose what was found on the way.
    outcome, events, _ = run(method(epochs=30, learning_rate=3.0, eval_every=1), planted("causal"), tmp_path / "run")
    devs = [event.data["dev"] for event in events if event.kind == "step"]
    vectors = load_file(tmp_path / "run/vectors.safetensors")["prompt"]
    assert worth_on(planted("causal"), vectors, "dev") == pytest.approx(max(devs), abs=1e-3)
    assert outcome.extras["best_epoch"] == devs.index(max(devs))


def test_it_is_peft_prompt_tuning() -> None:
    peft = pytest.importorskip("peft")
    model, tokenizer = answering("causal")
    template = parse("{prompt} {text}", "causal")
    rows = examples(6, 5)
    data = LabelledData({"train": rows, "dev": [], "test": []}, WORDS, None, ())
    labels = CausalLabels(model, tokenizer, WORDS, template.frame("it"))
    task = ClassificationTask(ClassificationSettings(words=WORDS), data, template, labels, "toy")
    vectors = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    ours = vectors.clone().requires_grad_(True)
    loss = task.differentiable().loss(ours, range(6))
    loss.backward()

    # peft changes the model that it wraps.
    tuned = peft.get_peft_model(
        copy.deepcopy(model), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    weight = tuned.prompt_encoder["default"].embedding.weight
    with torch.no_grad():
        weight.copy_(vectors)
    batch = tokenizer([row.text for row in rows], return_tensors="pt", padding=True, add_special_tokens=False)
    logits = tuned(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, -1]
    words = torch.tensor([tokenizer.convert_tokens_to_ids(word) for word in WORDS.values()])
    targets = torch.tensor([list(WORDS).index(row.label) for row in rows])
    theirs = torch.nn.functional.cross_entropy(logits[:, words], targets)
    theirs.backward()
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), abs=1e-5)
    assert torch.allclose(ours.grad, weight.grad, atol=1e-5)


@pytest.mark.parametrize("die_at", [1, 3])
def test_it_resumes(tmp_path: Path, die_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BATCH", 6)
    assert_resumes(method(epochs=8, eval_every=2), lambda: planted("causal"), tmp_path, die_at)


def test_a_spent_budget_still_scores_what_was_trained(tmp_path: Path) -> None:
    # 32 to score the start, 32 kept for the end, 48 an epoch: four epochs fit, none of which is scored on the way.
    outcome, events, search = run(
        method(epochs=100, learning_rate=0.05, eval_every=50), planted("causal"), tmp_path / "run", calls=270
    )
    assert outcome.stopped == "budget"
    assert outcome.steps == 4
    assert search.evaluator.charged_calls == 32 + 4 * 48 + 32
    assert [event.step for event in events if event.kind == "step"] == [0, 4]
    assert (tmp_path / "run/vectors.safetensors").exists()


def test_the_last_epochs_are_scored_whatever_eval_every_is(tmp_path: Path) -> None:
    _, events, _ = run(method(epochs=7, eval_every=5), planted("causal"), tmp_path / "run")
    assert [event.step for event in events if event.kind == "step"] == [0, 5, 7]


def test_a_learning_rate_that_ends_in_nan_keeps_the_best_so_far(tmp_path: Path) -> None:
    outcome, events, _ = run(method(epochs=20, learning_rate=1e30), planted("causal"), tmp_path / "run")
    assert outcome.stopped == "diverged"
    assert "learning_rate" in outcome.extras["problem"]
    assert events[0].data["score_mean"] == pytest.approx(outcome.extras["score"], abs=1e-4)
    assert torch.isfinite(load_file(tmp_path / "run/vectors.safetensors")["prompt"]).all()
    assert any(event.kind == "problem" for event in events)


def test_more_vectors_than_the_window_holds(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"50 prompt vectors leave no room"):
        run(method(50, epochs=1), planted("causal"), tmp_path / "run")


def test_a_budget_that_is_too_small_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="32 calls"):
        run(method(epochs=1), planted("causal"), tmp_path / "run", calls=10)


def test_a_black_box_gets_an_error_that_names_usable_methods(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"needs gradients.*random, beam, .*grips"):
        run(method(epochs=1), WordTask(len), tmp_path / "run")


def test_it_starts_from_words(tmp_path: Path) -> None:
    from pinprompt.methods.baselines.soft_prompt import start

    view = planted("causal").differentiable()
    picked = start(view, 20, torch.Generator().manual_seed(0))
    assert all(any(torch.equal(row, known) for known in view.embeddings) for row in picked)
