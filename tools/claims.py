"""The experiments of docs/claims.md: run a sweep cell by cell, and compute the table from the rows.

    python tools/claims.py run recipes/small/claims-pictures.toml docs/results/claims-pictures.csv
    python tools/claims.py table docs/results/claims-pictures.csv
    python tools/claims.py readable recipes/small/claims-classification.toml docs/results/claims-readable.csv --step 10

The row of a cell is appended as soon as the cell ends, so a killed machine loses at most one cell; cells that have a
row are skipped. A sweep lists its cells so that every beginning of the list is a balanced comparison.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinprompt.folder.reading import RunRecord, inside, number, read_run
from pinprompt.maths.bootstrap import Unit, compare_paired, mean
from pinprompt.policy.backbone import Backbone
from pinprompt.sweeps import Cell, read_sweep, run_cell

PARTS = 8
"""Curves are kept at this many points of a search, equally far apart in prompts written."""
FIELDS = (
    "cell", "row", "unit", "seed", "prompts", "calls", "updates", "share_after_update", "enough_calls", "best", "dev",
    "test", "perplexity", "mean_curve", "greedy_curve", "best_curve", "prompt", "seconds",
)  # fmt: skip
UNITS = ("task.images", "task.dataset", "task.split")
MEASURES = ("best", "mean", "greedy", "dev", "test", "perplexity")


def label(cell: Cell) -> str:
    """A row of the table: the method with the settings that the sweep varies."""
    own = {name: value for name, value in cell.varied.items() if name not in (*UNITS, "method", "seed")}
    said = ", ".join(f"{name.rsplit('.', 1)[-1]}={value}" for name, value in own.items())
    return cell.recipe.method + (f" ({said})" if said else "")


def unit(cell: Cell) -> str:
    """What a cell was measured on: its pictures, or its dataset and split."""
    task: Any = cell.recipe.task
    if hasattr(task, "images"):
        return " ".join(Path(image).stem for image in task.images)
    return f"{task.dataset}/{task.split}"


def curves(record: RunRecord) -> dict[str, str]:
    """The step's mean, the greedy prompt and the best so far at the ends of `PARTS` parts of the search.

    The mean is taken over all steps of a part; the greedy prompt is the last one that was scored up to then.
    """
    steps, greedy = record.of("step"), record.of("greedy")
    name = "dev" if any(number(one.get("dev")) is not None for one in greedy) else "score"
    found: dict[str, list[str]] = {"mean": [], "greedy": [], "best": []}
    for part in range(PARTS):
        inside_it = steps[part * len(steps) // PARTS : (part + 1) * len(steps) // PARTS]
        if not inside_it:
            continue
        end = int(inside_it[-1]["step"]) + 1
        before = [float(one[name]) for one in greedy if int(one["step"]) <= end]
        found["mean"].append(f"{mean([float(one['score_mean']) for one in inside_it]):.4f}")
        found["greedy"].append(f"{before[-1]:.4f}" if before else "")
        found["best"].append(f"{float(inside_it[-1]['score_best']):.4f}")
    return {f"{which}_curve": " ".join(values) for which, values in found.items()}


def row_of(cell: Cell) -> dict[str, Any]:
    """A finished cell as a row of the CSV file."""
    record = read_run(cell.folder)
    result = record.result
    plain = ("prompts", "calls", "updates", "share_after_update", "enough_calls", "prompt")
    return {
        "cell": cell.recipe.hash, "row": label(cell), "unit": unit(cell), "seed": cell.recipe.seed,
        **{name: result.get(name, "") for name in plain},
        "best": result["score"],
        "dev": next((one.get("dev") for one in result.get("top", [])), ""),
        "test": inside(result, "test", str(result["primary"])),
        "perplexity": inside(result, "readability", "perplexity"),
        "seconds": round(float(result["seconds"])),
        **curves(record),
    }  # fmt: skip


def run(recipe: Path, out: Path, methods: Sequence[str] = ()) -> None:
    """Run the cells that have no row yet, in the order of the sweep; only those of `methods`, if given."""
    known = {(row["row"], row["unit"], row["seed"]) for row in read(out)} if out.exists() else set()
    sweep = read_sweep(recipe, only={"method": methods} if methods else None)
    for place, cell in enumerate(sweep.cells, 1):
        if (label(cell), unit(cell), str(cell.recipe.seed)) in known:
            continue
        outcome = run_cell(cell, "cpu", 1)
        print(
            f"[{place}/{len(sweep.cells)}] {label(cell)}, {unit(cell)}, seed {cell.recipe.seed}: {outcome}", flush=True
        )
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


def values(rows: Sequence[Mapping[str, str]], measure: str) -> dict[Unit, float]:
    """A measure by unit and seed; mean and greedy are those of the last part of the search."""
    found: dict[Unit, float] = {}
    for row in rows:
        said = row[f"{measure}_curve"].split(" ")[-1] if measure in ("mean", "greedy") else row[measure]
        if said:
            found[row["unit"], int(row["seed"])] = float(said)
    return found


def table(rows: Sequence[Mapping[str, str]], first: str | None = None) -> str:
    """Means by row, and how much higher the first row is than each, with a paired interval over units.

    Only units that every row has are counted, so that an unfinished sweep gives a balanced table.
    """
    groups: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault(row["row"], []).append(row)
    common = set.intersection(*({(row["unit"], row["seed"]) for row in group} for group in groups.values()))
    groups = {name: [row for row in group if (row["unit"], row["seed"]) in common] for name, group in groups.items()}
    first = first or next(iter(groups))
    measures = [name for name in MEASURES if any(values(group, name) for group in groups.values())]
    heads = ["row", "updates", "after the first (%)", *measures]
    heads += [f"{first}: {name} less this row's" for name in measures if name != "perplexity"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, group in groups.items():
        updates = [float(row["updates"]) for row in group if row["updates"]]
        shares = [float(row["share_after_update"]) for row in group if row["share_after_update"]]
        cells = [f"{mean(updates):.0f}" if updates else "", f"{100 * mean(shares):.0f}" if shares else ""]
        found_here = [list(values(group, measure).values()) for measure in measures]
        cells += [f"{mean(known):.3f}" if known else "" for known in found_here]
        for measure in measures:
            if measure != "perplexity":
                found = compare_paired(values(groups[first], measure), values(group, measure))
                known = found is not None and name != first
                cells.append(f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]" if known and found else "")
        lines.append("| " + " | ".join([name, *cells]) + " |")
    units = {place for place, _ in common}
    return "\n".join([*lines, "", f"{len(units)} units, {len(common)} cells a row: {', '.join(sorted(units))}"])


MIN_MEMBERS, MAX_MEMBERS = 5, 25
"""How many prompts of equal reward a method needs, and how many of its first ones are read."""


def readable(recipe: Path, out: Path, step: float) -> str:
    """Perplexities of prompts of equal reward: those of the first method less those of another one, in natural logs.

    Prompts of equal reward are those in the same interval of width `step`, compared where both methods have enough; a
    unit's value is the mean over its intervals. Only cells whose runs are on this machine are read.
    """
    runs: dict[tuple[str, int], dict[str, dict[int, list[str]]]] = {}
    for cell in read_sweep(recipe).cells:
        if (cell.folder / "result.json").exists():
            levels: dict[int, list[str]] = {}
            for row in read(cell.folder / "prompts.csv"):
                members = levels.setdefault(math.floor(float(row["train"]) / step), [])
                if row["first"] != "" and len(members) < MAX_MEMBERS:
                    members.append(row["prompt"])
            runs.setdefault((unit(cell), cell.recipe.seed), {})[label(cell)] = levels
    lm, found = Backbone.load("smollm2"), list[dict[str, Any]]()
    for (place, seed), methods in runs.items():
        (first, ours), *others = methods.items()
        for other, theirs in others:
            for level in sorted(ours.keys() & theirs.keys()):
                if min(len(ours[level]), len(theirs[level])) >= MIN_MEMBERS:
                    logs = [mean([math.log(one) for one in lm.perplexities(m[level])]) for m in (ours, theirs)]
                    about = {"unit": place, "seed": seed, "reward": f"{step * level:g}", "row": other}
                    found.append({**about, "ours": f"{logs[0]:.3f}", "theirs": f"{logs[1]:.3f}"})
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    lines = [f"{first} less another method, mean log-perplexity of prompts of equal reward:"]
    for other in dict.fromkeys(row["row"] for row in found):
        gaps: dict[Unit, list[float]] = {}
        for row in found:
            if row["row"] == other:
                gaps.setdefault((row["unit"], row["seed"]), []).append(float(row["ours"]) - float(row["theirs"]))
        known = compare_paired({one: mean(all_) for one, all_ in gaps.items()}, dict.fromkeys(gaps, 0.0))
        if known is not None:
            lines.append(f"{other}: {known.mean:+.2f} [{known.low:+.2f}, {known.high:+.2f}], {len(gaps)} units")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run", help="run the cells that have no row yet")
    runs.add_argument("recipe", type=Path)
    runs.add_argument("csv", type=Path)
    runs.add_argument("--methods", nargs="*", default=(), help="only the cells of these methods")
    shown = verbs.add_parser("table", help="print the table of a CSV file")
    shown.add_argument("csv", type=Path)
    shown.add_argument("--first", help="the row that the others are compared with; default: the first one")
    reads = verbs.add_parser("readable", help="perplexities at equal reward, of the runs on this machine")
    reads.add_argument("recipe", type=Path)
    reads.add_argument("csv", type=Path)
    reads.add_argument("--step", type=float, default=0.05, help="width of an interval of equal reward")
    given = parser.parse_args()
    if given.verb == "run":
        run(given.recipe, given.csv, given.methods)
    elif given.verb == "readable":
        sys.stdout.write(readable(given.recipe, given.csv, given.step) + "\n")
    else:
        sys.stdout.write(table(read(given.csv), given.first) + "\n")


if __name__ == "__main__":
    main()
