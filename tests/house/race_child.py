"""A raced run in a process of its own, to be killed: python -m tests.house.race_child MODELS OUT MOMENT METHOD [memo].

It kills itself at that many function calls of the program (0: never, and it prints how many there were). Beside the run
folder it notes which prompt it asks on which rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.run import running
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.values import Prompt, Score
from tests.house.child import Moments
from tests.toys.label_runs import settings_of


def raced(models: Path, **over: Any) -> Recipe:
    """A race of a tiny writer's words on the rows of `label_runs`, in blocks of two, two and four rows."""
    settings = {
        "method": "race",
        "task": {"first_block": 2, "calibrate": "batch"},
        "policy": {"length": 4},
        "race": {"written": 60, "max_perplexity": None, "words": 2, "batch": 3, "least": 3},
        "budget": {"calls": 90},
    }
    return recipes.resolve(recipes.merge(settings_of(models), recipes.merge(settings, over)))


def in_heats(models: Path, method: str, **over: Any) -> Recipe:
    """Another method on the same rows and blocks, with heats that two prompts leave."""
    settings = {
        "method": method,
        "task": {"first_block": 2, "calibrate": "batch"},
        "random": {"batch": 4, "finalists": 3},
        "beam": {"batch": 4, "finalists": 3},
        "q_learning": {"prompts": 4, "steps": 30, "finalists": 3, "eval_every": 3, "warmup": 4, "batch": 8},
        "scoring": {"race": 2},
        "budget": {"calls": 90},
    }
    return recipes.resolve(recipes.merge(settings_of(models), recipes.merge(settings, over)))


def note_asked(path: Path) -> None:
    """Note from now on what a classification task is asked; a line is written whole or not at all."""
    score = ClassificationTask.score

    def noted(
        self: ClassificationTask, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train"
    ) -> list[Score]:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, "".join(f"{split}/{prompt.text}\n" for prompt in prompts).encode())
        os.close(handle)
        return score(self, prompts, seeds, split)

    ClassificationTask.score = noted  # type: ignore[method-assign]


def main() -> None:
    torch.set_num_threads(1)
    models, out, moment, method, *more = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    note_asked(out.with_suffix(".asked"))
    moments = Moments(moment)
    scoring = {"memo": "memo" in more}
    recipe = raced(models, scoring=scoring) if method == "race" else in_heats(models, method, scoring=scoring)
    sys.setprofile(moments)
    running.run(recipe, out, device="cpu", threads=1, resume=True)
    sys.setprofile(None)
    sys.stdout.write(f"{moments.count}\n")


if __name__ == "__main__":
    main()
