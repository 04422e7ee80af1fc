"""One update of psi, ours against the formulation of the released code.

Each variant runs in a separate process, so that its peak memory can be measured. Times are the minimum over the
repeats. Ours is `Learner.update` itself, on a tree of prefixes that has already been filled, as a search does while it
writes. The released formulation computes the kept sets (the k most likely tokens) in every update; ours finds them in
the tree. Their cost for all prefixes of the batch is measured separately, as `masks_seconds`.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pinprompt.methods.pin.learner import GAMMA, MAX_NORM, Learner, distinct_prefixes
from pinprompt.models.packed import packable
from pinprompt.policy.adapter import Adapter, follow
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.prefix_tree import PrefixTree
from pinprompt.policy.reader import Prefix, Reader
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import QLearningSettings, Target

# One update in the formulation of the released PIN code, written from its description, as the baseline.

FILTERED = -1000.0

Psi = Callable[[Tensor], Tensor]


def filtered_q(psi: Psi, states: Tensor, head: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Q/alpha of every token, or -1000 below the k-th largest LM logit: states [B, L, d] -> [B, L, V], [B, L, V]."""
    q = psi(states) @ head.T
    with torch.no_grad():
        logits = states @ head.T
        ignorable = logits < logits.topk(k).values[..., -1:]
    return torch.where(ignorable, FILTERED, q), ~ignorable


def sorted_value(q: Tensor, mask: Tensor) -> Tensor:
    """The sparsemax value by a full sort of the vocabulary: q [B, L, V], mask [B, L, V] -> [B, L]."""
    falling = q.sort(-1).values.flip(-1)
    total = falling.cumsum(-1)
    n = torch.arange(1, q.shape[-1] + 1, device=q.device, dtype=q.dtype)
    size = (1 + n * falling > total).sum(-1, keepdim=True)
    tau = (total.gather(-1, size - 1) - 1) / size
    chosen = mask & (q > tau)
    return (1 + (chosen * (q.square() - tau.square())).sum(-1)) / 2


def released_update_loss(
    psi: Psi,
    slow: Psi,
    states: Tensor,
    actions: Tensor,
    rewards: Tensor,
    head: Tensor,
    k: int,
    gamma: float,
    target: Target,
) -> Tensor:
    """The loss of a batch; both values are computed whatever the target, as the released code does (for its log).

    states [B, L, d], actions [B, L], rewards [B], head [V, d] -> scalar
    """
    q, mask = filtered_q(psi, states, head, k)
    q_t = q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        sorted_value(q, mask)
        v_slow = sorted_value(*filtered_q(slow, states, head, k))
        length = actions.shape[-1]
        if target == "bootstrap":
            aim = torch.cat([gamma * v_slow[:, 1:], rewards.unsqueeze(-1)], -1)
        else:
            aim = rewards.unsqueeze(-1) * gamma ** torch.arange(length - 1, -1, -1, device=rewards.device)
    return (q_t - aim).square().sum(-1).mean()


Variant = Literal["released", "monte_carlo", "bootstrapped"]


@dataclass(frozen=True)
class Shape:
    """The size of an update: B sequences of L tokens, |V| tokens, d dimensions, k kept, and a share of distinct ones.

    `spread` is the standard deviation of Q/alpha over tokens. A value of 1 is a trained policy with few tokens to
    choose from; near 0 is an untrained one that chooses from nearly all kept tokens.
    """

    batch: int = 256
    length: int = 5
    vocabulary: int = 50272
    dim: int = 768
    hidden: int = 2048
    k: int = 10000
    distinct: float = 1.0
    spread: float = 1.0

    @property
    def sequences(self) -> int:
        """How many of the batch's sequences are distinct; they share only the empty prefix."""
        return math.ceil(self.distinct * self.batch)


