"""Every command as a Python function. The command line parses options, calls these functions and prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.data.tables import plain_settings
from pinprompt.doctor import examine as doctor
from pinprompt.errors import RunError, SettingError
from pinprompt.folder import reading
from pinprompt.folder.identity import restore_recipe
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.reports.compare import compare
from pinprompt.reports.entries import find_runs, walk_runs
from pinprompt.reports.figures import write_figures as figures
from pinprompt.reports.judging import judge
from pinprompt.reports.report import write_report
from pinprompt.reports.report import write_report as report
from pinprompt.reports.sharing import draw, export, use
from pinprompt.reports.trackers import Bar, in_notebook
from pinprompt.run import build, consent, running
from pinprompt.run.running import Result, recipe_of
from pinprompt.run.using import Labelled, evaluate, found_prompt, predict, predict_table, readout_of, rewrite, silent
from pinprompt.run.verdict import reported_split
from pinprompt.tasks.protocol import Task
from pinprompt.values import Listener
from pinprompt.wording import where

if TYPE_CHECKING:
    from pinprompt.folder.folder import Verification
    from pinprompt.methods.table import MethodRow
    from pinprompt.sweeps import Swept

__all__ = [
    "Labelled", "Subject", "cache", "compare", "default_folder", "doctor", "draw", "estimate", "evaluate", "export",
    "figures", "found_prompt", "judge", "ls", "methods", "models", "open", "plan_sweep", "predict", "predict_table",
    "readout_of", "recipe_of", "report", "resume", "rewrite", "studio", "sweep", "tune", "use", "verify",
]  # fmt: skip

Subject = Recipe | str | Path | Mapping[str, Any] | Callable[..., Any] | Task


def tune(
    subject: Subject, *, out: Path | str | None = None, method: str | Callable[..., Any] | None = None,
    model: Callable[..., Any] | None = None, metric: Callable[..., Any] | None = None,
    rows: Iterable[Any] | None = None, profile: str | None = None,
    seed: int | None = None, calls: int | None = None, minutes: float | None = None,
    settings: Mapping[str, Any] | None = None, device: str | None = None, threads: int | None = None,
    resume: bool = False, force: bool = False, report: bool = True, progress: bool | None = None,
    on_event: Listener | Sequence[Listener] = (), notes: Callable[[str], None] = silent,
) -> Result:  # fmt: skip
    """Find a prompt.

    `subject` is a plain function from a prompt's text to a number (or from a list of texts to numbers, or, with `rows`,
    from a text and a row to a number), a task object, a recipe, the path of a recipe's TOML file, or the settings of a
    task such as `{"dataset": "rotten-tomatoes", "model": "smollm2"}`. Functions and task settings use the `quick`
    profile by default, which takes minutes on a laptop. With `report=False` the run ends when the prompt is found: no
    evaluation on test, no comparison with hand-written prompts, no report.html. `progress` shows a progress bar; by
    default only in a notebook.

    `method` is a name, or your own: a function `(search) -> prompts`, or a callable object with `settings` (a pydantic
    model) and `cost`. `model` is your own task model: a function from texts (or from chats, if its parameter is called
    `messages`) to texts or, for a classification, to label probabilities or word log-probabilities. `metric` values
    the answers of a task of the kind answers: a function `(answer, row) -> number`, or `-> (number, reason)`.
    """
    chosen = {"method": _name_of(method), "profile": profile, "seed": seed}
    over = _over(chosen, {"calls": calls, "minutes": minutes}, settings)
    if model is not None:
        over = recipes.merge(over, {"task": {"model": f"callable:{_name_of(model)}"}})
    if metric is not None:
        over = recipes.merge(over, {"task": {"metric": "function", "function": _name_of(metric)}})
    recipe, task = _recipe_and_task(subject, over, rows)
    if isinstance(subject, str | Path):
        consent.agree(recipe, subject, over)
    listeners = [on_event] if callable(on_event) else list(on_event)
    if in_notebook() if progress is None else progress:
        listeners.append(Bar(recipe))
    folder = default_folder(recipe) if out is None else Path(out)
    return running.run(
        recipe, folder, task=task, method=None if isinstance(method, str) else method, model=model, metric=metric,
        device=device, threads=threads, resume=resume, force=force, report=report, reporter=write_report,
        listeners=listeners, notes=notes,
    )  # fmt: skip


def resume(
    run: Path | str, *, calls: int | None = None, minutes: float | None = None,
    settings: Mapping[str, Any] | None = None, device: str | None = None, threads: int | None = None,
    report: bool = True, on_event: Listener | Sequence[Listener] = (), notes: Callable[[str], None] = silent,
) -> Result:  # fmt: skip
    """Continue the run in a folder with its own recipe; `calls`, `minutes` and the settings of a budget can change."""
    if restore_recipe(Path(run)):
        notes(f"{Path(run) / 'recipe.toml'} was changed after the run wrote it; restored from run.json")
    recipe = recipe_of(run)
    consent.agree(running.with_found_files(recipe, Path(run)), run)
    return tune(
        recipe, out=run, calls=calls, minutes=minutes, settings=settings, device=device, threads=threads, resume=True,
        report=report, on_event=on_event, notes=notes,
    )  # fmt: skip


def ls(folder: Path | str = "runs") -> list[dict[str, Any]]:
    """The runs below a folder: the task, the prompt found, and its score."""
    return [_listed(path) for path, _ in sorted(walk_runs(Path(folder)))]


def _listed(path: Path) -> dict[str, Any]:
    try:
        record = reading.read_run(path, events=False)
    except RunError as error:
        return {"folder": str(path), "state": str(error), "method": None, "task": None, "prompt": None, "score": None}
    result, metric = record.result, str(record.result.get("primary"))
    score = None
    if split := reported_split(result, metric):
        value = reading.number(result[split][metric]) or 0.0
        score = f"{metric} {where(split, result.get('task'))}: {value:.3f}"
    return {
        "folder": str(path),
        "state": "finished" if result else "not finished",
        "method": record.recipe.get("method"),
        "task": record.setting("task", "dataset") or record.setting("task", "kind"),
        "prompt": result.get("prompt"),
        "score": score,
    }


def estimate(
    subject: Subject, *, method: str | None = None, profile: str | None = None, calls: int | None = None,
    minutes: float | None = None, settings: Mapping[str, Any] | None = None, device: str | None = None,
    threads: int | None = None, report: bool = True, unread: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The cost of `tune` with the same arguments: calls, tokens, money and minutes.

    Files outside a recipe's folder are not read before you agree to them (docs/responsible-use.md), nor are those in
    `unread`; only the planned numbers are given then.
    """
    from pinprompt.run.estimating import estimate as estimate_run

    build.set_threads(threads)
    chosen = {"method": method, "profile": profile}
    over = _over(chosen, {"calls": calls, "minutes": minutes}, settings)
    recipe, task = _recipe_and_task(subject, over)
    if isinstance(subject, str | Path):
        unread = [*unread, *consent.unread(recipe, subject, over)]
    return estimate_run(recipe, device, task=task, report=report, unread=unread)


