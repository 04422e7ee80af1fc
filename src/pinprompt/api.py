"""Every verb of the command line as a function. The command line parses options, calls these and prints."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.bench import BENCHES
from pinprompt.errors import DataError, RunError, SettingError, did_you_mean
from pinprompt.notebook import Bar, in_notebook
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.records import reading
from pinprompt.records.identity import refresh, restore_recipe
from pinprompt.records.wording import where
from pinprompt.run import build, consent, running
from pinprompt.run.archive import opened
from pinprompt.run.running import Result
from pinprompt.run.running import recipe_of as recipe_of
from pinprompt.tasks.protocol import BareTask, Task, complete
from pinprompt.values import Evaluation, Listener, Prompt

if TYPE_CHECKING:
    from pinprompt.methods.table import MethodRow
    from pinprompt.records.compare import Comparison
    from pinprompt.run.judging import Judgement
    from pinprompt.run.verifying import Verification
    from pinprompt.sweeps.engines import Swept

Subject = Recipe | str | Path | Mapping[str, Any] | Callable[..., Any] | BareTask


def _silent(note: str) -> None:
    """For callers that want no notes."""


def tune(
    subject: Subject,
    *,
    out: Path | str | None = None,
    method: str | None = None,
    profile: str | None = None,
    seed: int | None = None,
    calls: int | None = None,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    threads: int | None = None,
    resume: bool = False,
    force: bool = False,
    report: bool = True,
    progress: bool | None = None,
    on_event: Listener | Sequence[Listener] = (),
    notes: Callable[[str], None] = _silent,
) -> Result:
    """Find a prompt.

    `subject` is a plain function from a prompt's text to a number (or from a list of texts to numbers), a task object,
    a recipe, the path of a recipe's TOML file, or the settings of a task such as
    `{"dataset": "rotten-tomatoes", "model": "smollm2"}`. Everything else has a default: for functions and settings the
    `quick` profile, which is made for minutes on a laptop. Without `report` the run ends when the prompt is found:
    no evaluation on test, no comparison with hand-written prompts, no report.html. `progress` shows a bar in a
    notebook; None: where there is one.
    """
    chosen = {"method": method, "profile": profile, "seed": seed}
    over = _over(chosen, {"calls": calls, "minutes": minutes}, settings)
    recipe, task = _recipe_and_task(subject, over)
    if isinstance(subject, str | Path):
        consent.agree(recipe, subject, over)
    listeners = [on_event] if callable(on_event) else list(on_event)
    if in_notebook() if progress is None else progress:
        listeners.append(Bar(recipe))
    folder = default_folder(recipe) if out is None else Path(out)
    return running.run(
        recipe,
        folder,
        task=task,
        device=device,
        threads=threads,
        resume=resume,
        force=force,
        report=report,
        listeners=listeners,
        notes=notes,
    )


def resume(
    run: Path | str,
    *,
    calls: int | None = None,
    minutes: float | None = None,
    device: str | None = None,
    threads: int | None = None,
    report: bool = True,
    on_event: Listener | Sequence[Listener] = (),
    notes: Callable[[str], None] = _silent,
) -> Result:
    """Continue the run in a folder by its own recipe; `calls` and `minutes` raise its limits."""
    if restore_recipe(Path(run)):
        notes(f"{Path(run) / 'recipe.toml'} is not what the run wrote; it is written again from run.json")
    recipe = recipe_of(run)
    consent.agree(running.near(recipe, Path(run)), run)
    return tune(
        recipe, out=run, calls=calls, minutes=minutes, device=device, threads=threads, resume=True,
        report=report, on_event=on_event, notes=notes,
    )  # fmt: skip


def ls(folder: Path | str = "runs") -> list[dict[str, Any]]:
    """The runs below a folder: what each searched for, what it found, and how that scores."""
    from pinprompt.records.entries import find_runs

    return [_listed(path) for path in find_runs(folder)]


def _listed(path: Path) -> dict[str, Any]:
    try:
        record = reading.read_run(path, prompts=False, events=False)
    except RunError as error:
        return {"folder": str(path), "state": str(error), "method": None, "task": None, "prompt": None, "score": None}
    result, metric = record.result, str(record.result.get("primary"))
    split = next((split for split in ("test", "dev", "train") if result.get(split)), "dev")
    value = reading.number(reading.inside(result, split, metric))
    return {
        "folder": str(path),
        "state": "finished" if result else "not finished",
        "method": record.recipe.get("method"),
        "task": record.setting("task", "dataset") or record.setting("task", "kind"),
        "prompt": result.get("prompt"),
        "score": None if value is None else f"{metric} {where(split, result.get('task'))}: {value:.3f}",
    }


def estimate(
    subject: Subject,
    *,
    method: str | None = None,
    profile: str | None = None,
    calls: int | None = None,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """What `tune` with the same arguments would spend: calls, tokens, money and minutes, at most."""
    from pinprompt.run.estimating import estimate as estimate_run

    build.set_threads(threads)
    chosen = {"method": method, "profile": profile}
    recipe, task = _recipe_and_task(subject, _over(chosen, {"calls": calls, "minutes": minutes}, settings))
    return estimate_run(recipe, device, task=task)


def sweep(
    file: Path | str,
    *,
    out: Path | str | None = None,
    engine: str = "inline",
    address: str | None = None,
    workers: int | None = None,
    gpus: float = 0.0,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    threads: int | None = None,
    notes: Callable[[str], None] = _silent,
) -> Swept:
    """Run every recipe of a sweep's TOML file; finished cells are never run again, killed ones resume.

    `engine` is 'inline' (one after the other) or 'ray' (side by side: `address` names a cluster, `workers` says how
    many cells at a time on this machine, `gpus` how many GPUs a cell gets). `settings` go under all cells.
    """
    from pinprompt.sweeps.engines import run_sweep
    from pinprompt.sweeps.grid import read_sweep

    over = _over({"seed": seed}, {}, settings)
    read = read_sweep(file, out, over)
    consent.agree([cell.recipe for cell in read.cells], file, over)
    if threads is not None:
        read = replace(read, threads=threads)
    return run_sweep(read, notes, engine=engine, device=device, address=address, workers=workers, gpus_per_cell=gpus)


def plan_sweep(
    file: Path | str,
    *,
    out: Path | str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """The cells of a sweep's TOML file: what varies, whether it is finished, and a rough estimate of each."""
    from pinprompt.sweeps.grid import plan, read_sweep

    return plan(read_sweep(file, out, _over({"seed": seed}, {}, settings)), device)


