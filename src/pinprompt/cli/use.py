"""Commands that use a run's prompt: predict, rewrite, evaluate, use, export, draw, report, open, judge."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from pinprompt.cli.console import Console, Machine, NoMemo, Output, Run, Runs, Seed, Trust, table
from pinprompt.errors import SettingError

if TYPE_CHECKING:
    from pinprompt.judges.vision import Summary
    from pinprompt.reports.judging import Judgement

FILES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt", ".xlsx", ".parquet")
Texts = Annotated[list[str] | None, Argument(help="The texts; default or -: one per line of stdin.")]


def predict(
    console: Console,
    options: Machine,
    run: Run,
    texts: Texts = None,
    source: Annotated[
        str | None,
        Option("--input", "-i", help="Texts to label: CSV, TSV, JSONL, .txt, a folder of .txt files, or - (stdin)."),
    ] = None,
    text_column: Annotated[str | None, Option(help="Column with the text; default: as in the run's data.")] = None,
    output: Annotated[
        Path | None, Option(help="Write all columns, the label and probabilities to a .csv, .tsv or .jsonl file.")
    ] = None,
    unsure: Annotated[
        bool, Option("--unsure", help="Mark labels with a low probability, or that embeddings of the texts contradict.")
    ] = False,
    with_embeddings: Annotated[
        bool, Option("--with-embeddings", help="Average with the run's regression on embeddings of the texts.")
    ] = False,
) -> None:
    """Label or answer new texts with the prompt that a run found."""
    how: dict[str, Any] = {
        "unsure": unsure, "with_embeddings": with_embeddings, "device": options.device, "threads": options.threads,
        "notes": console.note,
    }  # fmt: skip
    if source is not None:
        if texts:
            raise SettingError("give either texts or --input, not both")
        _predict_table(console, run, source, {**how, "text_column": text_column, "output": output})
        return
    if text_column is not None or output is not None:
        raise SettingError("--text-column and --output need --input FILE (or --input - for stdin)")
    from pinprompt import api

    rows = api.predict(run, _texts(texts, console), **how)
    if rows and "answer" in rows[0]:
        said = [(row["answer"] or row.get("failure", ""), row["text"]) for row in rows]
        console.answer({"predictions": rows}, table(("answer", "text"), said))
        return
    marks = [["unsure" if row.get("unsure") else ""] * unsure for row in rows]
    shown = [
        (
            row["label"] or "",
            f"{max(shares):.3f}" if (shares := row["probabilities"].values()) else "",
            *mark,
            row["text"],
        )
        for row, mark in zip(rows, marks, strict=True)
    ]
    console.answer({"predictions": rows}, table(("label", "probability", *[""] * unsure, "text"), shown))


def _predict_table(console: Console, run: Path, source: str, how: dict[str, Any]) -> None:
    from pinprompt import api

    if source == "-" and sys.stdin.isatty():
        console.note("reading the table from the terminal: type it, then press Ctrl-D")
    found = api.predict_table(run, source, **how)
    counts = Counter(label for label in found.labels if label is not None)
    if found.output is None:
        texts = [str(row.get(found.text_column) or "") for row in found.rows]
        head = "answer" if found.label_column.endswith("answer") else "label"
        shown = table((head, "text"), [(label or "", text) for label, text in zip(found.labels, texts, strict=True)])
        console.answer({"predictions": found.rows, "blank": found.blank}, shown)
        return
    said = ", ".join(f"{label}: {count}" for label, count in counts.most_common(10))
    answer = {"output": str(found.output), "rows": len(found.rows), "labels": dict(counts), "blank": found.blank}
    console.answer(
        answer, f"labelled {sum(counts.values())} of {len(found.rows)} rows ({said})", f"written: {found.output}"
    )


def rewrite(
    console: Console,
    options: Machine,
    run: Run,
    texts: Texts = None,
    n: Annotated[int, Option(min=1, max=100, help="Number of rewrites per text.")] = 1,
    seed: Seed = None,
) -> None:
    """Rewrite texts with the prompt that a style run found."""
    from pinprompt import api

    given = _texts(texts, console, None)
    rows = api.rewrite(run, given, n=n, seed=seed or 0, device=options.device, threads=options.threads)
    numbers = ("content", "style", "score")
    shown = [(row["text"], row["rewrite"], *(f"{row[name]:.1f}" for name in numbers)) for row in rows]
    console.answer({"rewrites": rows}, table(("text", "rewrite", *numbers), shown))


def _texts(given: list[str] | None, console: Console, option: str | None = "--input") -> list[str]:
    """The texts given, or the lines of stdin; a file name given as a text is an error."""
    for text in given or ():
        named = _named_file(text)
        if named:
            way = f"read it with {option} {text}" if option else f"give its lines on stdin (< {text})"
            raise SettingError(f"'{text}' {named}, not a text; {way}. To use these words as a text, give them on stdin")
    if not given and sys.stdin.isatty():
        console.note("type one text per line, then press Ctrl-D")
    if given == ["-"]:  # as elsewhere on a command line
        given = None
    texts = given or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not texts:
        raise SettingError("no text was given: pass it as an argument, or one text per line on stdin")
    return texts


def _named_file(text: str) -> str:
    """Why a text looks like a file name; '' if it does not."""
    try:
        if text.strip() and Path(text).exists():
            return "is the name of a folder here" if Path(text).is_dir() else "is the name of a file here"
    except (OSError, ValueError):  # longer than a name can be
        return ""
    if Path(text).suffix.lower() in FILES and not any(letter.isspace() for letter in text):
        return "looks like the name of a file (there is none)"
    return ""


def evaluate(
    console: Console,
    options: Machine,
    run: Run,
    task_model: Annotated[list[str] | None, Option(help="Another task model; can be repeated.")] = None,
    prompt: Annotated[str | None, Option(help="A prompt to use instead of the one found.")] = None,
    split: Annotated[str, Option(help="train, dev or test.")] = "test",
    test: Annotated[Path | None, Option(help="Other labelled examples to evaluate on.")] = None,
    text_column: Annotated[str | None, Option(help="Column of --test with the text.")] = None,
    label_column: Annotated[str | None, Option(help="Column of --test with the label.")] = None,
) -> None:
    """Evaluate a run's prompt on a split, or with other task models."""
    from pinprompt import api

    console.note("evaluating; a large split takes a while")
    found = api.evaluate(
        run, task_models=task_model or (), split=split, prompt=prompt, test=test, text_column=text_column,
        label_column=label_column, device=options.device,
        threads=options.threads, notes=console.note,
    )  # fmt: skip
    shown = []
    for model, evaluation in found.items():
        for name, value in evaluation.metrics.items():
            ends = evaluation.intervals.get(name)
            interval = f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else ""
            shown.append((model, str(evaluation.rows), name, f"{value:.4g}", interval))
    heads = ("task model", "rows", "metric", "value", "95 % interval")
    data = {"split": split, "models": {model: one.facts() for model, one in found.items()}}
    console.answer(data, table(heads, shown))


