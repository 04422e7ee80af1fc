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

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.run import build, running
from pinprompt.tasks import label_scores
from pinprompt.values import Prompt

BUDGETS = (600, 1000, 1600, 6400)
FINALISTS = 8


def rows_of(folder: Path, task: Any) -> Iterator[dict[str, Any]]:
    """The choice for each budget, raw and calibrated, in one run, with its test accuracy both ways."""
    scored: dict[str, Any] = {}
    for line in (folder / "scores.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row.get("kind") == "score" and row["split"] == "train" and row.get("answers"):
            logs = label_scores.unpack_rows(base64.b64decode(row["answers"]), len(task.labels))
            scored.setdefault(row["text"], logs)
    texts = list(scored)
    targets, prior = task.targets("train"), label_scores.prior_of(task.settings.prior, task.labels)
    worth: dict[str, dict[str, float]] = {"raw": {}, "calibrated": {}}
    offsets: dict[str, tuple[float, ...]] = {}
    for text, logs in scored.items():
        offsets[text] = tuple(map(float, label_scores.batch_offsets(logs, targets, prior)))
        worth["raw"][text] = task.score_of(np.exp(logs), "train").value
        worth["calibrated"][text] = task.score_of(label_scores.calibrated(logs, offsets[text]), "train").value
    tested: dict[str, dict[str, float]] = {}
    finals: dict[str, Any] = {}
    for budget in BUDGETS:
        count = (budget - FINALISTS * task.calls("dev")) // task.calls("train")
        if count < 1:  # with many classes, a small budget does not pay for a prompt and the finalists
            continue
        for way in ("raw", "calibrated"):
            best = sorted(texts[:count], key=lambda text: -worth[way][text])[:FINALISTS]
            new = [text for text in best if text not in finals]
            scores = task.score([Prompt(text, offsets=offsets[text]) for text in new], split="dev") if new else []
            finals |= dict(zip(new, scores, strict=True))
            dev = [finals[text].details["raw_score"] if way == "raw" else finals[text].value for text in best]
            chosen = best[int(np.argmax(dev))]
            if chosen not in tested:
                tested[chosen] = dict(task.evaluate(Prompt(chosen, offsets=offsets[chosen]), "test").metrics)
            found = tested[chosen]["raw_accuracy" if way == "raw" else "accuracy"]
            yield {"run": folder.name, "budget": budget, "way": way, "prompt": chosen, "accuracy": found}


def main(runs: Path, out: Path) -> None:
    """Process all finished runs in a folder; those already in the output are skipped."""
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {json.loads(line)["run"] for line in out.read_text("utf-8").splitlines()} if out.is_file() else set()
    build.set_threads(1)
    for folder in sorted(path.parent for path in runs.glob("*/result.json") if path.parent.name not in known):
        recipe = running.recipe_of(folder)
        settings: Any = recipe.task
        calibrated = recipe.model_copy(update={"task": settings.model_copy(update={"calibrate": "batch"})})
        task = build.build_task(calibrated, "cpu")
        facts = {"method": recipe.method, "dataset": settings.dataset, "split": settings.split}
        facts["precision"] = recipe.models.precision
        lines = [json.dumps({**facts, **row}) + "\n" for row in rows_of(folder, task)]
        with out.open("a", encoding="utf-8") as handle:
            handle.writelines(lines)
        print("".join(lines), end="", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
