"""Guesses the language of texts by their script and most common words; with a few words of each language."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Language:
    """A language with hand-written prompts."""

    name: str
    common: str
    """The most common words."""
    opinion: str
    """A prompt before a word for positive or negative."""
    topic: str
    """A prompt before a topic."""
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    neutral: tuple[str, ...]


def _languages() -> Iterator[tuple[str, Language]]:
    tables = tomllib.loads((Path(__file__).parent / "languages.toml").read_text("utf-8"))
    for code, table in tables.items():
        feelings: dict[str, Any] = {
            feeling: tuple(table.pop(feeling)) for feeling in ("positive", "negative", "neutral")
        }
        yield code, Language(**table, **feelings)


LANGUAGES = dict(_languages())

_SCRIPTS = {
    "CYRILLIC": "Russian or another language in Cyrillic script", "GREEK": "Greek", "ARABIC": "Arabic",
    "HEBREW": "Hebrew", "CJK": "Chinese or Japanese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese",
    "HANGUL": "Korean", "DEVANAGARI": "Hindi", "THAI": "Thai",
}  # fmt: skip
_SHARE = 0.3  # share of letters in a script other than Latin
_LEAD = 2  # factor by which common words must outnumber English ones


def guess(texts: Sequence[str]) -> str:
    """The code of the texts' language ('en', 'de', ...), or its name if there are no prompts for it.

    English if in doubt.
    """
    joined = " ".join(texts)[:20_000].lower()
    letters = [letter for letter in joined if letter.isalpha()]
    scripts = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in letters if not letter.isascii())
    for script, count in scripts.most_common(1):
        if script in _SCRIPTS and count > _SHARE * len(letters):
            return _SCRIPTS[script]
    words = Counter(re.findall(r"[^\W\d_]+", joined))
    hits = {code: sum(words[word] for word in known.common.split()) for code, known in LANGUAGES.items()}
    best = max(hits, key=lambda code: hits[code])
    return best if hits[best] > _LEAD * hits["en"] else "en"


def name_of(language: str) -> str:
    """The name of a language returned by `guess`."""
    return LANGUAGES[language].name if language in LANGUAGES else language
