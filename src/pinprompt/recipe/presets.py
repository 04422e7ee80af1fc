"""What a name means: the settings that each task, method and profile puts over the defaults. Plain data.

The defaults in sections.py are PIN on few-shot classification as the paper has it; everything else is a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]

TASKS: dict[str, Tree] = {
    "classification": {},
    "style-transfer": {"q_learning": {"steps": 15_000, "alpha": 0.5, "normalise": "input", "eval_every": 50}},
    "inversion": {
        "policy": {"model": "facebook/opt-350m", "length": 8, "k": 20_000},
        "q_learning": {"steps": 20_000, "prompts": 32, "normalise": "none", "eval_every": 50},
    },
    "custom": {},
}

_SOFT = {"entropy": "shannon", "target": "path-mean", "replay": False, "filter": "off", "steps": 12_000}

METHODS: dict[str, Tree] = {
    "pin": {},
    "pin-no-fluency": {"policy": {"k": None}, "q_learning": {"filter": "off"}},
    # Over n tokens that the LM finds alike, alpha/n is what alpha is to pin; a context leaves a few tens of those.
    "pin-lm": {"policy": {"context": "task"}, "q_learning": {"prior": "lm", "alpha": 0.05}},
    "rlprompt": {"policy": {"k": None}, "q_learning": {**_SOFT, "alpha": 0.2, "top_q": 256, "eval_every": 10}},
    "rlprompt-fluency": {"policy": {"k": 10_000}, "q_learning": {**_SOFT, "alpha": 0.2, "filter": "sampling"}},
    "rlprompt-rb": {
        "policy": {"k": None},
        "q_learning": {**_SOFT, "alpha": 0.05, "target": "bootstrap", "replay": True},
    },
    "rlprompt-rb-fluency": {
        "policy": {"k": 256},
        "q_learning": {**_SOFT, "alpha": 0.05, "target": "bootstrap", "replay": True, "filter": "sampling"},
    },
    "manual": {},
    "instructions": {},
    "in-context": {},
    "random": {"policy": {"context": "task"}},
    "beam": {"policy": {"context": "task"}},
    "soft-prompt": {},
    "autoprompt": {},
    "pez": {},
    "grips": {},
}

METHODS_ON_TASKS: dict[tuple[str, str], Tree] = {
    ("rlprompt", "style-transfer"): {
        "q_learning": {"alpha": 0.01, "reward_shift": -20.0, "logit_bias": -10.0, "top_q": 50, "prompts": 8}
    },
    ("rlprompt", "inversion"): {"q_learning": {"alpha": 0.0125, "steps": 20_000}},
    ("rlprompt-fluency", "inversion"): {"q_learning": {"alpha": 0.0125, "steps": 20_000}},
    ("rlprompt-rb", "inversion"): {"q_learning": {"steps": 20_000}},
    ("rlprompt-rb-fluency", "inversion"): {"q_learning": {"steps": 20_000}},
    ("pez", "inversion"): {
        "pez": {
            "optimiser": "adamw",
            "learning_rate": 0.1,
            "weight_decay": 0.1,
            "clip": None,
            "steps": 3000,
            "init": "vocabulary",
            "eval_every": 10,
        }
    },
}

# What makes a method the method it is stays, however short the schedule.
QUICK_METHODS: dict[str, Tree] = {
    "pin-no-fluency": {"policy": {"k": None}},
    "rlprompt": {"policy": {"k": None}},
    "rlprompt-rb": {"policy": {"k": None}},
    "grips": {"policy": {"constraints": {"no_repeats": False}}},  # an instruction says "the" more than once
}

PROFILES: dict[str, Tree] = {
    "paper": {},
    # A schedule for a few hundred prompts instead of a hundred thousand; docs/notebook.md has the trials behind it.
    "quick": {
        "policy": {
            "model": "smollm2",
            "k": 64,
            "context": "task",
            "constraints": {"whole_words": True, "no_repeats": True},
        },
        "q_learning": {
            "steps": 100,
            "updates": 4,
            "batch": 64,
            "learning_rate": 3e-4,
            "rho": 0.95,
            "renormalise": True,
            "eval_every": 5,
            "on_collapse": "restart",
            "patience": 3,
        },
        "random": {"prompts": 1600},
        "beam": {"prompts": 1600},
        "soft_prompt": {"epochs": 50},
        "autoprompt": {"steps": 40},
        "pez": {"steps": 300, "eval_every": 20},
    },
}

QUICK_TASKS: dict[str, Tree] = {
    "classification": {"budget": {"calls": 6400}},
    "style-transfer": {
        "task": {
            "sources": 8,
            "samples": 2,
            "bootstraps": 1,
            "dev_bootstraps": 1,
            "test_sources": 50,
            "test_samples": 8,
            "judge_lines": 400,
        },
        "q_learning": {"prompts": 8, "finalists": 8},
    },
    "inversion": {"policy": {"k": 100, "rows": 32}, "q_learning": {"steps": 1000}},
    "custom": {},
}

# A tenth of the tokens by chance, or the first good words end the search; and a replay of the newest and of the best,
# for z-scores over all those bad first prompts would not tell good from better.
_EXPLORING = {"q_learning": {"alpha": 0.7, "explore": 0.1, "updates": 8, "capacity": 128, "keep_best": 256}}

QUICK_METHODS_ON_TASKS: dict[tuple[str, str], Tree] = {
    ("pin", "inversion"): _EXPLORING,
    ("pin-no-fluency", "inversion"): _EXPLORING,
}


def layers(method: str, kind: str, profile: str) -> Iterator[Tree]:
    """The trees to put over the defaults, least specific first."""
    yield TASKS.get(kind, {})
    yield METHODS[method]
    yield METHODS_ON_TASKS.get((method, kind), {})
    yield PROFILES.get(profile, {})
    if profile == "quick":
        yield QUICK_TASKS.get(kind, {})
        yield QUICK_METHODS.get(method, {})
        yield QUICK_METHODS_ON_TASKS.get((method, kind), {})
