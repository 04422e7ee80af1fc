"""The methods by name, with what a user needs to choose one. Plain data, cheap to import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodCard:
    """One line of `pinprompt methods`."""

    name: str
    line: str
    gradients: bool
    output: str
    reference: str


_PIN = "Choi et al. 2024 (PIN)"
_RLPROMPT = "Deng et al. 2022 (RLPrompt)"

CARDS = (
    MethodCard("pin", "sparse Q-learning with the filter of unlikely tokens", False, "text", _PIN),
    MethodCard("pin-no-fluency", "pin without the filter", False, "text", _PIN),
    MethodCard(
        "pin-lm", "sparse Q-learning relative to the LM: pin that begins as random search", False, "text", "here"
    ),
    MethodCard("rlprompt", "on-policy soft Q-learning", False, "text", _RLPROMPT),
    MethodCard("rlprompt-fluency", "rlprompt that samples likely tokens only", False, "text", _PIN),
    MethodCard("rlprompt-rb", "soft Q-learning from a replay", False, "text", _PIN),
    MethodCard("rlprompt-rb-fluency", "soft Q-learning from a replay, likely tokens only", False, "text", _PIN),
    MethodCard("manual", "a hand-written prompt", False, "text", "the dataset's card"),
    MethodCard("instructions", "an instruction before the input", False, "text", "Mishra et al. 2022"),
    MethodCard("in-context", "labelled examples before the input", False, "text", "Brown et al. 2020"),
    MethodCard("random", "samples of the frozen LM, the best chosen on dev", False, "text", "the floor"),
    MethodCard("beam", "the frozen LM's likeliest prompts, with ever wider beams", False, "text", "the floor"),
    MethodCard("soft-prompt", "continuous vectors trained by gradient", True, "tensor", "Lester et al. 2021"),
    MethodCard("autoprompt", "tokens exchanged by gradient, one at a time", True, "text", "Shin et al. 2020"),
    MethodCard("pez", "gradient at the nearest words, continuous vectors kept", True, "text", "Wen et al. 2023"),
    MethodCard("grips", "edits of an instruction, phrase by phrase", False, "text", "Prasad et al. 2023"),
)

RL = ("pin", "pin-no-fluency", "pin-lm", "rlprompt", "rlprompt-fluency", "rlprompt-rb", "rlprompt-rb-fluency")
FIXED = ("manual", "instructions", "in-context")
NAMES = tuple(card.name for card in CARDS)
