"""Many continuations of the same texts: the texts are read once, and those that begin alike share their beginning.

A continuation (a prompt's tokens) is a path in a tree; a node is one token read after its parent, for every text at
once. A pass reads `groups` nodes of one depth, always at the same shape, so that a node's answer is the same bits
whatever else is read or remembered. What is remembered is bounded: the least recently used nodes are read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pinprompt.models.batches import for_tokens
from pinprompt.models.kv_slots import Slots, read_many

TokenPath = tuple[int, ...]

ROWS = 256  # rows of a pass: a CPU is nearer its limit than with 64, and few nodes of a depth still fill it
SLOT_BYTES = 1 << 30  # of a list of texts; a race has several, each about as large as all before it
NODE_BYTES = 512 << 20


class _TextSlots(Slots):
    """Slots of `groups` copies of the texts, with one column per text put and taken at a time."""

    def columns(self, group: int, sizes: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a group's tokens of a depth stand: rows and columns of the store."""
        rows = torch.arange(group * len(sizes), (group + 1) * len(sizes), device=sizes.device)
        return rows, sizes + depth

    def put(self, rows: torch.Tensor, columns: torch.Tensor, node: torch.Tensor) -> None:
        self._store[:, :, rows, :, columns] = node

    def take(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return self._store[:, :, rows, :, columns].clone()


def fits(pasts: Sequence[torch.Tensor], depth: int, groups: int = 1) -> bool:
    """Whether the texts' keys and values, with room for `depth` more tokens, stay within the memory meant for them."""
    layers, two, heads, _, width = pasts[0].shape
    longest = max(past.shape[3] for past in pasts)
    token = layers * two * heads * width * pasts[0].element_size()
    return groups * len(pasts) * (longest + depth) * token <= SLOT_BYTES


class SharedPrefixes:
    """Answers after continuations of a fixed list of texts; `depth` is the longest continuation."""

    def __init__(
        self, model: Any, texts: Sequence[Sequence[int]], depth: int, *, rows: int = ROWS, node_bytes: int = NODE_BYTES
    ) -> None:
        self.model, self.depth = model, depth
        pasts = read_many(model, texts)
        if not fits(pasts, depth):
            raise MemoryError("the texts' keys and values are too large to be kept")
        groups = max(1, rows // len(texts))
        self.groups = groups if fits(pasts, depth, groups) else 1
        self.rows = len(texts)
        device = pasts[0].device
        self._sizes = torch.tensor([len(ids) for ids in texts], device=device)
        longest = int(self._sizes.max())
        self._slots = _TextSlots(model, self.groups * self.rows, longest + depth, pasts[0])
        for slot in range(self.groups * self.rows):
            self._slots.load(slot, pasts[slot % self.rows])
        self._nodes: OrderedDict[TokenPath, torch.Tensor] = OrderedDict()
        layers, two, heads, _, width = pasts[0].shape
        self._most = max(1, node_bytes // (self.rows * layers * two * heads * width * pasts[0].element_size()))
        self._held: list[TokenPath] = [()] * self.groups
        self.passes = 0
        """Passes made so far, for benchmarks and tests."""

    def logits(self, paths: Sequence[TokenPath], tokens: Sequence[int] | None) -> list[torch.Tensor]:
        """For each path, the logits [N, K] of `tokens` (of the vocabulary where None) after each text and the path."""
        found: dict[TokenPath, torch.Tensor] = {}
        for batch in self._batches(sorted(set(paths))):
            found.update(self._read(batch, tokens))
            while len(self._nodes) > self._most:
                self._nodes.popitem(last=False)
        return [found[path] for path in paths]

    def forget(self) -> None:
        """Drop every node; the texts stay."""
        self._nodes.clear()

    def _batches(self, paths: Sequence[TokenPath]) -> Iterator[list[TokenPath]]:
        """Paths that begin alike come together, as many as the nodes that may be kept."""
        batch: list[TokenPath] = []
        size = 0
        for path in paths:
            if batch and size + len(path) > self._most:
                yield batch
                batch, size = [], 0
            batch.append(path)
            size += len(path)
        if batch:
            yield batch

    def _read(self, paths: Sequence[TokenPath], tokens: Sequence[int] | None) -> dict[TokenPath, torch.Tensor]:
        wanted, found = set(paths), {}
        for depth in range(1, max(map(len, paths)) + 1):
            level = list(dict.fromkeys(path[:depth] for path in paths if len(path) >= depth))
            for node in level:
                if node in self._nodes:
                    self._nodes.move_to_end(node)
            todo = [node for node in level if node in wanted or node not in self._nodes]
            for start in range(0, len(todo), self.groups):
                nodes = todo[start : start + self.groups]
                answers = self._pass(nodes, tokens)
                found.update({node: answer for node, answer in zip(nodes, answers, strict=True) if node in wanted})
        return found

    def _pass(self, nodes: Sequence[TokenPath], tokens: Sequence[int] | None) -> list[torch.Tensor]:
        """One pass over nodes of one depth; groups without a node repeat the first one, so that the shape stays."""
        depth = len(nodes[0]) - 1
        filled = [*nodes, *[nodes[0]] * (self.groups - len(nodes))]
        for group, node in enumerate(filled):
            held = self._held[group]
            for place in range(depth):
                if held[: place + 1] != node[: place + 1]:
                    at = self._slots.columns(group, self._sizes, place)
                    self._slots.put(*at, self._nodes[node[: place + 1]])
            self._held[group] = node
        ids = [node[-1] for node in filled for _ in range(self.rows)]
        places = (self._sizes + depth).tolist() * self.groups
        with for_tokens(self.model, tokens):
            logits = self._slots.step(ids, places)
        self.passes += 1
        if tokens is not None and logits.shape[-1] != len(tokens):
            logits = logits[:, list(tokens)]
        for group, node in enumerate(nodes):
            self._nodes[node] = self._slots.take(*self._slots.columns(group, self._sizes, depth))
        return [part.float() for part in torch.split(logits, self.rows)[: len(nodes)]]