def sweep(
    file: Path | str, *, out: Path | str | None = None, engine: str = "inline", address: str | None = None,
    workers: int | None = None, gpus: float = 0.0, seed: int | None = None, settings: Mapping[str, Any] | None = None,
    only: Mapping[str, Sequence[Any]] | None = None, device: str | None = None, threads: int | None = None,
    notes: Callable[[str], None] = silent,
) -> Swept:  # fmt: skip
    """Run every recipe of a sweep file; finished runs are skipped, interrupted ones are resumed.

    `engine` is 'inline' (one after the other) or 'ray' (in parallel: `address` names a cluster, `workers` limits the
    number of parallel runs on this machine, `gpus` is the number of GPUs per run). `settings` apply to all runs; one
    that varies in the sweep is refused. `only={"method": ["pin", "random"]}` runs a part of the sweep.
    """
    from pinprompt.sweeps import read_sweep, run_sweep

    over = _over({"seed": seed}, {}, settings)
    read = read_sweep(file, out, over, only)
    consent.agree([cell.recipe for cell in read.cells], file, over)
    if threads is not None:
        read = replace(read, threads=threads)
    return run_sweep(read, notes, engine=engine, device=device, address=address, workers=workers, gpus_per_cell=gpus)


def plan_sweep(
    file: Path | str, *, out: Path | str | None = None, seed: int | None = None,
    settings: Mapping[str, Any] | None = None, only: Mapping[str, Sequence[Any]] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The runs of a sweep file, or those of `only`: what varies, the most prompts and calls, and if it is finished."""
    from pinprompt.sweeps import plan, read_sweep

    return plan(read_sweep(file, out, _over({"seed": seed}, {}, settings), only))


def default_folder(recipe: Recipe) -> Path:
    """The default run folder: runs/<task>-<method>-<hash of the recipe>."""
    what = getattr(recipe.task, "dataset", None) or recipe.task.kind
    return Path("runs") / recipes.file_name(f"{what}-{recipe.method}-seed{recipe.seed}-{recipe.hash[:8]}")


def open(run: Path | str) -> dict[str, Any]:
    """Open a run's report in the browser; returns its path (`report`) and whether a browser was started (`opened`).

    The page is rewritten first: a report.html that came with an untrusted folder is never opened.
    """
    import webbrowser

    path = report(run).resolve()
    return {"report": str(path), "opened": webbrowser.open(path.as_uri())}


def verify(runs: Sequence[Path | str] | Path | str) -> list[Verification]:
    """Check run folders, or all runs below a folder, against their checksums, without changing anything."""
    from pinprompt.folder.folder import verify as verify_run

    return [verify_run(path) for path in find_runs(*([runs] if isinstance(runs, str | Path) else runs))]


def methods() -> tuple[MethodRow, ...]:
    """The search methods: name, description, requirements and reference."""
    from pinprompt.methods.table import ROWS

    return ROWS


def models(fetch: str | None = None) -> list[dict[str, Any]]:
    """The models that need no hub, and which are cached; `fetch` agrees to download one of them and does so first."""
    from pinprompt.agreement import answering
    from pinprompt.models import sources

    if fetch is not None:
        with answering():
            sources.fetch(fetch)
    return sources.catalogue_of_models()


def cache(*, clear: bool = False, notes: Callable[[str], None] = silent) -> dict[str, Any]:
    """The size of the memo (answers kept across runs); `clear` deletes all answers."""
    from pinprompt.answers.memo import Memo
    from pinprompt.models.cache import home

    memo = Memo(home() / "memo.sqlite", warn=notes)
    try:
        if clear:
            memo.clear()
        entries, size = memo.size()
        return {"path": str(memo.path), "entries": entries, "bytes": size}
    finally:
        memo.close()


def studio(
    folder: Path | str = "runs", *, host: str = "127.0.0.1", port: int | None = None,
    ready: Callable[[str], None] = silent,
) -> list[str]:  # fmt: skip
    """Serve the studio, a local web page to start, watch, compare and try runs, until it is stopped.

    `ready` is called with the page's address. Returns the commands of the searches that were still queued.
    """
    from pinprompt.studio.server import serve

    return serve(Path(folder), host=host, port=port, ready=ready)


def _over(chosen: Mapping[str, Any], budget: Mapping[str, Any], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings given by name and as a tree, as one tree."""
    limits = {name: value for name, value in budget.items() if value is not None}
    tree = {name: value for name, value in (*chosen.items(), ("budget", limits or None)) if value is not None}
    return recipes.merge(tree, settings or {})


def _name_of(given: str | Callable[..., Any] | None) -> str | None:
    """The name of a method or model: as given, or where it was defined."""
    if given is None or isinstance(given, str):
        return given
    named = given if hasattr(given, "__qualname__") else type(given)
    return f"{named.__module__}:{named.__qualname__}"


def _recipe_and_task(
    subject: Subject, tree: dict[str, Any], rows: Iterable[Any] | None = None
) -> tuple[Recipe, Task | None]:
    if rows is not None and (isinstance(subject, str | Path | Mapping | Recipe) or not callable(subject)):
        raise SettingError("rows belong to a function of a prompt and a row; tasks and recipes have their own")
    if isinstance(subject, Recipe):
        if not tree:
            return subject, None
        return recipes.validate(recipes.merge(subject.model_dump(), tree)), None
    if isinstance(subject, str | Path):
        return recipes.resolve(recipes.merge(recipes.read_toml(subject), tree)), None
    tree = {"profile": "quick", **tree}
    if isinstance(subject, Mapping):
        return recipes.resolve(recipes.merge({"task": plain_settings(subject)}, tree)), None
    # An object is trusted; the recipe can only record that there was one.
    custom = {"task": {"kind": "custom", "function": getattr(subject, "__name__", type(subject).__name__)}}
    recipe = recipes.resolve(recipes.merge(custom, tree))
    if isinstance(subject, Task):
        return recipe, subject
    if not callable(subject):
        raise SettingError(
            f"a {type(subject).__name__} is not a task: give a function from text to a number, or a recipe"
        )
    from pinprompt.tasks.function import FunctionTask

    return recipe, FunctionTask(subject, rows=rows, stochastic=bool(getattr(recipe.task, "stochastic", False)))
