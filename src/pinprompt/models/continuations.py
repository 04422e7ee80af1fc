"""Many prompts after the same texts: the texts are read once, each prompt in one pass.

A pass reads prompts of one length after all texts. It reads one prompt if that already gives large matrix products,
otherwise a few. Its shape depends only on the texts and on that length, so a prompt's result is bit-identical whatever
else is in the pass. Prompts with a common beginning share no work: reading them token by token along a tree of
beginnings took 1.6 times as long even for prompts of a sparse policy (docs/notebook.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from pinprompt.models.packed import PackedLayers
from pinprompt.models.passes import (
    FixedLayer,
    for_tokens,
    logits_at,
    read_many,
    row_attention,
    side_by_side,
    token_bytes,
)

TokenPath = tuple[int, ...]

SLOT_BYTES = 1 << 30  # limit for one list of texts; a race has several, each about as large as all earlier ones
TOKENS = 64  # fewest tokens in a pass: more is hardly faster, and there are rarely enough prompts of one length
CHUNK = 32  # texts read at a time if they are not kept


class _Behind(FixedLayer):
    """Keys and values of the texts [N, H, T, D]; every prompt of a pass attends to them and then to its own."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The texts are not written to, so several passes can read them at the same time.
        return _joined(self.keys, key_states), _joined(self.values, value_states)


def _joined(texts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """States [G x N, H, n, D] appended to those of the texts [N, H, T, D], which all G prompts share."""
    rows, heads, longest, width = texts.shape
    joined = states.new_empty(len(states) // rows, rows, heads, longest + states.shape[2], width)
    joined[..., :longest, :] = texts
    joined[..., longest:, :] = states.view(-1, rows, *states.shape[1:])
    return joined.flatten(0, 1)


class WholePrompts:
    """Logits after prompts that follow a fixed list of texts.

    `depth` is the length of the longest prompt, `tokens` the number of tokens that a pass should have.
    """

    def __init__(self, model: Any, texts: Sequence[Sequence[int]], depth: int, *, tokens: int, limit: int) -> None:
        self.model, self.depth, self.tokens, self.rows = model, depth, tokens, len(texts)
        self._sizes = torch.tensor([len(ids) for ids in texts], device=model.device)
        self._longest = int(self._sizes.max())
        if self.rows * (self._longest + self.depth) * token_bytes(model) > limit:
            raise MemoryError("the texts' keys and values are too large to be kept")
        pasts = read_many(model, texts)
        layers, two, heads, _, width = pasts[0].shape
        # Zeros, not uninitialised memory: masked columns have a weight of exactly 0 only if they are finite.
        self._store = pasts[0].new_zeros(layers, two, self.rows, heads, self._longest, width)
        for row, past in enumerate(pasts):
            self._store[:, :, row, :, : past.shape[3]] = past
        self.passes = 0
        """Passes made so far, for benchmarks and tests."""

    def groups(self, depth: int) -> int:
        """How many prompts of `depth` tokens one pass reads."""
        return max(1, self.tokens // (self.rows * depth))

    def logits(self, paths: Sequence[TokenPath], tokens: Sequence[int] | None, last: int = 1) -> list[torch.Tensor]:
        """For each path, logits [N, last, K] of `tokens` (of the vocabulary where None) at its last places."""
        return logits_behind([self], paths, tokens, last)[0]

    def parts(self, paths: Sequence[TokenPath]) -> list[list[TokenPath]]:
        """The paths of each pass: as many of one depth as it has groups."""
        by_depth: dict[int, list[TokenPath]] = {}
        for path in dict.fromkeys(paths):
            by_depth.setdefault(len(path), []).append(path)
        return [
            members[start : start + self.groups(depth)]
            for depth, members in by_depth.items()
            for start in range(0, len(members), self.groups(depth))
        ]

    def _pass(self, paths: Sequence[TokenPath], tokens: Sequence[int] | None, last: int) -> list[torch.Tensor]:
        """One pass over paths of one depth; unused groups repeat the first path, so that the shape is constant."""
        depth, device = len(paths[0]), self._store.device
        size = self.groups(depth)
        filled = [*paths, *[paths[0]] * (size - len(paths))]
        ids = torch.tensor(filled, device=device)
        places = (depth - last + torch.arange(last, device=device)).expand(size * self.rows, -1)
        with torch.no_grad():
            answer = logits_at(
                self.model,
                places,
                tokens,
                input_ids=ids.repeat_interleave(self.rows, 0),
                attention_mask=self._mask(depth).repeat(size, 1, 1, 1),
                position_ids=(self._sizes[:, None] + torch.arange(depth, device=device)).repeat(size, 1),
                past_key_values=Cache(layers=[_Behind(keys, values) for keys, values in self._store]),
                use_cache=True,
            )
        return list(torch.split(answer, self.rows)[: len(paths)])

    def _mask(self, depth: int) -> torch.Tensor:
        """Attention mask [N, 1, depth, T + depth]: a token attends to its text and to the prompt up to itself."""
        device = self._store.device
        text = torch.arange(self._longest, device=device)[None] < self._sizes[:, None]
        own = torch.ones(depth, depth, dtype=torch.bool, device=device).tril()
        seen = torch.cat([text[:, None].expand(-1, depth, -1), own.expand(self.rows, -1, -1)], -1)
        mask = torch.zeros(seen.shape, dtype=self._store.dtype, device=device)
        return mask.masked_fill(~seen, torch.finfo(mask.dtype).min)[:, None]


def logits_behind(
    readers: Sequence[WholePrompts], paths: Sequence[TokenPath], tokens: Sequence[int] | None, last: int = 1
) -> list[list[torch.Tensor]]:
    """For each reader of the same model and each path, logits [N, last, K]; the passes of all readers side by side.

    Long passes begin first, so that at the end no thread waits long for another.
    """
    passes = [(reader, part) for reader in readers for part in reader.parts(paths)]
    passes.sort(key=lambda one: -one[0].rows * len(one[1][0]))
    first = readers[0]
    with row_attention(first.model), for_tokens(first.model, tokens), PackedLayers(first.model.base_model):
        answers = side_by_side(lambda one: one[0]._pass(one[1], tokens, last), passes, first.model.device)
    found: dict[WholePrompts, dict[TokenPath, torch.Tensor]] = {reader: {} for reader in readers}
    for (reader, part), answer in zip(passes, answers, strict=True):
        reader.passes += 1
        found[reader].update(zip(part, answer, strict=True))
    return [[found[reader][path] for path in paths] for reader in readers]
