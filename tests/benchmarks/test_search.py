"""The measurements of a whole search and of a whole step, on tiny models; no figure of speed is tested."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from label_toys import TEXTS, save

from benchmarks import search, step
from benchmarks.write import random_backbone
from pinprompt.models.continuations import WholePrompts
from pinprompt.models.labels import CausalLabels
from pinprompt.recipe.recipe import resolve


def test_the_phases_of_a_search_are_the_whole_search(tmp_path: Path) -> None:
    save("llama", tmp_path / "toy")
    rows = [f'"{text}",{place % 2}' for place, text in enumerate(TEXTS * 2)]
    (tmp_path / "train.csv").write_text("text,label\n" + "\n".join(rows), "utf-8")
    toy = str(tmp_path / "toy")
    task = {"train": str(tmp_path / "train.csv"), "words": {"0": "terrible", "1": "great"}, "model": toy, "shots": 1}
    policy = {"model": toy, "context": "none", "length": 2, "constraints": {"whole_words": False}}
    tree = {
        "profile": "quick",
        "method": "random",
        "task": task,
        "policy": policy,
        "untrained": {"prompts": 8},
    }
    before = (CausalLabels.log_probs, WholePrompts._pass)
    found = search.measure(resolve(tree))
    assert (CausalLabels.log_probs, WholePrompts._pass) == before
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert {"start", "score", "write", "end", "other"} <= set(found["phases"])
    assert found["end_share"] == found["shares"]["end"] > 0
    assert 0 < found["score_useful_share"] <= found["score_share_of_limit"]


def test_a_step_is_compared_with_the_released_formulation_for_each_target() -> None:
    backbone = random_backbone(300, dim=16, layers=1)
    model = (backbone.model, backbone.tokenizer)
    found = step.measure(steps=1, model=model, k=50)
    for target in ("monte-carlo", "bootstrap"):
        expected = found["released_step_seconds"] / found["step_seconds"][target]
        assert found["speedup"][target] == pytest.approx(expected)


def test_the_limit_is_that_of_a_product() -> None:
    backbone = random_backbone(300, dim=16, layers=1)
    assert search.product_limit(backbone.model, rows=8, seconds=0.01) > 0
    assert search.weights(backbone.model) == sum(
        part.weight.numel() for part in backbone.model.model.layers.modules() if isinstance(part, torch.nn.Linear)
    )
