"""How fast prompts are written: with and without the tree of prefixes, and by length and vocabulary."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.update import peak_mb
from pinprompt.maths.entropy import policy
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.vocabulary import Ignorable
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import PolicySettings

SUPPORT = 32
POLICY = (
    f"psi of random weights, scaled so that sparsemax leaves about {SUPPORT} tokens at the first place (a policy that "
    "has begun to sparsify); step after step of fresh prompts from it, the first step with an empty tree"
)


@contextmanager
def passing_cache() -> Iterator[None]:
    """Use a temporary cache: texts of made-up tokens do not belong in the user's cache."""
    before = os.environ.get("PINPROMPT_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PINPROMPT_HOME"] = folder
        try:
            yield
        finally:
            del os.environ["PINPROMPT_HOME"]
            if before is not None:
                os.environ["PINPROMPT_HOME"] = before


def random_backbone(vocabulary: int, dim: int = 64, layers: int = 2, positions: int = 1024) -> Backbone:
    """A small Llama with random weights and a vocabulary of made-up words, for measurements."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=dim,
        intermediate_size=2 * dim,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=0,
        eos_token_id=0,
    )
    words = {"<s>": 0, "a": 1} | {f"w{number}": number for number in range(2, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return Backbone(model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>"))


def measure(
    model: str = "smollm2",
    batches: Sequence[int] = (16, 256),
    steps: int = 6,
    lengths: Sequence[int] = (5, 16, 64, 128),
    vocabularies: Sequence[int] = (50_272, 262_144),
    long: int = 128,
    k: int = 10_000,
) -> dict[str, Any]:
    """Prompts per second with and without the tree for each batch size, a cost table, and the peak memory at `long`."""
    backbone = Backbone.load(model)
    k = min(k, backbone.vocabulary_size)
    rows = [_compare(backbone, batch, max(1, steps if batch < 100 else steps // 2), k) for batch in batches]
    peak = _long(backbone, long, k)
    with passing_cache():
        costs = [row for size in vocabularies for row in _costs(size, lengths)]
    return {
        "model": model,
        "policy": POLICY,
        "length": 5,
        "k": k,
        "threads": torch.get_num_threads(),
        "batches": rows,
        "long": peak,
        "cost": costs,
    }


def _compare(backbone: Backbone, batch: int, steps: int, k: int) -> dict[str, Any]:
    """One batch size, with the tree and without, `steps` batches each."""
    writer = sparsified(backbone, _settings(k=k))
    writer.tree.clear()
    writer.tree.hits = writer.tree.misses = 0
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        written = writer.sample(batch, generator)
    with_tree = time.perf_counter() - began
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(1)
    plain_steps = max(1, steps // 3)
    for _ in range(plain_steps):
        plain(writer, batch, generator, k)
    without = time.perf_counter() - began
    fast, slow = steps * batch / with_tree, plain_steps * batch / without
    return {
        "batch": batch,
        "steps": steps,
        "with_tree": fast,
        "without_tree": slow,
        "speedup": fast / slow,
        "read": writer.tree.misses,
        "prefixes": steps * batch * writer.length,
        "support": written.support,
    }


def sparsified(backbone: Backbone, settings: PolicySettings) -> Writer:
    """A writer whose policy has about SUPPORT tokens at the first position; psi is random, scaled by bisection."""
    writer = Writer.build(settings, backbone=backbone)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in writer.psi.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
        q, kept = writer.q(writer.states([()])), writer.tree.kept([()])
        low, high = 1e-6, 1e6
        for _ in range(60):
            scale = (low * high) ** 0.5
            few = int((policy(q * scale, "tsallis", kept) > 0).sum()) <= SUPPORT
            low, high = (low, scale) if few else (scale, high)
        # Q is linear in the outer layer. The scale is slightly larger than needed, as a margin for rounding.
        writer.psi.outer.weight.mul_(1.01 * high)
        writer.psi.outer.bias.mul_(1.01 * high)
    return writer


@torch.no_grad()
def plain(writer: Writer, batch: int, generator: torch.Generator, k: int) -> list[tuple[int, ...]]:
    """The same work without a tree: each row computes its own prefix (with cached keys), filter and Q."""
    backbone = writer.backbone
    ignorable = Ignorable(backbone, writer.vocabulary, k)
    written: list[tuple[int, ...]] = []
    for first in range(0, batch, writer.batch):
        count = min(writer.batch, batch - first)
        ids: list[tuple[int, ...]] = [()] * count
        cache = backbone.growing_cache()
        given = torch.tensor([writer.tree.reader.start] * count, device=backbone.device)
        for _ in range(writer.length):
            states = backbone.read(given, cache)
            probabilities = policy(writer.q(states), "tsallis", ignorable.kept(ids, states)).cpu()
            tokens = torch.multinomial(probabilities, 1, generator=generator)
            ids = [(*prefix, int(token)) for prefix, token in zip(ids, tokens, strict=True)]
            given = tokens.to(backbone.device)
        written += ids
    return written


def _long(backbone: Backbone, length: int, k: int) -> dict[str, Any]:
    """One batch of long prompts, and the peak memory of the process."""
    writer = sparsified(backbone, _settings(length=length, k=k))
    began = time.perf_counter()
    writer.sample(16, torch.Generator().manual_seed(1))
    seconds = time.perf_counter() - began
    return {
        "length": length,
        "prompts": 16,
        "seconds": seconds,
        "tree_mb": writer.tree.used / 2**20,
        "peak_mb": peak_mb(),
    }


def _costs(size: int, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Seconds per prompt by length, for a model with a small body and a vocabulary of that size."""
    backbone = random_backbone(size)
    rows = []
    for length in lengths:
        writer = sparsified(backbone, _settings(length=length, k=min(10_000, size), hidden=256))
        began = time.perf_counter()
        writer.sample(16, torch.Generator().manual_seed(1))
        seconds = time.perf_counter() - began
        rows.append(
            {
                "vocabulary": size,
                "length": length,
                "seconds_per_prompt": seconds / 16,
                "ms_per_token": 1000 * seconds / 16 / length,
                "tree_mb": writer.tree.used / 2**20,
            }
        )
    return rows


def _settings(**given: int) -> PolicySettings:
    return PolicySettings.model_validate(given)
