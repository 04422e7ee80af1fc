"""The table of methods: one row has everything that the rest of the package needs to know about a method.

Plain data without imports from pinprompt, so every package may read it: recipes take presets and sections from it, the
command line its list of methods, `run/build.py` the function to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Tree = dict[str, Any]
"""Settings by section, as in a recipe."""
Kind = Literal["rl", "search", "handwritten", "white-box"]


@dataclass(frozen=True)
class MethodRow:
    """A method: its description, function, settings section and presets."""

    name: str
    line: str
    """A short description."""
    kind: Kind
    """rl: Q-learning; search: other black-box methods; white-box: needs gradients of the task model."""
    function: str
    """`module:name` of a function `(search, settings) -> Outcome`; imported on use."""
    reference: str
    section: str | None = None
    """The section of the recipe that it gets as settings; None if it has none."""
    output: str = "text"
    presets: Tree = field(default_factory=dict)
    """Changes to the defaults."""
    on_task: Mapping[str, Tree] = field(default_factory=dict)
    """The same by kind of task, applied after `presets`."""
    quick: Tree = field(default_factory=dict)
    """Changes to the profile `quick`."""
    quick_on_task: Mapping[str, Tree] = field(default_factory=dict)
    """The same by kind of task, applied after `quick`."""

    code: tuple[str, ...] = ()
    """Settings of its section that may name a function, which needs the user's consent."""
    whole_scores: bool = False
    """Whether it compares prompts by a measure over all rows of train, so that `scoring.race` does not apply."""

    @property
    def gradients(self) -> bool:
        """Whether it needs gradients of the task model."""
        return self.kind == "white-box"


_PIN = "Choi et al. 2024 (PIN)"
_RLPROMPT = "Deng et al. 2022 (RLPrompt)"
_LOOP = "pinprompt.methods.pin.loop:search_prompts"
_BASELINES = "pinprompt.methods.baselines"

_SOFT = {"entropy": "shannon", "target": "path-mean", "replay": False, "filter": "off", "steps": 12_000}
_REPLAYED = {**_SOFT, "alpha": 0.05, "target": "bootstrap", "replay": True}
_ON_PICTURES = {"inversion": {"q_learning": {"alpha": 0.0125, "steps": 20_000}}}
_REPLAYED_ON_PICTURES = {"inversion": {"q_learning": {"steps": 20_000}}}
# Settings that define a method are kept in short schedules.
_UNFILTERED = {"policy": {"k": None}}
# The published reward scale of 20 is for raw cosines, whose standard deviation is about 0.05; short searches use
# z-scores, with a deviation of 1. For other tasks the scale is RLPrompt's, which uses z-scores there.
_Z_SCORED = {"q_learning": {"alpha": 0.2}}
# Short searches for words for a picture, the same for every Q-learning method: a tenth of the tokens at random, since
# otherwise the search stops at the first good words, and eight updates per step. Methods with a replay keep the newest
# and the best episodes: z-scores over all the bad first prompts would not separate good from better ones.
_CARE = {"explore": 0.1, "updates": 8}
_CARE_WITH_REPLAY = {**_CARE, "capacity": 128, "keep_best": 256}


def _short_pictures(**learning: float | int) -> dict[str, Tree]:
    return {"inversion": {"q_learning": learning}}


