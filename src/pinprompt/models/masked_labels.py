"""A masked LM as a labeller: how likely each label's word is in the mask's place.

The base model's hidden state at the mask alone goes through the head, and there to the label words' rows; rows of
like length are read together. Any head that transformers has serves, since the model's own forward runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pinprompt.errors import ModelError
from pinprompt.models.batches import logits_of
from pinprompt.models.causal_labels import BATCH, Inputs, LocalLabels, around_vectors, padded
from pinprompt.models.label_text import (
    Frame,
    LabelWords,
    WindowEncoder,
    probabilities,
    sequence_log_probs,
    window_of,
    words_in_mask,
)


class MaskedLabels(LocalLabels):
    """Label probabilities of a frozen masked LM."""

    kind = "masked"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        words: Mapping[str, str],
        frame: Frame,
        *,
        strict: bool = False,
        spaced: bool | None = None,
    ) -> None:
        """`frame` is any frame of the template; `spaced` forces label words with or without a leading space."""
        if tokenizer.mask_token is None:
            raise ModelError(f"the tokenizer {type(tokenizer).__name__} has no mask token: this is not a masked LM.")
        self.model, self.tokenizer, self.mask_token = model, tokenizer, str(tokenizer.mask_token)
        self.encoder = WindowEncoder(tokenizer, window_of(model, tokenizer), closing=True)
        forced = spaced if _tells_spaces(self.encoder) else None
        self.words = words_in_mask(self.encoder, words, frame, self.mask_token, spaced=forced, strict=strict)
        self._pad = tokenizer.pad_token_id or 0

    @property
    def sequences(self) -> int:
        """Sequences that one text and prompt cost: one per number of masks that the label words need."""
        return len({len(ids) for ids in self.words.ids})

    def words_for(self, frame: Frame, words: Mapping[str, str] | None = None) -> LabelWords:
        """The ids of the label words, or of others, in another template, as the tokenizer reads them there."""
        return words_in_mask(self.encoder, words or self.words.words, frame, self.mask_token)

    @torch.no_grad()
    def log_probs(self, frames: Sequence[Frame], inputs: Inputs, words: LabelWords | None = None) -> list[torch.Tensor]:
        """For each frame, log-probabilities among the labels [N, C] for every text, on the CPU.

        `words` are those of `words_for`, for frames of another template than the model was made with.
        """
        found = {frame: self._one(frame, inputs, words or self.words) for frame in dict.fromkeys(frames)}
        return [found[frame] for frame in frames]

    def _one(self, frame: Frame, inputs: Inputs, words: LabelWords) -> torch.Tensor:
        if words.single:
            return probabilities(self._read(frame, inputs.texts, 1, words.firsts)[:, 0]).cpu()
        answer = torch.empty(len(inputs.texts), len(words.ids))
        for count in sorted({len(ids) for ids in words.ids}):
            # A word of n tokens is asked for with n masks; its probability is the product of its tokens'.
            logits = self._read(frame, inputs.texts, count, None)
            for label, ids in enumerate(words.ids):
                if len(ids) == count:
                    answer[:, label] = sequence_log_probs(logits, ids).cpu()
        return probabilities(answer)

    def _read(self, frame: Frame, texts: Sequence[str], masks: int, tokens: Sequence[int] | None) -> torch.Tensor:
        rows, before = self.encoder.fit(frame, texts, mask_token=self.mask_token, masks=masks)
        places = [self.mask_places(row, skip, masks) for row, skip in zip(rows, before, strict=True)]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        found: dict[int, torch.Tensor] = {}
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            given, _ = padded([rows[row] for row in chosen], self._pad, self.model.device)
            where = torch.tensor([places[row] for row in chosen], device=self.model.device)
            found.update(zip(chosen, logits_of(self.model, where, tokens, **given), strict=True))
        return torch.stack([found[row] for row in range(len(rows))])

    def mask_places(self, ids: Sequence[int], skip: int, masks: int = 1) -> list[int]:
        """Where the template's masks stand, when `skip` others stand before them."""
        found = [place for place, token in enumerate(ids) if token == self.tokenizer.mask_token_id]
        if len(found) < skip + masks:
            raise ModelError(
                f"the tokenizer reads no mask in the template: '{self.mask_token}' did not become its mask id "
                f"{self.tokenizer.mask_token_id}. The tokenizer's files may be incomplete."
            )
        return found[skip : skip + masks]

    def vector_logits(
        self, vectors: torch.Tensor, sides: Sequence[tuple[Sequence[int], Sequence[int]]], skips: Sequence[int] = ()
    ) -> torch.Tensor:
        """Label logits [n, C] with prompt vectors between the ids of each pair; differentiable in the vectors.

        `skips` says for each pair how many masks stand before the template's own.
        """
        places = []
        for (left, right), skip in zip(sides, skips or [0] * len(sides), strict=True):
            place = self.mask_places([*left, *right], skip)[0]
            places.append([place if place < len(left) else place + len(vectors)])
        given, _ = around_vectors(self.model, vectors, sides)
        return logits_of(self.model, torch.tensor(places, device=vectors.device), self.words.firsts, **given)[:, 0]


def _tells_spaces(encoder: WindowEncoder) -> bool:
    """Whether a word with a space before it is another token than without: byte-level tokenizers, not WordPiece."""
    with_space, without = encoder.pieces([" the", "the"])
    return with_space != without
