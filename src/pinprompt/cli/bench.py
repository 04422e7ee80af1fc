"""The verb `bench`: speed as ratios in one run on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from pinprompt.cli.console import Device, Json, Quiet, Seed, Threads, door
from pinprompt.errors import SettingError, did_you_mean

BENCHES = {
    "update": "one update of psi against the released formulation",
    "step": "one whole step at OPT-125M's shape",
    "write": "writing prompts with and without the tree of prefixes",
    "score": "scoring prompts with and without each saving",
    "generate": "rewriting texts against the model's own generate",
    "clip": "scoring prompts against a picture, trimmed against padded",
}


def bench(
    what: Annotated[str, typer.Argument(help="all, or: " + ", ".join(BENCHES))] = "all",
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Measure speed on this machine."""
    with door(as_json, quiet, threads) as console:
        if what != "all" and what not in BENCHES:
            raise SettingError(f"there is no bench '{what}': {did_you_mean(what, [*BENCHES, 'all'])}")
        from pinprompt import assembly

        assembly.set_threads(threads)
        figures: dict[str, Any] = {}
        for name in BENCHES if what == "all" else [what]:
            console.note(f"{name}: {BENCHES[name]}; this takes a minute or two")
            figures[name] = import_module(f"pinprompt.bench.{name}").measure()
        shown = [line for name, found in figures.items() for line in (f"{name}:", *_lines(found, "  "))]
        console.answer(figures if what == "all" else figures[what], *shown)


def _lines(found: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{name}:")
            lines += [indent + "  " + ", ".join(f"{key} {_short(one)}" for key, one in row.items()) for row in value]
        else:
            lines.append(f"{indent}{name}: {_short(value)}")
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


VERBS = (bench,)
