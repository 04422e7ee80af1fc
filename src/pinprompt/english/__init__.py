"""A list of English words, for measuring and for constraining prompts.

The source and licence of the list are in words.LICENSE.txt.
"""

from __future__ import annotations

import functools
import gzip
import re
import unicodedata
from importlib import resources

_SUFFIXES = ("'s", "'re", "'ve", "'ll", "'d", "'m", "n't")
# Letters with inner apostrophes ("don't"); digits and signs end a word; a hyphen separates two words.
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
FUNCTION_WORDS = frozenset(
    (
        "a", "an", "and", "are", "as", "at", "be", "behind", "below", "by", "for", "from", "has", "in", "is", "it",
        "its", "near", "next", "of", "off", "on", "or", "out", "over", "that", "the", "their", "there", "this", "to",
        "under", "up", "with", "without",
    )
)  # fmt: skip
"""Function words, which a text may need several times."""
_MARKS = frozenset('.,:;!?-&()"')  # a single punctuation mark is normal, so it is not counted


@functools.cache
def dictionary() -> frozenset[str]:
    """The English words, in lower case."""
    packed = resources.files("pinprompt.english").joinpath("words.txt.gz").read_bytes()
    return frozenset(gzip.decompress(packed).decode("utf-8").split())


def is_word(word: str) -> bool:
    """True for a dictionary word in lower case, also with a possessive or contracted ending ("film's", "needn't")."""
    known = dictionary()
    if word in known:
        return True
    return any(word.endswith(ending) and word.removesuffix(ending) in known for ending in _SUFFIXES)


def words(text: str) -> list[str]:
    """The runs of letters in a text, in lower case, apostrophes kept inside them."""
    plain = unicodedata.normalize("NFC", text).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return [found.lower() for found in _WORD.findall(plain)]


def dictionary_words(text: str) -> float:
    """The share of a prompt's pieces that are dictionary words.

    A piece is a run of letters, or what is left between spaces without a letter: "great !!! xqz" has one word in
    three pieces. A prompt without any piece gives 0.
    """
    found = words(text)
    unread = [piece for piece in text.split() if piece not in _MARKS and not any(map(str.isalpha, piece))]
    pieces = len(found) + len(unread)
    return sum(map(is_word, found)) / pieces if pieces else 0.0
