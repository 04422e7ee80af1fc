"""Settings of the RL family. The defaults are PIN as the paper has it; `presets.py` says what each name changes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinprompt.settings import Section

Target = Literal["bootstrap", "monte-carlo", "path-single", "path-multi", "path-mean"]


class QLearningSettings(Section):
    """Q-learning over tokens under an entropy bonus (pin, pin-no-fluency, rlprompt and its variants)."""

    entropy: Literal["tsallis", "shannon"] = Field(
        "tsallis", description="Entropy bonus: tsallis gives a sparsemax policy (PIN), shannon a softmax (RLPrompt)."
    )
    target: Target = Field(
        "monte-carlo",
        description="What Q is regressed on: the Monte-Carlo return (as the released PIN code), the bootstrapped value "
        "(as the paper's text), or RLPrompt's path consistency (single step, multi step, their mean).",
    )
    replay: bool = Field(True, description="Learn from a replay of all episodes; off: from this step's prompts only.")
    filter: Literal["values", "sampling", "off"] = Field(
        "values", description="Where the filter of unlikely tokens works: policy and values, sampling only, or nowhere."
    )
    top_q: int | None = Field(None, ge=1, description="Sample among the tokens with the largest Q only; none: all.")
    explore: float = Field(
        0.0, ge=0, lt=1, description="Share of tokens drawn evenly from the kept ones instead of from the policy."
    )
    alpha: float = Field(1.0, gt=0, description="Weight of the entropy bonus; 1/alpha is the reward scale.")
    reward_shift: float = Field(0.0, description="Added to the scaled reward.")
    logit_bias: float = Field(0.0, description="Added to every Q/alpha (RLPrompt's style transfer uses -10).")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount per token.")
    rho: float = Field(0.999, ge=0, le=1, description="How much of the slow copy of psi stays at each step.")
    normalise: Literal["batch", "input", "none"] = Field(
        "batch", description="Z-score of raw scores: over the step's prompts, per input, or none."
    )
    renormalise: bool = Field(
        False, description="Z-score replayed scores anew over the whole replay; off: as they stood when written."
    )
    steps: int = Field(6000, ge=1, description="Iterations of the search.")
    prompts: int = Field(16, ge=1, description="Prompts written and scored at each step.")
    updates: int = Field(1, ge=1, description="Gradient steps at each iteration.")
    capacity: int = Field(64_000, ge=1, description="Episodes that the replay holds; the oldest go first.")
    keep_best: int = Field(0, ge=0, description="Best episodes that stay when their time in the replay is over.")
    batch: int = Field(256, ge=1, description="Episodes per gradient step.")
    warmup: int | None = Field(None, ge=1, description="Episodes before the first update; none: one batch.")
    learning_rate: float = Field(5e-5, gt=0, description="Adam's learning rate.")
    clip: float = Field(5.0, gt=0, description="Greatest gradient norm.")
    eval_every: int = Field(20, ge=1, description="Steps between scorings of the greedy prompt on dev.")
    finalists: int = Field(16, ge=1, description="Best sampled prompts that are scored on dev at the end.")
    on_collapse: Literal["restart", "stop", "ignore"] = Field(
        "ignore",
        description="When every prompt of a step is the same for `patience` steps: begin anew, stop, or go on.",
    )
    patience: int = Field(10, ge=1, description="Steps without a new prompt that count as a collapse.")
