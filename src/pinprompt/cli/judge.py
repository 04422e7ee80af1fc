"""The verb `judge`: what a vision model thinks of the words that were found for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinprompt.cli.console import Device, Json, Quiet, Seed, Threads, door

if TYPE_CHECKING:
    from pinprompt.judging import Judgement
    from pinprompt.models.vision_judge import Summary


def judge(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.")],
    model: Annotated[str, typer.Option("--model", help="A vision model behind an API: remote:NAME.")],
    top: Annotated[int, typer.Option("--top", min=1, max=20, help="How many of each run's best prompts.")] = 1,
    calls: Annotated[int | None, typer.Option("--calls", min=1, help="Questions that may be sent.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of remote or budget, such as remote.base_url=URL.")
    ] = None,
    no_memo: Annotated[bool, typer.Option("--no-memo", help="Forget earlier answers, and keep none.")] = False,
    as_json: Json = False, quiet: Quiet = False, seed: Seed = None, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Ask a vision model how well found words fit their picture, and how well they read (1 to 5)."""
    with door(as_json, quiet, threads) as console:
        from pinprompt import api
        from pinprompt import recipe as recipes

        settings = recipes.merge(
            {} if calls is None else {"budget": {"calls": calls}}, recipes.parse_overrides(sets or [])
        )
        found = api.judge(runs, model=model, top=top, settings=settings, memo=not no_memo, notes=console.note)
        console.answer(found.data(), *_shown(found))


def _shown(found: Judgement) -> Iterator[Any]:
    from rich.table import Table
    from rich.text import Text

    table = Table("run", "prompt", "relevance", "interpretability", show_edge=False)
    for run in found.runs:
        for prompt in dict.fromkeys(one.prompt for one in run.opinions):
            said = run.of(prompt)
            marks = ["" if value is None else f"{value:.3g}" for value in (said.relevance, said.interpretability)]
            table.add_row(Text(run.folder.name), Text(prompt), *marks)
    yield table
    for name, summary in found.methods.items():
        yield f"{name}: {_mean(summary)}"
    failures = [one.verdict.failure for run in found.runs for one in run.opinions if one.verdict.failure]
    if failures:
        yield f"{len(failures)} without marks; the first: {failures[0]}"
    if found.stopped:
        yield f"stopped early: {found.stopped}"
    costs = found.costs
    tokens = f"{costs['tokens_in']:,.0f} tokens in and {costs['tokens_out']:,.0f} out"
    yield f"asked {found.model} {costs['calls']:,.0f} times: {tokens}, {costs['money']:.4g} money"


def _mean(summary: Summary) -> str:
    marks = (
        ("relevance", summary.relevance, summary.relevance_error),
        ("interpretability", summary.interpretability, summary.interpretability_error),
    )
    said = [
        f"{name} {value:.2f}" + ("" if error is None else f" \N{PLUS-MINUS SIGN} {error:.2f}")
        for name, value, error in marks
        if value is not None
    ]
    over = "one picture" if summary.images == 1 else f"mean and standard error over {summary.images} pictures"
    return f"{', '.join(said)} ({over})" if said else "no marks"


VERBS = (judge,)
