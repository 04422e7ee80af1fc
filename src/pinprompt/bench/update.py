"""`pinprompt bench update`: one update of psi, ours against the formulation of the released code.

Each variant runs in a process of its own, so that its peak memory is its own. Seconds are the least of the repeats.
What a state keeps (the k likeliest tokens) is found once per prefix in our variants, when the writer first reaches
it; the update finds it there. Its cost for all prefixes of the batch is measured apart, as `masks_seconds`.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pinprompt.errors import SettingError
from pinprompt.maths import targets
from pinprompt.maths.state_values import kept_value, pack, taken

# One update in the formulation of the released PIN code, written anew from its description, to measure against.

FILTERED = -1000.0

Psi = Callable[[Tensor], Tensor]


def filtered_q(psi: Psi, states: Tensor, head: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Q/alpha of every token, at -1000 below the k-th largest LM logit: states [B, L, d] -> [B, L, V], [B, L, V]."""
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
    target: Literal["bootstrap", "monte-carlo"],
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
GAMMA, RATE, RHO, CLIP = 1.0, 5e-5, 0.999, 5.0


@dataclass(frozen=True)
class Shape:
    """What is updated: B sequences of L tokens, |V| tokens, d dimensions, k kept; a share of the prefixes distinct.

    `spread` is the deviation of Q/alpha over tokens: 1 is a policy that has learnt and chooses among some tokens;
    near 0 it is fresh and chooses among nearly all that it keeps.
    """

    batch: int = 256
    length: int = 5
    vocabulary: int = 50272
    dim: int = 768
    hidden: int = 2048
    k: int = 10000
    distinct: float = 1.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        if min(self.batch, self.length, self.vocabulary, self.dim, self.hidden, self.k) < 1:
            raise SettingError(f"Every size of the bench must be at least 1: got {asdict(self)}.")
        if self.k > self.vocabulary:
            raise SettingError(f"k = {self.k} is beyond the vocabulary of {self.vocabulary}; lower k.")
        if not 0 < self.distinct <= 1:
            raise SettingError(f"The share of distinct prefixes is {self.distinct}; it must lie in (0, 1].")


@dataclass
class Batch:
    """Distinct states [U, d] (state 0 is the empty prefix), which state stands where [B, L], and what was done."""

    states: Tensor
    where: Tensor
    actions: Tensor
    rewards: Tensor
    head: Tensor
    k: int