def default_folder(recipe: Recipe) -> Path:
    """Where a run goes that was not told: runs/<task>-<method>-<hash of the recipe>."""
    what = getattr(recipe.task, "dataset", None) or recipe.task.kind
    return Path("runs") / recipes.file_name(f"{what}-{recipe.method}-seed{recipe.seed}-{recipe.hash[:8]}")


def evaluate(
    run: Path | str, *, task_models: Sequence[str] = (), split: str = "test", prompt: str | None = None,
    test: Any = None, text_column: str | None = None, label_column: str | None = None,
    device: str | None = None, threads: int | None = None, notes: Callable[[str], None] = _silent,
) -> dict[str, Evaluation]:  # fmt: skip
    """How a run's prompt (or another one) does on a split, with the run's own task model or with others.

    `test` is a file of labelled examples (or a data frame) to evaluate a classification run on instead; the run's own
    data are then read only where another model or prompt needs them to calibrate its labels. Where the run's data are
    read and have changed since, `notes` is told.
    """
    build.set_threads(threads)
    device = build.choose_device(device)
    with opened(run) as folder:
        recipe, found = running.near(recipe_of(folder), Path(run)), running.result_of(folder).data
        # Offsets hold for one model: another one measures its own, on the same training rows.
        asked = Prompt(prompt) if prompt is not None else found_prompt(folder)
    asked = replace(asked, offsets=()) if task_models else asked
    evaluations = {}
    for model in task_models or (getattr(recipe.task, "model", recipe.task.kind),):
        changed = recipe
        if task_models:
            if "model" not in type(recipe.task).model_fields:
                raise SettingError(f"a {recipe.task.kind} task has no model to replace; leave --task-model out")
            # A template made for one kind of model may not fit another, so it is chosen again.
            update = {"model": model, **({"model_kind": "auto"} if hasattr(recipe.task, "model_kind") else {})}
            changed = recipe.model_copy(update={"task": recipe.task.model_copy(update=update)})
        measures = getattr(changed.task, "calibrate", "none") == "batch" and not asked.offsets
        consent.agree(changed, run, reads=test is None or measures)
        if test is not None:
            task = _aloud(_task_on(changed, test, text_column, label_column, asked, device))
        else:
            try:
                task = _aloud(build.build_task(changed, device))
            except DataError as error:
                if recipe.task.kind != "classification":
                    raise
                raise DataError(
                    f"{error}; without a file, `evaluate` reads the run's own data again: put them back, or name "
                    "labelled rows with --test FILE (test= in Python)"
                ) from None
            if not task_models and found.get("fingerprint") not in (None, task.fingerprint):
                notes(
                    "the data or the model has changed since the run: these numbers are not those of its report "
                    f"({_data_of(recipe)})"
                )
        if split not in task.splits:
            raise SettingError(f"the task has no {split} split; it has: {', '.join(task.splits)}")
        evaluations[str(model)] = task.evaluate(asked, split)
    return evaluations


