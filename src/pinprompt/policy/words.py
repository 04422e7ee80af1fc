"""Words that no prompt may contain, and words that every prompt must contain.

Banned words come from the recipe, from the file that it names, and from the list for all runs. For a required word,
this module computes how many tokens it still needs and which token comes next.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pinprompt.errors import SettingError
from pinprompt.recipe.sections import Constraints

# Words that no prompt may contain: which tokens would complete one after a given text.

Mask = NDArray[np.bool_]
TAGS = frozenset("abcdefghijklmnopqrstuvwxyz, ")
"""The characters of the charset `tags`."""
CHARSETS = {"ascii": "ASCII", "letters": "letters and spaces", "tags": "a to z, commas and spaces"}


def in_charset(text: str, charset: str) -> bool:
    """True if a text that was not written under the masks has only characters of a charset."""
    if charset == "letters":
        return text.replace(" ", "").isalpha()
    return charset == "any" or (text.isascii() if charset == "ascii" else TAGS.issuperset(text))


def normal(text: str) -> str:
    """Text in the form in which bans are compared: case-folded, with runs of white space as one space."""
    return re.sub(r"\s+", " ", text.casefold())


def wordlike(character: str) -> bool:
    """True for word characters: letters, digits, underscore."""
    return character.isalnum() or character == "_"


def stands(text: str, start: int, end: int) -> bool:
    """True if text[start:end] is not part of a longer word."""
    cut_left = start > 0 and wordlike(text[start]) and wordlike(text[start - 1])
    cut_right = end < len(text) and wordlike(text[end - 1]) and wordlike(text[end])
    return not (cut_left or cut_right)


class Phrases:
    """Banned words and phrases, matched as whole words in any case; fast for lists of thousands."""

    def __init__(self, phrases: Iterable[str], pieces: Sequence[str]) -> None:
        self.phrases = {normal(phrase).strip() for phrase in phrases} - {""}
        self._lengths: dict[str, list[int]] = {}
        self._rests: dict[str, list[str]] = {}
        for phrase in sorted(self.phrases):
            lengths = self._lengths.setdefault(phrase[0], [])
            if len(phrase) not in lengths:
                lengths.append(len(phrase))
            for cut in range(1, len(phrase)):
                self._rests.setdefault(phrase[:cut], []).append(phrase[cut:])
        self._longest = max(map(len, self.phrases), default=0)
        normals = [normal(piece) for piece in pieces] if self.phrases else []
        self._size = len(pieces)
        # A phrase inside a token depends on the text before it only through whether that text ends inside a word.
        self._inside_word = self._holding(normals, "x")
        self._after_word = self._holding(normals, ".")
        self._index = {stripped: _index(normals, stripped) for stripped in (False, True)}
        self._starting: dict[tuple[str, bool], list[int]] = {}

    def found(self, text: str) -> str | None:
        """A banned phrase that the text contains, if any."""
        return next(self._matches(normal(text), 0), None)

    def completing(self, text: str) -> Mask:
        """The tokens that would complete a phrase after a text that contains none, bool [V]."""
        before = normal(text)
        alone = self._inside_word if before and wordlike(before[-1]) else self._after_word
        mask = alone.copy()
        for size in range(1, min(self._longest, len(before) + 1)):
            rests = self._rests.get(before[-size:])
            if rests and stands(before, len(before) - size, len(before)):
                for rest in rests:
                    mask[self._starting_with(rest, before.endswith(" "))] = True
        return mask

    def _holding(self, normals: list[str], before: str) -> Mask:
        mask = np.zeros(self._size, dtype=np.bool_)
        for token, piece in enumerate(normals):
            mask[token] = next(self._matches(before + piece, 1), None) is not None
        return mask

    def _matches(self, text: str, first: int) -> Iterator[str]:
        for start in range(first, len(text)):
            for length in self._lengths.get(text[start], ()):
                phrase = text[start : start + length]
                if phrase in self.phrases and stands(text, start, start + length):
                    yield phrase

    def _starting_with(self, rest: str, stripped: bool) -> list[int]:
        """Tokens whose text begins with the rest of a phrase and does not extend its last word."""
        key = (rest, stripped)
        if key not in self._starting:
            texts, tokens = self._index[stripped]
            low, high = bisect_left(texts, rest), bisect_left(texts, rest + "\U0010ffff")
            self._starting[key] = [tokens[i] for i in range(low, high) if stands(texts[i], 0, len(rest))]
        return self._starting[key]


def _index(normals: list[str], stripped: bool) -> tuple[list[str], list[int]]:
    """Sorted texts with their tokens, to look up texts by their beginning."""
    order = sorted((piece.lstrip() if stripped else piece, token) for token, piece in enumerate(normals))
    return [text for text, _ in order], [token for _, token in order]


MAX_DICTIONARY_BYTES = 64 << 20
"""Size limit of a list, in bytes."""


def banned_phrases(constraints: Constraints) -> list[str]:
    """Every banned word or phrase of a run, without duplicates.

    The list for all runs is the file named by PINPROMPT_BAN_FILE, otherwise `banned.txt` in pinprompt's home, if any.
    """
    phrases = list(constraints.banned)
    if constraints.banned_file is not None:
        phrases += _lines(Path(constraints.banned_file), "constraints.banned_file")
    everywhere = list_for_all_runs()
    if everywhere is not None:
        phrases += _lines(*everywhere)
    return [phrase for phrase in dict.fromkeys(phrase.strip() for phrase in phrases) if phrase]


def list_for_all_runs() -> tuple[Path, str] | None:
    """The file that bans words in every run, and a description of it; None if there is none."""
    named = os.environ.get("PINPROMPT_BAN_FILE")
    if named:
        return Path(named), "PINPROMPT_BAN_FILE"
    from pinprompt.models.cache import home

    path = home() / "banned.txt"
    return (path, "the ban list for all runs") if path.is_file() else None


def seal() -> dict[str, object] | None:
    """The run folder's record of the list for all runs: where it was set, its size and its hash, but not its words."""
    everywhere = list_for_all_runs()
    if everywhere is None:
        return None
    phrases = [line.strip() for line in _lines(*everywhere) if line.strip()]
    digest = hashlib.sha256("\n".join(phrases).encode("utf-8", "replace")).hexdigest()
    return {"set_by": everywhere[1], "phrases": len(phrases), "sha256": digest}


