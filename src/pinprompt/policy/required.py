"""Words that every prompt must hold: how many tokens they still need, and which token takes one of them further."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pinprompt.errors import SettingError
from pinprompt.policy.bans import wordlike


@dataclass(frozen=True)
class Word:
    """A required word (or phrase) with its tokens: anywhere, and as the first of a prompt."""

    text: str
    ids: tuple[int, ...]
    first: tuple[int, ...]

    def stands_in(self, text: str) -> bool:
        """True where the text holds it as whole words, in this spelling."""
        return self._search(text) is not None

    def fragile(self, text: str) -> bool:
        """True where it is only at the end of the text, so that one more letter would make it another word."""
        match = self._search(text)
        return match is not None and match.end() == len(text) and wordlike(self.text[-1])

    def _search(self, text: str) -> re.Match[str] | None:
        left = r"(?<!\w)" if wordlike(self.text[0]) else ""
        right = r"(?!\w)" if wordlike(self.text[-1]) else ""
        return re.search(left + re.escape(self.text) + right, text)


@dataclass(frozen=True)
class Need:
    """Tokens and characters that required words still take after the next token."""

    tokens: int
    chars: int


@dataclass(frozen=True)
class Plan:
    """What the next token would leave to be done."""

    free: Need | None
    """After any token that has nothing to do with a required word; None where no such token may come now."""
    extending: Need | None
    """After such a token that begins with a letter, and so may turn a word just written into another."""
    steps: dict[int, Need]
    """After a token that begins or continues a required word."""
    reserved: frozenset[int]
    """Tokens that may only come as such a step."""


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
        # A word that is part of another required one needs nothing of its own.
        whole = [Word(text, (), ()) for text in texts]
        texts = [w.text for w in whole if not any(w is not other and w.stands_in(other.text) for other in whole)]
        self._pieces, self._no_repeats = pieces, no_repeats
        self.words = [_tokenised(text, encode, pieces, writable) for text in texts]

    def tokens(self) -> int:
        """The fewest tokens in which all of them can be written."""
        saved = max((len(word.ids) - len(word.first) for word in self.words), default=0)
        return sum(len(word.ids) for word in self.words) - max(0, saved)

    def chars(self) -> int:
        """The fewest characters that they take, with a space between two."""
        return sum(len(word.text) for word in self.words) + max(0, len(self.words) - 1)

    def missing(self, text: str) -> list[Word]:
        """Those that the text does not hold."""
        return [word for word in self.words if not word.stands_in(text)]

    def plan(self, prefix: tuple[int, ...], text: str) -> Plan:
        """What each kind of next token leaves to be done, after a prefix with that text."""
        missing = self.missing(text)
        fragile = [word for word in self.words if word not in missing and word.fragile(text)]
        total = self._sum(missing)
        steps: dict[int, Need] = {}
        under_way = False
        for word in missing:
            for ids, done in self._begun(word, prefix):
                under_way = under_way or done > 0
                if self._no_repeats and ids[done] in prefix:
                    continue
                rest = Need(len(ids) - done - 1, self._chars(ids[done + 1 :]))
                own = self._sum([word])
                need = Need(total.tokens - own.tokens + rest.tokens, total.chars - own.chars + rest.chars)
                if fragile and wordlike(self._pieces[ids[done]][0]):
                    need = _plus(need, self._sum(fragile))
                known = steps.get(ids[done])
                if known is None or need.tokens < known.tokens:
                    steps[ids[done]] = need
        extending = _plus(total, self._sum(fragile))
        if not self._no_repeats:
            return Plan(total, extending, steps, frozenset())
        # Without repeats a word that was begun, or written, cannot be written again.
        reserved = frozenset(token for word in missing for token in word.ids)
        if under_way:
            going_on = {ids[done] for word in missing for ids, done in self._begun(word, prefix) if done > 0}
            return Plan(None, None, {token: steps[token] for token in going_on if token in steps}, reserved)
        return Plan(total, None if fragile else total, steps, reserved)

    def _begun(self, word: Word, prefix: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
        """The ways to write a word from here: its tokens, and how many of them are already the prefix's last."""
        ways = [(word.ids, 0)]
        if not prefix:
            ways.append((word.first, 0))
        ways += [(word.ids, done) for done in range(1, len(word.ids)) if prefix[-done:] == word.ids[:done]]
        if 0 < len(prefix) < len(word.first) and prefix == word.first[: len(prefix)]:
            ways.append((word.first, len(prefix)))
        return ways

    def _sum(self, words: Iterable[Word]) -> Need:
        words = list(words)
        return Need(sum(len(word.ids) for word in words), sum(self._chars(word.ids) for word in words))

    def _chars(self, ids: Iterable[int]) -> int:
        return sum(len(self._pieces[token]) for token in ids)


def _plus(left: Need, right: Need) -> Need:
    return Need(left.tokens + right.tokens, left.chars + right.chars)


def _tokenised(
    text: str, encode: Callable[[str], list[int]], pieces: Sequence[str], writable: Callable[[int], bool]
) -> Word:
    """A word with its shortest tokens; after other text it must bring its own space."""
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