def _data_of(recipe: Recipe) -> str:
    """What a run's data are called: the dataset, or the files."""
    named = [getattr(recipe.task, name, None) for name in ("dataset", *running.DATA)]
    pictures = getattr(recipe.task, "images", ())
    return ", ".join(str(one) for one in (*named, *pictures) if one) or recipe.task.kind


def _task_on(
    recipe: Recipe, test: Any, text_column: str | None, label_column: str | None, asked: Prompt, device: str
) -> Task:
    """The task of a classification recipe with a file or a data frame as its test split."""
    from pinprompt.tasks.labelled_data import load_data, with_test, without_rows

    settings = recipe.task
    if settings.kind != "classification":
        raise SettingError(f"a {settings.kind} run has no labelled test file; --test goes with a classification run")
    measures = settings.calibrate == "batch" and not asked.offsets
    data = load_data(settings) if measures else without_rows(settings)
    path = str(_task_tree({"test": test})["test"])
    data = with_test(data, path, text_column or settings.text_column, label_column or settings.label_column)
    found: Task = build.build_labeller(recipe, device, data)
    return found


def predict(
    run: Path | str, texts: Sequence[str], *, device: str | None = None, threads: int | None = None
) -> list[dict[str, Any]]:
    """Label new texts with the prompt that a classification run found.

    One dictionary per text, as in `pinprompt predict --json`: `text`, `label`, and `probabilities` of all labels.
    """
    texts = _texts_of(texts, "predict_table")
    build.set_threads(threads)
    with opened(run) as folder:
        recipe, found = recipe_of(folder), found_prompt(folder)
    if recipe.task.kind != "classification":
        raise SettingError(f"{run} is a {recipe.task.kind} run; predict labels texts with a classification run")
    consent.agree(recipe, run, reads=False)
    task: Any = _aloud(build.build_labeller(recipe, build.choose_device(device)))
    said = task.predict(found, texts)
    return [
        {"text": text, "label": label, "probabilities": probabilities}
        for text, (label, probabilities) in zip(texts, said, strict=True)
    ]