ROWS = (
    MethodRow(
        "pin",
        "sparse Q-learning with the filter of unlikely tokens",
        "rl",
        _LOOP,
        _PIN,
        "q_learning",
        quick_on_task=_short_pictures(alpha=0.7, **_CARE_WITH_REPLAY),
    ),
    MethodRow(
        "pin-no-fluency",
        "pin without the filter",
        "rl",
        _LOOP,
        _PIN,
        "q_learning",
        presets={"policy": {"k": None}, "q_learning": {"filter": "off"}},
        quick=_UNFILTERED,
        quick_on_task=_short_pictures(alpha=0.7, **_CARE_WITH_REPLAY),
    ),
    MethodRow(
        "pin-lm",
        "sparse Q-learning relative to the LM: pin that starts as random search",
        "rl",
        _LOOP,
        "here",
        "q_learning",
        # Over n tokens of equal probability, alpha/n corresponds to pin's alpha; a context leaves a few tens of tokens.
        presets={"policy": {"context": "task"}, "q_learning": {"prior": "lm", "alpha": 0.05}},
        quick_on_task=_short_pictures(**_CARE_WITH_REPLAY),
    ),
    MethodRow(
        "rlprompt",
        "on-policy soft Q-learning",
        "rl",
        _LOOP,
        _RLPROMPT,
        "q_learning",
        presets={"policy": {"k": None}, "q_learning": {**_SOFT, "alpha": 0.2, "top_q": 256, "eval_every": 10}},
        on_task={
            "style-transfer": {
                "q_learning": {"alpha": 0.01, "reward_shift": -20.0, "logit_bias": -10.0, "top_q": 50, "prompts": 8}
            },
            **_ON_PICTURES,
        },
        # As many prompts without the restriction as a replay waits for; otherwise it tries little besides 256 tokens
        # that are the same in every state.
        quick={**_UNFILTERED, "q_learning": {"top_q_from": 64}},
        quick_on_task=_short_pictures(**_CARE),
    ),
    MethodRow(
        "rlprompt-fluency",
        "rlprompt that samples likely tokens only",
        "rl",
        _LOOP,
        _PIN,
        "q_learning",
        presets={"policy": {"k": 10_000}, "q_learning": {**_SOFT, "alpha": 0.2, "filter": "sampling"}},
        on_task=_ON_PICTURES,
        quick_on_task=_short_pictures(**_CARE),
    ),
    MethodRow(
        "rlprompt-rb",
        "soft Q-learning from a replay",
        "rl",
        _LOOP,
        _PIN,
        "q_learning",
        presets={"policy": {"k": None}, "q_learning": _REPLAYED},
        on_task=_REPLAYED_ON_PICTURES,
        quick={**_UNFILTERED, **_Z_SCORED},
        quick_on_task=_short_pictures(alpha=1.0, **_CARE_WITH_REPLAY),
    ),
    MethodRow(
        "rlprompt-rb-fluency",
        "soft Q-learning from a replay, likely tokens only",
        "rl",
        _LOOP,
        _PIN,
        "q_learning",
        presets={"policy": {"k": 256}, "q_learning": {**_REPLAYED, "filter": "sampling"}},
        on_task=_REPLAYED_ON_PICTURES,
        quick=_Z_SCORED,
        quick_on_task=_short_pictures(alpha=1.0, **_CARE_WITH_REPLAY),
    ),
    MethodRow("manual", "a hand-written prompt", "handwritten", f"{_BASELINES}.untrained:manual", "the dataset's card"),
    MethodRow(
        "instructions",
        "an instruction before the input",
        "handwritten",
        f"{_BASELINES}.untrained:instructions",
        "Mishra et al. 2022",
    ),
    MethodRow(
        "in-context",
        "labelled examples before the input",
        "handwritten",
        f"{_BASELINES}.untrained:in_context",
        "Brown et al. 2020",
    ),
    MethodRow(
        "race",
        "scores readable phrases on growing blocks of rows, with calibrated labels; the default of classify and "
        "restyle",
        "search",
        "pinprompt.methods.race:race",
        "here",
        "race",
        presets={"policy": {"length": 16, "k": 64, "rows": 64, "context": "task", "constraints": {"dictionary": True}}},
        on_task={
            # Instructions are sentences with "the" more than once; fewer of them are tried, each on more texts.
            "style-transfer": {
                "policy": {"length": 40},
                "race": {"choose": "paired", "prune": 0.0, "batch": 16, "max_perplexity": 250.0},
            }
        },
        quick_on_task={
            "classification": {"budget": {"calls": 1000}},
            "style-transfer": {
                "policy": {"constraints": {"no_repeats": False}},
                "budget": {"calls": 1600},
            },
        },
    ),
    MethodRow(
        "random",
        "samples from the frozen LM, the best chosen on dev",
        "search",
        f"{_BASELINES}.untrained:random_search",
        "baseline",
        "random",
        presets={"policy": {"context": "task"}},
        quick={"random": {"prompts": 1600}},
    ),
    MethodRow(
        "beam",
        "the frozen LM's most likely prompts, doubling the beam width",
        "search",
        f"{_BASELINES}.untrained:beam",
        "baseline",
        "beam",
        presets={"policy": {"context": "task"}},
        quick={"beam": {"prompts": 1600}},
    ),
    MethodRow(
        "guided",
        "beam search in which LM and task score choose each token; the default of invert",
        "search",
        "pinprompt.methods.guided:guided",
        "after Visually Guided Decoding (arXiv 2505.08622)",
        "guided",
        presets={"policy": {"context": "task"}},
        quick_on_task={"inversion": {"task": {"style": "caption"}, "policy": {"length": 12, "k": 1000, "rows": 16}}},
    ),
    MethodRow(
        "soft-prompt",
        "continuous vectors trained by gradient descent",
        "white-box",
        f"{_BASELINES}.soft_prompt:soft_prompt",
        "Lester et al. 2021",
        "soft_prompt",
        output="tensor",
        quick={"soft_prompt": {"epochs": 50}},
    ),
    MethodRow(
        "autoprompt",
        "replaces tokens by gradient, one at a time",
        "white-box",
        f"{_BASELINES}.autoprompt:autoprompt",
        "Shin et al. 2020",
        "autoprompt",
        quick={"autoprompt": {"steps": 40}},
    ),
    MethodRow(
        "pez",
        "applies the gradient at the nearest words to continuous vectors",
        "white-box",
        f"{_BASELINES}.pez:pez",
        "Wen et al. 2023",
        "pez",
        on_task={
            "inversion": {
                "pez": {
                    "optimiser": "adamw",
                    "learning_rate": 0.1,
                    "weight_decay": 0.1,
                    "clip": None,
                    "steps": 3000,
                    "init": "vocabulary",
                    "eval_every": 10,
                }
            }
        },
        quick={"pez": {"steps": 300, "eval_every": 20}},
    ),
    MethodRow(
        "grips",
        "edits of an instruction, phrase by phrase",
        "search",
        f"{_BASELINES}.grips:grips",
        "Prasad et al. 2023",
        "grips",
        code=("parser", "paraphraser"),
        whole_scores=True,
        quick={"policy": {"constraints": {"no_repeats": False}}},  # an instruction contains "the" more than once
    ),
)

METHODS = {row.name: row for row in ROWS}
SECTIONS = tuple(dict.fromkeys(row.section for row in ROWS if row.section is not None))
"""Sections of a recipe for a single method or family of methods."""
