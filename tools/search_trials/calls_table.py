"""The experiment on calls: collect finished cells in one CSV file, and make the tables from it.

Run it from the project's root after recipes/small/calls.toml, calls-rivals.toml, calls-in-context.toml,
calls-baselines.toml and calls-ablation.toml. Cells that are already in the file are kept, so that it can grow over
several sessions:
    .venv/bin/python tools/search_trials/calls_table.py docs/results/calls.csv --runs runs/calls runs/calls-rivals
A cell is a dataset and a split. Hand-written prompts are measured by every run of `race`. "Best hand-written" is the
better of manual and instructions on dev, so that test rows do not influence the choice. Intervals are Student's t over
cells.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.run import running

TUNED = ("rotten-tomatoes", "vader-editorials")
RACE = "race, 1,000 calls"
RIVALS = ("beam", "pin", "random")  # rows with all cells; other baselines have fewer
HAND = (
    "manual, raw",
    "manual, calibrated",
    "instructions, raw",
    "instructions, calibrated",
    "best hand-written, calibrated",
)
T95 = {
    1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 11: 2.20, 14: 2.14, 17: 2.11,
    19: 2.09, 24: 2.06, 29: 2.05,
}  # fmt: skip
FIELDS = ("row", "dataset", "split", "accuracy", "perplexity", "slor", "dictionary_words", "precision", "prompt")

Row = dict[str, Any]
Cells = dict[str, dict[tuple[str, int], Row]]


def rows_of(folder: Path) -> Iterator[Row]:
    """The rows of a finished run: that of its method and, for a race, those of the hand-written prompts."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    recipe = running.recipe_of(folder).model_dump(mode="json")
    cell = {"dataset": result["dataset"], "split": result["split"], "precision": recipe["models"]["precision"]}
    name, read = row_name(recipe), result.get("readability", {})  # a soft prompt has no words
    yield {
        **cell, "row": name, "accuracy": result["test"]["accuracy"], "prompt": result["prompt"],
        **{fact: read.get(fact) for fact in ("perplexity", "slor", "dictionary_words")},
    }  # fmt: skip
    if name != RACE:
        return
    hand = result["baselines"]
    for own, row in hand.items():
        for way, metric in (("raw", "raw_accuracy"), ("calibrated", "accuracy")):
            yield {**cell, "row": f"{own}, {way}", "accuracy": row["test"][metric], "prompt": row["prompt"]}
    best = max(hand.values(), key=lambda row: row["dev"]["accuracy"])
    yield {**cell, "row": HAND[-1], "accuracy": best["test"]["accuracy"], "prompt": best["prompt"]}


def row_name(recipe: Mapping[str, Any]) -> str:
    """The row of a run in the tables: its method, the settings that differ from the defaults, its budget."""
    method, race, scoring = recipe["method"], recipe["race"], recipe["scoring"]
    raw = recipe["task"]["labels"] == "words"
    said = [method]
    if method == "race":
        said += ["no calibration"] if raw else []
        said += ["no racing"] if race["keep"] == 1.0 else []
    else:
        said.append("raw" if raw else "calibrated")
        said += ["raced"] if scoring.get("race") else []
        said += ["chosen by all rows"] if scoring["choose"] == "rows" else []
    return ", ".join([*said, f"{recipe['budget']['calls']:,} calls"])


