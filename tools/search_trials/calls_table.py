"""The table of the experiment on calls: test accuracy by set and method, and paired differences over sets and splits.

Run it from the project's root after recipes/small/calls.toml, calls-rivals.toml and smaller_budgets.py:
    .venv/bin/python tools/search_trials/calls_table.py runs/calls runs/calls-rivals build/trials/smaller-budgets.jsonl
A fourth argument is a file for the figure: accuracy against calls, a line a method, over the cells that all lines have.
A cell is a set and a split. Hand-written prompts are measured by every run of `race`; "best hand-written" is the one of
manual and instructions that is better on dev, so that no test row chooses. Intervals are Student's t over cells.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TUNED = ("rotten-tomatoes", "vader-editorials")
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 11: 2.20, 14: 2.14, 19: 2.09}

Cells = dict[str, dict[tuple[str, int], float]]


def results(folder: Path) -> Iterator[dict[str, Any]]:
    """The results of the finished runs below a folder, with their budget of calls."""
    for path in sorted(folder.glob("*/result.json")):
        yield json.loads(path.read_text("utf-8"))


def read(runs: Path, rivals: Path, smaller: Path | None) -> tuple[Cells, dict[str, list[dict[str, Any]]]]:
    """Test accuracy by row of the table and cell, and the readability of what each row found."""
    cells: Cells = defaultdict(dict)
    read_by: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results(runs):
        cell = (result["dataset"], result["split"])
        calls = 600 if result["calls"] <= 600 else 1000 if result["calls"] <= 1000 else 1600
        cells[f"race, {calls:,} calls"][cell] = result["test"]["accuracy"]
        read_by[f"race, {calls:,} calls"].append(result["readability"])
        hand = result["baselines"]
        for name, row in hand.items():
            cells[f"{name}, raw"][cell] = row["test"]["raw_accuracy"]
            cells[f"{name}, calibrated"][cell] = row["test"]["accuracy"]
        best = max(hand.values(), key=lambda row: row["dev"]["accuracy"])
        cells["best hand-written, calibrated"][cell] = best["test"]["accuracy"]
    for result in results(rivals):
        name = f"{result['method']}, raw, 6,400 calls"
        cells[name][(result["dataset"], result["split"])] = result["test"]["accuracy"]
        read_by[name].append(result["readability"])
    for line in smaller.read_text("utf-8").splitlines() if smaller else ():
        row = json.loads(line)
        if (row["way"], row["budget"]) != ("raw", 6400) and (row["method"] == "random" or row["way"] == "raw"):
            name = f"{row['method']}, {row['way']}, {row['budget']:,} calls"
            cells[name][(row["dataset"], row["split"])] = row["accuracy"]
    return cells, read_by


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval in points."""
    mean, count = 100 * float(np.mean(values)), len(values)
    if count < 2:
        return f"{mean:+.1f}"
    half = T95[max(n for n in T95 if n < count)] * 100 * float(np.std(values, ddof=1)) / math.sqrt(count)
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def draw(cells: Cells, path: Path) -> None:
    """Accuracy against calls on the sets that were not tuned on; a dotted line is what costs no call."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, dict[int, dict[tuple[str, int], float]]] = defaultdict(dict)
    for name, row in cells.items():
        method, _, calls = name.rpartition(", ")
        if calls.endswith(" calls"):
            lines[method][int(calls.removesuffix(" calls").replace(",", ""))] = row
    free = cells["best hand-written, calibrated"]
    every = [row for by_calls in lines.values() for row in by_calls.values()]
    common = sorted(cell for cell in free if cell[0] not in TUNED and all(cell in row for row in every))
    axes = pyplot.figure(figsize=(6, 4), layout="constrained").add_subplot()
    for method, by_calls in lines.items():
        points = [(calls, 100 * np.mean([row[cell] for cell in common])) for calls, row in sorted(by_calls.items())]
        axes.plot(*zip(*points, strict=True), marker="o", label=method)
    level = 100 * float(np.mean([free[cell] for cell in common]))
    axes.axhline(level, linestyle=":", color="grey", label="best hand-written, calibrated")
    axes.set(xscale="log", xlabel="calls", ylabel=f"test accuracy (%), mean of {len(common)} cells")
    axes.set_xticks([600, 1000, 1600, 6400], ["600", "1,000", "1,600", "6,400"])
    axes.minorticks_off()
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot.savefig(path)


def main(runs: Path, rivals: Path, smaller: Path | None, figure: Path | None) -> None:
    """Print the tables as Markdown, and draw the figure if a file is given for it."""
    cells, read_by = read(runs, rivals, smaller)
    if figure is not None:
        draw(cells, figure)
    sets = sorted({cell[0] for row in cells.values() for cell in row}, key=lambda name: (name in TUNED, name))
    print(
        "| |", " | ".join(f"{name}{' (tuned on)' if name in TUNED else ''}" for name in sets), "| perplexity | words |"
    )
    print("|---|" + "---|" * (len(sets) + 2))
    for name, row in cells.items():
        shown = []
        for dataset in sets:
            values = [100 * value for (own, _), value in row.items() if own == dataset]
            error = f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
            shown.append(f"{np.mean(values):.1f}{error} ({len(values)})" if values else "")
        facts = read_by.get(name, [])
        perplexity = f"{np.exp(np.mean([math.log(fact['perplexity']) for fact in facts])):.0f}" if facts else ""
        words = f"{100 * np.mean([fact['dictionary_words'] for fact in facts]):.0f} %" if facts else ""
        print(f"| {name} | {' | '.join(shown)} | {perplexity} | {words} |")
    print("\n| race at 1,000 calls less ..., on sets that were not tuned on | cells | difference, 95 % interval |")
    print("|---|---|---|")
    ours = cells["race, 1,000 calls"]
    for name, row in cells.items():
        gaps = [ours[cell] - row[cell] for cell in row if cell in ours and cell[0] not in TUNED]
        if gaps and row is not ours:
            print(f"| {name} | {len(gaps)} | {interval(gaps)} |")


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:5]]
    main(given[0], given[1], *[*given[2:], None, None][:2])
