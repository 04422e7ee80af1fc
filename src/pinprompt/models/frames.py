"""A text with what stands around it, as token ids that fit a model's window: only the text is ever cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pinprompt.errors import ModelError, TaskError


@dataclass(frozen=True)
class Frame:
    """What stands before and after the text. `mask` is the place of the mask: which part, and its character offset.

    The offset tells the template's own mask from one that a text or a prompt happens to hold.
    """

    before: str
    after: str
    mask: tuple[str, int] | None = None

    def around(self, text: str, mask_token: str = "", masks: int = 1) -> tuple[str, int]:
        """The whole string with `masks` mask tokens at the mask's place, and how many mask tokens stand before it."""
        if self.mask is None:
            return self.before + text + self.after, 0
        part, offset = self.mask
        if part == "before":
            lead, trail = self.before[:offset], self.before[offset:] + text + self.after
        else:
            lead, trail = self.before + text + self.after[:offset], self.after[offset:]
        return lead + mask_token * masks + trail, lead.count(mask_token) if mask_token else 0


class Encoder:
    """Strings to ids with the tokenizer's own special tokens around them, cut to a window."""

    def __init__(self, tokenizer: Any, window: int, *, closing: bool) -> None:
        """`closing` keeps the special tokens that end a sequence (masked models); causal models read on."""
        self.tokenizer, self.window = tokenizer, window
        bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
        full = list(tokenizer("a")["input_ids"])
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), None)
        if start is None or not bare:
            raise ModelError(
                f"the tokenizer {type(tokenizer).__name__} gives no ids for a plain letter; is it complete?"
            )
        self.lead = full[:start]
        self.trail = full[start + len(bare) :] if closing else []

    def pieces(self, strings: Sequence[str]) -> list[list[int]]:
        """The ids of each string alone, without special tokens."""
        if not strings:
            return []
        return [
            list(ids) for ids in self.tokenizer(list(strings), add_special_tokens=False, verbose=False)["input_ids"]
        ]

    def ids(self, strings: Sequence[str]) -> list[list[int]]:
        """The ids of each string with the special tokens; never empty, since a model must read something."""
        found = [[*self.lead, *ids, *self.trail] for ids in self.pieces(strings)]
        return [ids or [self._anything()] for ids in found]

    def _anything(self) -> int:
        known = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        return next((token for token in known if token is not None), 0)

    def shorten(self, text: str, tokens: int) -> str:
        """The text up to its first so many tokens."""
        if tokens <= 0:
            return ""
        if getattr(self.tokenizer, "is_fast", False):
            answer = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            ends = [end for _, end in answer["offset_mapping"]]
            return text if len(ends) <= tokens else text[: ends[tokens - 1]].rstrip()
        ids = self.pieces([text])[0]
        return text if len(ids) <= tokens else str(self.tokenizer.decode(ids[:tokens], skip_special_tokens=True))

    def fit(
        self, frame: Frame, texts: Sequence[str], reserve: int = 0, mask_token: str = "", masks: int = 1
    ) -> tuple[list[list[int]], list[int]]:
        """Ids of every text in its frame, texts cut so that `reserve` more fit; and the masks before the mask."""
        room = self.window - reserve
        built = [frame.around(text, mask_token, masks) for text in texts]
        rows = self.ids([whole for whole, _ in built])
        before = [count for _, count in built]
        for i, text in enumerate(texts):
            size = len(self.pieces([text])[0]) if len(rows[i]) > room else 0
            while len(rows[i]) > room:
                if size <= 0:
                    raise TaskError(
                        f"the prompt alone takes {len(rows[i])} tokens and the model's window has {room}: no text fits "
                        f"beside it ('{frame.before[:40]}...{frame.after[-40:]}'). Use a shorter prompt."
                    )
                # Cutting can change how the seam is tokenised, hence the loop.
                size = min(size - 1, size - (len(rows[i]) - room))
                whole, before[i] = frame.around(self.shorten(text, size), mask_token, masks)
                rows[i] = self.ids([whole])[0]
        return rows, before


def window_of(model: Any, tokenizer: Any) -> int:
    """How many tokens a sequence may have: the smaller of what the model's positions and the tokenizer say."""
    sizes = [getattr(model.config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
    sizes.append(getattr(tokenizer, "model_max_length", None))
    for name, module in model.named_modules():
        # RoBERTa's positions begin after its padding id, so that its table holds fewer places than it has rows.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            sizes.append(module.num_embeddings - module.padding_idx - 1)
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=1 << 20)
