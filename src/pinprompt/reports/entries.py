"""A run folder as an entry of a comparison: its value, and everything that determines what it is comparable with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.folder.reading import MARKS, RunRecord, inside, mapping, number, read_run
from pinprompt.maths.bootstrap import Unit
from pinprompt.methods.table import METHODS, SECTIONS
from pinprompt.run.verdict import SPLITS, reported_split
from pinprompt.wording import text

UNIT_KEYS = ("split", "images")  # task settings that runs are averaged over
SEARCH_KEYS = ("reward", "labels")  # change the search and how an answer is read, not the test
NOT_VARIANTS = ("task", "budget", "scoring", "seed", "method")
DEPTH = 4
LEARNING = ("updates", "share_after_update", "calls", "enough_calls")


@dataclass(frozen=True)
class Entry:
    """A finished run in a comparison."""

    folder: Path
    method: str
    dataset: str
    unit: Unit
    value: float
    facts: dict[str, str]
    """Task, task model, judges, budget, metric and split: runs that differ here never share a table."""
    data: dict[str, str]
    """Task settings that make a column: data, template, label words."""
    settings: dict[str, str]
    """All other settings, which distinguish rows of the same method."""
    task: str
    fingerprint: str
    metrics: dict[str, float]
    """All metrics on that split."""
    baselines: dict[str, dict[str, float]]
    """The same for the hand-written prompts that the run measured."""
    readability: dict[str, float]
    learning: dict[str, float]
    """Of a Q-learning run: updates, share of prompts written after the first one, calls, and how many are enough."""
    prompt: str

    @property
    def too_few(self) -> bool:
        """Whether it had fewer calls than a run needs to learn."""
        return self.learning.get("calls", 0) < self.learning.get("enough_calls", 0)


def walk_runs(folder: Path, depth: int = DEPTH) -> Iterator[tuple[Path, float]]:
    """The run folders in a folder (itself, or those below it) and when they last changed; links are not followed."""
    below: list[Path] = []
    when = 0.0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in MARKS and entry.is_file(follow_symlinks=False):
                    when = max(when, entry.stat(follow_symlinks=False).st_mtime)
                elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    below.append(folder / entry.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    if when:
        yield folder, when
    elif depth:
        for child in below:
            yield from walk_runs(child, depth - 1)


def find_runs(*sources: Path | str) -> list[Path]:
    """The run folders in each of these folders, in order of their names; a folder without runs counts as one."""
    found: dict[Path, None] = {}
    for source in map(Path, sources):
        found |= dict.fromkeys(sorted(path for path, _ in walk_runs(source)) or [source])
    return list(found)


def read_entries(folders: Iterable[Path | str], metric: str | None = None) -> tuple[list[Entry], list[str]]:
    """The finished runs among the folders (or below them), and notes on those that were left out."""
    entries: list[Entry] = []
    notes: list[str] = []
    paths = find_runs(*folders)
    for path in paths:
        record = read_run(path, events=False)
        notes += [f"{path}: {note}" for note in record.notes]
        if not record.result:
            notes.append(f"{path} has no result yet and was left out.")
            continue
        entry = _entry(record, metric)
        if entry is None:
            wanted = metric or record.result.get("primary") or "score"
            notes.append(f"{path} has no value for '{text(wanted, 60)}' and was left out.")
        else:
            entries.append(entry)
    if metric is not None and not entries and paths:
        results = [read_run(path, events=False).result for path in paths]
        known = {name for result in results for split in SPLITS for name in _metrics(result, split)}
        if known:
            raise SettingError(f"No run has the metric '{metric}': {did_you_mean(metric, known)}")
    return entries, notes


def _entry(record: RunRecord, metric: str | None) -> Entry | None:
    result, recipe = record.result, record.recipe
    name = metric or (result["primary"] if isinstance(result.get("primary"), str) else "score")
    split = reported_split(result, name) or "train"
    value = number(inside(result, split, name))
    if value is None and name == "score":
        value = number(result.get("score"))
    if value is None:
        return None
    task = mapping(recipe.get("task"))
    kind = text(task.get("kind") or result.get("task") or "task", 60)
    flat = flatten(task)
    shared = {
        key: said for key, said in flat.items() if key not in (*UNIT_KEYS, *SEARCH_KEYS, "kind", "model", "dataset")
    }
    method = text(result.get("method") or recipe.get("method") or "unknown", 60)
    used = METHODS[method].section if method in METHODS else "q_learning"
    moot = {*NOT_VARIANTS, *SECTIONS} - {used}
    rest = flatten({key: part for key, part in recipe.items() if key not in moot})
    rest |= {f"task.{key}": flat[key] for key in SEARCH_KEYS if key in flat}
    seed = result.get("seed", recipe.get("seed"))
    facts = {
        "task": kind,
        "metric": text(name, 60),
        "split": split,
        "task model": flat.get("model", ""),
        "judges": _said(result.get("judges")),
        "budget": _said(recipe.get("budget")),
    }
    return Entry(
        folder=record.folder,
        method=method,
        dataset=_dataset(task, kind),
        unit=(", ".join(flat[key] for key in UNIT_KEYS if key in flat), seed if isinstance(seed, int) else None),
        value=value,
        facts=facts,
        data=shared,
        settings=rest,
        task=canonical(flat),
        fingerprint=text(result.get("fingerprint") or "", 200),
        metrics=_metrics(result, split),
        baselines={
            text(label, 60): _metrics(mapping(baseline), split)
            for label, baseline in mapping(result.get("baselines")).items()
            if number(inside(baseline, split, name)) is not None
        },
        readability={
            key: found
            for key, given in mapping(result.get("readability")).items()
            if (found := float(given) if isinstance(given, bool) else number(given)) is not None
        },
        learning=_learning(result),
        prompt=text(result.get("prompt") or "", 400),
    )


def _learning(result: dict[str, Any]) -> dict[str, float]:
    found = {name: value for name in LEARNING if (value := number(result.get(name))) is not None}
    return found if len(found) == len(LEARNING) else {}


def _said(tree: object) -> str:
    return ", ".join(f"{key} {said}" for key, said in flatten(mapping(tree)).items())


def _metrics(result: dict[str, Any], split: str) -> dict[str, float]:
    return {
        text(name, 60): found
        for name, value in mapping(result.get(split)).items()
        if name != "rows" and (found := number(value)) is not None
    }


def _dataset(task: dict[str, Any], kind: str) -> str:
    for key in ("dataset", "train", "data", "function"):
        given = task.get(key)
        if isinstance(given, str) and given and given != "none":
            return text(PurePath(given).stem if key in ("train", "data") else given, 60)
    return "pictures" if kind == "inversion" else kind


def flatten(tree: dict[str, Any], above: str = "") -> dict[str, str]:
    """Nested settings as `section.name` to text, in order of name, without unset ones."""
    found: dict[str, str] = {}
    for key in sorted(tree):
        name, value = f"{above}.{key}" if above else key, tree[key]
        if isinstance(value, dict) and value:
            found |= flatten(value, name)
        elif value not in (None, "none", "", [], {}):
            found[name] = value if isinstance(value, str) else canonical(value)
    return found


def canonical(value: Any) -> str:
    """The same text for equal values."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
