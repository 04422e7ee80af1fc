"""Does a race between instructions beat hand-written prompts? Both directions of a pair of styles, several seeds.

Run it from the project's root. It appends a row for each cell and skips cells that are already there:
    .venv/bin/python tools/search_trials/style_trials.py build/trials/style.jsonl --seeds 13 21
    .venv/bin/python tools/search_trials/style_trials.py build/trials/style.jsonl --table
A cell is a direction and a seed. The found prompt and both hand-written ones rewrite the same 50 test texts with the
same draws. The search's judges choose the best of 4 outputs, and the report's judges measure it. The table has J of
each prompt and the paired difference with a bootstrap over cells and texts. Unlike a report, it does not measure single
words. With --again, cells that an earlier --csv wrote are not searched again: only their prompts are measured again.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

DIRECTIONS = ("negative-to-positive", "positive-to-negative")
HAND = ("manual", "instructions")


def main() -> None:
    """Run the missing cells, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--csv", type=Path, help="With --table: write every cell and its prompts into this file.")
    parser.add_argument("--dataset", default="vader-products")
    parser.add_argument("--data", default=None, help="The dataset's folder, where no package has it.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 21])
    parser.add_argument("--calls", type=int, default=800)
    parser.add_argument("--precision", default="float32", help="What the task model computes in: float32 or bf16.")
    parser.add_argument("--again", type=Path, help="A file of --csv, whose found prompts are measured again.")
    asked = parser.parse_args()
    known = [json.loads(line) for line in asked.rows.read_text("utf-8").splitlines()] if asked.rows.exists() else []
    if asked.table:
        table(known)
        if asked.csv is not None:
            keep(known, asked.csv)
        return
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["dataset"], row["direction"], row["seed"]) for row in known}
    found = {} if asked.again is None else searched(asked.again)
    tasks: dict[str, Any] = {}
    tested: dict[tuple[str, str], Any] = {}
    for seed in asked.seeds:
        for direction in DIRECTIONS:
            if (asked.dataset, direction, seed) not in done:
                row = cell(asked, direction, seed, tasks, tested, found.get((asked.dataset, direction, seed)))
                with asked.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


def searched(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """What earlier searches found, by dataset, direction and seed, from a file of --csv."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["prompt_of"] == "found"]
    return {
        (row["dataset"], row["direction"], int(row["seed"])): {
            "calls": int(row["calls"]), "source": row["source"], "prompt": row["prompt"],
        }
        for row in rows
    }  # fmt: skip


def cell(
    asked: argparse.Namespace,
    direction: str,
    seed: int,
    tasks: dict[str, Any],
    tested: dict[tuple[str, str], Any],
    found: dict[str, Any] | None,
) -> dict[str, Any]:
    """One search, and a comparison of its answer with the hand-written prompts on test."""
    from pinprompt.recipe import recipe as recipes
    from pinprompt.run import build, running
    from pinprompt.values import Prompt

    chosen = {"kind": "style-transfer", "dataset": asked.dataset, "direction": direction, "model": "smollm2"}
    chosen |= {"test_samples": 4} | ({} if asked.data is None else {"data": asked.data})
    recipe = recipes.resolve(
        {
            "profile": "quick", "seed": seed, "task": chosen, "budget": {"calls": asked.calls},
            "models": {"precision": asked.precision},
        }
    )  # fmt: skip
    if direction not in tasks:
        tasks[direction] = build.build_task(recipe, "cpu")
    task = tasks[direction]
    if found is None:
        with tempfile.TemporaryDirectory() as folder:
            result = running.run(recipe, folder, task=task, threads=1, report=False)
        found = {"calls": result.calls, "source": result.top[0]["source"], "prompt": result.prompt}
    row: dict[str, Any] = {
        "dataset": asked.dataset, "direction": direction, "seed": seed, "calls": found["calls"],
        "precision": asked.precision, "source": found["source"],
    }  # fmt: skip
    for name, text in {"found": found["prompt"], **task.baselines()}.items():
        if (direction, text) not in tested:  # hand-written prompts once: all seeds have the same texts and draws
            evaluation = task.evaluate(Prompt(text), "test", 0)
            tested[direction, text] = {
                "prompt": text, **evaluation.metrics, "rows": evaluation.rows, "outcomes": evaluation.outcomes["j"],
                "rewrites": evaluation.tables["rewrites"][:5],
            }  # fmt: skip
        row[name] = tested[direction, text]
    return row


def keep(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write J, content, style, fluency and copies of every cell's prompts as CSV."""
    names = ("j", "content", "style", "fluency", "copies")
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["dataset", "direction", "seed", "calls", "prompt_of", "source", *names, "prompt"])
        for row in rows:
            for name in ("found", *HAND):
                cells = [f"{row[name][metric]:.1f}" for metric in names]
                source = row["source"] if name == "found" else name
                head = [row["dataset"], row["direction"], row["seed"], row["calls"], name, source]
                table.writerow([*head, *cells, row[name]["prompt"]])


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Print J by set and direction, and the paired differences."""
    print("| data | direction | cells | manual | instructions | found | hand-written kept | copies (%) |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for direction in DIRECTIONS:
            own = [row for row in rows if (row["dataset"], row["direction"]) == (dataset, direction)]
            if own:
                means = [float(np.mean([row[name]["j"] for row in own])) for name in (*HAND, "found")]
                kept = sum(row["source"] in HAND for row in own)
                copies = float(np.mean([row["found"]["copies"] for row in own]))
                shown = " | ".join(f"{mean:.1f}" for mean in means)
                print(f"| {dataset} | {direction} | {len(own)} | {shown} | {kept} | {copies:.0f} |")
        own = [row for row in rows if row["dataset"] == dataset]
        for name in (*HAND, "the better one"):
            print(f"\n{dataset}, found less {name}: {difference(own, name)}")


def difference(rows: Sequence[dict[str, Any]], name: str) -> str:
    """The mean paired difference in J over cells, with a 95 % interval by a bootstrap over cells and their texts."""
    gaps = []
    for row in rows:
        rival = max(HAND, key=lambda one: row[one]["j"]) if name == "the better one" else name
        gaps.append(np.subtract(row["found"]["outcomes"], row[rival]["outcomes"]))
    random = np.random.default_rng(0)
    means = []
    for _ in range(2000):
        cells = random.integers(len(gaps), size=len(gaps))
        means.append(np.mean([gaps[c][random.integers(len(gaps[c]), size=len(gaps[c]))].mean() for c in cells]))
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{np.mean([gap.mean() for gap in gaps]):+.1f} [{low:+.1f}, {high:+.1f}] ({len(gaps)} cells)"


if __name__ == "__main__":
    main()
