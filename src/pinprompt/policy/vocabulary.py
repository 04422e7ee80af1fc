"""The tokens that may be written: no special tokens, and the user's constraints as masks on the action set.

A token is judged by its text in the middle of a prompt. Tokens whose text depends on their neighbours (pieces of a
character) are never written, so the text of a prompt is the concatenation of its tokens' texts, stripped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinprompt.english import FUNCTION_WORDS, is_word
from pinprompt.errors import SettingError
from pinprompt.policy.backbone import Backbone, Tokens
from pinprompt.policy.reader import Prefix
from pinprompt.policy.words import TAGS, Mask, Need, Phrases, Required, banned_phrases, wordlike
from pinprompt.recipe.sections import Constraints

# The ignorable set of a prefix: all tokens except the k most likely ones among those allowed there (F_I).


class Ignorable:
    """Kept sets by prefix; a function of the frozen LM and the constraints alone."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, k: int | None) -> None:
        if k is not None and not 1 <= k <= backbone.vocabulary_size:
            raise SettingError(
                f"policy.k is {k}, but the writer's vocabulary has {backbone.vocabulary_size} tokens; "
                "give a smaller k, or none to switch the filter off"
            )
        self.backbone, self.vocabulary, self.k = backbone, vocabulary, k

    def kept(self, prefixes: Sequence[Prefix], states: Tensor) -> Tensor:
        """Kept sets, bool [n, V], of n prefixes whose states are the first n of [batch, d].

        The tokens with the k largest logits among the allowed ones, including ties. Tokens forced by a required word
        are kept whatever their logit. The product covers all rows, including padding, so that its shape never changes.
        """
        allowed = torch.stack([self.vocabulary.allowed(prefix) for prefix in prefixes]).to(states.device)
        if self.k is None or self.k >= self.vocabulary.writable:
            return allowed
        logits = self.backbone.logits(states)[: len(prefixes)].masked_fill_(~allowed, -torch.inf)
        threshold = _kth_largest(logits, self.k)
        forced = torch.tensor([self.vocabulary.forced(prefix) for prefix in prefixes], device=states.device)
        return allowed & ((logits >= threshold) | forced[:, None])


