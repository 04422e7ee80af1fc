"""The texts of a tokenizer's tokens, for whole vocabularies at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from pinprompt.policy.bans import Mask


class Tokens:
    """Texts by id: `pieces[id]` is what a token adds in the middle of a text ('' where it cannot be written).

    `whole` marks the tokens that can be written: no special or added ones, none beyond the tokenizer (a head may have
    more rows), none without text, and none whose text depends on its neighbours, such as a piece of a character.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer = tokenizer
        self.size = size
        self._stable: Mask | None = None
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        known = min(size, len(tokenizer))
        anchor = self.encode("a")[-1]
        before = self._decode([[anchor]])[0]
        middle = self._decode([[anchor, token] for token in range(known)])
        alone = self._decode([[token] for token in range(known)])
        first = self._decode([[token, anchor] for token in range(known)])
        # What follows a token must not depend on it: between two anchors, and behind itself.
        doubled = self._decode([[anchor, token, token, anchor] for token in range(known)])
        anchored = self._decode([[anchor, anchor]])[0].removeprefix(before)
        special = set(tokenizer.all_special_ids)
        special |= {int(token) for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        self.pieces = [""] * size
        self.alone = [*alone, *[""] * (size - known)]
        self.whole = np.zeros(size, dtype=np.bool_)
        for token in range(known):
            if token in special or not middle[token].startswith(before):
                continue
            piece = middle[token].removeprefix(before)
            apart = doubled[token] == before + piece + piece + anchored
            together = alone[token].strip() == piece.strip() and first[token].strip() == (piece + anchored).strip()
            if piece and "\ufffd" not in piece and apart and together:
                self.pieces[token] = piece
                self.whole[token] = True

    def text(self, ids: list[int]) -> str:
        """The stripped text of ids."""
        decoded: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return decoded.strip()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it."""
        return [int(token) for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def stable(self) -> Mask:
        """The tokens that come back the same when their text is tokenised again, bool [V]."""
        if self._stable is not None:
            return self._stable
        tokens = [int(token) for token in np.flatnonzero(self.whole)]
        texts = [self.alone[token] for token in tokens]
        if self._fast is not None:
            encoded = [encoding.ids for encoding in self._fast.encode_batch_fast(texts, add_special_tokens=False)]
        else:
            encoded = [self.encode(text) for text in texts]
        self._stable = np.zeros(self.size, dtype=np.bool_)
        for token, ids in zip(tokens, encoded, strict=True):
            self._stable[token] = ids == [token]
        return self._stable

    def _decode(self, sequences: list[list[int]]) -> list[str]:
        if self._fast is not None:
            return list(self._fast.decode_batch(sequences, skip_special_tokens=False))
        return [
            self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for ids in sequences
        ]
