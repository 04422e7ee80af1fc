"""Many prompts behind the same texts: the texts are read once, and each prompt is read whole in one pass.

A pass has prompts of one length beside all texts: one where that makes large matrix products already, else a few. Its
shape depends on the texts and on that length alone, so that what a prompt gets is the same bits whatever else is in
the pass. Prompts that begin alike share nothing here (`shared_prefixes` does
that, one token at a time, which pays where a policy writes the same few beginnings again and again).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from pinprompt.models.batches import logits_of
from pinprompt.models.kv_slots import FixedLayer, read_many, row_attention, token_bytes
from pinprompt.models.shared_prefixes import TokenPath

TOKENS = 64  # of a pass at least: larger ones are hardly faster, and prompts of one length that fill them are few
CHUNK = 32  # texts at a time where they are not kept


class _Behind(FixedLayer):
    """Keys and values [R, H, T + n, D]: T columns of text that stay, then n that each pass writes."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
        super().__init__(keys, values)
        self.start = start

    def write(self, store: torch.Tensor, states: torch.Tensor) -> None:
        store[:, :, self.start :] = states


class WholePrompts:
    """Answers after prompts behind a fixed list of texts; `depth` is the longest prompt, `tokens` those of a pass."""

    def __init__(self, model: Any, texts: Sequence[Sequence[int]], depth: int, *, tokens: int, limit: int) -> None:
        self.model, self.depth, self.tokens, self.rows = model, depth, tokens, len(texts)
        self._sizes = torch.tensor([len(ids) for ids in texts], device=model.device)
        self._longest = int(self._sizes.max())
        # Long texts leave room for fewer prompts beside them.
        self._most = limit // (self.rows * (self._longest + self.depth) * token_bytes(model))
        if not self._most:
            raise MemoryError("the texts' keys and values are too large to be kept")
        pasts = read_many(model, texts)
        layers, two, heads, _, width = pasts[0].shape
        shape = (layers, two, self.groups(1) * self.rows, heads, self._longest + self.depth, width)
        # Zeros, not empty memory: masked columns weigh exactly nothing only as long as they are finite.
        self._store = pasts[0].new_zeros(shape)
        for row, past in enumerate(pasts):
            self._store[:, :, row :: self.rows, :, : past.shape[3]] = past[:, :, None]
        self.passes = 0
        """Passes made so far, for benchmarks and tests."""

    def groups(self, depth: int) -> int:
        """Prompts of a pass that is `depth` tokens deep."""
        return max(1, min(self._most, self.tokens // (self.rows * depth)))

    def logits(self, paths: Sequence[TokenPath], tokens: Sequence[int] | None, last: int = 1) -> list[torch.Tensor]:
        """For each path, logits [N, last, K] of `tokens` (of the vocabulary where None) at its last places."""
        found: dict[TokenPath, torch.Tensor] = {}
        by_depth: dict[int, list[TokenPath]] = {}
        for path in dict.fromkeys(paths):
            by_depth.setdefault(len(path), []).append(path)
        for depth, members in by_depth.items():
            size = self.groups(depth)
            for start in range(0, len(members), size):
                part = members[start : start + size]
                found.update(zip(part, self._pass(part, depth, tokens, last), strict=True))
        return [found[path] for path in paths]

    def _pass(
        self, paths: Sequence[TokenPath], depth: int, tokens: Sequence[int] | None, last: int
    ) -> list[torch.Tensor]:
        """One pass; groups without a prompt repeat the first one, so that the shape stays."""
        size = self.groups(depth)
        filled = [*paths, *[paths[0]] * (size - len(paths))]
        device, rows, end = self._store.device, size * self.rows, self._longest + depth
        ids = torch.tensor(filled, device=device)
        layers = [_Behind(part[0, :rows, :, :end], part[1, :rows, :, :end], self._longest) for part in self._store]
        places = (depth - last + torch.arange(last, device=device)).expand(rows, -1)
        with torch.no_grad(), row_attention(self.model):
            answer = logits_of(
                self.model,
                places,
                tokens,
                input_ids=ids.repeat_interleave(self.rows, 0),
                attention_mask=self._mask(depth).repeat(size, 1, 1, 1),
                position_ids=(self._sizes[:, None] + torch.arange(depth, device=device)).repeat(size, 1),
                past_key_values=Cache(layers=layers),
                use_cache=True,
            )
        self.passes += 1
        return list(torch.split(answer, self.rows)[: len(paths)])

    def _mask(self, depth: int) -> torch.Tensor:
        """What the i-th token of a prompt reads, [N, 1, depth, T + depth]: its text, and the prompt up to itself."""
        device = self._store.device
        text = torch.arange(self._longest, device=device)[None] < self._sizes[:, None]
        own = torch.ones(depth, depth, dtype=torch.bool, device=device).tril()
        seen = torch.cat([text[:, None].expand(-1, depth, -1), own.expand(self.rows, -1, -1)], -1)
        mask = torch.zeros(seen.shape, dtype=self._store.dtype, device=device)
        return mask.masked_fill(~seen, torch.finfo(mask.dtype).min)[:, None]