def _kth_largest(logits: Tensor, k: int) -> Tensor:
    """The k-th largest of each row, [n, 1]. On a CPU a partition takes half the time of `torch.topk`."""
    if logits.device.type != "cpu":
        return torch.topk(logits, k, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    return torch.tensor([[_partitioned(row, k)] for row in logits.numpy()], dtype=logits.dtype)


def _partitioned(row: Any, k: int) -> Any:
    """The k-th largest of a row [V]. Only entries near it, as estimated from every 32nd entry, are partitioned."""
    some = np.sort(row[::32])
    place = len(some) - k * len(some) // len(row)
    low, high = some[max(place - 64, 0)], some[min(place + 64, len(some) - 1)]
    above = int(np.count_nonzero(row > high))
    near = row[np.flatnonzero((row >= low) & (row <= high))]
    if not above < k <= above + len(near):  # the estimate was wrong: use all entries
        above, near = 0, row
    return np.partition(near, len(near) - (k - above))[len(near) - (k - above)]


class Vocabulary:
    """The tokens that may follow a prefix, for prompts of `length` tokens."""

    def __init__(
        self, tokenizer: Any, size: int, length: int, constraints: Constraints, tokens: Tokens | None = None
    ) -> None:
        self.length, self.constraints = length, constraints
        self.tokens = tokens or Tokens(tokenizer, size)
        pieces = self.tokens.pieces
        spelled = self.tokens.whole & self._charset(pieces)
        static = spelled.copy()
        if constraints.stable:
            static &= self.tokens.stable()
        if constraints.whole_words:
            static &= np.array([piece[:1] == " " and piece[1:].isalpha() for piece in pieces])
        if constraints.dictionary:
            # Every such token begins a word, and so does the next one, so a prompt has only dictionary words.
            static &= np.array([piece[:1] == " " and is_word(piece[1:].lower()) for piece in pieces])
        self.required = Required(
            constraints.required,
            self.tokens.encode,
            pieces,
            lambda token: token < size and bool(spelled[token]),
            constraints.no_repeats == "tokens",
        )
        needed = [token for word in self.required.words for token in (*word.ids, *word.first)]
        self._static = static
        self.writable = int(static.sum()) + len({token for token in needed if not static[token]})
        self._phrases = Phrases(banned_phrases(constraints), pieces)
        self._blank = np.array([not piece.strip() for piece in pieces])
        self._letter_first = np.array([bool(piece) and wordlike(piece[0]) for piece in pieces])
        self._widths = np.array([len(piece) for piece in pieces])
        self._bare_widths = np.array([len(piece.lstrip()) for piece in pieces])
        order = np.flatnonzero(static)[np.argsort(self._widths[static], kind="stable")]
        self._same_word = self._tokens_by_word() if constraints.no_repeats == "words" else {}
        self._narrow = [int(token) for token in order[: 2 * length + 1]]
        self._free = torch.from_numpy(static.copy())

    def text(self, ids: Iterable[int]) -> str:
        return self.tokens.text(list(ids))

    def obeys(self, ids: Prefix) -> bool:
        """True if a whole prompt meets every constraint; checked on its text, not through the masks."""
        c = self.constraints
        return (
            self.accepts(self.text(ids))
            and (c.no_repeats != "tokens" or len(set(ids)) == len(ids))
            and (c.no_repeats != "words" or not self._repeats_a_word(ids))
        )

    def accepts(self, text: str) -> bool:
        """True if a text has no banned word, every required one, and is not too long; for prompts of other tokens."""
        most = self.constraints.max_chars
        clean = bool(text) and self._phrases.found(text) is None and not self.required.missing(text)
        return clean and (most is None or len(text) <= most)

    def allowed(self, prefix: Prefix) -> Tensor:
        """The tokens that may follow a prefix, bool [V] on the CPU; empty only at a dead end."""
        blank = all(bool(self._blank[token]) for token in prefix)
        if not self._dynamic and not (blank and len(prefix) == self.length - 1):
            return self._free
        text = "".join(self.tokens.pieces[token] for token in prefix)
        mask = self._with_room(prefix, text)
        if self.constraints.no_repeats == "tokens":
            mask[list(prefix)] = False
        elif self.constraints.no_repeats == "words":
            for token in prefix:
                mask[self._same_word.get(self._word(token), [])] = False
        if blank and len(prefix) == self.length - 1:
            mask &= ~self._blank
        if self._phrases.phrases:
            mask &= ~self._phrases.completing(text)
        return torch.from_numpy(mask)

    def forced(self, prefix: Prefix) -> bool:
        """True if only tokens of required words may follow; they are written whatever probability the LM gives them."""
        if not self.required.words:
            return False
        plan = self.required.plan(prefix, "".join(self.tokens.pieces[token] for token in prefix))
        return plan.free is None or plan.free.tokens > self.length - len(prefix) - 1

    def check(self) -> None:
        """Raise an error for a set of constraints that no prompt can meet."""
        c, length = self.constraints, self.length
        if self.writable == 0:
            raise SettingError("no token meets the constraints; loosen charset, whole_words, dictionary or stable")
        if c.no_repeats == "tokens" and self.writable < length:
            raise SettingError(
                f"no_repeats leaves {self.writable} tokens for a prompt of {length}; shorten policy.length"
            )
        if self.required.tokens() > length:
            raise SettingError(
                f"the required words take {self.required.tokens()} tokens, but a prompt has {length}; "
                "raise policy.length or require fewer words"
            )
        if c.max_chars is not None and self.required.chars() > c.max_chars:
            raise SettingError(
                f"the required words take {self.required.chars()} characters, but constraints.max_chars is "
                f"{c.max_chars}; raise it or require fewer words"
            )
        for word in self.required.words:
            if banned := self._phrases.found(word.text):
                raise SettingError(f"the required word {word.text!r} holds the banned {banned!r}; drop one of them")
        if self._dynamic and not self._reachable():
            raise SettingError(
                f"no prompt of {length} tokens was found that keeps all constraints together; "
                "loosen max_chars, banned, required or charset, or change policy.length"
            )

    @property
    def _dynamic(self) -> bool:
        """True if the allowed tokens depend on the prefix."""
        c = self.constraints
        return bool(self._phrases.phrases or self.required.words or c.max_chars is not None or c.no_repeats != "off")

    def _with_room(self, prefix: Prefix, text: str) -> Mask:
        """The tokens that leave enough room, in tokens and in characters, for everything still required."""
        plan = self.required.plan(prefix, text)
        left = self.length - len(prefix) - 1
        mask = self._static.copy()
        mask[list(plan.reserved)] = False
        plain = ~self._letter_first
        for need, kind in ((plan.free, plain), (plan.extending, self._letter_first)):
            room = need is not None and need.tokens <= left
            if not room:
                mask &= ~kind
            elif self.constraints.max_chars is not None and need is not None:
                mask &= ~kind | (self._ends(text, prefix, need, left) <= self.constraints.max_chars)
        for token, need in plan.steps.items():
            fits = need.tokens <= left and (
                self.constraints.max_chars is None
                or self._ends(text, prefix, need, left)[token] <= self.constraints.max_chars
            )
            mask[token] = mask[token] or fits
        return mask

    def _ends(self, text: str, prefix: Prefix, need: Need, left: int) -> Any:
        """The fewest characters of a whole prompt for each next token, [V].

        They include the required words and the shortest tokens for the rest.
        """
        start = text.lstrip()
        widths = len(start) + self._widths if start else self._bare_widths
        free = left - need.tokens
        if self.constraints.no_repeats != "tokens":
            narrowest = int(self._widths[self._narrow[0]]) if self._narrow else 0
            return widths + need.chars + free * narrowest
        unused = [token for token in self._narrow if token not in prefix]
        sizes = [int(self._widths[token]) for token in unused]
        ends = widths + need.chars + sum(sizes[:free])
        # A token cannot be used twice: if the next one is among the shortest, another one replaces it in the rest.
        taken = unused[:free]
        ends[taken] += (sizes[free] if len(sizes) > free else 1 << 20) - self._widths[taken]
        return ends

    def _reachable(self) -> bool:
        """Search for one whole prompt, short tokens first, with a limit on the number of steps."""
        stack: list[Prefix] = [()]
        for _ in range(4 * self.length + 64):
            if not stack:
                return False
            prefix = stack.pop()
            if len(prefix) == self.length:
                return True
            tokens = np.flatnonzero(self.allowed(prefix).numpy())
            order = tokens[np.argsort(self._widths[tokens], kind="stable")]
            tries = [*order[:2], *order[len(order) // 2 : len(order) // 2 + 1], *order[-1:]]
            stack += [(*prefix, int(token)) for token in reversed(list(dict.fromkeys(tries)))]
        return False

    def _word(self, token: int) -> str:
        """The word that a token writes by itself, in lower case; "" for function words and non-words."""
        word = self.tokens.pieces[token].strip().lower()
        return word if word.isalpha() and word not in FUNCTION_WORDS else ""

    def _tokens_by_word(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for token in range(len(self.tokens.pieces)):
            if word := self._word(token):
                found.setdefault(word, []).append(token)
        return found

    def _repeats_a_word(self, ids: Prefix) -> bool:
        told = [word for token in ids if (word := self._word(token))]
        return len(set(told)) < len(told)

    def _charset(self, pieces: list[str]) -> Mask:
        charset = self.constraints.charset
        if charset == "any":
            return np.ones(len(pieces), dtype=np.bool_)
        if charset == "ascii":
            return np.array([piece.isascii() and (piece.isprintable() or piece.isspace()) for piece in pieces])
        if charset == "tags":
            return np.array([TAGS.issuperset(piece) for piece in pieces])
        return np.array([piece.replace(" ", "").isalpha() or piece == " " for piece in pieces])
