"""Commands that search: demo, tune, resume, classify, answer, restyle, invert."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pinprompt.cli.console import Console, FolderSearch, Machine, NoReport, Run, SearchOptions, TaskSearch
from pinprompt.errors import ServerDown, SettingError

Data = Annotated[Path | None, Option("--data", help="Folder with the dataset's files.")]


def tune(
    console: Console,
    recipe: Annotated[Path, Argument(help="A recipe: a TOML file (recipes/ has examples).")],
    options: FolderSearch,
) -> None:
    """Run the search that a recipe file describes."""
    from pinprompt.recipe import recipe as recipes

    _search(console, recipes.read_toml(recipe), options, options.force, source=recipe)


def resume(
    console: Console,
    options: Machine,
    run: Run,
    calls: Annotated[int | None, Option(min=1, help="A new call limit for the search.")] = None,
    minutes: Annotated[float | None, Option(min=0.01, help="A new time limit for the search, in minutes.")] = None,
    sets: Annotated[list[str] | None, Option("--set", help="Another limit or price, such as budget.money=2.")] = None,
    no_report: NoReport = False,
) -> None:
    """Continue an interrupted run."""
    from pinprompt import api
    from pinprompt.folder.identity import restore_recipe
    from pinprompt.recipe import recipe as recipes

    if restore_recipe(run):
        console.note(f"{run / 'recipe.toml'} was changed after the run wrote it; restored from run.json")
    api.recipe_of(run)  # raises a clear error if the folder holds no run
    shared = {field.name: getattr(options, field.name) for field in fields(Machine)}
    search = SearchOptions(
        **shared, out=run, resume=True, calls=calls, minutes=minutes, sets=sets, no_report=no_report
    )  # fmt: skip
    _search(console, recipes.read_toml(run / "recipe.toml"), search, False, source=run)


def classify(
    console: Console,
    options: TaskSearch,
    dataset: Annotated[str | None, Argument(help="A built-in dataset, such as vader-products.")] = None,
    data: Data = None,
    train: Annotated[Path | None, Option(help="Labelled examples: CSV, TSV or JSONL.")] = None,
    dev: Annotated[Path | None, Option(help="Examples for choosing the best prompt; default: part of train.")] = None,
    test: Annotated[Path | None, Option(help="Examples for the report.")] = None,
    text_column: Annotated[str | None, Option(help="Column with the text.")] = None,
    label_column: Annotated[str | None, Option(help="Column with the label.")] = None,
    word: Annotated[list[str] | None, Option(help="label=word, once per label; default: the labels' names.")] = None,
    prompt: Annotated[str | None, Option(help="Your own prompt, to start from and compare with.")] = None,
    task_model: Annotated[str | None, Option(help="The model to find a prompt for.")] = None,
    split: Annotated[int | None, Option(min=0, help="Number of the few-shot split.")] = None,
    template: Annotated[str | None, Option(help="How text and prompt are combined: {text}, {prompt}, {mask}.")] = None,
    metric: Annotated[str | None, Option(help="accuracy or macro-f1: what the search aims at.")] = None,
    keep_right: Annotated[
        str | None, Option(help="Examples that must stay right: a file, or a column of the training file.")
    ] = None,
    ensemble: Annotated[
        int | None, Option(min=1, max=32, help="Average the output of the N best prompts; a text costs N calls.")
    ] = None,
) -> None:
    """Find a prompt with which a model labels texts."""
    if dataset is None and train is None:
        raise SettingError("name a built-in dataset (docs/data.md), or give your own examples with --train FILE")
    words = dict(_word(pair) for pair in word or [])
    given = {
        "dataset": dataset, "data": data, "train": train, "dev": dev, "test": test, "text_column": text_column,
        "label_column": label_column, "words": words or None, "model": task_model, "split": split,
        "template": template, "manual": prompt, "metric": metric, "keep_right": keep_right,
    }  # fmt: skip
    tree = _tree("classification", "smollm2", options, given)
    if ensemble is not None:
        tree["scoring"] = {"ensemble": ensemble}
    _search(console, tree, options, options.force)


def demo(console: Console, options: SearchOptions) -> None:
    """Find a prompt for the sentiment of film reviews with a small model; takes a few minutes on a laptop."""
    seed = 13 if options.seed is None else options.seed
    # 64 test rows, the default of the profile, would be too few to tell the found prompt from the manual one.
    task = {"kind": "classification", "dataset": "rotten-tomatoes", "model": "smollm2", "test_rows": 200}
    tree = {"profile": "quick", "seed": seed, "task": {**task, "split": seed}}
    _search(console, tree, options, not options.resume, Path("runs/demo"))


def answer(
    console: Console,
    options: TaskSearch,
    train: Annotated[Path, Option(help="Inputs with reference answers: CSV, TSV or JSONL.")],
    dev: Annotated[Path | None, Option(help="Rows for choosing the best prompt; default: part of train.")] = None,
    test: Annotated[Path | None, Option(help="Rows for the report; default: part of train.")] = None,
    input_column: Annotated[str | None, Option(help="Column with the input.")] = None,
    target_column: Annotated[str | None, Option(help="Column with the reference answer.")] = None,
    metric: Annotated[
        str | None, Option(help="exact, contains, number, regex, json, function or judge; default: exact.")
    ] = None,
    pattern: Annotated[str | None, Option(help="Regular expression of a correct answer, for --metric regex.")] = None,
    function: Annotated[str | None, Option(help="module:name of your own metric (answer, row) -> number.")] = None,
    rubric: Annotated[str | None, Option(help="What a judge rates, for --metric judge.")] = None,
    prompt: Annotated[list[str] | None, Option(help="Your own instruction, to compare with; can be repeated.")] = None,
    place: Annotated[str | None, Option(help="Where the prompt stands: system, before or after the input.")] = None,
    task_model: Annotated[str | None, Option(help="The model to find a prompt for.")] = None,
    writer: Annotated[str | None, Option(help="A chat model that proposes prompts; default: the same.")] = None,
    split: Annotated[int | None, Option(min=0, help="Number of the random split.")] = None,
) -> None:
    """Find the instruction with which a model answers best."""
    given = {
        "train": train, "dev": dev, "test": test, "input_column": input_column, "target_column": target_column,
        "metric": metric or ("function" if function else "regex" if pattern else None), "pattern": pattern,
        "function": function, "rubric": rubric, "prompts": prompt or None, "place": place, "model": task_model,
        "proposer": writer, "split": split,
    }  # fmt: skip
    _search(console, _tree("answers", "smollm2", options, given), options, options.force)


def restyle(
    console: Console,
    options: TaskSearch,
    dataset: Annotated[str | None, Argument(help="A built-in style dataset, such as books.")] = None,
    direction: Annotated[str | None, Option(help="Such as negative-to-positive.")] = None,
    data: Data = None,
    source: Annotated[Path | None, Option(help="Texts to rewrite, one per line, at least 50 different ones.")] = None,
    target: Annotated[Path | None, Option(help="Texts in the target style, one per line, at least 50.")] = None,
    source_style: Annotated[str | None, Option(help="Name of the source style; default: the file's name.")] = None,
    target_style: Annotated[str | None, Option(help="Name of the target style; default: the file's name.")] = None,
    test: Annotated[Path | None, Option(help="Texts for the report, one per line.")] = None,
    task_model: Annotated[str | None, Option(help="The model that rewrites.")] = None,
    split: Annotated[int | None, Option(min=0, help="Number of the random split.")] = None,
    force_judge: Annotated[bool, Option("--force-judge", help="Use a style judge even if it fails its check.")] = False,
) -> None:
    """Find a prompt that makes a model rewrite texts in another style."""
    if dataset is None and (source is None or target is None):
        raise SettingError(
            "name a built-in style dataset (docs/data.md), or give --source FILE and --target FILE, each with one "
            "text per line (at least 50 different texts)"
        )
    given = {
        "dataset": dataset, "direction": direction, "data": data, "source": source, "target": target, "test": test,
        "source_style": source_style, "target_style": target_style, "model": task_model, "split": split,
        "force_judge": force_judge or None,
    }  # fmt: skip
    _search(console, _tree("style-transfer", "smollm2", options, given), options, options.force)


def invert(
    console: Console,
    options: TaskSearch,
    images: Annotated[list[Path], Argument(help="Pictures, or folders of pictures.")],
    model: Annotated[str | None, Option(help="The CLIP or SigLIP model that scores.")] = None,
    length: Annotated[int | None, Option(min=1, help="Tokens in a prompt.")] = None,
    style: Annotated[str | None, Option(help="caption, tags or words; default: caption.")] = None,
    ban: Annotated[Path | None, Option(help="A file with one banned word or phrase per line.")] = None,
) -> None:
    """Find words for a picture, or for what several have in common."""
    given = {"images": [str(path) for path in images], "model": model, "style": style}
    tree = _tree("inversion", "emoji-clip", options, given)
    tree["policy"] = _given({"length": length})
    if ban is not None:
        tree["policy"]["constraints"] = {"banned_file": str(ban)}
    if tree["task"].get("model") == "emoji-clip":
        console.note(
            "emoji-clip scores the words; it was trained on emoji, not photographs (choose another with --model)"
        )
    _search(console, tree, options, options.force)


def _search(
    console: Console, tree: dict[str, Any], options: SearchOptions, force: bool, folder: Path | None = None,
    source: Path | None = None,
) -> None:  # fmt: skip
    """Resolve the recipe, run it with progress and show the result; `source` is the file the tree was read from."""
    from pinprompt import api
    from pinprompt.cli.shown import Progress, shown_estimate, shown_result
    from pinprompt.recipe import recipe as recipes
    from pinprompt.run import consent
    from pinprompt.run.running import with_found_files

    if options.resume and force:
        raise SettingError("--resume continues a run and --force deletes it: give one of them")
    over = _given({
        "seed": options.seed, "scoring": {"memo": False} if options.no_memo else None,
        "private": options.private or None,
    })  # fmt: skip
    over["budget"] = _given({"calls": options.calls, "minutes": options.minutes})
    if options.test_rows is not None:
        over["task"] = _test_rows(tree, options.test_rows)
    given = recipes.merge(over, recipes.parse_overrides(options.sets or []))
    recipe = recipes.resolve(recipes.merge(tree, given))
    if options.estimate:
        found = with_found_files(recipe, source) if source is not None and source.is_dir() else recipe
        figures = api.estimate(
            found, device=options.device, threads=options.threads, report=not options.no_report,
            unread=[] if source is None else consent.unread(found, source, given),
        )  # fmt: skip
        console.answer(figures, shown_estimate(figures))
        return
    if source is not None:
        consent.agree(with_found_files(recipe, source) if source.is_dir() else recipe, source, given)
    out = options.out or folder or api.default_folder(recipe)
    with Progress(console, recipe) as progress:
        try:
            result = api.tune(
                recipe, out=out, device=options.device, threads=options.threads, resume=options.resume, force=force,
                report=not options.no_report, on_event=progress, notes=console.note,
            )  # fmt: skip
        except ServerDown as down:
            best = f"; best so far: {progress.best}" if progress.best else ""
            kept = f"all answers so far are saved in {out}"
            raise ServerDown(f"{down} (the same command with --resume){best}; {kept}") from None
    made = str(result.report) if result.data.get("reported", True) else None
    console.answer({**result.data, "folder": str(result.folder), "report": made}, *shown_result(result))


def _test_rows(tree: dict[str, Any], count: int) -> dict[str, Any]:
    """The setting that limits the test rows of a task of this kind."""
    kind = tree.get("task", {}).get("kind", "classification")
    names = {"classification": "test_rows", "style-transfer": "test_sources", "answers": "test_rows"}
    if kind not in names:
        raise SettingError(f"a task of kind '{kind}' has no test rows; remove --test-rows")
    return {names[kind]: count}


def _tree(kind: str, model: str, options: TaskSearch, given: dict[str, Any]) -> dict[str, Any]:
    """A recipe's settings; the quick profile needs no hub, so its default task model comes from the package index."""
    quick = {"model": model} if options.profile == "quick" else {}
    named = {} if options.method is None else {"method": options.method}
    return {**named, "profile": options.profile, "task": {"kind": kind, **quick, **_given(given)}}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, in the form that a recipe has."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items() if value is not None
    }


def _word(pair: str) -> tuple[str, str]:
    label, equals, word = pair.partition("=")
    if not equals or not label or not word:
        raise SettingError(f"--word takes label=word, such as --word 1=great; given: {pair}")
    return label, word


VERBS = (demo, tune, resume, classify, answer, restyle, invert)
