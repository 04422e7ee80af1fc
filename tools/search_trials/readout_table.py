"""The experiment on learnt labels: collect finished cells in one CSV file, and print the table from it.

Run it from the project's root after recipes/small/readout.toml:
    .venv/bin/python tools/search_trials/readout_table.py docs/results/readout.csv --runs runs/readout
A cell is a dataset and a split. Every run measures the hand-written prompts, the regression on embeddings, and both
together with the found prompt on the same test rows. Intervals are Student's t over cells.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from calls_table import T95

FIELDS = ("row", "dataset", "split", "accuracy", "calls", "prompt")
ROWS = (
    "manual, raw", "manual, calibrated", "manual, learnt", "race, calibrated", "race", "race, ensemble of 5",
    "embeddings + regression", "race and embeddings",
)  # fmt: skip
OURS = "race"

Cells = dict[str, dict[tuple[str, int], float]]


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of a finished run."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    cell = {"dataset": result["dataset"], "split": result["split"], "calls": result["calls"]}
    hand, both = result["baselines"]["manual"], result["combined"]
    measured = {
        "race": (result["test"], "accuracy", result["prompt"]),
        "race, calibrated": (result["test"], "calibrated_accuracy", result["prompt"]),
        "manual, raw": (hand["test"], "raw_accuracy", hand["prompt"]),
        "manual, calibrated": (hand["test"], "calibrated_accuracy", hand["prompt"]),
        "manual, learnt": (hand["test"], "accuracy", hand["prompt"]),
        "embeddings + regression": (result["baselines"]["embeddings"]["test"], "accuracy", ""),
        "race and embeddings": (both["with-embeddings"]["test"], "accuracy", result["prompt"]),
    }
    if "ensemble" in both:
        prompts = " | ".join(one["prompt"] for one in both["ensemble"]["members"])
        measured["race, ensemble of 5"] = (both["ensemble"]["test"], "accuracy", prompts)
    for row, (facts, name, prompt) in measured.items():
        yield {**cell, "row": row, "accuracy": round(facts[name], 4), "prompt": prompt}


def table(cells: Cells) -> str:
    """Mean accuracies by dataset, the average, and the difference from `race` with its interval, as Markdown."""
    datasets = sorted({dataset for row in cells.values() for dataset, _ in row})
    lines = [f"| | {' | '.join(datasets)} | average | `race` less this row |", "|---|" + "---:|" * (len(datasets) + 2)]
    for row in [row for row in ROWS if row in cells]:
        means = [np.mean([value for (own, _), value in cells[row].items() if own == dataset]) for dataset in datasets]
        said = " | ".join(f"{100 * mean:.1f}" for mean in [*means, np.mean(means)])
        lines.append(f"| {row} | {said} | {'' if row == OURS else lead(cells[OURS], cells[row])} |")
    return "\n".join(lines)


def lead(ours: Mapping[tuple[str, int], float], theirs: Mapping[tuple[str, int], float]) -> str:
    """The mean difference over cells in points, with a 95 % interval."""
    gaps = [100 * (ours[cell] - theirs[cell]) for cell in ours if cell in theirs]
    if len(gaps) < 2:
        return ""
    spread = T95.get(len(gaps) - 1, 2.0) * np.std(gaps, ddof=1) / np.sqrt(len(gaps))
    middle = np.mean(gaps)
    return f"{middle:+.1f} [{middle - spread:+.1f}, {middle + spread:+.1f}]"


def main() -> None:
    """Read runs, update the file, print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("csv", type=Path)
    options.add_argument("--runs", type=Path, nargs="*", default=[])
    options.add_argument("--leave-out", nargs="*", default=[], help="datasets that the table does not show")
    given = options.parse_args()
    kept: dict[tuple[str, str, str], dict[str, Any]] = {}
    if given.csv.exists():
        with given.csv.open(encoding="utf-8", newline="") as file:
            kept = {(row["row"], row["dataset"], row["split"]): row for row in csv.DictReader(file)}
    for runs in given.runs:
        for folder in sorted(path.parent for path in runs.glob("*/result.json")):
            for row in rows_of(folder):
                kept[row["row"], row["dataset"], str(row["split"])] = row
    with given.csv.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(kept[key] for key in sorted(kept))
    cells: Cells = {}
    for (row, dataset, split), one in kept.items():
        if dataset in given.leave_out:
            continue
        cells.setdefault(row, {})[dataset, int(split)] = float(one["accuracy"])
    print(table(cells))


if __name__ == "__main__":
    main()
