"""The experiments on learnt labels: collect finished cells in one CSV file, and print the table from it.

Run it from the project's root after readout.toml, readout-rivals.toml, readout-ablation.toml or readout-curve.toml of
recipes/small:
    .venv/bin/python tools/search_trials/readout_table.py docs/results/readout.csv --runs runs/readout
    ... readout_table.py docs/results/readout-curve.csv --runs runs/readout-curve --by-rows
A cell is a dataset, a split and a number of labelled rows. Every run measures the hand-written prompts and, unless told
otherwise, the regression on embeddings and both together with the found prompt on the same test rows. Intervals are
Student's t over cells.
"""

from __future__ import annotations

import argparse
import csv
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from calls_table import T95

from pinprompt.recipe.sections import RaceSettings

FIELDS = ("row", "dataset", "split", "shots", "accuracy", "calls", "updates", "prompt")
ROWS = (
    "manual, raw", "manual, calibrated", "manual, learnt", "random, raw", "random, learnt", "beam, raw", "beam, learnt",
    "pin, raw", "pin, learnt", "pin-untrained, learnt", "soft-prompt, raw", "soft-prompt, learnt",
    "race, calibrated", "race", "race, ensemble of 5", "embeddings + regression", "race and embeddings",
    "no racing", "no pruning", "with examples",
)  # fmt: skip
OURS = "race"
SHOTS = "16"
"""Labelled rows of each class in train and in dev, unless a recipe says otherwise."""

Cell = tuple[str, int, int]
Cells = dict[str, dict[Cell, float]]


def part_changed(recipe: Mapping[str, Any]) -> str:
    """Which part of `race` a run of recipes/small/readout-ablation.toml leaves out or adds; "" for none."""
    race, usual = recipe["race"], RaceSettings()
    changed = {
        "no racing": race["first_block"] != usual.first_block,
        "no pruning": race["prune"] != usual.prune,
        "with examples": bool(recipe["task"]["examples"]),
    }
    return next((name for name, is_so in changed.items() if is_so), "")


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of a finished run."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    recipe = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    shots = recipe["task"]["shots"]
    cell = {"dataset": result["dataset"], "split": result["split"], "shots": shots, "calls": result["calls"]}
    if result["method"] == OURS and (part := part_changed(recipe)):
        yield {**cell, "row": part, "accuracy": round(result["test"]["accuracy"], 4), "prompt": result["prompt"]}
        return
    if result["method"] != OURS:
        about = {**cell, "updates": result.get("updates", ""), "prompt": result["prompt"]}
        for reading, name in (("raw", "raw_accuracy"), ("learnt", "accuracy")):
            yield {**about, "row": f"{result['method']}, {reading}", "accuracy": round(result["test"][name], 4)}
        return
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
    datasets = sorted({dataset for row in cells.values() for dataset, _, _ in row})
    lines = [f"| | {' | '.join(datasets)} | average | `race` less this row |", "|---|" + "---:|" * (len(datasets) + 2)]
    for row in [row for row in ROWS if row in cells]:
        known = [[value for (own, _, _), value in cells[row].items() if own == dataset] for dataset in datasets]
        means = [np.mean(values) for values in known if values]
        said = " | ".join(f"{100 * np.mean(values):.1f}" if values else "" for values in [*known, means])
        lines.append(f"| {row} | {said} | {'' if row == OURS else lead(cells[OURS], cells[row])} |")
    return "\n".join(lines)


def by_rows(cells: Cells) -> str:
    """Mean accuracies over datasets and splits by the number of labelled rows of a class, as Markdown."""
    sizes = sorted({shots for row in cells.values() for _, _, shots in row})
    lines = [f"| | {' | '.join(str(2 * shots) for shots in sizes)} |", "|---|" + "---:|" * len(sizes)]
    for row in [row for row in ROWS if row in cells]:
        means = [np.mean([value for (_, _, own), value in cells[row].items() if own == shots]) for shots in sizes]
        lines.append(f"| {row} | {' | '.join(f'{100 * mean:.1f}' for mean in means)} |")
    for row in ("manual, learnt", "embeddings + regression"):
        parts = [
            lead(*({cell: one for cell, one in cells[who].items() if cell[2] == shots} for who in (OURS, row)))
            for shots in sizes
        ]
        lines.append(f"| `race` less {row} | {' | '.join(parts)} |")
    return "\n".join(lines)


def lead(ours: Mapping[Cell, float], theirs: Mapping[Cell, float]) -> str:
    """The mean difference over cells in points, with a 95 % interval."""
    gaps = [100 * (ours[cell] - theirs[cell]) for cell in ours if cell in theirs]
    if len(gaps) < 2:
        return ""
    half = T95[max(count for count in T95 if count < len(gaps))] * np.std(gaps, ddof=1) / np.sqrt(len(gaps))
    middle = np.mean(gaps)
    return f"{middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"


def main() -> None:
    """Read runs, update the file, print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("csv", type=Path)
    options.add_argument("--runs", type=Path, nargs="*", default=[])
    options.add_argument("--leave-out", nargs="*", default=[], help="datasets that the table does not show")
    options.add_argument("--by-rows", action="store_true", help="a column for each number of labelled rows")
    given = options.parse_args()
    kept: dict[tuple[str, ...], dict[str, Any]] = {}
    if given.csv.exists():
        with given.csv.open(encoding="utf-8", newline="") as file:
            kept = {
                (row["row"], row["dataset"], row["split"], row.setdefault("shots", SHOTS)): row
                for row in csv.DictReader(file)
            }
    for runs in given.runs:
        for folder in sorted(path.parent for path in runs.glob("*/result.json")):
            for row in rows_of(folder):
                kept[row["row"], row["dataset"], str(row["split"]), str(row["shots"])] = row
    with given.csv.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(kept[key] for key in sorted(kept))
    cells: Cells = {}
    for (row, dataset, split, shots), one in kept.items():
        if dataset not in given.leave_out:
            cells.setdefault(row, {})[dataset, int(split), int(shots)] = float(one["accuracy"])
    print(by_rows(cells) if given.by_rows else table(cells))


if __name__ == "__main__":
    main()
