"""The `paper` profile against the published numbers.

The numbers are from the paper's appendix and, where the paper is silent, from the settings of the released code. Where
the two disagree, docs/deviations.md says which one is taken. A setting that is published nowhere is not listed.
"""

from __future__ import annotations

from typing import Any

import pytest

from pinprompt.recipe import recipe as recipes

SHARED = {
    "learning_rate": 5e-5, "batch": 256, "capacity": 64_000, "rho": 0.999, "updates": 1,
    "explore": 0.0, "keep_best": 0, "renormalise": False, "rewards": "prompt", "on_collapse": "ignore",
}  # fmt: skip
PIN = {"entropy": "tsallis", "target": "monte-carlo", "replay": True, "top_q": None}
RLPROMPT = {"entropy": "shannon", "target": "path-mean", "replay": False}
REPLAYED = {"entropy": "shannon", "target": "bootstrap", "replay": True}
METHODS: dict[str, dict[str, Any]] = {
    "pin": {**PIN, "filter": "values"},
    "pin-no-fluency": {**PIN, "filter": "off", "k": None},
    "rlprompt": {**RLPROMPT, "filter": "off", "k": None},
    "rlprompt-fluency": {**RLPROMPT, "filter": "sampling", "k": 10_000},
    "rlprompt-rb": {**REPLAYED, "filter": "off", "k": None, "scale": 20},
    "rlprompt-rb-fluency": {**REPLAYED, "filter": "sampling", "k": 256, "scale": 20},
}
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"model": "facebook/opt-125m", "length": 5, "prompts": 16, "normalise": "batch"},
    "style-transfer": {"model": "facebook/opt-125m", "length": 5, "normalise": "input", "eval_every": 50},
    "inversion": {
        "model": "facebook/opt-350m", "length": 8, "prompts": 32, "normalise": "none", "eval_every": 50,
        "steps": 20_000,
    },
}  # fmt: skip
BOTH: dict[tuple[str, str], dict[str, Any]] = {
    ("pin", "classification"): {"k": 10_000, "scale": 1, "steps": 6000, "eval_every": 20},
    ("pin", "style-transfer"): {"k": 10_000, "scale": 2, "steps": 15_000, "prompts": 16},
    ("pin", "inversion"): {"k": 20_000, "scale": 1},
    ("pin-no-fluency", "inversion"): {"scale": 1},
    ("rlprompt", "classification"): {"scale": 5, "top_q": 256, "steps": 12_000, "eval_every": 10},
    # The paper says 80; RLPrompt's released settings are a scale of 100 with a shift of -20 (deviation 51).
    ("rlprompt", "style-transfer"): {
        "scale": 100, "reward_shift": -20, "logit_bias": -10, "top_q": 50, "steps": 12_000, "prompts": 8,
    },
    ("rlprompt", "inversion"): {"scale": 80, "top_q": 256},
    ("rlprompt-fluency", "inversion"): {"scale": 80, "top_q": 256},
    ("rlprompt-rb", "inversion"): {"top_q": 256},
    ("rlprompt-rb-fluency", "inversion"): {"top_q": 256},
}  # fmt: skip


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_the_profile_paper_is_as_published(method: str, kind: str) -> None:
    made = recipes.resolve({"method": method, "task": {"kind": kind}})
    settings = {**made.policy.model_dump(), **made.q_learning.model_dump(), "scale": 1 / made.q_learning.alpha}
    published = {**SHARED, **METHODS[method], **TASKS[kind], **BOTH.get((method, kind), {})}
    assert {name: settings[name] for name in published} == pytest.approx(published)
    assert made.policy.hidden == 2048
    assert (made.policy.context, made.policy.constraints.whole_words) == ("none", False)
