"""The table of methods: one row has everything that the rest of the package needs to know about a method.

Plain data without imports from pinprompt, so every package may read it: recipes take sections from it, the command line
its list of methods, `run/build.py` the function to call. What a method changes in the defaults is in
`recipe/presets.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Tree = dict[str, Any]
"""Settings by section, as in a recipe."""
Kind = Literal["rl", "search", "handwritten", "white-box"]


@dataclass(frozen=True)
class MethodRow:
    """A method: its description, function and settings section."""

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
    cost: str = ""
    """`module:name` of a function `(task, settings, calls, length, finalists) -> Cost`; '': by the settings' plan."""
    control_of: str = ""
    """The method that this one is the control of: the same presets, without learning."""
    finalists: bool = True
    """Whether its answer is chosen on dev, among its best prompts (`scoring.finalists`)."""

    @property
    def gradients(self) -> bool:
        """Whether it needs gradients of the task model."""
        return self.kind == "white-box"


_PIN = "Choi et al. 2024 (PIN)"
_RLPROMPT = "Deng et al. 2022 (RLPrompt)"
_LOOP = "pinprompt.methods.pin.loop:search_prompts"
_BASELINES = "pinprompt.methods.baselines"

ROWS = (
    MethodRow("pin", "sparse Q-learning with the filter of unlikely tokens", "rl", _LOOP, _PIN, "q_learning"),
    MethodRow(
        "pin-untrained", "pin that never updates: the control that shows what learning adds", "rl",
        "pinprompt.methods.pin.loop:search_untrained", "here", "q_learning", control_of="pin",
    ),
    MethodRow("pin-no-fluency", "pin without the filter", "rl", _LOOP, _PIN, "q_learning"),
    MethodRow("rlprompt", "on-policy soft Q-learning", "rl", _LOOP, _RLPROMPT, "q_learning"),
    MethodRow("rlprompt-fluency", "rlprompt that samples likely tokens only", "rl", _LOOP, _PIN, "q_learning"),
    MethodRow("rlprompt-rb", "soft Q-learning from a replay", "rl", _LOOP, _PIN, "q_learning"),
    MethodRow(
        "rlprompt-rb-fluency", "soft Q-learning from a replay, likely tokens only", "rl", _LOOP, _PIN, "q_learning"
    ),
    MethodRow(
        "manual", "a hand-written prompt", "handwritten", f"{_BASELINES}.untrained:manual", "the dataset's card",
        finalists=False,
    ),
    MethodRow(
        "instructions", "an instruction before the input", "handwritten", f"{_BASELINES}.untrained:instructions",
        "Mishra et al. 2022", finalists=False,
    ),
    MethodRow(
        "in-context", "labelled examples before the input", "handwritten", f"{_BASELINES}.untrained:in_context",
        "Brown et al. 2020", finalists=False,
    ),
    MethodRow(
        "race",
        "asks about readable phrases on growing blocks of rows; the default of classify and restyle",
        "search", "pinprompt.methods.race:race", "here", "race", cost="pinprompt.methods.race:cost", finalists=False,
    ),
    MethodRow(
        "random", "samples from the frozen LM, the best chosen on dev", "search",
        f"{_BASELINES}.untrained:random_search", "baseline", "untrained",
    ),
    MethodRow(
        "beam", "the frozen LM's most likely prompts, doubling the beam width", "search",
        f"{_BASELINES}.untrained:beam", "baseline", "untrained",
    ),
    MethodRow(
        "guided",
        "beam search in which LM and task score choose each token; the default of invert",
        "search", "pinprompt.methods.guided:guided", "after Visually Guided Decoding (arXiv 2505.08622)", "guided",
        cost="pinprompt.methods.guided:cost",
    ),
    MethodRow(
        "soft-prompt", "continuous vectors trained by gradient descent", "white-box",
        f"{_BASELINES}.soft_prompt:soft_prompt", "Lester et al. 2021", "soft_prompt", output="tensor", finalists=False,
    ),
    MethodRow(
        "autoprompt", "replaces tokens by gradient, one at a time", "white-box", f"{_BASELINES}.autoprompt:autoprompt",
        "Shin et al. 2020", "autoprompt",
    ),
    MethodRow(
        "pez", "applies the gradient at the nearest words to continuous vectors", "white-box", f"{_BASELINES}.pez:pez",
        "Wen et al. 2023", "pez",
    ),
    MethodRow(
        "grips", "edits of an instruction, phrase by phrase", "search", f"{_BASELINES}.grips:grips",
        "Prasad et al. 2023", "grips",
    ),
)  # fmt: skip

METHODS = {row.name: row for row in ROWS}
SECTIONS = tuple(dict.fromkeys(row.section for row in ROWS if row.section is not None))
"""Sections of a recipe for a single method or family of methods."""


def row_of(name: str) -> MethodRow:
    """A method's row; a name with a colon is a method from outside the package, `module:name`."""
    if name in METHODS or ":" not in name:
        return METHODS[name]
    return MethodRow(name, "a method of your own", "search", name, "yours", "own", finalists=False)
