"""A run in a process of its own, to be killed: python -m tests.house.child MODELS OUT [resume]."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from pinprompt.run import running
from pinprompt.run.checkpoint import Checkpoint
from pinprompt.values import Prompt, Score
from tests.house.tiny import FindTheWords, recipe

SETTINGS = {
    "q_learning": {"steps": 30, "eval_every": 5, "patience": 3, "on_collapse": "restart", "learning_rate": 3e-3}
}


class Slow(FindTheWords):
    """Takes a little while, so that a kill hits every phase of a step."""

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        time.sleep(0.004 * len(prompts))
        return super().score(prompts, seeds, split)


def main() -> None:
    torch.set_num_threads(1)
    # Save after every step that had a few milliseconds, so that kills meet saving too.
    Checkpoint.due = lambda self: True  # type: ignore[method-assign]
    models, out = Path(sys.argv[1]), Path(sys.argv[2])
    running.run(recipe(models, **SETTINGS), out, task=Slow(), device="cpu", threads=1, resume="resume" in sys.argv)


if __name__ == "__main__":
    main()