def found_prompt(run: Path | str) -> Prompt:
    """The prompt that a run found, with the label offsets that belong to it."""
    result = running.result_of(Path(run))
    offsets = reading.mapping(reading.inside(result.data, "calibration", "offsets"))
    values = [reading.number(offset) for offset in offsets.values()]
    if None in values:
        raise RunError(f"{Path(run) / 'result.json'} has label offsets that are not numbers: {offsets}")
    return Prompt(result.prompt, offsets=tuple(value for value in values if value is not None))


@dataclass(frozen=True)
class Labelled:
    """A table with what a run's prompt said of each text: every column of the input, then label and probabilities.

    Rows without a text are there too, with an empty label; `blank` has their places. `output` is the file that
    was written, if one was asked for.
    """

    rows: list[dict[str, Any]]
    label_column: str
    text_column: str
    blank: list[str]
    output: Path | None = None

    @property
    def labels(self) -> list[str | None]:
        """The label of each row; None where there is no text."""
        return [row[self.label_column] for row in self.rows]


def predict_table(
    run: Path | str,
    source: Any,
    *,
    text_column: str | None = None,
    output: Path | str | None = None,
    device: str | None = None,
    threads: int | None = None,
    notes: Callable[[str], None] = _silent,
) -> Labelled:
    """Label every text of a table with the prompt that a classification run found, and keep all its columns.

    `source` is a CSV, TSV, JSONL or text file, a folder of .txt files, '-' for stdin, or a data frame. `text_column` is
    by default the column of the run's own data. `output` (.csv, .tsv or .jsonl) gets the table with the columns
    `label` and `probability_<label>`; a name that the table has already is preceded by `predicted_`.
    """
    from pinprompt.data import tables

    with opened(run) as folder:
        recipe = recipe_of(folder)
    if output is not None:
        tables.check_output(Path(output), source)
    table = tables.read_table(source, text_column, getattr(recipe.task, "text_column", "text"))
    texts = table.texts
    filled = [place for place, text in enumerate(texts) if text]
    blank = [place for place, text in zip(table.places, texts, strict=True) if not text]
    if not filled:
        raise SettingError(f"no row has a text in the column '{table.text_column}'")
    said = dict(
        zip(filled, predict(run, [texts[place] for place in filled], device=device, threads=threads), strict=True)
    )
    labels = list(said[filled[0]]["probabilities"])
    names = tables.names_for(["label", *(f"probability_{label}" for label in labels)], table.columns)
    added = []
    for place in range(len(texts)):
        one = said.get(place, {"label": None, "probabilities": {}})
        shares = {names[f"probability_{name}"]: one["probabilities"].get(name) for name in labels}
        added.append({names["label"]: one["label"], **shares})
    if blank:
        shown = ", ".join(blank[:10]) + (", ..." if len(blank) > 10 else "")
        notes(f"{len(blank)} of {len(texts)} rows have no text and get no label: {shown}")
    if output is not None:
        tables.write_table(Path(output), table, added)
    rows = [{**row, **more} for row, more in zip(table.rows, added, strict=True)]
    return Labelled(rows, names["label"], table.text_column, blank, None if output is None else Path(output))


