"""Reading prefixes in passes of one fixed shape: always `batch` prefixes of one token.

On a CPU a slot's result is bit-identical whatever else is in its batch, as long as the number of slots is the same.
So a state depends on its prefix alone: not on the rest of the batch, its slot, or what was read earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pinprompt.policy.backbone import Backbone

Prefix = tuple[int, ...]


class Reader:
    """Computes states of prefixes after fixed start ids.

    The buffers [batch, heads, places, dim] of each layer hold the start's keys and values. A slot keeps the path
    that it read last, so a prefix that extends this path needs no copy.
    """

    def __init__(self, backbone: Backbone, start: Sequence[int], length: int, batch: int) -> None:
        self.backbone, self.length, self.batch = backbone, length, batch
        self.start = list(start)
        # A state is asked for before each of the `length` tokens, so the last token itself is never read.
        self.places = len(self.start) + length - 1
        backbone.fits(self.places)
        self._held: list[Prefix]
        self.forget()
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._cache: Any = None

    @property
    def own_bytes(self) -> int:
        """Bytes of one token's keys and values; known once the root has been read."""
        return sum(tensor[0, :, 0].nbytes for layer in self._layers for tensor in layer)

    def forget(self) -> None:
        """Forget which path each slot holds."""
        self._held = [() for _ in range(self.batch)]

    def root(self) -> Tensor:
        """The state [1, d] of the empty prefix: the start ids, read in a separate pass."""
        ids = torch.tensor([self.start], device=self.backbone.device)
        if not self.backbone.incremental:
            return self.backbone.read(ids)
        cache = self.backbone.growing_cache()
        state = self.backbone.read(ids, cache)
        if self._cache is None:
            for layer in cache.layers:
                self._layers.append((self._room(layer.keys), self._room(layer.values)))
            self._cache = self.backbone.slots(self._layers)
        return state

    def step(self, prefixes: Sequence[Prefix], known: Callable[[Prefix], Tensor]) -> tuple[Tensor, Tensor | None]:
        """States [batch, d] of at most `batch` prefixes of one depth (the rest is padding), and their own keys/values.

        `known` returns a shorter prefix's own keys and values [size], as an earlier step gave them. The new ones are
        [n, size], or None if nothing will be read after these prefixes.
        """
        depth = len(prefixes[0])
        if not self.backbone.incremental:
            padded = [prefixes[min(slot, len(prefixes) - 1)] for slot in range(self.batch)]
            ids = torch.tensor([[*self.start, *prefix] for prefix in padded], device=self.backbone.device)
            return self.backbone.read(ids), None
        order = self._place(prefixes, known)
        tokens = [prefixes[0][-1]] * self.batch
        for prefix, slot in zip(prefixes, order, strict=True):
            tokens[slot] = prefix[-1]
        for layer in self._cache.layers:
            layer.filled = len(self.start) + depth - 1
        states = self.backbone.read(torch.tensor(tokens, device=self.backbone.device)[:, None], self._cache)
        for slot, token in enumerate(tokens):
            held = self._held[slot]
            self._held[slot] = (*held[: depth - 1], token) if len(held) >= depth - 1 else held
        index = torch.tensor(order, device=self.backbone.device)
        padded_index = torch.cat([index, index[-1:].expand(self.batch - len(order))])
        return states[padded_index], self._own(depth, index) if depth < self.length - 1 else None

    def _place(self, prefixes: Sequence[Prefix], known: Callable[[Prefix], Tensor]) -> list[int]:
        """Give each prefix a slot, if possible one that holds its parent, and copy missing keys and values."""
        depth = len(prefixes[0])
        holders: dict[Prefix, list[int]] = {}
        for slot in reversed(range(self.batch)):
            if len(self._held[slot]) >= depth - 1:
                holders.setdefault(self._held[slot][: depth - 1], []).append(slot)
        order = [slots.pop() if (slots := holders.get(prefix[:-1])) else -1 for prefix in prefixes]
        free = iter(sorted(set(range(self.batch)) - set(order)))
        strangers: list[tuple[int, Prefix]] = []
        for place, prefix in enumerate(prefixes):
            if order[place] < 0:
                order[place] = next(free)
                strangers.append((order[place], prefix[:-1]))
        if strangers and depth > 1:
            self._copy(strangers, known)
        return order

    def _copy(self, strangers: list[tuple[int, Prefix]], known: Callable[[Prefix], Tensor]) -> None:
        """Copy paths into slots, starting at the first position where any of the slots differs."""
        end = len(strangers[0][1])
        first = min(_shared(self._held[slot], path) for slot, path in strangers)
        own = torch.stack([known(path[: place + 1]) for _, path in strangers for place in range(first, end)])
        own = own.view(len(strangers), end - first, -1)
        slots = torch.tensor([slot for slot, _ in strangers], device=own.device)
        places = slice(len(self.start) + first, len(self.start) + end)
        offset = 0
        for buffer in (tensor for layer in self._layers for tensor in layer):
            heads, dim = buffer.shape[1], buffer.shape[3]
            part = own[:, :, offset : offset + heads * dim].view(len(strangers), end - first, heads, dim)
            buffer[slots, :, places] = part.transpose(1, 2)
            offset += heads * dim
        for slot, path in strangers:
            self._held[slot] = path

    def _own(self, depth: int, slots: Tensor) -> Tensor:
        """Keys and values [n, size] that the last pass wrote for the tokens of the given slots."""
        place = len(self.start) + depth - 1
        return torch.cat([tensor[slots, :, place].flatten(1) for layer in self._layers for tensor in layer], dim=1)

    def _room(self, start: Tensor) -> Tensor:
        """A buffer for one layer, with the start's keys or values [1, heads, C, dim] in every slot."""
        _, heads, filled, dim = start.shape
        buffer = start.new_zeros(self.batch, heads, self.places, dim)
        buffer[:, :, :filled] = start
        return buffer


def _shared(left: Prefix, right: Prefix) -> int:
    """The number of tokens that two prefixes have in common at the start."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
