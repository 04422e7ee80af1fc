"""Guesses the language of texts by their script and most common words; with a few words of each language."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """A language with hand-written prompts."""

    name: str
    common: frozenset[str]
    """The most common words."""
    opinion: str
    """A prompt before a word for positive or negative."""
    topic: str
    """A prompt before a topic."""
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


LANGUAGES = {
    "en": Language(
        "English", _set("the and of to in is was it that for with this but not are you on my have they"), "It was",
        "Category:", ("great", "good", "positive"), ("terrible", "bad", "negative"), ("okay", "neutral", "mixed"),
    ),
    "de": Language(
        "German", _set("der die das und ist nicht ein eine ich es mit war auf für den von zu sehr sich auch"), "Es war",
        "Thema:", ("gut", "toll", "positiv"), ("schlecht", "furchtbar", "negativ"), ("okay", "neutral"),
    ),
    "fr": Language(
        "French", _set("le la les et est pas un une je il de des du que très pour dans ce mais avec"), "C'était",
        "Sujet :", ("bon", "excellent", "positif"), ("mauvais", "terrible", "négatif"), ("moyen", "neutre"),
    ),
    "es": Language(
        "Spanish", _set("el la los las y es no un una de que en muy con por para lo se pero mi"), "Fue",
        "Tema:", ("bueno", "excelente", "positivo"), ("malo", "terrible", "negativo"), ("regular", "neutral"),
    ),
    "it": Language(
        "Italian", _set("il la lo gli e è non un una di che molto per con in ma sono del si anche"), "È stato",
        "Argomento:", ("bello", "ottimo", "positivo"), ("brutto", "pessimo", "negativo"), ("normale", "neutro"),
    ),
    "pt": Language(
        "Portuguese", _set("o a os as e é não um uma de que muito para com em mas do da se eu"), "Foi",
        "Assunto:", ("bom", "ótimo", "positivo"), ("ruim", "péssimo", "negativo"), ("normal", "neutro"),
    ),
    "nl": Language(
        "Dutch", _set("de het een en is niet ik van dat met was op voor zeer heel ook maar die er zijn"), "Het was",
        "Onderwerp:", ("goed", "geweldig", "positief"), ("slecht", "vreselijk", "negatief"), ("oké", "neutraal"),
    ),
}  # fmt: skip

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
    hits = {code: sum(words[word] for word in known.common) for code, known in LANGUAGES.items()}
    best = max(hits, key=lambda code: hits[code])
    return best if hits[best] > _LEAD * hits["en"] else "en"


def name_of(language: str) -> str:
    """The name of a language returned by `guess`."""
    return LANGUAGES[language].name if language in LANGUAGES else language