def _lines(path: Path, what: str) -> list[str]:
    try:
        path = path.expanduser()
        if not path.is_file() or path.stat().st_size > MAX_DICTIONARY_BYTES:
            raise OSError(f"it is not a file, or has more than {MAX_DICTIONARY_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingError(
            f"{what} cannot be read ({path}: {error}); give a text file with one word or phrase per line"
        ) from error


@dataclass(frozen=True)
class Word:
    """A required word (or phrase) with its tokens: anywhere in a prompt, and at its start."""

    text: str
    ids: tuple[int, ...]
    first: tuple[int, ...]

    def stands_in(self, text: str) -> bool:
        """True if the text contains it as whole words, in this spelling."""
        return self._search(text) is not None

    def fragile(self, text: str) -> bool:
        """True if it is only at the end of the text, so that one more letter would make it a different word."""
        match = self._search(text)
        return match is not None and match.end() == len(text) and wordlike(self.text[-1])

    def _search(self, text: str) -> re.Match[str] | None:
        left = r"(?<!\w)" if wordlike(self.text[0]) else ""
        right = r"(?!\w)" if wordlike(self.text[-1]) else ""
        return re.search(left + re.escape(self.text) + right, text)


@dataclass(frozen=True)
class Need:
    """Tokens and characters that the required words still need after the next token."""

    tokens: int
    chars: int

    def __add__(self, other: Need) -> Need:
        return Need(self.tokens + other.tokens, self.chars + other.chars)

    def __sub__(self, other: Need) -> Need:
        return Need(self.tokens - other.tokens, self.chars - other.chars)


@dataclass(frozen=True)
class Plan:
    """What remains to be written after each kind of next token."""

    free: Need | None
    """After a token that is not part of a required word; None if no such token is allowed now."""
    extending: Need | None
    """After such a token that begins with a letter, and so may turn the word just written into a different one."""
    steps: dict[int, Need]
    """After a token that begins or continues a required word."""
    reserved: frozenset[int]
    """Tokens that are allowed only as such a step."""