class RandomStates:
    """A stand-in for the frozen LM: a random state for each prefix and a random head, of any shape.

    Only reading is replaced. The tree, the kept sets and the learner are those of a search.
    """

    incremental = False
    over_vocabulary = Backbone.over_vocabulary
    side_by_side = Backbone.side_by_side

    def __init__(self, shape: Shape, made: torch.Generator) -> None:
        self.head = torch.randn(shape.vocabulary, shape.dim, generator=made) / math.sqrt(shape.dim)
        layer = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        layer.weight = nn.Parameter(self.head, requires_grad=False)
        self._packed_head = layer if packable(layer) else None
        self.device, self.dim, self._made = self.head.device, shape.dim, made
        self._states: dict[tuple[int, ...], Tensor] = {}

    def fits(self, length: int) -> None:
        """Any length fits."""

    def read(self, ids: Tensor) -> Tensor:
        """States [n, d] of prefixes [n, t], drawn at the first request."""
        rows = [tuple(row) for row in ids.tolist()]
        for row in rows:
            if row not in self._states:
                self._states[row] = torch.randn(self.dim, generator=self._made)
        return torch.stack([self._states[row] for row in rows])


@dataclass
class Batch:
    """Episodes [B, L] with their rewards [B], and the learner to update."""

    learner: Learner
    ids: Tensor
    rewards: Tensor
    k: int

    @cached_property
    def states(self) -> Tensor:
        """The states before each token, [B, L, d]."""
        rows = [[tuple(row[:t]) for t in range(len(row))] for row in self.ids.tolist()]
        return torch.stack([self.learner.writer.states(prefixes) for prefixes in rows])


def make(shape: Shape, target: Target = "bootstrap", seed: int = 0, **settings: float) -> Batch:
    """A learner whose tree holds every prefix of a batch, and that batch, drawn from the kept tokens."""
    made = torch.Generator().manual_seed(seed)
    frozen: Any = RandomStates(shape, made)

    def keep(prefixes: Sequence[Prefix], states: Tensor) -> Tensor:
        logits = states[: len(prefixes)] @ frozen.head.T
        kept: Tensor = logits >= logits.topk(shape.k).values[:, -1:]
        return kept

    tree = PrefixTree(Reader(frozen, [], shape.length, batch=64), keep, shape.vocabulary)
    writer = Writer(frozen, vocabulary=cast(Any, None), tree=tree, psi=Adapter(shape.dim, shape.hidden, seed))
    prefixes: list[Prefix] = [()] * shape.sequences
    for depth in range(shape.length):
        order = torch.rand(len(prefixes) if depth else 1, shape.vocabulary, generator=made)
        order = order.masked_fill(~tree.kept(prefixes if depth else [()]), -1.0)
        # The first tokens differ, so that no two prefixes are equal; later tokens are any kept ones.
        tokens = order.argmax(-1) if depth else order[0].topk(shape.sequences).indices
        prefixes = [(*prefix, token) for prefix, token in zip(prefixes, tokens.tolist(), strict=True)]
    ids = torch.tensor([prefixes[row % len(prefixes)] for row in range(shape.batch)])
    _spread(writer.psi, tree.states([prefix[:-1] for prefix in prefixes]), frozen.head, shape.spread, made)
    learner = Learner(writer, QLearningSettings.model_validate({"target": target, **settings}))
    for weight in learner.slow.parameters():
        weight.mul_(0.9)
    return Batch(learner, ids, torch.randn(shape.batch, generator=made), shape.k)


@torch.no_grad()
def _spread(psi: Adapter, states: Tensor, head: Tensor, spread: float, made: torch.Generator) -> None:
    """Draw weights for psi so that Q/alpha has a standard deviation of `spread` over tokens."""
    for weight in psi.parameters():
        weight.copy_(torch.randn(weight.shape, generator=made) / math.sqrt(weight.shape[-1]))
    deviation = (psi(states) @ head[:100].T).std()
    for weight in psi.outer.parameters():
        weight.mul_(spread / deviation)


def released_loss(batch: Batch) -> Tensor:
    """The released code's formulation, which does not reuse repeated states."""
    learner, settings = batch.learner, batch.learner.settings
    psi, head = learner.writer.psi, learner.writer.backbone.head
    return released_update_loss(
        psi, learner.slow, batch.states, batch.ids, batch.rewards, head, batch.k, GAMMA, settings.target
    )


def released_update(batch: Batch) -> None:
    """A whole update in the released code's formulation."""
    learner = batch.learner
    learner.optimiser.zero_grad()
    released_loss(batch).backward()
    nn.utils.clip_grad_norm_(learner.writer.psi.parameters(), MAX_NORM)
    learner.optimiser.step()
    follow(learner.slow, learner.writer.psi, learner.settings.rho)