def collect(path: Path, runs: Sequence[Path]) -> list[Row]:
    """All cells, from the file and from finished runs, which take precedence; they are written back to the file."""
    found: dict[tuple[str, str, int, str], Row] = {}

    def take(row: Row) -> None:
        found[(row["row"], row["dataset"], int(row["split"]), row["precision"])] = row

    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                take({**row, "split": int(row["split"]), "accuracy": float(row["accuracy"])})
    for folder in runs:
        for done in sorted(folder.glob("*/result.json")):
            for row in rows_of(done.parent):
                take(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [found[key] for key in sorted(found)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({field: "" if row.get(field) is None else row[field] for field in FIELDS} for row in rows)
    return rows


def table(rows: Sequence[Row]) -> Cells:
    """Rows of the tables with their cells, in the order in which they are shown."""
    cells: Cells = defaultdict(dict)
    for row in rows:
        cells[row["row"]][(row["dataset"], row["split"])] = row

    def place(name: str) -> tuple[bool, bool, str, int, str]:
        calls = int(name.rpartition(", ")[2].removesuffix(" calls").replace(",", "")) if name.endswith(" calls") else 0
        return name != RACE, name not in HAND, name.split(", ")[0], calls, name

    return {name: cells[name] for name in sorted(cells, key=place)}


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval in points."""
    mean, count = 100 * float(np.mean(values)), len(values)
    if count < 2:
        return f"{mean:+.1f}"
    half = T95[max(n for n in T95 if n < count)] * 100 * float(np.std(values, ddof=1)) / math.sqrt(count)
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def mean(row: Mapping[tuple[str, int], Row], cells: Sequence[tuple[str, int]]) -> float:
    """Mean accuracy in percent over cells."""
    return 100 * float(np.mean([row[cell]["accuracy"] for cell in cells]))


def show(cells: Cells) -> None:
    """Print the tables as Markdown."""
    sets = sorted({cell[0] for row in cells.values() for cell in row}, key=lambda name: (name in TUNED, name))
    titles = [f"{name}{' (tuned on)' if name in TUNED else ''}" for name in sets]
    print("| |", " | ".join(titles), "| perplexity | SLOR | words |")
    print("|---|" + "---|" * (len(sets) + 3))
    for name, row in cells.items():
        shown = []
        for dataset in sets:
            values = [100 * found["accuracy"] for (own, _), found in row.items() if own == dataset]
            error = f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
            shown.append(f"{np.mean(values):.1f}{error} ({len(values)})" if values else "")
        print(f"| {name} | {' | '.join([*shown, *readability(list(row.values()))])} |")
    print("\n| race at 1,000 calls less ..., on sets that were not tuned on | cells | difference, 95 % interval |")
    print("|---|---|---|")
    ours = cells[RACE]
    for name, row in cells.items():
        gaps = [ours[cell]["accuracy"] - row[cell]["accuracy"] for cell in row if cell in ours and cell[0] not in TUNED]
        if gaps and row is not ours:
            print(f"| {name} | {len(gaps)} | {interval(gaps)} |")


def brief(cells: Cells) -> None:
    """Print a short table: hand-written prompts, the rivals and race, over the cells that all of them have."""
    names = ["manual, raw", "manual, calibrated", HAND[-1]]
    names += [f"{rival}, raw, 6,400 calls" for rival in RIVALS] + [RACE]
    common = set.intersection(*(set(cells[name]) for name in names))
    common = {cell for cell in common if cell[0] not in TUNED}
    sets = sorted({dataset for dataset, _ in common})
    print(f"| | {' | '.join(sets)} | average | perplexity | dictionary words |")
    print("|---|" + "---:|" * (len(sets) + 3))
    for name in names:
        own = [[cell for cell in sorted(common) if cell[0] == dataset] for dataset in sets]
        means = [mean(cells[name], some) for some in own]
        perplexity, _, words = readability([cells[name][cell] for cell in sorted(common)])
        shown = [f"{value:.1f}" for value in (*means, float(np.mean(means)))]
        print(f"| {name} | {' | '.join([*shown, perplexity, words])} |")
    print(f"\nMean over {len(common)} cells: splits {', '.join(map(str, sorted({split for _, split in common})))}.")


def readability(rows: Sequence[Row]) -> list[str]:
    """Perplexity (geometric mean), SLOR and the share of dictionary words of a row's prompts."""
    rows = [row for row in rows if row.get("perplexity")]
    if not rows:
        return ["", "", ""]
    perplexity = math.exp(np.mean([math.log(float(row["perplexity"])) for row in rows]))
    words = 100 * np.mean([float(row["dictionary_words"]) for row in rows])
    return [f"{perplexity:,.0f}", f"{np.mean([float(row['slor']) for row in rows]):.2f}", f"{words:.0f} %"]


def main() -> None:
    """Collect the cells and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path, help="The CSV file of all cells.")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="Folders of finished sweeps.")
    parser.add_argument("--splits", type=int, nargs="*", help="Only these splits.")
    parser.add_argument("--brief", action="store_true", help="Print the short table instead.")
    asked = parser.parse_args()
    rows = collect(asked.cells, asked.runs)
    cells = table([row for row in rows if asked.splits is None or row["split"] in asked.splits])
    (brief if asked.brief else show)(cells)


if __name__ == "__main__":
    main()
