"""Variations of prompts: what stays, what is new, and that constraints hold."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import Mock

import pytest
from baseline_toys import writer

from pinprompt.methods.variations import ENDING, HOLE, MORE, allowed, as_prompt, planned, variations
from pinprompt.recipe.sections import Constraints
from pinprompt.values import Prompt

TEXTS = ("w3 w4 w5 w6 w7 w8", "w10 w11 w12")


def common(one: list[str], two: list[str]) -> int:
    """How many words two texts begin with alike."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def test_each_keeps_a_beginning_or_both_ends() -> None:
    made = variations(writer(length=12), TEXTS, 80, seed=5)
    assert len(made) > 30
    assert len({prompt.text for prompt in made}) == len(made)
    infilled = 0
    for prompt in made:
        words = prompt.text.split()
        assert prompt.text not in TEXTS
        kept = []
        for text in TEXTS:
            old = text.split()
            head = common(words, old)
            tail = min(common(words[::-1], old[::-1]), len(old) - head)
            kept.append((head + tail, head, tail, len(old)))
        most, head, tail, size = max(kept)
        infilled += tail > 0
        assert most >= 1
        if tail == 0:
            assert len(words) <= size + MORE
        else:
            assert size - head - tail <= HOLE
    assert infilled > 10


def test_most_of_a_long_prompt_stays() -> None:
    words = [f"w{place}" for place in range(60)]
    for draw in itertools.product((0.0, 0.5, 0.99), repeat=3):
        head, count, _ = planned(" ".join(words), False, draw)
        kept = head.split()
        assert kept == words[: len(kept)]
        assert len(kept) >= 60 - ENDING
        assert count <= ENDING + MORE


@pytest.mark.parametrize("text", ["w1 w2 w3: {text} w4 w5:", "{text} w4 w5:", "w1: {text} w4:"])
@pytest.mark.parametrize("infill", [True, False])
def test_a_prompt_around_its_text_keeps_the_text_and_the_words_of_one_side(text: str, infill: bool) -> None:
    before, after = (side.split() for side in text.split("{text}"))
    for draw in itertools.product((0.0, 0.4, 0.99), repeat=3):
        head, count, tail = planned(text, infill, draw)
        assert count >= 1
        words = f"{head} NEW{tail}".split()
        place = words.index("{text}")
        assert words.count("{text}") == 1
        sides = words[:place], words[place + 1 :]
        if infill and before:
            assert sides[1] == after
            assert "NEW" in " ".join(sides[0])
        else:
            assert sides[0] == before
            assert "NEW" in " ".join(sides[1])
        assert text.endswith(":") == words[-1].endswith(":")


def test_they_follow_from_the_seed() -> None:
    texts = [[prompt.text for prompt in variations(writer(length=12), TEXTS, 20, seed=seed)] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_constraints_hold_and_what_is_too_long_stays_out() -> None:
    made = writer(length=6, constraints={"banned": ("w4",)})
    for prompt in variations(made, TEXTS, 60, seed=0):
        assert "w4" not in prompt.text.split()
        assert len(prompt.ids) < 6
    assert as_prompt(made, "w3 w4") is None
    assert as_prompt(made, "w3 w5 w6 w7 w8 w9 w10") is None
    short = as_prompt(made, "w3 w5")
    assert short is not None
    assert short.text == "w3 w5"


@pytest.mark.parametrize("texts", [(), ("w3",)])
def test_there_may_be_nothing_to_vary(texts: tuple[str, ...]) -> None:
    assert variations(writer(length=6), texts, 10, seed=0) == []


@pytest.mark.parametrize(
    ("charset", "text", "kept"),
    [("ascii", "w3 é", False), ("tags", "W3 w4", False), ("letters", "w3", False), ("ascii", "W3 w4", True)],
)
def test_the_charset_holds_for_texts_that_people_wrote(charset: Any, text: str, kept: bool) -> None:
    rules = Constraints(charset=charset)
    made = Mock(vocabulary=Mock(constraints=rules, obeys=lambda ids: True))
    assert allowed(made, Prompt(text, (1, 2))) == kept
