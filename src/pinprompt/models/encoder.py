"""Frozen encoders at fixed shapes: a text's vectors depend on the text alone, whatever is encoded beside it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

_STEP = 16  # texts are padded to a multiple of this; the attention mask makes padding weigh exactly nothing


@dataclass
class Encoder:
    """Vectors of a text's tokens, special tokens left out; the latest texts are kept.

    Every pass has `rows` rows, and a text's row is as long as the text itself says: on a CPU the same bits come out
    whoever shares the pass.
    """

    model: Any
    tokenizer: Any
    name: str = ""
    layer: int = -1
    """Which hidden layer is read; -1 is the last."""
    rows: int = 32
    keep: int = 8192
    """How many texts stay in memory."""
    _known: OrderedDict[str, np.ndarray] = field(default_factory=OrderedDict, init=False, repr=False)

    def __post_init__(self) -> None:
        config = self.model.config
        sizes = (getattr(config, "max_position_embeddings", None), getattr(self.tokenizer, "model_max_length", None))
        known = [int(size) for size in sizes if isinstance(size, int) and 0 < size < 100_000]
        # RoBERTa's positions start after its padding id, so the last two places of its table cannot be used.
        self._window = min([*known, 512]) - (2 if min([*known, 512]) > 100 else 0)
        pad = self.tokenizer.pad_token_id
        self._pad = pad if pad is not None else (self.tokenizer.eos_token_id or 0)

    def tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Vectors [n, d] of each text's tokens, of length 1; a text without tokens has n = 0. Long texts are cut."""
        wanted = list(dict.fromkeys(texts))
        found = {text: self._known[text] for text in wanted if text in self._known}
        missing = [text for text in wanted if text not in found]
        found.update(self._encode(missing))
        for text in wanted:
            self._known[text] = found[text]
            self._known.move_to_end(text)
        while len(self._known) > self.keep:
            self._known.popitem(last=False)
        return [found[text] for text in texts]

    def pooled(self, texts: Sequence[str]) -> np.ndarray:
        """The mean [N, d] of each text's token vectors; zeros for a text without tokens."""
        return np.stack([part.mean(0) if len(part) else np.zeros(part.shape[1], part.dtype) for part in self.tokens(texts)])

    def _encode(self, texts: list[str]) -> dict[str, np.ndarray]:
        groups: dict[int, list[tuple[str, list[int], list[int]]]] = defaultdict(list)
        for text in texts:
            row = self.tokenizer(text, truncation=True, max_length=self._window, return_special_tokens_mask=True)
            ids = list(row["input_ids"]) or [self._pad]
            special = list(row["special_tokens_mask"]) or [1]
            groups[-(-len(ids) // _STEP) * _STEP].append((text, ids, special))
        found: dict[str, np.ndarray] = {}
        for length, members in sorted(groups.items()):
            for start in range(0, len(members), self.rows):
                part = members[start : start + self.rows]
                states = self._pass([ids for _, ids, _ in part], min(length, self._window))
                for state, (text, ids, special) in zip(states, part, strict=False):
                    kept = state[: len(ids)][np.array(special) == 0]
                    found[text] = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
        return found

    def _pass(self, rows: list[list[int]], length: int) -> np.ndarray:
        ids = torch.full((self.rows, length), self._pad)
        mask = torch.zeros(self.rows, length, dtype=torch.long)
        mask[:, 0] = 1
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row)
            mask[place, : len(row)] = 1
        device = self.model.device
        with torch.no_grad():
            answer = self.model(
                input_ids=ids.to(device), attention_mask=mask.to(device), output_hidden_states=self.layer != -1
            )
        states = answer.last_hidden_state if self.layer == -1 else answer.hidden_states[self.layer]
        array: np.ndarray = states.float().cpu().numpy()
        return array
