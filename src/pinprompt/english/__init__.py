"""Which words are English: one list, for measuring prompts and for constraining them.

The list beside this file has its source and licence in words.LICENSE.txt.
"""

from __future__ import annotations

import functools
import gzip
from importlib import resources

_SUFFIXES = ("'s", "'re", "'ve", "'ll", "'d", "'m", "n't")


@functools.cache
def dictionary() -> frozenset[str]:
    """The English words that count as words, in lower case."""
    packed = resources.files("pinprompt.english").joinpath("words.txt.gz").read_bytes()
    return frozenset(gzip.decompress(packed).decode("utf-8").split())


def is_word(word: str) -> bool:
    """True for a dictionary word in lower case, also with a possessive or contracted ending ("film's", "needn't")."""
    known = dictionary()
    if word in known:
        return True
    return any(word.endswith(ending) and word.removesuffix(ending) in known for ending in _SUFFIXES)
