"""What a finished search would have chosen with smaller budgets, raw and calibrated, and its test accuracy.

Run it from the project's root on the runs of recipes/small/calls-rivals.toml (raw scores, 6,400 calls):
    .venv/bin/python tools/search_trials/smaller_budgets.py runs/calls-rivals build/trials/smaller-budgets.jsonl
For a budget of n calls, the candidates are the prompts that had been scored by then, after reserving calls for eight
finalists on dev. The eight best on train go to dev, and dev decides, as in `methods/selection.py`. "calibrated"
subtracts the label offsets from the same answers. For `random`, whose prompts do not depend on scores, the calibrated
choice is that of a calibrated run. For methods that learn, it is only another choice among the same prompts. An output
row is one run, one budget, and raw or calibrated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.answers.table import unpack_answers
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.run import build, running
from pinprompt.values import Prompt

BUDGETS = (600, 1000, 1600, 6400)
FINALISTS = 8


def rows_of(folder: Path, task: Any) -> Iterator[dict[str, Any]]:
    """The choice for each budget, raw and calibrated, in one run, with its test accuracy both ways."""
    evaluator = Evaluator(task, Budget(BudgetSettings()))  # calibrated; asks only what the run has not asked
    train, dev = (evaluator.rows(split) for split in ("train", "dev"))
    prompts: list[Prompt] = []
    for number, line in enumerate((folder / "answers.jsonl").read_text("utf-8").splitlines()):
        row = json.loads(line)
        if not row["report"]:
            prompt = Prompt(row["text"], tuple(row["ids"]))
            evaluator.table.add(prompt, unpack_answers(row), "", number, False, {})
            if not evaluator.table.get(prompt.text).missing(train) and prompt not in prompts:
                prompts.append(prompt)

    def worth(prompt: Prompt, way: str, rows: tuple[int, ...]) -> float:
        [answers] = evaluator.ask([prompt], rows)
        return float(np.mean(task.values(answers, rows, train if way == "calibrated" else ())))

    for budget in BUDGETS:
        count = (budget - FINALISTS * len(dev)) // len(train)
        if count < 1:  # with many classes, a small budget does not pay for a prompt and the finalists
            continue
        for way in ("raw", "calibrated"):
            best = sorted(prompts[:count], key=lambda prompt: -worth(prompt, way, train))[:FINALISTS]
            chosen = best[int(np.argmax([worth(prompt, way, dev) for prompt in best]))]
            [tested] = evaluator.evaluate([chosen], "test")
            found = tested.metrics["raw_accuracy" if way == "raw" else "accuracy"]
            yield {"run": folder.name, "budget": budget, "way": way, "prompt": chosen.text, "accuracy": found}


def main(runs: Path, out: Path) -> None:
    """Process all finished runs in a folder; those already in the output are skipped."""
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {json.loads(line)["run"] for line in out.read_text("utf-8").splitlines()} if out.is_file() else set()
    build.set_threads(1)
    for folder in sorted(path.parent for path in runs.glob("*/result.json") if path.parent.name not in known):
        recipe = running.recipe_of(folder)
        settings: Any = recipe.task
        calibrated = recipe.model_copy(update={"task": settings.model_copy(update={"labels": "calibrated"})})
        task = build.build_task(calibrated, "cpu")
        facts = {"method": recipe.method, "dataset": settings.dataset, "split": settings.split}
        facts["precision"] = recipe.models.precision
        lines = [json.dumps({**facts, **row}) + "\n" for row in rows_of(folder, task)]
        with out.open("a", encoding="utf-8") as handle:
            handle.writelines(lines)
        print("".join(lines), end="", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
