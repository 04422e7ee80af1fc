"""What a name means: the settings that each task, method and profile puts over the defaults. Plain data.

The defaults in settings/ are PIN on few-shot classification as the paper has it; everything else is a difference.
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
    "random": {},
    "beam": {},
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
}

PROFILES: dict[str, Tree] = {
    "paper": {},
    # A schedule for a few hundred prompts instead of a hundred thousand; docs/notebook.md has the trials behind it.
    "quick": {
        "policy": {"model": "smollm2", "context": "task"},
        "q_learning": {"steps": 60, "updates": 4, "learning_rate": 5e-4, "rho": 0.98, "eval_every": 10},
    },
}


def layers(method: str, kind: str, profile: str) -> Iterator[Tree]:
    """The trees to put over the defaults, least specific first."""
    yield TASKS.get(kind, {})
    yield METHODS[method]
    yield METHODS_ON_TASKS.get((method, kind), {})
    yield PROFILES.get(profile, {})
