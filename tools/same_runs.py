"""Short runs of every method and task on tiny models, and a comparison with an earlier set of such runs.

Use it before and after a change that must not alter the results of a run:

    python tools/same_runs.py /tmp/runs before
    python tools/same_runs.py /tmp/runs after --like before     exit code 1 if a file differs

These are compared, byte for byte: the events, the search's trials, and result.json and report.html without times.
The run `demo` is the recipe of `pinprompt demo` with fewer calls. It needs the alias smollm2; `--only` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "toys")]  # the tiny models are those of the tests
# ruff: noqa: E402

import torch
from baseline_toys import answering
from style_toys import causal_lm, encoder, save
from tests.cli.inversion_runs import picture
from tests.house.tiny import make_lm
from tests.toys.label_runs import settings_of

from pinprompt.methods.table import METHODS
from pinprompt.recipe import recipe as recipes
from pinprompt.reports.report import write_report
from pinprompt.run import running

COMPARED = ("events.jsonl", "result.json", "report.html")
VARYING = ("seconds", "search_seconds", "report_seconds", "run", "crc", "recipe", "fingerprint", "data_fingerprint")
"""Times, the run's id, and hashes of settings, which may change although no number does."""
TIMED = re.compile("time|seconds|minutes")
"""Matches lines of report.html with a time or a duration."""


