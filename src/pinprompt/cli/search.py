"""Verbs that search: demo, tune, classify, restyle, invert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pinprompt.cli.console import Console, Device, Json, Quiet, Seed, Threads, Trust, door
from pinprompt.errors import ServerDown, SettingError

Out = Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; left out: runs/<name>.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]
Force = Annotated[bool, typer.Option("--force", help="Remove the run in the folder and start anew.")]
Calls = Annotated[int | None, typer.Option("--calls", min=1, help="Model calls that the search may make.")]
Minutes = Annotated[float | None, typer.Option("--minutes", min=0.01, help="Minutes that the search may take.")]
Method = Annotated[str, typer.Option("--method", help="How to search; `pinprompt methods` lists the names.")]
Profile = Annotated[str, typer.Option("--profile", help="quick: minutes on a laptop; paper: the published settings.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Any setting of a recipe, such as policy.k=256.")]
NoMemo = Annotated[bool, typer.Option("--no-memo", help="Forget scores of earlier runs, and keep none.")]
Estimate = Annotated[bool, typer.Option("--estimate", help="Say what the run would spend, and stop.")]


def tune(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file (recipes/ has examples).")],
    out: Out = None, resume: Resume = False, force: Force = False, calls: Calls = None, minutes: Minutes = None,
    sets: Sets = None, no_memo: NoMemo = False, estimate: Estimate = False, seed: Seed = None, as_json: Json = False,
    quiet: Quiet = False, device: Device = None, threads: Threads = None, trust: Trust = False,
) -> None:  # fmt: skip
    """Find a prompt as a recipe says."""
    with door(as_json, quiet, threads, trust) as console:
        from pinprompt.recipe import recipe as recipes

        tree = recipes.read_toml(recipe)
        _search(console, tree, sets, out, resume, force, calls, minutes, seed, device, threads, no_memo, estimate)


def classify(
    dataset: Annotated[str | None, typer.Argument(help="A dataset of the catalogue, such as vader-products.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder with the dataset's files.")] = None,
    train: Annotated[Path | None, typer.Option("--train", help="Labelled examples: CSV, TSV or JSONL.")] = None,
    dev: Annotated[Path | None, typer.Option("--dev", help="Examples to choose on; left out: split off train.")] = None,
    test: Annotated[Path | None, typer.Option("--test", help="Examples to report on.")] = None,
    text_column: Annotated[str | None, typer.Option("--text-column", help="Column with the text.")] = None,
    label_column: Annotated[str | None, typer.Option("--label-column", help="Column with the label.")] = None,
    word: Annotated[list[str] | None, typer.Option("--word", help="label=word, once per label.")] = None,
    task_model: Annotated[str | None, typer.Option("--task-model", help="The model to find a prompt for.")] = None,
    split: Annotated[int | None, typer.Option("--split", min=0, help="Which k-shot split.")] = None,
    test_rows: Annotated[int | None, typer.Option("--test-rows", min=1, help="At most so many test rows.")] = None,
    template: Annotated[str | None, typer.Option("--template", help="Text with {text}, {prompt}, {mask}.")] = None,
    method: Method = "pin", profile: Profile = "quick", out: Out = None, resume: Resume = False, force: Force = False,
    calls: Calls = None, minutes: Minutes = None, sets: Sets = None, no_memo: NoMemo = False,
    estimate: Estimate = False, seed: Seed = None, as_json: Json = False, quiet: Quiet = False, device: Device = None,
    threads: Threads = None, trust: Trust = False,
) -> None:  # fmt: skip
    """Find a prompt that makes a model label texts."""
    with door(as_json, quiet, threads, trust) as console:
        if dataset is None and train is None:
            raise SettingError("name a dataset of the catalogue, or give your own examples with --train FILE")
        words = dict(_word(pair) for pair in word or [])
        given = {
            "dataset": dataset, "data": data, "train": train, "dev": dev, "test": test, "text_column": text_column,
            "label_column": label_column, "words": words or None, "model": task_model, "split": split,
            "test_rows": test_rows, "template": template,
        }  # fmt: skip
        task = {"kind": "classification", **_local(profile, "smollm2"), **_given(given)}
        tree = {"method": method, "profile": profile, "task": task}
        _search(console, tree, sets, out, resume, force, calls, minutes, seed, device, threads, no_memo, estimate)


def demo(
    out: Out = Path("runs/demo"), calls: Calls = None, minutes: Minutes = None, resume: Resume = False,
    sets: Sets = None, no_memo: NoMemo = False, estimate: Estimate = False, seed: Seed = 13, as_json: Json = False,
    quiet: Quiet = False, device: Device = None, threads: Threads = None,
) -> None:  # fmt: skip
    """Find a prompt for movie-review sentiment with a model that comes along; a few minutes on a laptop."""
    with door(as_json, quiet, threads) as console:
        task = {"kind": "classification", "dataset": "rotten-tomatoes", "model": "smollm2", "test_rows": 500}
        tree: dict[str, Any] = {"method": "pin", "profile": "quick", "task": {**task, "split": seed}}
        _search(console, tree, sets, out, resume, not resume, calls, minutes, seed, device, threads, no_memo, estimate)


def _search(
    console: Console, tree: dict[str, Any], sets: list[str] | None, out: Path | None, resume: bool, force: bool,
    calls: int | None, minutes: float | None, seed: int | None, device: str | None, threads: int | None,
    no_memo: bool, estimate: bool,
) -> None:  # fmt: skip
    """Resolve what was asked for, run it with progress, show what came out."""
    from pinprompt.recipe import recipe as recipes

    if resume and force:
        raise SettingError("--resume goes on with a run, --force removes it: choose one")
    limits = {name: value for name, value in {"calls": calls, "minutes": minutes}.items() if value is not None}
    over = {
        "budget": limits,
        **({} if seed is None else {"seed": seed}),
        **({"scoring": {"memo": False}} if no_memo else {}),
    }
    recipe = recipes.resolve(recipes.merge(recipes.merge(tree, over), recipes.parse_overrides(sets or [])))
    from pinprompt import api
    from pinprompt.cli.progress import Progress
    from pinprompt.cli.shown import shown_result
    from pinprompt.run import running

    if estimate:
        from pinprompt.cli.shown import shown_estimate
        from pinprompt.run.estimating import estimate as estimated

        figures = estimated(recipe, device)
        console.answer(figures, shown_estimate(figures))
        return
    folder = out or api.default_folder(recipe)
    with Progress(console, recipe) as progress:
        try:
            result = running.run(
                recipe, folder, device=device, threads=threads, resume=resume, force=force, listeners=[progress],
                notes=console.note,
            )  # fmt: skip
        except ServerDown as down:
            best = f"; best so far: {progress.best}" if progress.best else ""
            kept = f"what was paid for is in {folder}"
            raise ServerDown(f"{down} (the same command with --resume){best}; {kept}") from None
    console.answer({**result.data, "folder": str(result.folder), "report": str(result.report)}, *shown_result(result))


def restyle(
    dataset: Annotated[str | None, typer.Argument(help="Style data of the catalogue, such as books.")] = None,
    direction: Annotated[str | None, typer.Option("--direction", help="Such as negative-to-positive.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder with the dataset's files.")] = None,
    source: Annotated[Path | None, typer.Option("--source", help="Texts to rewrite, one a line.")] = None,
    target: Annotated[Path | None, typer.Option("--target", help="Texts in the wanted style, one a line.")] = None,
    test: Annotated[Path | None, typer.Option("--test", help="Texts to report on, one a line.")] = None,
    task_model: Annotated[str | None, typer.Option("--task-model", help="The model that rewrites.")] = None,
    split: Annotated[int | None, typer.Option("--split", min=0, help="Which draw of texts.")] = None,
    force_judge: Annotated[bool, typer.Option("--force-judge", help="Use a style judge that can't tell.")] = False,
    method: Method = "pin", profile: Profile = "quick", out: Out = None, resume: Resume = False, force: Force = False,
    calls: Calls = None, minutes: Minutes = None, sets: Sets = None, no_memo: NoMemo = False,
    estimate: Estimate = False, seed: Seed = None, as_json: Json = False, quiet: Quiet = False, device: Device = None,
    threads: Threads = None, trust: Trust = False,
) -> None:  # fmt: skip
    """Find a prompt that makes a model rewrite texts in another style."""
    with door(as_json, quiet, threads, trust) as console:
        if dataset is None and (source is None or target is None):
            raise SettingError("name style data of the catalogue, or give --source FILE and --target FILE")
        given = {
            "dataset": dataset, "direction": direction, "data": data, "source": source, "target": target, "test": test,
            "model": task_model, "split": split, "force_judge": force_judge or None,
        }  # fmt: skip
        task = {"kind": "style-transfer", **_local(profile, "smollm2"), **_given(given)}
        tree = {"method": method, "profile": profile, "task": task}
        _search(console, tree, sets, out, resume, force, calls, minutes, seed, device, threads, no_memo, estimate)


def invert(
    images: Annotated[list[Path], typer.Argument(help="Pictures, or folders of pictures.")],
    model: Annotated[str | None, typer.Option("--model", help="The CLIP or SigLIP model that scores.")] = None,
    length: Annotated[int | None, typer.Option("--length", min=1, help="Tokens in a prompt.")] = None,
    ban: Annotated[Path | None, typer.Option("--ban", help="A file with one banned word or phrase a line.")] = None,
    method: Method = "pin", profile: Profile = "quick", out: Out = None, resume: Resume = False, force: Force = False,
    calls: Calls = None, minutes: Minutes = None, sets: Sets = None, no_memo: NoMemo = False,
    estimate: Estimate = False, seed: Seed = None, as_json: Json = False, quiet: Quiet = False, device: Device = None,
    threads: Threads = None, trust: Trust = False,
) -> None:  # fmt: skip
    """Find words for a picture, or for what several have in common."""
    with door(as_json, quiet, threads, trust) as console:
        task = {"kind": "inversion", **_local(profile, "emoji-clip"), "images": [str(path) for path in images]}
        tree: dict[str, Any] = {"method": method, "profile": profile, "task": task | _given({"model": model})}
        tree["policy"] = _given({"length": length})
        if ban is not None:
            tree["policy"]["constraints"] = {"banned_file": str(ban)}
        _search(console, tree, sets, out, resume, force, calls, minutes, seed, device, threads, no_memo, estimate)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as a recipe has them."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items() if value is not None
    }


def _local(profile: str, model: str) -> dict[str, Any]:
    """The quick profile runs without a hub, so its task model is one that comes along."""
    return {"model": model} if profile == "quick" else {}


def _word(pair: str) -> tuple[str, str]:
    label, equals, word = pair.partition("=")
    if not equals or not label or not word:
        raise SettingError(f"--word takes label=word, such as --word 1=great; given: {pair}")
    return label, word


VERBS = (demo, tune, classify, restyle, invert)
