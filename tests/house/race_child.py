"""A run on rows in its own process, to be killed: python -m tests.house.race_child MODELS OUT MOMENT METHOD [memo].

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
from pinprompt.values import Answers, Draw, Prompt
from tests.house.child import Moments
from tests.toys.label_runs import settings_of


def raced(models: Path, **over: Any) -> Recipe:
    """A race of a tiny writer's words on the rows of `label_runs`, in blocks of two, two and four rows."""
    settings = {
        "method": "race",
        "task": {"labels": "calibrated"},
        "policy": {"length": 4},
        "race": {"first_block": 2, "max_perplexity": None, "batch": 3, "least": 3},
        "budget": {"calls": 90},
    }
    return recipes.resolve(recipes.merge(settings_of(models), recipes.merge(settings, over)))


def searched(models: Path, method: str, **over: Any) -> Recipe:
    """Any method on the same rows, each of its prompts on all rows of train."""
    if method == "race":
        return raced(models, **over)
    settings = {
        "method": method,
        "task": {"labels": "calibrated"},
        "q_learning": {"prompts": 4, "steps": 30, "eval_every": 3, "batch": 8},
        "scoring": {"finalists": 3},
        "budget": {"calls": 90},
    }
    return recipes.resolve(recipes.merge(settings_of(models), recipes.merge(settings, over)))


def note_asked(path: Path) -> None:
    """Note from now on which cells a classification task is asked for; a line is written whole or not at all."""
    ask = ClassificationTask.ask

    def noted(
        self: ClassificationTask, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()
    ) -> list[Answers]:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, "".join(f"{row}/{prompt.text}\n" for prompt in prompts for row in rows).encode())
        os.close(handle)
        return ask(self, prompts, rows, draws)

    ClassificationTask.ask = noted  # type: ignore[method-assign]


def main() -> None:
    torch.set_num_threads(1)
    models, out, moment, method, *more = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    note_asked(out.with_suffix(".asked"))
    moments = Moments(moment)
    recipe = searched(models, method, scoring={"memo": "memo" in more})
    sys.setprofile(moments)
    running.run(recipe, out, device="cpu", threads=1, resume=True)
    sys.setprofile(None)
    sys.stdout.write(f"{moments.count}\n")


if __name__ == "__main__":
    main()