def main() -> int:
    """Make all runs or the selected ones, and compare them if `--like` is given."""
    parser = argparse.ArgumentParser(description="Do runs write the same as before?")
    parser.add_argument("home", type=Path, help="the folder of the models and of every set of runs")
    parser.add_argument("name", help="this set of runs")
    parser.add_argument("--like", help="the set that they must equal")
    parser.add_argument("--only", nargs="*", help="the runs to make; without it, all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    home = options.home.resolve()
    for name, settings in trees(home / "models"):
        if options.only and name not in options.only:
            continue
        out = home / options.name / name
        if not (out / "result.json").exists():
            few = recipes.merge({"scoring": {"finalists": 3}}, settings)
            result = running.run(recipes.resolve(few), out, device="cpu", threads=1, force=True, reporter=write_report)
            print(f"{name}: {result.prompt!r}", flush=True)
    if options.like is None:
        return 0
    different = sorted(differences(home / options.like, home / options.name))
    print("\n".join(different) or "every file is the same")
    return 1 if different else 0


def trees(models: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the recipe's settings of every run; models and data are created in the folder once."""
    models.mkdir(parents=True, exist_ok=True)
    fewer: dict[str, Any] = {
        "race": {"first_block": 2, "max_perplexity": None, "batch": 3},
        "q_learning": {"prompts": 4, "steps": 12, "eval_every": 3, "batch": 8, "updates": 2},
        "untrained": {"prompts": 24},
        "guided": {"beams": 2, "tokens": 4, "rounds": 1},
        "grips": {"steps": 3},
        "soft_prompt": {"epochs": 4},
        "autoprompt": {"steps": 4},
        "pez": {"steps": 6, "eval_every": 2},
    }
    for row in METHODS.values():
        more = {
            "method": row.name,
            "task": {"manual": "It was", "instruction": "the answer is one word"},
            "budget": {"calls": 120},
        }
        sections = {row.section: fewer[row.section]} if row.section else {}
        yield f"labels-{row.name}", recipes.merge(settings_of(models, **more), sections)
    for method, scoring in (("pin", {}), ("random", {"choose": "rows"}), ("race", {}), ("manual", {}), ("grips", {})):
        task = {"labels": "calibrated", "manual": "It was", "instruction": "the answer is one word"}
        more = {"method": method, "scoring": scoring, "budget": {"calls": 120}, "task": task}
        yield f"calibrated-{method}", recipes.merge(settings_of(models, **more), _of(method, fewer))
    more = {"method": "race", "task": {"labels": "calibrated", "manual": "It was"}, "budget": {"calls": 60}}
    yield "few-calls-race", recipes.merge(settings_of(models, **more), _of("race", fewer))
    yield "masked-pin", masked(models, {"method": "pin", **_of("pin", fewer)})
    for method, draw in (("race", "fixed"), ("pin", "step"), ("random", "fixed")):
        more = {"method": method, "task": {"draw": draw}, **_of(method, fewer)}
        yield f"style-{method}", styled(models, recipes.merge(more, {"race": {"first_block": 4}}))
    for method in ("guided", "pin", "pez", "random"):
        yield f"pictures-{method}", pictured(models, {"method": method, **_of(method, fewer)})
    task = {"kind": "classification", "dataset": "rotten-tomatoes", "model": "smollm2", "split": 13}
    yield "demo", {"profile": "quick", "seed": 13, "task": task, "budget": {"calls": 300}, "scoring": {"memo": False}}


def _of(method: str, sections: dict[str, Any]) -> dict[str, Any]:
    section = METHODS[method].section
    return {section: sections[section]} if section else {}


def masked(models: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Classification with a masked LM that was trained to prefer one word."""
    folder = models / "masked"
    if not (folder / "config.json").exists():
        model, tokenizer = answering("masked")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    task = {"model": str(folder), "template": "{text} {prompt} {mask} ."}
    return recipes.merge(settings_of(models, task=task), more)


def styled(models: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Style transfer from sentences about bad food to good food, with a judge that is trained in the run."""
    home = models / "style"
    if not home.exists():
        home.mkdir()
        save(home / "lm", causal_lm(places=192))
        save(home / "bert", encoder(), wrap=True)
        lines = [
            f"{who} {how} {word} {what} {last}"
            for who in ("we", "they", "it")
            for how in ("was", "is")
            for word in ("bad", "awful", "hate")
            for what in ("food", "place")
            for last in (".", "!", "a .")
        ]
        other = [line.replace("bad", "good").replace("awful", "nice").replace("hate", "love") for line in lines]
        (home / "negative.txt").write_text("\n".join(lines) + "\n")
        (home / "positive.txt").write_text("\n".join(other) + "\n")
    task = {
        "kind": "style-transfer", "source": str(home / "negative.txt"), "target": str(home / "positive.txt"),
        "model": str(home / "lm"), "encoder": str(home / "bert"), "samples": 3, "bootstraps": 2, "sources": 2,
        "dev_sources": 3, "test_sources": 5, "test_samples": 4, "baseline": 0.0, "force_judge": True,
    }  # fmt: skip
    base = {"task": task, "policy": _writer(models), "scoring": {"memo": False}, "budget": {"calls": 1600}}
    return recipes.merge(base, more)


def pictured(models: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Words for a red square, with the model that is part of the package."""
    task = {"kind": "inversion", "images": [picture(models / "red.png", "red")], "model": "emoji-clip"}
    base = {"task": task, "policy": _writer(models), "scoring": {"memo": False}, "budget": {"calls": 300}}
    return recipes.merge(base, more)


def _writer(models: Path) -> dict[str, Any]:
    return {"model": str(make_lm(models)), "length": 3, "k": None, "hidden": 64, "context": "none"}


def differences(before: Path, after: Path) -> Iterator[str]:
    """The files of the runs in `after` that differ from those in `before`."""
    for run in sorted(path for path in after.iterdir() if path.is_dir()):
        for name in COMPARED:
            old, new = (plain(base, f"{run.name}/{name}") for base in (before, after))
            if old != new:
                yield f"{run.name}/{name}"


def plain(base: Path, name: str) -> str | None:
    """A file's contents without what differs between two equal runs; None if there is no such file."""
    path = base / name
    if not path.exists():
        return None
    text = path.read_text("utf-8").replace(str(base), "")  # a report contains the command that repeats its run
    if path.suffix == ".json":
        return json.dumps(_without_times(json.loads(text)), indent=1)
    if path.suffix == ".jsonl":
        return "\n".join(json.dumps(_without_times(json.loads(line))) for line in text.splitlines())
    return "\n".join(line for line in text.splitlines() if path.suffix != ".html" or not TIMED.search(line))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(part) for key, part in value.items() if key not in VARYING}
    return [_without_times(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
