"""Frozen encoders, and a cache of judges' answers: prompts become similar, so judges are often asked the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from pinprompt.models.batches import pad_of, passes, window_of

# Frozen encoders: a text as the vectors of its tokens, which depend on the text alone and not on the rest of the batch.


@dataclass
class Encoder:
    """Vectors of a text's tokens, special tokens left out; the latest texts are kept."""

    model: Any
    tokenizer: Any
    name: str = ""
    layer: int = -1
    """Which hidden layer is read; -1 is the last."""
    rows: int = 32
    """Rows of every pass."""
    keep: int = 8192
    """How many texts stay in memory."""
    _known: OrderedDict[str, np.ndarray] = field(default_factory=OrderedDict, init=False, repr=False)

    def tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Vectors [n, d] of each text's tokens, of length 1; a text without tokens has n = 0. Long texts are cut."""
        wanted = list(dict.fromkeys(texts))
        found = {text: self._known[text] for text in wanted if text in self._known}
        found.update(self._encode([text for text in wanted if text not in found]))
        for text in wanted:
            self._known[text] = found[text]
            self._known.move_to_end(text)
        while len(self._known) > self.keep:
            self._known.popitem(last=False)
        return [found[text] for text in texts]

    def pooled(self, texts: Sequence[str]) -> np.ndarray:
        """The mean [N, d] of each text's token vectors; zeros for a text without tokens."""
        parts = self.tokens(texts)
        return np.stack([part.mean(0) if len(part) else np.zeros(part.shape[1], part.dtype) for part in parts])

    def _encode(self, texts: list[str]) -> dict[str, np.ndarray]:
        window, pad = window_of(self.model.config, self.tokenizer), pad_of(self.tokenizer)
        read = [
            self.tokenizer(text, truncation=True, max_length=window, return_special_tokens_mask=True) for text in texts
        ]
        found: dict[str, np.ndarray] = {}
        for places, ids, mask in passes([row["input_ids"] for row in read], self.rows, window, pad):
            states = self._states(ids, mask)
            for state, place in zip(states, places, strict=False):
                kept = state[: len(read[place]["input_ids"])][np.array(read[place]["special_tokens_mask"]) == 0]
                found[texts[place]] = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
        return found

    def _states(self, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
        device = self.model.device
        with torch.no_grad():
            answer = self.model(
                input_ids=ids.to(device), attention_mask=mask.to(device), output_hidden_states=self.layer != -1
            )
        states = answer.last_hidden_state if self.layer == -1 else answer.hidden_states[self.layer]
        array: np.ndarray = states.float().cpu().numpy()
        return array


K = TypeVar("K", bound=Hashable)


class Remembered(Generic[K]):
    """A judge of many questions at once that is asked each question once, as long as memory is not full."""

    def __init__(self, judge: Callable[[list[K]], Sequence[float]], most: int = 500_000) -> None:
        self._judge, self._most = judge, most
        self._known: dict[K, float] = {}

    def __call__(self, questions: Sequence[K]) -> list[float]:
        """The answers in order. An answer depends on its question alone, so forgetting changes nothing but the cost."""
        new = [question for question in dict.fromkeys(questions) if question not in self._known]
        if len(self._known) + len(new) > self._most:
            self._known.clear()
            new = list(dict.fromkeys(questions))
        if new:
            self._known.update(zip(new, map(float, self._judge(new)), strict=True))
        return [self._known[question] for question in questions]