class Required:
    """The required words of a run."""

    def __init__(
        self,
        words: Iterable[str],
        encode: Callable[[str], list[int]],
        pieces: Sequence[str],
        writable: Callable[[int], bool],
        no_repeats: bool,
    ) -> None:
        texts = list(dict.fromkeys(" ".join(word.split()) for word in words))
        if "" in texts:
            raise SettingError("constraints.required holds an empty word; drop it")
        # A word that is part of another required one needs no tokens of its own.
        whole = [Word(text, (), ()) for text in texts]
        texts = [w.text for w in whole if not any(w is not other and w.stands_in(other.text) for other in whole)]
        self._pieces, self._no_repeats = pieces, no_repeats
        self.words = [_tokenised(text, encode, pieces, writable) for text in texts]

    def tokens(self) -> int:
        """The fewest tokens with which all required words can be written."""
        saved = max((len(word.ids) - len(word.first) for word in self.words), default=0)
        return sum(len(word.ids) for word in self.words) - max(0, saved)

    def chars(self) -> int:
        """The fewest characters that the required words take, with a space between two."""
        return sum(len(word.text) for word in self.words) + max(0, len(self.words) - 1)

    def missing(self, text: str) -> list[Word]:
        return [word for word in self.words if not word.stands_in(text)]

    def plan(self, prefix: tuple[int, ...], text: str) -> Plan:
        """What remains to be written after each kind of next token, for a prefix with that text."""
        missing = self.missing(text)
        fragile = [word for word in self.words if word not in missing and word.fragile(text)]
        total, again = (self._need(token for word in words for token in word.ids) for words in (missing, fragile))
        steps: dict[int, Need] = {}
        under_way = False
        for word in missing:
            for ids, done in self._begun(word, prefix):
                under_way = under_way or done > 0
                if self._no_repeats and ids[done] in prefix:
                    continue
                need = total - self._need(word.ids) + self._need(ids[done + 1 :])
                if wordlike(self._pieces[ids[done]][0]):
                    need += again
                known = steps.get(ids[done])
                if known is None or need.tokens < known.tokens:
                    steps[ids[done]] = need
        if not self._no_repeats:
            return Plan(total, total + again, steps, frozenset())
        # Without repeats, a word that has been begun or written cannot be written again.
        reserved = frozenset(token for word in missing for token in word.ids)
        if under_way:
            going_on = {ids[done] for word in missing for ids, done in self._begun(word, prefix) if done > 0}
            return Plan(None, None, {token: steps[token] for token in going_on if token in steps}, reserved)
        return Plan(total, None if fragile else total, steps, reserved)

    def _begun(self, word: Word, prefix: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
        """The ways to write a word from here: its tokens, and how many of them already end the prefix."""
        ways = [(word.ids, 0)]
        if not prefix:
            ways.append((word.first, 0))
        ways += [(word.ids, done) for done in range(1, len(word.ids)) if prefix[-done:] == word.ids[:done]]
        if 0 < len(prefix) < len(word.first) and prefix == word.first[: len(prefix)]:
            ways.append((word.first, len(prefix)))
        return ways

    def _need(self, ids: Iterable[int]) -> Need:
        widths = [len(self._pieces[token]) for token in ids]
        return Need(len(widths), sum(widths))


def _tokenised(
    text: str, encode: Callable[[str], list[int]], pieces: Sequence[str], writable: Callable[[int], bool]
) -> Word:
    """A word with its shortest tokenisations; after other text it must start with its own space."""
    ways = []
    for given in (text, " " + text):
        ids = tuple(encode(given))
        joined = "".join(pieces[token] if token < len(pieces) else "" for token in ids)
        if ids and all(writable(token) for token in ids) and joined.strip() == text:
            ways.append((len(ids), ids, joined))
    spaced = [way for way in ways if way[2][0].isspace() or not wordlike(text[0])]
    if not spaced:
        raise SettingError(
            f"the required word {text!r} cannot be written in the writer's tokens (a character that it has no whole "
            "token for, or one that the charset excludes); drop it from constraints.required or allow its characters"
        )
    return Word(text, min(spaced)[1], min(ways)[1])
