"""The phrases that GrIPS edits."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that start a phrase: a new piece begins before them.
_OPENERS = _words(
    """about above after against among and around as at because before below between but by during for from if in
    into nor of on or over so than that through to toward towards under unless until upon when where whether which
    while who whom whose with within without"""
)
# Auxiliary words; together with the verb after them they are one piece.
_AUXILIARIES = _words(
    """am are be been being can could did do does had has have is may might must need shall should was were will
    would please"""
)
_DETERMINERS = _words(
    "a an the this that these those my your his her its our their each every some any no all one two three"
)
_LONGEST = 6  # maximum words in a piece


def phrases(text: str) -> list[str]:
    """Pieces that read like noun and verb phrases, by punctuation and function words; joined by spaces, the text.

    A piece ends at punctuation, before a word that starts a phrase (prepositions, conjunctions), before a determiner
    that has a piece before it, and around a verb group that an auxiliary shows. Quoted text stays whole.
    """
    pieces: list[list[str]] = [[]]
    verbal = False
    for word in re.findall(r'"[^"]*"\S*|\S+', text):
        bare = word.strip("\"'()[],.;:!?").lower()
        last = pieces[-1]
        after_opener = bool(last) and last[-1].lower() in _OPENERS
        opens = bare in _OPENERS and not (after_opener and len(last) == 1)
        noun = bare in _DETERMINERS and not after_opener
        verb = bare in _AUXILIARIES and not (last and last[-1].lower() in _AUXILIARIES)
        # The word after a verb group's own verb begins something new.
        closes = verbal and len(last) > 1 and last[-1].lower() not in _AUXILIARIES
        if last and (opens or noun or verb or closes or len(last) >= _LONGEST):
            pieces.append([])
            verbal = False
        pieces[-1].append(word)
        verbal = verbal or bare in _AUXILIARIES
        if re.search(r"[,.;:!?]$", word):
            pieces.append([])
            verbal = False
    return [" ".join(piece) for piece in pieces if piece]
