"""Free answers on five small tasks: run the sweep cell by cell, and print the table from the rows.

    .venv/bin/python tools/answers_table.py run recipes/small/answers.toml docs/results/answers.csv
    .venv/bin/python tools/answers_table.py table docs/results/answers.csv

The row of a cell is appended as soon as the cell ends; cells that have a row are skipped. The rival is the best of the
hand-written instructions: by the rows that the search has too, as a person would choose, and by the test rows, which
nobody can choose by. Intervals are Student's t over cells.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.folder.reading import read_run
from pinprompt.sweeps import Cell, read_sweep, run_cell

FIELDS = ("task", "seed", "found", "hand_chosen", "hand_best", "calls", "seconds", "found_by", "prompt")
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 14: 2.14}
"""Quantiles of Student's t by degrees of freedom."""
RIVALS = {"hand_chosen": "best instruction by the search's rows", "hand_best": "best instruction by the test rows"}


def name_of(cell: Cell) -> str:
    """The task of a cell, by its file."""
    task: Any = cell.recipe.task
    return Path(task.train).name.removesuffix("-train.csv")


def row_of(cell: Cell) -> dict[str, Any]:
    """A finished cell as a row of the CSV file."""
    result = read_run(cell.folder).result
    primary = str(result["primary"])
    hand = [one for label, one in result["baselines"].items() if label.startswith("manual")]
    chosen = max(hand, key=lambda one: one["dev"][primary])
    return {
        "task": name_of(cell),
        "seed": cell.recipe.seed,
        "found": round(result["test"][primary], 4),
        "hand_chosen": round(chosen["test"][primary], 4),
        "hand_best": round(max(one["test"][primary] for one in hand), 4),
        "calls": result["calls"],
        "seconds": round(float(result["seconds"])),
        "found_by": result.get("found_by", ""),
        "prompt": result["prompt"],
    }


def run(recipe: Path, out: Path) -> None:
    """Run the cells that have no row yet, in the order of the sweep."""
    known = {(row["task"], row["seed"]) for row in read(out)} if out.exists() else set()
    cells = [cell for cell in read_sweep(recipe).cells if (name_of(cell), str(cell.recipe.seed)) not in known]
    for place, cell in enumerate(cells, 1):
        outcome = run_cell(cell, "cpu", 1)
        print(f"[{place}/{len(cells)}] {name_of(cell)}, seed {cell.recipe.seed}: {outcome}", flush=True)
        if outcome.startswith("failed"):
            continue
        with out.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row_of(cell))
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def gap(rows: Sequence[dict[str, str]], rival: str) -> str:
    """How many points the found prompt is ahead, with its interval."""
    gaps = np.array([100 * (float(row["found"]) - float(row[rival])) for row in rows])
    if len(gaps) < 2:
        return f"{gaps.mean():+.1f}"
    half = T95[max(degrees for degrees in T95 if degrees < len(gaps))] * gaps.std(ddof=1) / len(gaps) ** 0.5
    return f"{gaps.mean():+.1f} [{gaps.mean() - half:+.1f}, {gaps.mean() + half:+.1f}]"


def table(rows: Sequence[dict[str, str]]) -> str:
    """Mean test values by task and over all cells, and what the found prompt is ahead, as Markdown."""
    heads = ["task", "cells", "found", *(head for name in RIVALS.values() for head in (name, "found less this"))]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    names = list(dict.fromkeys(row["task"] for row in rows))
    for name in [*names, "all"]:
        own = [row for row in rows if name in (row["task"], "all")]
        said = [name, str(len(own)), f"{100 * np.mean([float(row['found']) for row in own]):.1f}"]
        for rival in RIVALS:
            said += [f"{100 * np.mean([float(row[rival]) for row in own]):.1f}", gap(own, rival)]
        lines.append("| " + " | ".join(said) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run", help="run the cells that have no row yet")
    runs.add_argument("recipe", type=Path)
    runs.add_argument("csv", type=Path)
    shown = verbs.add_parser("table", help="print the table of a CSV file")
    shown.add_argument("csv", type=Path)
    given = parser.parse_args()
    if given.verb == "run":
        run(given.recipe, given.csv)
    else:
        sys.stdout.write(table(read(given.csv)) + "\n")


if __name__ == "__main__":
    main()
