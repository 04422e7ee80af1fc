"""One whole step of the search at the shape of the paper's classification runs, the task model aside."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

PROMPTS, LENGTH, BATCH = 16, 5, 256
RELEASED = {"write_seconds": 1.3, "step_seconds": 24.5, "peak_gb": 5.4}
"""What the released code takes at this shape on such a machine, as the project was told (issue 3)."""


def measure(steps: int = 3, target: str = "monte-carlo") -> dict[str, Any]:
    """Write 16 prompts with an OPT of OPT-125M's shape (random weights), then update on 256 sequences."""
    import torch

    from pinprompt.methods.q_learning.learner import Learner
    from pinprompt.methods.q_learning.replay import Replay
    from pinprompt.models.random_models import random_opt_125m
    from pinprompt.policy.backbone import Backbone
    from pinprompt.policy.writer import Writer
    from pinprompt.settings.policy import Constraints, PolicySettings
    from pinprompt.settings.q_learning import QLearningSettings
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
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "target": target,
        "shape": {"prompts": PROMPTS, "length": LENGTH, "batch": BATCH, "vocabulary": writer.backbone.vocabulary_size,
                  "dim": writer.backbone.dim, "k": settings.k},
        "write_seconds": min(write),
        "learn_seconds": min(learn),
        "step_seconds": min(a + b for a, b in zip(write, learn, strict=True)),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9,
        "released_for_scale": RELEASED,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
