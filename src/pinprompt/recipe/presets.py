"""What a name means: the settings that each task, method and profile puts over the defaults. Plain data.

The defaults in sections.py are PIN on few-shot classification as the paper has it; everything else is a difference.
What a method changes is in its row of `methods/table.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pinprompt.methods.table import METHODS, Tree

TASKS: dict[str, Tree] = {
    "classification": {},
    "style-transfer": {"q_learning": {"steps": 15_000, "alpha": 0.5, "normalise": "input", "eval_every": 50}},
    "inversion": {
        "policy": {"model": "facebook/opt-350m", "length": 8, "k": 20_000},
        "q_learning": {"steps": 20_000, "prompts": 32, "normalise": "none", "eval_every": 50},
    },
    "custom": {},
}

PROFILES: dict[str, Tree] = {
    "paper": {},
    # A schedule for a few hundred prompts instead of a hundred thousand; docs/notebook.md has the measurements.
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
    },
}

QUICK_TASKS: dict[str, Tree] = {
    # The report should cost at most a fifth of a default search; reading the test texts is its most expensive part.
    "classification": {"budget": {"calls": 6400}, "task": {"calibrate": "batch", "test_rows": 64}},
    "style-transfer": {
        # A short search has too few prompts to average over sources: fixed ones compare prompts, not sources.
        "task": {
            "draw": "fixed",
            "reward": "gain",
            "sources": 8,
            "dev_sources": 32,
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


STYLES: dict[str, Tree] = {
    # A caption says "a" more than once, and "dog" once.
    "caption": {
        "policy": {
            "context": "task",
            "constraints": {"whole_words": True, "no_repeats": False, "no_repeated_words": True},
        }
    },
    "tags": {
        "policy": {
            "context": "task",
            "constraints": {
                "whole_words": False,
                "no_repeats": False,
                "no_repeated_words": True,
                "banned_pattern": "[^a-z, ]",
            },
        }
    },
    "words": {"policy": {"context": "task", "constraints": {"whole_words": True, "no_repeats": True}}},
}
"""What words for a picture are made of, by style: in the profile quick, and where a style was asked for."""


def default_method(kind: str, profile: str) -> str:
    """The method where none is named: the paper's, or what measured best for people."""
    return QUICK_METHODS.get(kind, "pin") if profile == "quick" else "pin"


QUICK_METHODS = {"classification": "race", "style-transfer": "race", "inversion": "guided"}


def layers(method: str, kind: str, profile: str) -> Iterator[Tree]:
    """The trees to put over the defaults, least specific first."""
    row = METHODS[method]
    yield TASKS.get(kind, {})
    if row.kind == "rl":  # a policy that sparsifies writes few beginnings
        yield {"models": {"read": "prefixes"}}
    yield row.presets
    yield row.on_task.get(kind, {})
    yield PROFILES.get(profile, {})
    if profile == "quick":
        yield QUICK_TASKS.get(kind, {})
        yield row.quick
        yield row.quick_on_task.get(kind, {})