def rewrite(
    run: Path | str, texts: Sequence[str], *, n: int = 1, seed: int = 0, device: str | None = None,
    threads: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rewrite texts with the prompt that a style run found: the n best rewrites of each text, best first.

    One dictionary per rewrite, as in `pinprompt rewrite --json`: `text`, `rewrite`, and what the judges say of it in
    percent (`content`, `style`), with the `score` that orders them. A rewrite that changes nothing comes last.
    """
    texts = _texts_of(texts)
    build.set_threads(threads)
    with opened(run) as folder:
        recipe, prompt, kept = recipe_of(folder), running.result_of(folder).prompt, reading.read_judges(folder)
    if recipe.task.kind != "style-transfer":
        raise SettingError(f"{run} is a {recipe.task.kind} run; rewrite works with a style-transfer run")
    consent.agree(recipe, run, reads=not kept)
    rewriter = _aloud(build.build_rewriter(recipe, build.choose_device(device), kept))
    return [
        {"text": text, "rewrite": one.text, "content": one.content, "style": one.style, "score": one.score}
        for text in texts
        for one in rewriter.rewrite(prompt, text, n, seed)
    ]


def _texts_of(texts: Any, tables: str | None = None) -> list[str]:
    """Plain strings from a list, an array or a Series; a string would be taken letter by letter, a path as words."""
    from pinprompt.data.tables import is_frame

    if isinstance(texts, str | Path) or is_frame(texts):
        hint = f"; {tables} reads files and data frames" if tables else ""
        raise SettingError(f"texts must be a list of texts, not a {type(texts).__name__}{hint}")
    given = list(texts)
    for place, text in enumerate(given):
        if not isinstance(text, str):
            raise SettingError(
                f"text {place + 1} of {len(given)} is a {type(text).__name__}, not a string: {text!r:.80}"
            )
    return [str(text) for text in given]  # those of an array are strings of numpy's own kind


def use(run: Path | str, text: str = "some text") -> dict[str, Any]:
    """A run's answer for use elsewhere: the exact text (or chat) for one input, and snippets of code that send it."""
    from pinprompt.records.usage import sent_of, snippets

    with opened(run) as folder:
        sent = sent_of(running.result_of(folder).data, run)
    return {
        "text": sent.text_for(text),
        "messages": sent.messages_for(text),
        "words": dict(sent.words),
        "offsets": dict(sent.offsets),
        "model": sent.model,
        "snippets": snippets(sent, text),
    }


def export(run: Path | str, to: str, output: Path | str | None = None) -> Path:
    """Write a run's prompt as a file that another tool reads: promptfoo, dspy, langchain, openai or json."""
    from pinprompt.files import write_atomically
    from pinprompt.records.usage import export as exported
    from pinprompt.records.usage import sent_of

    with opened(run) as folder:
        name, content = exported(sent_of(running.result_of(folder).data, run), to)
    path = Path(name) if output is None else Path(output)
    write_atomically(path, content)
    return path


def draw(
    run: Path | str, *, model: str | None = None, device: str | None = None, threads: int | None = None, seed: int = 0,
    notes: Callable[[str], None] = _silent,
) -> Result:  # fmt: skip
    """Draw pictures for the prompt of an inversion run (extra `diffusion`) and put them into its result and report."""
    from pinprompt.files import write_atomically, write_json
    from pinprompt.models.diffusion import load_painter
    from pinprompt.models.images import data_uri
    from pinprompt.records.report import write_report

    build.set_threads(threads)
    recipe, found = recipe_of(run), running.result_of(Path(run))
    if recipe.task.kind != "inversion":
        raise SettingError(f"{run} is a {recipe.task.kind} run; pictures are drawn for the prompt of an inversion run")
    consent.agree(recipe, run)
    folder = Path(run) / "drawings"
    if folder.is_symlink():
        raise RunError(f"{folder} is a link, and links are not followed; remove it, then draw again")
    device, settings = build.choose_device(device), recipe.task.drawing
    painter = load_painter(model or settings.model, device, settings.scheduler)
    pictures = painter.draw(
        found.prompt,
        images=settings.images,
        seed=seed,
        steps=settings.steps,
        guidance=settings.guidance,
        size=settings.size,
    )
    task: Any = build.build_task(recipe, device)
    if found.data.get("fingerprint") not in (None, task.fingerprint):
        notes(f"the pictures or the model have changed since the run ({_data_of(recipe)}); the words were found before")
    folder.mkdir(exist_ok=True)
    drawings = []
    for number, (picture, similarity) in enumerate(zip(pictures, task.image_similarities(pictures), strict=True)):
        content = io.BytesIO()
        picture.save(content, "PNG")
        write_atomically(folder / f"{number}.png", content.getvalue())
        drawings.append({"name": f"{number}.png", "data_uri": data_uri(picture), "similarity": similarity})
    write_json(Path(run) / "result.json", {**found.data, "drawings": drawings})
    refresh(Path(run), "result.json")
    write_report(Path(run))
    return running.result_of(Path(run))


def judge(
    runs: Sequence[Path | str] | Path | str,
    *,
    model: str,
    top: int = 1,
    settings: Mapping[str, Any] | None = None,
    memo: bool = True,
    notes: Callable[[str], None] = _silent,
) -> Judgement:
    """Relevance and interpretability (1 to 5) of what inversion runs found, by a vision model behind an API.

    `model` is 'remote:<name>'; `settings` has the server and the limits, such as `{"remote": {"base_url": ...},
    "budget": {"calls": 50}}`. See `pinprompt.run.judging.judge`.
    """
    from pinprompt.run.judging import judge as judge_runs

    folders = [runs] if isinstance(runs, str | Path) else runs
    return judge_runs(folders, model, top=top, settings=settings, memo=memo, notes=notes)


def report(run: Path | str, *, private: bool = False) -> Path:
    """Write a run's report.html again, and return its path; `private` leaves texts and pictures of the data out."""
    from pinprompt.records.report import write_report

    return write_report(run, private=private)


def open(run: Path | str) -> dict[str, Any]:
    """Open a run's report in the browser: its path (`report`), and whether a browser could be started (`opened`).

    The page is written again first: a report.html that came with a stranger's folder is not opened.
    """
    import webbrowser

    path = report(run).resolve()
    return {"report": str(path), "opened": webbrowser.open(path.as_uri())}


def verify(runs: Sequence[Path | str] | Path | str) -> list[Verification]:
    """Are run folders (or those below a folder) what their runs wrote? Looks at every checksum, changes nothing."""
    from pinprompt.records.entries import find_runs
    from pinprompt.run.verifying import verify as verify_run

    given = [runs] if isinstance(runs, str | Path) else list(runs)
    return [verify_run(path) for path in dict.fromkeys(path for run in given for path in find_runs(run) or [Path(run)])]


def compare(folders: Sequence[Path | str], metric: str | None = None) -> Comparison:
    """The paper's tables from run folders alone; see `records.compare`."""
    from pinprompt.records.compare import compare as compare_runs

    return compare_runs(folders, metric)


def figures(folders: Sequence[Path | str], out: Path | str = "figures") -> list[Path]:
    """Draw learning curves and ablations of runs as SVG and PNG; returns the files."""
    from pinprompt.records.figures import write_figures

    return write_figures(folders, Path(out))


def results(
    folder: Path | str,
    page: Path | str = "docs/results.md",
    readme: Path | str = "README.md",
    *,
    name: str | None = None,
    command: str | None = None,
) -> list[Path]:
    """Write the tables of a sweep's runs into a page and the README; returns the files that changed."""
    from pinprompt.records.pages import regenerate

    return regenerate(Path(folder), Path(page), Path(readme), name=name, command=command)


def methods() -> tuple[MethodRow, ...]:
    """The search methods: name, what each does and needs, and where it was published."""
    from pinprompt.methods.table import ROWS

    return ROWS


def models() -> list[dict[str, Any]]:
    """The models that need no hub, and what is cached."""
    from pinprompt.models.sources import catalogue_of_models

    return catalogue_of_models()


def doctor(deep: bool = False) -> dict[str, Any]:
    """What this machine has, what is missing, and what to install for what; `deep` reads the cached weights too."""
    from pinprompt.doctor import examine

    return examine(weights=deep)


def cache(
    *,
    older_than_days: float | None = None,
    max_mb: float | None = None,
    clear: bool = False,
    notes: Callable[[str], None] = _silent,
) -> dict[str, Any]:
    """The size, hits and savings of the scores kept across runs, after deleting what was asked to be deleted."""
    from pinprompt.models.sources import home
    from pinprompt.scoring.memo import Memo

    path = home() / "memo.sqlite"
    memo = Memo(path, warn=notes)
    try:
        removed = 0
        if clear or older_than_days is not None or max_mb is not None:
            removed = memo.prune(older_than_days=older_than_days, max_mb=max_mb, everything=clear)
        return {"path": str(path), **asdict(memo.stats()), "removed": removed}
    finally:
        memo.close()


def bench(
    what: str = "all",
    *,
    target: str | None = None,
    threads: int | None = None,
    notes: Callable[[str], None] = _silent,
) -> dict[str, dict[str, Any]]:
    """Measure speed on this machine, as ratios within one run; the names are in `pinprompt.bench.BENCHES`.

    `target` is for `step`: monte-carlo or bootstrap; both without it.
    """
    if target is not None and what != "step":
        raise SettingError("a target goes with bench step only; leave --target out")
    if what != "all" and what not in BENCHES:
        raise SettingError(f"there is no bench '{what}': {did_you_mean(what, [*BENCHES, 'all'])}")
    build.set_threads(threads)
    figures = {}
    for name in BENCHES if what == "all" else [what]:
        notes(f"{name}: {BENCHES[name]}; this takes a minute or two")
        chosen = {} if target is None else {"target": target}
        figures[name] = import_module(f"pinprompt.bench.{name}").measure(**chosen)
    return figures


def studio(
    folder: Path | str = "runs",
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    ready: Callable[[str], None] = _silent,
) -> list[str]:
    """Serve a page to search from, watch, compare and try prompts, until it is stopped.

    `ready` is told the page's address. Returns the commands of the searches that had not been started yet.
    """
    from pinprompt.studio.server import serve

    return serve(Path(folder), host=host, port=port, ready=ready)


def _over(chosen: Mapping[str, Any], budget: Mapping[str, Any], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings that were given, by name and as a tree, as one tree."""
    tree: dict[str, Any] = _given(chosen)
    if limits := _given(budget):
        tree["budget"] = limits
    return recipes.merge(tree, settings or {})


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _aloud(task: Any) -> Any:
    """Say what a reader should know of the task, such as how a model behind an API is asked."""
    for note in task.notes:
        logging.getLogger("pinprompt.models").info(note)
    return task


def _task_tree(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings as a recipe has them: paths as text, data frames as files in the cache."""
    from pinprompt.data.tables import is_frame, keep_frame
    from pinprompt.models.cache import home

    def plain(value: Any) -> Any:
        if is_frame(value):
            return keep_frame(value, home() / "frames", lines="source" in settings)  # styles are read line by line
        return str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in settings.items()}


def _recipe_and_task(subject: Subject, tree: dict[str, Any]) -> tuple[Recipe, Task | None]:
    if isinstance(subject, Recipe):
        if not tree:
            return subject, None
        return recipes.validate(recipes.merge(subject.model_dump(), tree)), None
    if isinstance(subject, str | Path):
        return recipes.resolve(recipes.merge(recipes.read_toml(subject), tree)), None
    tree = {"profile": "quick", **tree}
    if isinstance(subject, Mapping):
        return recipes.resolve(recipes.merge({"task": _task_tree(subject)}, tree)), None
    # An object is trusted as it is; the recipe can only say that there was one.
    custom = {"task": {"kind": "custom", "function": getattr(subject, "__name__", type(subject).__name__)}}
    recipe = recipes.resolve(recipes.merge(custom, tree))
    if isinstance(subject, BareTask):
        return recipe, complete(subject)
    if not callable(subject):
        raise SettingError(
            f"a {type(subject).__name__} is not a task: give a function from text to a number, or a recipe"
        )
    from pinprompt.tasks.custom import CustomTask

    return recipe, CustomTask(subject, stochastic=bool(getattr(recipe.task, "stochastic", False)))
