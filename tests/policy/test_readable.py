"""Readability by the LM: real sentences before shuffled ones, and what people would choose among short prompts."""

from __future__ import annotations

import random

import pytest

from pinprompt.methods.variations import NEUTRAL
from pinprompt.policy.backbone import Backbone

SENTENCES = [
    "The committee postponed its decision until the following week.",
    "She opened the window because the room was too warm.",
    "Most of the passengers had already left the ship.",
    "He wrote a long letter to his brother in Canada.",
    "The price of oil fell sharply after the announcement.",
    "Children learn to speak before they learn to read.",
    "Our neighbour plants tomatoes behind the old garage.",
    "Nobody could explain why the engine had stopped.",
]


def test_real_sentences_outrank_shuffled_ones(smollm2: Backbone) -> None:
    chance = random.Random(5)
    for sentence in SENTENCES:
        words = sentence.split()
        shuffled = [" ".join(chance.sample(words, len(words))) for _ in range(3)]
        own, *others = smollm2.perplexities([sentence, *shuffled], NEUTRAL)
        assert own < min(others)


@pytest.mark.parametrize("plain", ["It was", "This is", "The answer is", "All in all, it was", "The sentiment is"])
def test_short_prompts_are_judged_as_people_would(smollm2: Backbone, plain: str) -> None:
    odd = [
        "They even send their pictures",
        "This, whose also",
        "The film did nor",
        "A big pop birth in a small girl stand tree once",
        "That the an of",
    ]
    own, *others = smollm2.perplexities([plain, *odd], NEUTRAL)
    assert own < min(others)
    alone, *others_alone = smollm2.perplexities(["It was", *odd])
    assert alone > min(others_alone)  # why it is not measured without a text before it
