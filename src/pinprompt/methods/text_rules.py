"""The user's constraints on a prompt that is made of text, not of tokens."""

from __future__ import annotations

import re

import numpy as np

from pinprompt.policy.banlist import banned_phrases
from pinprompt.policy.bans import Pattern, Phrases
from pinprompt.policy.required import Word
from pinprompt.settings.policy import Constraints


class TextRules:
    """Says which constraint a text breaks.

    Constraints on tokens (whole_words, stable) say nothing of a text that nobody wrote token by token; no_repeats is
    about its words.
    """

    def __init__(self, constraints: Constraints) -> None:
        self.constraints = constraints
        self._phrases = Phrases(banned_phrases(constraints), ())
        self._pattern: Pattern | None = None
        if constraints.banned_pattern is not None:
            self._pattern = Pattern(constraints.banned_pattern, (), np.zeros(0, dtype=np.bool_))
        self._required = [Word(word, (), ()) for word in constraints.required]

    def broken(self, text: str) -> str | None:
        """Which constraint a text breaks, as the end of a sentence; None where it keeps them all."""
        rules = self.constraints
        if not text.strip():
            return "it is empty"
        if phrase := self._phrases.found(text):
            return f"it holds the banned {phrase!r}"
        if self._pattern is not None and self._pattern.found(text):
            return "it matches constraints.banned_pattern"
        for word in self._required:
            if not word.stands_in(text):
                return f"it lacks the required {word.text!r}"
        if rules.max_chars is not None and len(text) > rules.max_chars:
            return f"it has {len(text)} characters, where constraints.max_chars is {rules.max_chars}"
        if rules.charset == "ascii" and not text.isascii():
            return "it holds characters beyond ASCII (constraints.charset)"
        if rules.charset == "letters" and not text.replace(" ", "").isalpha():
            return "it holds more than letters and spaces (constraints.charset)"
        words = re.findall(r"\w+", text.lower())
        if rules.no_repeats and len(set(words)) < len(words):
            return "it repeats a word (constraints.no_repeats)"
        return None