def make(shape: Shape, seed: int = 0) -> tuple[nn.Module, nn.Module, Batch]:
    """psi, its slow copy, and a batch of random weights and states, with every distinct prefix in use."""
    made = torch.Generator().manual_seed(seed)
    spots = shape.batch * (shape.length - 1)
    prefixes = math.ceil(shape.distinct * spots)
    states = torch.randn(1 + prefixes, shape.dim, generator=made)
    head = torch.randn(shape.vocabulary, shape.dim, generator=made) / math.sqrt(shape.dim)
    spread = torch.arange(spots)[torch.randperm(spots, generator=made)] % max(prefixes, 1) + 1
    where = torch.cat([torch.zeros(shape.batch, 1, dtype=torch.long), spread.view(shape.batch, -1)], -1)
    # The likeliest of some tokens at random: a kept one wherever k is not tiny, as what was written always is.
    likely = (states @ head.T[:, : max(shape.vocabulary // 10, 1)]).argmax(-1)
    actions = likely[where]
    rewards = torch.randn(shape.batch, generator=made)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        psi = nn.Sequential(nn.Linear(shape.dim, shape.hidden), nn.ReLU(), nn.Linear(shape.hidden, shape.dim))
    with torch.no_grad():
        deviation = (psi(states) @ head[:100].T).std()
        for weight in psi[2].parameters():
            weight.mul_(shape.spread / deviation)
    slow = copy.deepcopy(psi)
    with torch.no_grad():
        for weight in slow.parameters():
            weight.mul_(0.9)
    return psi, slow, Batch(states, where, actions, rewards, head, shape.k)


def kept_bits(states: Tensor, head: Tensor, k: int, rows: int = 64) -> Tensor:
    """The tokens that each state keeps, the k likeliest with ties, packed: [U, d] -> [U, ceil(V/8)]."""
    packed = []
    for start in range(0, len(states), rows):
        logits = states[start : start + rows] @ head.T
        packed.append(pack(logits >= logits.topk(k).values[:, -1:]))
    return torch.cat(packed)


def released_loss(psi: nn.Module, slow: nn.Module, batch: Batch, target: Literal["bootstrap", "monte-carlo"]) -> Tensor:
    """The released code's formulation, which knows nothing of repeated states."""
    states = batch.states[batch.where]
    return released_update_loss(psi, slow, states, batch.actions, batch.rewards, batch.head, batch.k, GAMMA, target)


def monte_carlo_loss(psi: nn.Module, batch: Batch) -> Tensor:
    """Ours against the return: psi once per distinct state, and Q of the taken tokens alone."""
    q_t = taken(psi(batch.states)[batch.where], batch.head, batch.actions)
    return targets.squared_error(q_t, targets.monte_carlo(batch.rewards, q_t.shape[-1], GAMMA))


def bootstrapped_loss(psi: nn.Module, slow: nn.Module, batch: Batch, bits: Tensor) -> Tensor:
    """Ours against the slow copy's values of the distinct next states; state 0, the empty prefix, is never next."""
    with torch.no_grad():
        values = kept_value(slow(batch.states[1:]), batch.head, bits[1:], "tsallis")
    v_next = values[batch.where[:, 1:] - 1]
    q_t = taken(psi(batch.states)[batch.where], batch.head, batch.actions)
    return targets.squared_error(q_t, targets.bootstrapped(batch.rewards, v_next, GAMMA))


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most elements of any tensor that an operation makes; views of the given inputs are not made."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what came out."""
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self._known:
                self.elements = max(self.elements, tensor.numel())
        return out


def variant(name: Variant, shape: Shape, repeats: int, threads: int) -> dict[str, float]:
    """Seconds of one update, peak memory of the process, and the largest tensor made; run in a fresh process."""
    torch.set_num_threads(threads)
    psi, slow, batch = make(shape)
    facts: dict[str, float] = {}
    bits = torch.empty(0)
    if name == "bootstrapped":
        start = time.perf_counter()
        bits = kept_bits(batch.states, batch.head, batch.k)
        facts["masks_seconds"] = time.perf_counter() - start
    losses: dict[Variant, Callable[[], Tensor]] = {
        "released": lambda: released_loss(psi, slow, batch, "bootstrap"),
        "monte_carlo": lambda: monte_carlo_loss(psi, batch),
        "bootstrapped": lambda: bootstrapped_loss(psi, slow, batch, bits),
    }
    optimiser = torch.optim.Adam(psi.parameters(), lr=RATE)

    def update() -> None:
        optimiser.zero_grad()
        losses[name]().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(psi.parameters(), CLIP)
        optimiser.step()
        if name != "monte_carlo":
            with torch.no_grad():
                for own, other in zip(slow.parameters(), psi.parameters(), strict=True):
                    own.lerp_(other, 1 - RHO)

    facts["rest_mb"] = peak_mb()
    seconds, cpu_seconds = [], []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        update()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    facts["seconds"], facts["cpu_seconds"] = min(seconds), min(cpu_seconds)
    facts["peak_mb"] = peak_mb()
    with Largest([batch.head]) as seen:
        update()
    facts["largest_tensor"] = seen.elements
    return facts


def peak_mb() -> float:
    """The most memory that this process has held, in MiB.

    On Linux from the process's own status: what getrusage says there includes the parent's memory at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def measure(
    batch: int = 256,
    length: int = 5,
    vocabulary: int = 50272,
    dim: int = 768,
    hidden: int = 2048,
    k: int = 10000,
    distinct: float = 1.0,
    repeats: int = 3,
    threads: int | None = None,
) -> dict[str, Any]:
    """Time one update of psi in each formulation and say how many times faster ours are.

    `*_40` has 40 % of the prefixes distinct; `*_fresh` is a policy that has learnt nothing and chooses among nearly
    all tokens it keeps, the dearest case for partial selection. Peak memory is of a whole process: `peak_mb` with
    torch and the head in it, `update_mb` what the update added. `masks_seconds` stands outside the update.
    Speedups are of the clock on the wall; `cpu_seconds` (all threads) tell more where the machine is not quiet.
    """
    shape = Shape(batch, length, vocabulary, dim, hidden, k, distinct)
    threads = threads or torch.get_num_threads()
    runs: dict[str, tuple[Variant, Shape]] = {
        "released": ("released", shape),
        "monte_carlo": ("monte_carlo", shape),
        "bootstrapped": ("bootstrapped", shape),
        "bootstrapped_40": ("bootstrapped", Shape(batch, length, vocabulary, dim, hidden, k, 0.4 * distinct)),
        "bootstrapped_fresh": ("bootstrapped", Shape(batch, length, vocabulary, dim, hidden, k, distinct, 1e-3)),
    }
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    facts = {key: _alone(name, of, repeats, threads) for key, (name, of) in runs.items()}
    ours = [key for key in facts if key != "released"]
    speedup = {key: facts["released"]["seconds"] / facts[key]["seconds"] for key in ours}
    return {
        "shape": asdict(shape),
        "threads": threads,
        "load_before": load,
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
        "batch_by_length_by_vocabulary": batch * length * vocabulary,
    }


def _alone(name: Variant, shape: Shape, repeats: int, threads: int) -> dict[str, float]:
    """A variant in a process that does nothing else, started anew so that it inherits no memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(variant, name, shape, repeats, threads).result()
