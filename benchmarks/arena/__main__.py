"""Run the arena, a cell at a time: `make arena`, or `python -m benchmarks.arena`. Cells that have a row are skipped.

`--list` shows what is left, `--table` prints the table of docs/arena.md. The row of a cell is written as soon as the
cell ends, so stopping costs at most one cell. A contestant that fails gets a row that says why; `--again` repeats it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.arena.tasks import TASKS, TEST_ROWS, Task, open_task
from pinprompt.maths.bootstrap import compare_paired, interval_of_mean, mean

if TYPE_CHECKING:
    from benchmarks.arena.host import Host

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "docs" / "results" / "arena.csv"
BUILD = ROOT / "build" / "arena"
MODEL = "qwen-coder"
LIMIT = 300
SPLITS = (13, 21)
TOKENS = 48
"""The most tokens of an answer in the test."""
FIELDS = (
    "contestant", "labels", "task", "split", "accuracy", "low", "high", "rows", "calls", "refused", "tokens_in",
    "tokens_out", "seconds", "peak_mb", "perplexity", "words", "failed", "note", "prompt", "hits",
)  # fmt: skip


@dataclass(frozen=True)
class Contestant:
    """A way to find a prompt: of pinprompt, of a peer in its own environment, or without a search."""

    name: str
    peer: str | None = None
    """The environment below build/arena, and the script in peers/."""
    variant: str = ""
    kinds: tuple[str, ...] = ("labels", "answers")


CONTESTANTS = (
    Contestant("zero-shot"),
    Contestant("embeddings", kinds=("labels",)),
    Contestant("race"),
    Contestant("gepa", "gepa"),
    Contestant("mipro", "dspy", "mipro"),
    Contestant("capo", "promptolution", "capo"),
    Contestant("evoprompt", "promptolution", "evoprompt"),
    Contestant("bootstrap", "dspy", "bootstrap"),
    Contestant("pin", kinds=("labels",)),
)


@dataclass
class Found:
    """What a contestant found: a prompt and either an answer for each test row, or the chats to ask."""

    prompt: str
    answers: list[str] | None = None
    chats: Mapping[str, list[list[dict[str, str]]]] | None = None
    prefix: str = ""
    note: str = ""
    peak_mb: int | None = None


Cell = tuple[Contestant, str, int]


def cells(
    contestants: Sequence[Contestant] = CONTESTANTS, tasks: Sequence[str] = TASKS, splits: Sequence[int] = SPLITS
) -> list[Cell]:
    """Every cell, a split at a time and a task at a time, so that each beginning is a comparison."""
    order = itertools.product(splits, tasks, contestants)
    return [
        (who, task, split) for split, task, who in order if ("answers" if task == "orders" else "labels") in who.kinds
    ]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows that are known."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows at once, and wait until they are on the disk."""
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n", restval="")
        if not file.tell():
            writer.writeheader()
        writer.writerows(rows)
        file.flush()
        os.fsync(file.fileno())


def left(path: Path, wanted: Sequence[Cell], again: bool = False) -> list[Cell]:
    """The cells that have no row yet; with `again`, also those that failed and have no other row."""
    rows = [row for row in read_rows(path) if not (again and row["failed"])]
    known = {(row["contestant"], row["task"], row["split"]) for row in rows}
    return [cell for cell in wanted if (cell[0].name, cell[1], str(cell[2])) not in known]