def use(
    console: Console,
    options: Output,
    run: Run,
    text: Annotated[str, Option(help="The input text to show.")] = "some text",
) -> None:
    """Show the exact text sent to the model for an input, and code that sends it without pinprompt."""
    from rich.text import Text

    from pinprompt import api

    found = api.use(run, text)
    said = "\n".join(f"[{one['role']}] {one['content']}" for one in found["messages"]) or found["text"]
    shown = [Text(f"the text for {text!r}:", style="bold"), Text(said)]
    if found["words"]:
        shown.append(Text("label words: " + ", ".join(f"{label}: {word}" for label, word in found["words"].items())))
    for name, code in found["snippets"].items():
        shown += [Text(""), Text(f"# {name}", style="bold"), Text(code)]
    console.answer(found, *shown)


def export(
    console: Console,
    options: Output,
    run: Run,
    to: Annotated[str, Option(help="promptfoo, dspy, langchain, openai or json.")],
    output: Annotated[Path | None, Option(help="The file; default: the tool's usual name.")] = None,
) -> None:
    """Export a run's prompt to a file for another tool."""
    from pinprompt import api

    path = api.export(run, to, output, notes=console.note)
    console.answer({"file": str(path)}, f"written: {path}")


def draw(
    console: Console,
    options: Machine,
    run: Run,
    model: Annotated[
        str | None, Option(help="A diffusers pipeline: hub id or folder; default: Stable Diffusion 2.1.")
    ] = None,
    images: Annotated[int, Option(min=1, max=64, help="Number of pictures.")] = 4,
    steps: Annotated[int, Option(min=1, max=1000, help="Denoising steps.")] = 25,
    guidance: Annotated[float, Option(min=0.0, help="Guidance scale.")] = 9.0,
    size: Annotated[int, Option(min=0, max=4096, help="Width in pixels; 0: the pipeline's own.")] = 512,
    scheduler: Annotated[
        Literal["dpm", "own"], Option("--scheduler", help="DPM-Solver, or the pipeline's own sampler.")
    ] = "dpm",
    seed: Seed = None,
) -> None:
    """Draw pictures from the prompt of an inversion run, and add them to its report."""
    from pinprompt import api

    console.note("drawing; without a GPU this takes minutes")
    found = api.draw(
        run, model=model, images=images, steps=steps, guidance=guidance, size=size or None, scheduler=scheduler,
        device=options.device, threads=options.threads, seed=seed or 0, notes=console.note,
    )  # fmt: skip
    drawings = [{"name": row["name"], "similarity": row["similarity"]} for row in found.data["drawings"]]
    lines = [f"{row['name']}: similarity {row['similarity']:.3f}" for row in drawings]
    console.answer({"drawings": drawings, "report": str(found.report)}, *lines, f"report: {found.report}")


