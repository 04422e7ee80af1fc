"""One whole step of the search at the shape of the paper's classification runs, the task model aside."""

from __future__ import annotations

import time
from typing import Any

# Models of real shapes with random weights, for measurements where the real ones are not available.


def random_opt_125m() -> tuple[Any, Any]:
    """An OPT of OPT-125M's shape with random weights, and a tokenizer of made-up words: (model, tokenizer)."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    words = {"<s>": 0, "<pad>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, 50_265)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = OPTForCausalLM(OPTConfig())
    special = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<s>"}
    return model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


PROMPTS, LENGTH, BATCH = 16, 5, 256
RELEASED = {"write_seconds": 1.3, "step_seconds": 24.5, "peak_gb": 5.4}
"""What the released code was reported to take at this shape on a similar machine; it is not measured here."""


def measure(steps: int = 3, target: str = "monte-carlo") -> dict[str, Any]:
    """Write 16 prompts with an OPT of OPT-125M's shape (random weights), then update on 256 sequences."""
    import torch

    from pinprompt.bench.update import peak_mb
    from pinprompt.methods.pin.learner import Learner
    from pinprompt.methods.pin.replay import Replay
    from pinprompt.policy.backbone import Backbone
    from pinprompt.policy.writer import Writer
    from pinprompt.recipe.sections import Constraints, PolicySettings, QLearningSettings
    from pinprompt.values import Episode

    model, tokenizer = random_opt_125m()
    settings = PolicySettings(k=10_000, constraints=Constraints(stable=False))
    writer = Writer.build(settings, seed=0, backbone=Backbone(model, tokenizer))
    learner = Learner(writer, QLearningSettings.model_validate({"target": target}))
    replay, stream = Replay(64_000, LENGTH), torch.Generator().manual_seed(0)
    write, learn = [], []
    while len(replay) < BATCH:
        prompts = writer.sample(PROMPTS, stream).prompts
        replay.add([Episode(prompt.ids, float(len(prompt.text)), 0.0) for prompt in prompts])
    for _ in range(steps):
        started = time.perf_counter()
        prompts = writer.sample(PROMPTS, stream).prompts
        written = time.perf_counter()
        replay.add([Episode(prompt.ids, float(len(prompt.text)), 0.0) for prompt in prompts])
        learner.update(*replay.sample(BATCH, stream, renormalise=True))
        write.append(written - started)
        learn.append(time.perf_counter() - written)
    return {
        "target": target,
        "shape": {"prompts": PROMPTS, "length": LENGTH, "batch": BATCH, "vocabulary": writer.backbone.vocabulary_size,
                  "dim": writer.backbone.dim, "k": settings.k},
        "write_seconds": min(write),
        "learn_seconds": min(learn),
        "step_seconds": min(a + b for a, b in zip(write, learn, strict=True)),
        "peak_gb": peak_mb() * 2**20 / 1e9,
        "released_for_scale": RELEASED,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
