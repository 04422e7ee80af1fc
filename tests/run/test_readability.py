"""Readability: what people would count by hand."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
from importlib import resources

import pytest

from pinprompt.english import dictionary, dictionary_words, words
from pinprompt.run.readability import (
    is_stable,
    readability,
    repeated_tokens,
)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("It was", 1.0),
        ("the film's colour isn't great .", 1.0),
        ("great xqzv", 0.5),
        ("great !!! xqzv", 1 / 3),
        ("Absolutely honest verdict:", 1.0),
        ("GreatMovie film", 0.5),
        ("th ing b", 0.0),
        ("well-made movie", 1.0),
        ("", 0.0),
        ("�� ##", 0.0),
        ("you\N{RIGHT SINGLE QUOTATION MARK}re right", 1.0),
    ],
)
def test_dictionary_words(text: str, share: float) -> None:
    assert dictionary_words(text) == pytest.approx(share)


def test_words_keep_inner_apostrophes() -> None:
    assert words(" Don't 2stop_now") == ["don't", "stop", "now"]


def test_the_word_list_is_plain_and_licensed() -> None:
    packed = resources.files("pinprompt.english").joinpath("words.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode("utf-8").splitlines()
    assert lines == sorted(set(lines))
    assert all(word == word.lower().strip() for word in lines)
    assert {"movie", "terrible", "colour", "color"} <= dictionary()
    licence = resources.files("pinprompt.english").joinpath("words.LICENSE.txt").read_text("utf-8")
    assert "Kevin Atkinson" in licence
    assert "Permission to use, copy, modify, distribute and sell these word" in licence


def test_repeated_tokens() -> None:
    assert repeated_tokens([5, 7, 5, 5]) == 2
    assert repeated_tokens([]) == 0


class Pairs:
    """Merges the letters a and b into one token on encoding, as a byte-pair tokenizer would."""

    pieces = ("a", "b", "ab")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        found = []
        while text:
            piece = next(piece for piece in ("ab", "a", "b") if text.startswith(piece))
            found.append(self.pieces.index(piece))
            text = text.removeprefix(piece)
        return found

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[one] for one in ids)


def test_stability() -> None:
    assert is_stable([2, 1, 0], Pairs())
    assert not is_stable([0, 1], Pairs())


def test_readability_keeps_what_is_known() -> None:
    assert readability("good good film") == {"dictionary_words": 1.0, "repeated_tokens": 1}
    full = readability("abab", ids=[2, 2], tokenizer=Pairs(), fluency={"perplexity": 12.5, "in_text": -0.5})
    assert full == {"dictionary_words": 0.0, "repeated_tokens": 1, "stable": True, "perplexity": 12.5, "in_text": -0.5}
    assert set(readability("x", fluency={"perplexity": math.inf, "in_text": math.nan})) == set(readability("x"))


def test_no_heavy_imports() -> None:
    code = "import sys, pinprompt.run.readability; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
