"""One whole step of the search at the shape of the paper's classification runs, without the task model."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from benchmarks.update import Batch, peak_mb, released_update
from benchmarks.write import passing_cache, plain
from pinprompt.methods.pin.learner import Learner
from pinprompt.methods.pin.replay import Replay
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import Constraints, PolicySettings, QLearningSettings
from pinprompt.values import Episode


def random_opt_125m() -> tuple[Any, Any]:
    """An OPT of OPT-125M's shape with random weights, and a tokenizer of made-up words: (model, tokenizer)."""
    words = {"<s>": 0, "<pad>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, 50_265)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = OPTForCausalLM(OPTConfig())
    special = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<s>"}
    return model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


PROMPTS, LENGTH, BATCH = 16, 5, 256
TARGETS = ("monte-carlo", "bootstrap")


def measure(steps: int = 2, model: Any = None, k: int = 10_000) -> dict[str, Any]:
    """One whole step, ours and the released formulation alternately: write 16 prompts, then update on 256 sequences.

    The writer is an OPT of OPT-125M's shape with random weights. Ours is `Writer.sample` and `Learner.update`. The
    released formulation writes without a tree (every row reads its own prefix, with its own filter) and updates with
    four products over the vocabulary and two full sorts. It stores states, so reading them again is not counted.
    Times are the minimum over the steps.
    """
    settings = PolicySettings(k=k, constraints=Constraints(stable=False))
    with passing_cache():
        writer = Writer.build(settings, seed=0, backbone=Backbone(*(model or random_opt_125m())))
    learners = {name: Learner(writer, QLearningSettings.model_validate({"target": name})) for name in TARGETS}
    reference = Learner(writer, QLearningSettings())
    replay, stream = Replay(64_000, LENGTH), torch.Generator().manual_seed(0)

    def write() -> None:
        prompts = writer.sample(PROMPTS, stream).prompts
        replay.add([Episode(prompt.ids, float(len(prompt.text)), 0.0) for prompt in prompts])

    while len(replay) < BATCH:
        write()
    seconds: dict[str, list[float]] = {name: [] for name in ("write", "released_write", "released_update", *TARGETS)}
    for _ in range(steps):
        seconds["write"].append(_seconds(write))
        ids, rewards = replay.sample(BATCH, stream, renormalise=True)
        for name, learner in learners.items():
            writer.tree.states([tuple(row[:t]) for row in ids.tolist() for t in range(LENGTH)])
            seconds[name].append(_seconds(partial(learner.update, ids, rewards)))
        seconds["released_write"].append(_seconds(lambda: plain(writer, PROMPTS, stream, k)))
        batch = Batch(reference, ids, rewards, k)
        assert len(batch.states)  # computes the states in advance: the released code stores them
        # Both values are computed whatever the target, so both targets cost the same.
        seconds["released_update"].append(_seconds(partial(released_update, batch)))
    best = {name: min(times) for name, times in seconds.items()}
    released = best["released_write"] + best["released_update"]
    return {
        "shape": {"prompts": PROMPTS, "length": LENGTH, "batch": BATCH, "vocabulary": writer.backbone.vocabulary_size,
                  "dim": writer.backbone.dim, "k": settings.k},
        "write_seconds": best["write"],
        "update_seconds": {name: best[name] for name in TARGETS},
        "step_seconds": {name: best["write"] + best[name] for name in TARGETS},
        "released_write_seconds": best["released_write"],
        "released_update_seconds": best["released_update"],
        "released_step_seconds": released,
        "speedup": {name: released / (best["write"] + best[name]) for name in TARGETS},
        "update_speedup": {name: best["released_update"] / best[name] for name in TARGETS},
        "write_speedup": best["released_write"] / best["write"],
        "peak_gb": peak_mb() * 2**20 / 1e9,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
