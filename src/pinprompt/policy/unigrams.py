"""How common each token is by itself, according to the frozen LM: what SLOR takes off a text's likelihood.

Counts of a corpus would need the corpus, and one for each tokenizer. The LM has read one: it writes some text freely,
and the mean of its next-token distributions on the way estimates its unigram distribution. No token has
probability 0, and it works for any model and tokenizer.
"""

from __future__ import annotations

import contextlib
import hashlib

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pinprompt.errors import ModelError
from pinprompt.models.cache import home, place
from pinprompt.policy.backbone import Backbone
from pinprompt.seeds import derive

ROWS, LENGTH = 64, 16
"""Texts that the LM writes, and tokens in each: 1,024 distributions are averaged."""


def log_unigrams(backbone: Backbone) -> Tensor:
    """Log-probabilities [V] of single tokens, on the CPU; kept in the cache, since they take a pass per token."""
    known = home() / "unigrams" / _key(backbone)
    with contextlib.suppress(ModelError), place(known, "frequencies of tokens") as folder:
        if folder is not None:
            save_file({"log_unigrams": estimated(backbone)}, folder / "unigrams.safetensors")
    # A cache that cannot be written costs time, nothing else.
    if known.is_dir():
        return load_file(known / "unigrams.safetensors")["log_unigrams"]
    return estimated(backbone)


@torch.no_grad()
def estimated(backbone: Backbone, rows: int = ROWS, length: int = LENGTH) -> Tensor:
    """log of the mean of p(. | z_{0:t-1}) over `rows` texts z that the LM writes and t < `length`: [V]."""
    chance = torch.Generator().manual_seed(derive(0, "unigrams"))
    total = torch.zeros(backbone.vocabulary_size, dtype=torch.float64)
    ids = _openings(backbone, rows, chance)
    cache = backbone.growing_cache() if backbone.incremental else None
    new = ids
    for _ in range(length):
        probabilities = backbone.logprobs(backbone.read(new.to(backbone.device), cache)).exp().cpu()
        total += probabilities.sum(0, dtype=torch.float64)
        drawn = torch.multinomial(probabilities, 1, generator=chance)
        ids = torch.cat([ids, drawn], 1)
        new = ids if cache is None else drawn
    # The smallest number there is keeps the logarithm finite for a token that the model never says.
    return (total / (rows * length)).clamp_min(torch.finfo(torch.float32).tiny).log().float()


def _openings(backbone: Backbone, rows: int, chance: torch.Generator) -> Tensor:
    """What the texts begin with, [rows, t]: the token that opens a text, or any where there is none."""
    if backbone.tokenizer.all_special_ids:
        return torch.tensor([backbone.start()] * rows)
    return torch.randint(len(backbone.tokenizer), (rows, 1), generator=chance)


def _key(backbone: Backbone) -> str:
    """What the LM says first: it changes with any weight that reads or writes a token."""
    opening = _openings(backbone, 1, torch.Generator().manual_seed(0))
    logits = backbone.logits(backbone.read(opening.to(backbone.device)))
    digest = hashlib.sha256(logits.cpu().numpy().tobytes())
    digest.update(f"{ROWS}x{LENGTH}".encode())
    return digest.hexdigest()[:32]
