"""Verbs that use what a run found: predict, rewrite, evaluate, draw, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pinprompt.cli.console import Device, Json, Quiet, Seed, Threads, Trust, door
from pinprompt.errors import SettingError

Run = Annotated[Path, typer.Argument(help="A run folder.")]


def predict(
    run: Run,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to label; left out: one a line from stdin.")] = None,
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Label new texts with the prompt that a run found."""
    with door(as_json, quiet, threads, trust) as console:
        given = list(texts or []) or [line.rstrip("\n") for line in sys.stdin if line.strip()]
        if not given:
            raise SettingError("there is no text to label: give it as an argument, or one a line on stdin")
        from rich.table import Table
        from rich.text import Text

        from pinprompt import api, assembly

        assembly.set_threads(threads)
        rows = api.predict(run, given, device=device)
        table = Table("label", "probability", "text", show_edge=False)
        for text, (label, probabilities) in zip(given, rows, strict=True):
            table.add_row(label, f"{max(probabilities.values()):.3f}", Text(text))
        predictions = [
            {"text": text, "label": label, "probabilities": probabilities}
            for text, (label, probabilities) in zip(given, rows, strict=True)
        ]
        console.answer({"predictions": predictions}, table)


def rewrite(
    run: Run,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to rewrite; left out: lines of stdin.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, max=100, help="How many rewrites of each.")] = 1,
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Rewrite texts with the prompt that a style run found."""
    with door(as_json, quiet, threads, trust) as console:
        given = list(texts or []) or [line.rstrip("\n") for line in sys.stdin if line.strip()]
        if not given:
            raise SettingError("there is no text to rewrite: give it as an argument, or one a line on stdin")
        from rich.table import Table
        from rich.text import Text

        from pinprompt import api, assembly

        assembly.set_threads(threads)
        found = api.rewrite(run, given, n=n, seed=seed or 0, device=device)
        table = Table("text", "rewrite", "content", "style", "score", show_edge=False)
        rows = []
        for text, rewrites in zip(given, found, strict=True):
            for one in rewrites:
                numbers = {"content": one.content, "style": one.style, "score": one.score}
                table.add_row(Text(text), Text(one.text), *(f"{value:.1f}" for value in numbers.values()))
                rows.append({"text": text, "rewrite": one.text, **numbers})
        console.answer({"rewrites": rows}, table)


def evaluate(
    run: Run,
    task_model: Annotated[list[str] | None, typer.Option("--task-model", help="Another model; repeatable.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Another prompt than the one found.")] = None,
    split: Annotated[str, typer.Option("--split", help="train, dev or test.")] = "test",
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Say how a run's prompt does on a split, and how it carries over to other models."""
    with door(as_json, quiet, threads, trust) as console:
        from rich.table import Table

        from pinprompt import api
        from pinprompt.conclusion import facts

        console.note("evaluating; a large split takes a while")
        found = api.evaluate(
            run, task_models=task_model or (), split=split, prompt=prompt, device=device, threads=threads
        )
        table = Table("task model", "rows", "metric", "value", "95 % interval", show_edge=False)
        for model, evaluation in found.items():
            for name, value in evaluation.metrics.items():
                ends = evaluation.intervals.get(name)
                interval = f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else ""
                table.add_row(model, str(evaluation.rows), name, f"{value:.4g}", interval)
        console.answer({"split": split, "models": {model: facts(one) for model, one in found.items()}}, table)


def draw(
    run: Run,
    model: Annotated[str | None, typer.Option("--model", help="A diffusers pipeline: hub id or folder.")] = None,
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Draw pictures for the words that an inversion run found, and put them into its report."""
    with door(as_json, quiet, threads) as console:
        from pinprompt import api, assembly

        assembly.set_threads(threads)
        console.note("drawing; this takes minutes without a GPU")
        found = api.draw(run, model=model, device=device, seed=seed or 0)
        drawings = [{"name": row["name"], "similarity": row["similarity"]} for row in found.data["drawings"]]
        lines = [f"{row['name']}: similarity {row['similarity']:.3f}" for row in drawings]
        console.answer({"drawings": drawings, "report": str(found.report)}, *lines, f"report: {found.report}")


def report(
    run: Run, as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None,
    threads: Threads = None,
) -> None:  # fmt: skip
    """Write a run's report.html anew."""
    with door(as_json, quiet, threads) as console:
        from pinprompt.records.report import write_report

        path = write_report(run)
        console.answer({"report": str(path)}, f"report: {path}")


VERBS = (predict, rewrite, evaluate, draw, report)
