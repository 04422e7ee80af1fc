"""The tree of prefixes: each distinct prefix is read once, and everything that depends on it alone is stored with it.

A node stores the state e; the kept set F_I, which depends on the frozen LM and the constraints and so is the same for
psi and its slow copy; and the token's own keys and values unless nothing will be read after it. Memory is bounded.
Dropped nodes are computed again when needed, with bit-identical results, since every pass has the same shape. Their
states, a small part of a node, are kept for longer: an update on Monte-Carlo returns needs nothing else of old
prefixes, and reading them again would take most of its time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pinprompt.policy.reader import Prefix, Reader

Keep = Callable[[Sequence[Prefix], Tensor], Tensor]
"""From n prefixes and their states [batch, d] (padded) to the kept sets, bool [n, V]."""


BOOKKEEPING = 512
"""Bytes of a node besides its arrays, roughly."""


@dataclass
class Node:
    """Stored results for one prefix."""

    state: Tensor
    own: Tensor | None
    kept: NDArray[np.uint8] | None = None
    """Eight tokens to a byte, as in `maths.state_values.pack`. Computed on demand: an update on Monte-Carlo returns
    needs only the states of old prefixes."""

    @property
    def bytes(self) -> int:
        parts = [part for part in (self.kept, self.own) if part is not None]
        return int(self.state.nbytes + sum(part.nbytes for part in parts)) + BOOKKEEPING


class PrefixTree:
    """States and kept sets by prefix; a prefix is a tuple of prompt ids, () is the root."""

    def __init__(self, reader: Reader, keep: Keep, size: int, tree_mb: int = 1024, enabled: bool = True) -> None:
        self.reader, self.keep, self.size, self.enabled = reader, keep, size, enabled
        self.limit = tree_mb * 2**20 * 3 // 4
        self.old_limit = tree_mb * 2**20 // 4
        """Memory for the states of dropped nodes."""
        self.hits = self.misses = 0
        self.used = 0
        self._nodes: OrderedDict[Prefix, Node] = OrderedDict()
        self._old: OrderedDict[Prefix, Tensor] = OrderedDict()
        self._root: Node | None = None
        self._node_bytes = 0

    def states(self, prefixes: Sequence[Prefix]) -> Tensor:
        """States [n, d] of the prefixes, on the backbone's device."""
        nodes = self._nodes_of(prefixes, kept=False)
        return torch.stack([nodes[prefix].state for prefix in prefixes])

    def kept(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Kept sets of the prefixes, bool [n, V], on the backbone's device."""
        return self.look(prefixes)[1]

    def packed(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Kept sets as they are stored, uint8 [n, ceil(V/8)]: an eighth of the memory."""
        nodes = self._nodes_of(prefixes)
        kept = np.stack([_packed(nodes[prefix]) for prefix in prefixes])
        return torch.from_numpy(kept).to(self.reader.backbone.device)

    def look(self, prefixes: Sequence[Prefix]) -> tuple[Tensor, Tensor]:
        """States [n, d] and kept sets [n, V]."""
        nodes = self._nodes_of(prefixes)
        stacked = torch.stack([nodes[prefix].state for prefix in prefixes])
        packed = np.stack([_packed(nodes[prefix]) for prefix in prefixes])
        bits = np.unpackbits(packed, axis=1, count=self.size, bitorder="little").view(np.bool_)
        return stacked, torch.from_numpy(bits).to(self.reader.backbone.device)

    def _nodes_of(self, prefixes: Sequence[Prefix], kept: bool = True) -> dict[Prefix, Node]:
        """The nodes of the prefixes, without keys and values, which may be dropped before the request is complete."""
        if not self.enabled:
            self.clear()
        wanted = dict.fromkeys(prefixes)
        found: dict[Prefix, Node] = {}
        if not kept:
            found = {prefix: Node(self._old[prefix], None) for prefix in wanted if prefix in self._old}
            self.hits += len(found)
            wanted = {prefix: None for prefix in wanted if prefix not in found}
        for chunk in self._chunks(wanted):
            self._learn(chunk)
            if kept:
                self._filter(chunk)
            found |= {prefix: replace(self._node(prefix), own=None) for prefix in chunk}
        return found

    def prompts_at_once(self) -> int:
        """The number of prompts whose prefixes all fit in half of the memory; at least those of one pass."""
        if self._root is None:
            self._plant()
        return max(self.reader.batch, min(1024, self.limit // 2 // (self._node_bytes * self.reader.length)))

    def clear(self) -> None:
        self.reader.forget()
        self._nodes.clear()
        self._old.clear()
        self._root, self.used = None, 0

    def _node(self, prefix: Prefix) -> Node:
        if not prefix:
            assert self._root is not None
            return self._root
        return self._nodes[prefix]

    def _chunks(self, wanted: dict[Prefix, None]) -> Iterator[list[Prefix]]:
        """Split a request so that the new nodes of one chunk fit in half of the memory.

        Chunks follow lexicographic order, in which neighbours share ancestors. A chunk is never smaller than one pass.
        """
        if self._root is None:
            self._plant()
        for prefix in wanted:
            if len(prefix) >= self.reader.length:
                raise ValueError(f"a prompt of {self.reader.length} tokens has no state before token {len(prefix)}")
            self.hits += prefix in self._nodes
        missing = [prefix for prefix in wanted if prefix not in self._nodes]
        room = max(1, self.limit // 2 // max(1, self._node_bytes))
        if sum(map(len, missing)) <= room:
            yield list(wanted)
            return
        chunk: list[Prefix] = []
        new: set[Prefix] = set()
        for prefix in sorted(wanted):
            path = {prefix[:end] for end in range(1, len(prefix) + 1)} - new
            if len(chunk) >= self.reader.batch and len(new) + len(path) > room:
                yield chunk
                chunk, new = [], set()
                path = {prefix[:end] for end in range(1, len(prefix) + 1)}
            chunk.append(prefix)
            new |= path
        yield chunk

    def _learn(self, wanted: Sequence[Prefix]) -> None:
        """Compute the missing nodes of a chunk and its ancestors, level by level, each exactly once."""
        missing: dict[int, dict[Prefix, None]] = {}
        for prefix in wanted:
            self._find(prefix, missing)
        self._trim(self.limit - self._node_bytes * sum(map(len, missing.values())), set(wanted))
        for depth in sorted(missing):
            level = list(missing[depth])
            for first in range(0, len(level), self.reader.batch):
                batch = level[first : first + self.reader.batch]
                states, own = self.reader.step(batch, self._own)
                for slot, prefix in enumerate(batch):
                    # Clones: a view would keep the whole pass alive when its neighbours are dropped.
                    node = Node(states[slot].clone(), None if own is None else own[slot].clone())
                    self._nodes[prefix] = node
                    self.used += node.bytes
                self.misses += len(batch)
        for prefix in wanted:
            self._touch(prefix)
        self._trim(self.limit, set(wanted))

    def _filter(self, wanted: Sequence[Prefix]) -> None:
        """Compute the missing kept sets of a chunk, in passes of the reader's shape."""
        bare = [prefix for prefix in wanted if self._node(prefix).kept is None]
        size = self.reader.batch
        for first in range(0, len(bare), size):
            batch = bare[first : first + size]
            nodes = [self._node(prefix) for prefix in batch]
            states = torch.stack([nodes[min(slot, len(nodes) - 1)].state for slot in range(size)])
            before = sum(node.bytes for node in nodes)
            self._fill(nodes, batch, states)
            self.used += sum(node.bytes for node in nodes) - before
        if bare:
            self._trim(self.limit, set(wanted))

    def _fill(self, nodes: Sequence[Node], prefixes: Sequence[Prefix], states: Tensor) -> None:
        kept = self.keep(prefixes, states)
        for place, node in enumerate(nodes):
            node.kept = np.packbits(kept[place].cpu().numpy(), bitorder="little")

    def _plant(self) -> None:
        """Read the empty prefix, the ancestor of all others; it is never dropped."""
        state = self.reader.root()
        self._root = Node(state[0].clone(), None)
        self._fill([self._root], [()], state)
        self._node_bytes = self._root.bytes + self.reader.own_bytes
        self.misses += 1

    def _find(self, prefix: Prefix, missing: dict[int, dict[Prefix, None]]) -> None:
        """Add an unknown prefix to `missing`, with those of its ancestors that reading it needs."""
        if not prefix or prefix in self._nodes:
            return
        # Any ancestor may have been dropped, even if its child is still stored.
        first = 1 if self.reader.backbone.incremental else len(prefix)
        for end in range(first, len(prefix) + 1):
            if prefix[:end] not in self._nodes:
                missing.setdefault(end, {})[prefix[:end]] = None

    def _own(self, prefix: Prefix) -> Tensor:
        own = self._nodes[prefix].own
        assert own is not None
        return own

    def _touch(self, prefix: Prefix) -> None:
        """Mark as recently used, ancestors last, so that a leaf is always dropped before its ancestors."""
        for end in range(len(prefix), 0, -1):
            if prefix[:end] in self._nodes:
                self._nodes.move_to_end(prefix[:end])

    def _trim(self, limit: int, wanted: set[Prefix]) -> None:
        """Drop the least recently used prefixes until the rest fits; never those of the current request."""
        if self.used <= limit:
            return
        spared = {prefix[:end] for prefix in wanted for end in range(1, len(prefix) + 1)}
        for prefix in list(self._nodes):
            if self.used <= limit:
                return
            if prefix not in spared:
                node = self._nodes.pop(prefix)
                self.used -= node.bytes
                self._keep_state(prefix, node.state)

    def _keep_state(self, prefix: Prefix, state: Tensor) -> None:
        """Keep the state of a dropped node; the one that was dropped first makes room."""
        self._old[prefix] = state
        while len(self._old) * (state.nbytes + BOOKKEEPING) > self.old_limit:
            self._old.popitem(last=False)


def _packed(node: Node) -> NDArray[np.uint8]:
    assert node.kept is not None, "kept sets are computed before they are read"
    return node.kept