def masks_seconds(batch: Batch) -> float:
    """Seconds to find and pack the kept sets of the batch's prefixes; the tree does it once per prefix."""
    tree = batch.learner.writer.tree
    prefixes, _ = distinct_prefixes(batch.ids)
    states = tree.states(prefixes)
    start = time.perf_counter()
    for first in range(0, len(prefixes), tree.reader.batch):
        part = slice(first, first + tree.reader.batch)
        np.packbits(tree.keep(prefixes[part], states[part]).numpy(), bitorder="little")
    return time.perf_counter() - start


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that an operation creates; views of the inputs do not count."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.elements = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and record the size of its outputs."""
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self._known:
                self.elements = max(self.elements, tensor.numel())
        return out


def variant(name: Variant, shape: Shape, repeats: int, threads: int) -> dict[str, float]:
    """Seconds of one update, peak memory of the process, and the largest tensor created; run in a new process."""
    torch.set_num_threads(threads)
    batch = make(shape, "monte-carlo" if name == "monte_carlo" else "bootstrap")
    facts: dict[str, float] = {}
    if name == "bootstrapped":
        facts["masks_seconds"] = masks_seconds(batch)
    if name == "released":
        assert len(batch.states)  # computes the states in advance: the released code stores them

    def update() -> None:
        if name == "released":
            released_update(batch)
        else:
            batch.learner.update(batch.ids, batch.rewards)

    facts["rest_mb"] = peak_mb()
    seconds, cpu_seconds = [], []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        update()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    facts["seconds"], facts["cpu_seconds"] = min(seconds), min(cpu_seconds)
    facts["peak_mb"] = peak_mb()
    with Largest([batch.learner.writer.backbone.head]) as seen:
        update()
    facts["largest_tensor"] = seen.elements
    return facts


def peak_mb() -> float:
    """The peak memory of this process, in MiB.

    On Linux it is read from /proc, since getrusage includes the parent's memory at the fork there.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def measure(shape: Shape = Shape(), repeats: int = 3) -> dict[str, Any]:
    """Time one update of psi in each formulation, and compute the speedups of ours.

    `*_40` has 40 % distinct sequences. `*_fresh` is an untrained policy that chooses from nearly all kept tokens, the
    slowest case for partial selection. `peak_mb` is the peak memory of the whole process, including torch and the head;
    `update_mb` is what the update added. `masks_seconds` is not part of the update. Speedups are of wall-clock time; on
    a busy machine, `cpu_seconds` (all threads) are more reliable.
    """
    threads = torch.get_num_threads()
    runs: dict[str, tuple[Variant, Shape]] = {
        "released": ("released", shape),
        "monte_carlo": ("monte_carlo", shape),
        "bootstrapped": ("bootstrapped", shape),
        "bootstrapped_40": ("bootstrapped", replace(shape, distinct=0.4)),
        "bootstrapped_fresh": ("bootstrapped", replace(shape, spread=1e-3)),
    }
    facts = {key: _alone(name, of, repeats, threads) for key, (name, of) in runs.items()}
    ours = [key for key in facts if key != "released"]
    speedup = {key: facts["released"]["seconds"] / facts[key]["seconds"] for key in ours}
    return {
        "shape": asdict(shape),
        "threads": threads,
        "repeats": repeats,
        "monte_carlo_speedup": speedup["monte_carlo"],
        "bootstrapped_speedup": speedup["bootstrapped"],
        "bootstrapped_speedup_40": speedup["bootstrapped_40"],
        "bootstrapped_speedup_fresh": speedup["bootstrapped_fresh"],
        **{f"{key}_seconds": of["seconds"] for key, of in facts.items()},
        "cpu_seconds": {key: of["cpu_seconds"] for key, of in facts.items()},
        "masks_seconds": facts["bootstrapped"]["masks_seconds"],
        "peak_mb": {key: of["peak_mb"] for key, of in facts.items()},
        "update_mb": {key: of["peak_mb"] - of["rest_mb"] for key, of in facts.items()},
        "largest_tensor": int(max(facts[key]["largest_tensor"] for key in ours)),
        "released_largest_tensor": int(facts["released"]["largest_tensor"]),
        "batch_by_length_by_vocabulary": shape.batch * shape.length * shape.vocabulary,
    }


def _alone(name: Variant, shape: Shape, repeats: int, threads: int) -> dict[str, float]:
    """Run a variant in a newly started process, so that it inherits no memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(variant, name, shape, repeats, threads).result()