def run_cell(
    host: Host,
    cell: Cell,
    find: Callable[[Host, Contestant, Task, int, Path], Found],
    calls: int = LIMIT,
    test_rows: int = TEST_ROWS,
) -> list[dict[str, Any]]:
    """Let a contestant search, then test what it found; the rows of the cell."""
    from benchmarks.arena.meter import Meter

    who, name, split = cell
    task, key = open_task(name, split, test_rows), f"{who.name}-{name}-{split}"
    folder = BUILD / "cells" / key
    folder.mkdir(parents=True, exist_ok=True)
    meter = host.meters[key] = Meter(calls)
    started = time.monotonic()
    facts: dict[str, Any] = {"contestant": who.name, "labels": "text", "task": name, "split": split}
    try:
        found = find(host, who, task, split, folder)
        seconds = round(time.monotonic() - started)
    except Exception as error:
        return [{**facts, **_spent(meter), "seconds": round(time.monotonic() - started),
                 "failed": f"{type(error).__name__}: {error}"[:300]}]  # fmt: skip
    facts |= _spent(meter) | {"seconds": seconds, "note": found.note, "prompt": found.prompt}
    facts |= {"words": len(found.prompt.split()), "peak_mb": found.peak_mb}
    facts["perplexity"] = round(host.perplexity(found.prompt), 1) if found.prompt else None
    answers = found.answers
    if answers is None:
        assert found.chats is not None
        answers = [reply.text for reply in host.ask(found.chats["test"], TOKENS)]
        (folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")
    elif task.labels:
        facts["labels"] = "own"
    rows = [{**facts, **_scored(task, answers)}]
    if task.labels and found.chats is not None:
        rows.append({**facts, "labels": "learnt", **_scored(task, _with_learnt_labels(host, task, found))})
    return rows


def _spent(meter: Any) -> dict[str, Any]:
    return {
        "calls": meter.calls,
        "refused": meter.refused,
        "tokens_in": meter.tokens_in,
        "tokens_out": meter.tokens_out,
    }


def _scored(task: Task, answers: Sequence[str]) -> dict[str, Any]:
    """Accuracy with a bootstrap interval over rows, and which rows are correct."""
    pairs = zip(answers, task.rows["test"], strict=True)
    hits = [int(task.correct(answer, row["target"])) for answer, row in pairs]
    low, high = interval_of_mean(hits, 0)
    facts = {"accuracy": round(mean(hits), 4), "low": round(low, 4), "high": round(high, 4), "rows": len(hits)}
    return {**facts, "hits": "".join(map(str, hits))}


def _with_learnt_labels(host: Host, task: Task, found: Found) -> list[str]:
    """The labels of the test rows from what the model would say next, by a readout learnt from train and dev."""
    from benchmarks.arena.ours import learnt_labels

    assert found.chats is not None
    labelled = task.labelled()
    chats = [*found.chats["train"], *found.chats["dev"], *found.chats["test"]]
    tokenizer = host.chat.tokenizer
    own = [tokenizer(label, add_special_tokens=False)["input_ids"][0] for label in task.labels]
    targets = [task.labels.index(row["target"]) for row in labelled]
    places = learnt_labels(host.next_words(chats, found.prefix), len(labelled), targets, own)
    return [task.labels[place] for place in places]


def find_prompt(host: Host, who: Contestant, task: Task, split: int, folder: Path) -> Found:
    """The prompt that a contestant finds on train and dev, with the calls of its meter."""
    from benchmarks.arena import ours

    key = folder.name
    if who.name == "zero-shot":
        chats = {
            part: [
                [{"role": "system", "content": task.instruction}, {"role": "user", "content": row["input"]}]
                for row in rows
            ]
            for part, rows in task.rows.items()
        }
        return Found(task.instruction, chats=chats)
    if who.name == "embeddings":
        return Found("", ours.embeddings(task), note="regression on minilm embeddings of the labelled rows")
    if who.peer is None:
        prompt, answers, note = ours.search(task, who.name, host.name, host.meters[key], split, folder)
        return Found(prompt, answers, note=note)
    job, out = folder / "job.json", folder / "found.json"
    out.unlink(missing_ok=True)
    known = {"name": task.name, "instruction": task.instruction, "labels": task.labels}
    rows = {part: task.rows[part] for part in ("train", "dev")}
    blind = [{"input": row["input"], "target": ""} for row in task.rows["test"]]
    given = {
        "base_url": f"http://127.0.0.1:{host.port}/{key}/v1",
        "limit": host.meters[key].limit,
        "seed": split,
        "variant": who.variant,
    }
    given |= {"task": {**known, "rows": {**rows, "test": blind}}, "out": str(out)}
    job.write_text(json.dumps(given), encoding="utf-8")
    python = BUILD / who.peer / "bin" / "python"
    script = Path(__file__).parent / "peers" / f"{who.peer}_peer.py"
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DSPY_CACHEDIR": str(folder / "cache")}
        done = subprocess.run([python, script, job], stdout=log, stderr=log, cwd=folder, env=environment, check=False)
    if not out.exists():
        last = (folder / "log.txt").read_text("utf-8", errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"exit code {done.returncode}: {''.join(last)}")
    found = json.loads(out.read_text("utf-8"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return Found(found["prompt"], chats=found["chats"], prefix=found["prefix"], note=found["note"], peak_mb=peak)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Accuracy of every contestant by task, and `race` less it over the rows that both were tested on."""
    rows = [row for row in rows if not row["failed"]]
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["contestant"], row["labels"]), []).append(row)
    ours = _by_row([row for row in rows if row["contestant"] == "race"])
    heads = ["contestant", "labels", *tasks, "calls", "seconds", "words", "perplexity", "`race` less this row"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---" + "|---:" * (len(heads) - 2) + "|"]
    for (name, labels), own in groups.items():
        cells = [name, labels]
        for task in tasks:
            found = [float(row["accuracy"]) for row in own if row["task"] == task]
            cells.append(f"{100 * mean(found):.1f} ({len(found)})" if found else "")
        for field, form in (("calls", "{:.0f}"), ("seconds", "{:.0f}"), ("words", "{:.0f}"), ("perplexity", "{:,.0f}")):
            known = [float(row[field]) for row in own if row[field] and row[field] != "nan"]
            cells.append(form.format(mean(known)) if known else "")
        less = None if name == "race" else compare_paired(ours, _by_row(own))
        cells.append(f"{100 * less.mean:+.1f} [{100 * less.low:+.1f}, {100 * less.high:+.1f}]" if less else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_row(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, int], float]:
    """Whether each test row is correct, by task, split and row."""
    found: dict[tuple[str, int], float] = {}
    for row in rows:
        for place, hit in enumerate(row["hits"]):
            found[f"{row['task']}/{row['split']}/{place}", 0] = float(hit)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show which cells are left")
    parser.add_argument("--table", action="store_true", help="print the table")
    parser.add_argument("--again", action="store_true", help="run cells again that failed")
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS)
    parser.add_argument("--splits", nargs="*", type=int, default=SPLITS)
    parser.add_argument("--calls", type=int, default=LIMIT, help="calls of each search")
    parser.add_argument("--test-rows", type=int, default=TEST_ROWS, help="the first N test rows")
    parser.add_argument("--model", default=MODEL, help="another model, to try the arena itself")
    parser.add_argument("--csv", type=Path, default=ROWS, help="where the rows are")
    names = [one.name for one in CONTESTANTS]
    parser.add_argument("--contestants", nargs="*", default=names, choices=names)
    given = parser.parse_args()
    chosen = [one for one in CONTESTANTS if one.name in given.contestants]
    wanted = cells(chosen, given.tasks, given.splits)
    todo = left(given.csv, wanted, given.again)
    if given.table:
        sys.stdout.write(table(read_rows(given.csv)) + "\n")
    elif given.list:
        lines = [f"{who.name}, {task}, split {split}" for who, task, split in todo]
        sys.stdout.write("\n".join([*lines, f"{len(todo)} of {len(wanted)} cells are left"]) + "\n")
    elif todo:
        _run(todo, len(wanted), given)


def _run(todo: Sequence[Cell], total: int, given: argparse.Namespace) -> None:
    from benchmarks.arena.host import Host, serve
    from pinprompt.models.loading import load_causal_lm

    host = Host(*load_causal_lm(given.model, "cpu", precision="bf16"), name=given.model)
    host.port = serve(host).server_port
    for place, cell in enumerate(todo, total - len(todo) + 1):
        who, task, split = cell
        print(f"[{place}/{total}] {who.name}, {task}, split {split} ...", flush=True)
        rows = run_cell(host, cell, find_prompt, given.calls, given.test_rows)
        add_rows(given.csv, rows)
        for row in rows:
            said = row.get("failed") or f"{row['accuracy']:.3f} ({row['labels']})"
            print(f"    {said}, {row['calls']} calls, {row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
