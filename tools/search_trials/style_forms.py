"""Which forms of a prompt does a small model follow: instructions before the text, or forms around it?

Run it from the project's root:
    .venv/bin/python tools/search_trials/style_forms.py --dataset vader-products --direction negative-to-positive
Each draft of the task (`Task.drafts`) and both hand-written prompts rewrite the same dev texts with the same draws. The
best of 4 outputs by the search's judges counts. Columns: the reward of the search, content, and the probability of the
target style, each in percent.
"""

from __future__ import annotations

import argparse

from pinprompt.recipe import recipe as recipes
from pinprompt.run import build
from pinprompt.values import Prompt

SAMPLES = 4


def main() -> None:
    """Print a row for each form, in the order of the drafts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="vader-products")
    parser.add_argument("--data", default=None, help="The dataset's folder, where no package has it.")
    parser.add_argument("--direction", default="negative-to-positive")
    parser.add_argument("--precision", default="float32", help="What the task model computes in: float32 or bf16.")
    asked = parser.parse_args()
    chosen = {"kind": "style-transfer", "dataset": asked.dataset, "direction": asked.direction, "model": "smollm2"}
    chosen |= {"samples": SAMPLES} | ({} if asked.data is None else {"data": asked.data})
    recipe = recipes.resolve({"profile": "quick", "task": chosen, "models": {"precision": asked.precision}})
    task = build.build_task(recipe, "cpu")
    print("| prompt | reward | content | style |\n|---|---:|---:|---:|")
    for text in (*task.baselines().values(), *task.drafts()):
        (score,) = task.score([Prompt(text)], [7], "dev")
        print(
            f"| {text} | {score.value:.1f} | {score.details['content']:.1f} | {score.details['style']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