def report(
    console: Console,
    options: Output,
    run: Run,
    private: Annotated[bool, Option("--private", help="Leave your texts and pictures out of the report.")] = False,
) -> None:
    """Rewrite a run's report.html."""
    from pinprompt import api

    path = api.report(run, private=private)
    console.answer({"report": str(path)}, f"report: {path}")


def open(console: Console, options: Output, run: Run) -> None:
    """Open a run's report in the browser."""
    from pinprompt import api

    shown = api.open(run)
    if not shown["opened"]:
        console.note("no browser could be started; open the file yourself")
    console.answer(shown, f"report: {shown['report']}")


def judge(
    console: Console,
    options: Trust,
    runs: Runs,
    model: Annotated[str, Option(help="A vision model behind an API: remote:NAME.")],
    top: Annotated[int, Option(min=1, max=20, help="Number of best prompts per run.")] = 1,
    calls: Annotated[int | None, Option(min=1, help="Maximum number of questions to send.")] = None,
    sets: Annotated[
        list[str] | None, Option("--set", help="A setting of remote or budget, such as remote.base_url=URL.")
    ] = None,
    no_memo: NoMemo = False,
) -> None:
    """Ask a vision model how well each prompt fits its picture and how readable it is (1 to 5)."""
    from pinprompt import api
    from pinprompt.recipe import recipe as recipes

    settings = recipes.merge({} if calls is None else {"budget": {"calls": calls}}, recipes.parse_overrides(sets or []))
    found = api.judge(runs, model=model, top=top, settings=settings, memo=not no_memo, notes=console.note)
    console.answer(found.data(), *_shown(found))


def _shown(found: Judgement) -> Iterator[Any]:
    from pinprompt.wording import money_shown

    rows = []
    for run in found.runs:
        for prompt in dict.fromkeys(one.prompt for one in run.opinions):
            said = run.of(prompt)
            marks = ["" if value is None else f"{value:.3g}" for value in (said.relevance, said.interpretability)]
            rows.append((run.folder.name, prompt, *marks))
    yield table(("run", "prompt", "relevance", "interpretability"), rows)
    for name, summary in found.methods.items():
        yield f"{name}: {_mean(summary)}"
    failures = [one.verdict.failure for run in found.runs for one in run.opinions if one.verdict.failure]
    if failures:
        yield f"{len(failures)} without marks; the first: {failures[0]}"
    if found.stopped:
        yield f"stopped early: {found.stopped}"
    costs = found.costs
    tokens = f"{costs['tokens_in']:,.0f} tokens in and {costs['tokens_out']:,.0f} out"
    money = money_shown(costs["money"])
    yield f"asked {found.model} {costs['calls']:,.0f} times: {tokens}; money: {money}"


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


VERBS = (predict, rewrite, evaluate, use, export, draw, report, open, judge)
