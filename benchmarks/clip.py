"""How fast prompts are scored against a picture."""

from __future__ import annotations

import time
from typing import Any

import torch

from pinprompt.models.clip import EMOJI_CLIP, Clip, load_clip

_WORDS = [
    "a",
    "picture",
    "of",
    "the",
    "old",
    "red",
    "house",
    "by",
    "sea",
    "under",
    "morning",
    "light",
    "with",
    "two",
    "dogs",
]


def measure(prompts: int = 48, repeats: int = 3) -> dict[str, float]:
    """Prompts per second of a text tower of ViT-B/32's shape, trimmed against padded, and of the small model.

    The measurements alternate, and the best time of each counts, so that a busy machine does not favour one of them.
    """
    texts, many = _texts(prompts), _texts(512)
    clip, small = _vit_b_32(), load_clip(EMOJI_CLIP)
    target = torch.nn.functional.normalize(torch.ones(small.model.config.projection_dim), dim=0)
    clip.text_features(texts[:8])  # the first pass allocates
    times: dict[str, list[float]] = {"padded": [], "trimmed": [], "small": []}
    for _ in range(repeats):
        seconds, padded = _timed(lambda: clip.text_features(texts, trim=False))
        times["padded"].append(seconds)
        seconds, trimmed = _timed(lambda: clip.text_features(texts))
        times["trimmed"].append(seconds)
        seconds, _ = _timed(lambda: small.text_features(many) @ target)
        times["small"].append(seconds)
    best = {name: min(seconds) for name, seconds in times.items()}
    return {
        "prompts": float(prompts),
        "padded_prompts_per_second": prompts / best["padded"],
        "trimmed_prompts_per_second": prompts / best["trimmed"],
        "speedup": best["padded"] / best["trimmed"],
        "max_difference": float((padded - trimmed).abs().max()),
        "small_model_prompts_per_second": len(many) / best["small"],
    }


def _texts(count: int) -> list[str]:
    """Distinct prompts of eight words, the prompt length of the inversion task."""
    size = len(_WORDS)
    return [
        " ".join(_WORDS[(row * 7 + place * (1 + row % 5) + row // size) % size] for place in range(7)) + f" {row}"
        for row in range(count)
    ]


def _timed(run: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    out = run()
    return time.perf_counter() - began, out


def _vit_b_32() -> Clip:
    """A text tower of the published shape with random weights; the image tower is as small as possible."""
    small = load_clip(EMOJI_CLIP)  # with random weights, any tokenizer and processor will do
    text = {"eos_token_id": small.tokenizer.eos_token_id, "bos_token_id": small.tokenizer.bos_token_id}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = type(small.model)(type(small.model.config)(text_config=text, vision_config=vision))
    clip = Clip("ViT-B/32 shape, random weights", "", model, small.tokenizer, small.processor)
    clip.window = 77
    return clip
