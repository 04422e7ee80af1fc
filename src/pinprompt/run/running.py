"""One run from recipe to result: build, search, select on dev, evaluate, explain, write down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from pinprompt.errors import BudgetSpent, PinpromptError, RunError, SettingError
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.methods.selection import announce, select
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.task_sections import MANNERS
from pinprompt.records.identity import changed_files
from pinprompt.records.reading import changed_since, read_environment, read_run, sequence
from pinprompt.run import build, consent
from pinprompt.run.conclusion import conclude
from pinprompt.run.estimating import check_budget, check_race, hold_for_report
from pinprompt.run.folder import RunFolder
from pinprompt.scoring.budget import Reservation
from pinprompt.tasks.protocol import Task, complete
from pinprompt.values import Event, Listener

MAY_CHANGE = ("budget", "scoring", "private")
"""What a resumed run may change: what it may spend, where it computes, what it shows, never what it computes."""
DATA = ("train", "dev", "test", "data", "source", "target", "references")
"""Settings of tasks that name a file or a folder with data."""

RESULT: dict[str, tuple[type, ...]] = {
    "prompt": (str,), "score": (int, float, type(None)), "dev": (dict, type(None)), "test": (dict, type(None)),
    "calls": (int,), "seconds": (int, float),
}  # fmt: skip
"""What result.json must hold, and of what kind it is."""


@dataclass(frozen=True)
class Result:
    """What a run found; the same facts as in result.json, the common ones by name."""

    prompt: str
    score: float
    dev: dict[str, Any] | None
    test: dict[str, Any] | None
    calls: int
    seconds: float
    folder: Path
    data: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def report(self) -> Path:
        """The page that explains the answer."""
        return self.folder / "report.html"

    def _repr_html_(self) -> str:
        """For notebooks: the prompt, what it scores, and where the report is."""
        rows = [("prompt", self.prompt)]
        for split, facts in (("dev", self.dev), ("test", self.test)):
            value = (facts or {}).get(str(self.data.get("primary")))
            if isinstance(value, float):
                rows.append((f"{self.data['primary']} on {split}", f"{value:.3f} ({(facts or {}).get('rows')} rows)"))
        rows += [("calls", f"{self.calls:,}"), ("report", str(self.report))]
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table>"

    @property
    def top(self) -> list[dict[str, Any]]:
        """The finalists, best first, with their scores."""
        top = self.data.get("top")
        return [row for row in top if isinstance(row, dict)] if isinstance(top, list) else []


def recipe_of(folder: Path | str) -> Recipe:
    """The recipe that a run folder was made with."""
    path = Path(folder) / "recipe.toml"
    if not path.is_file():
        raise SettingError(f"{folder} is not a run folder: there is no recipe.toml in it")
    return recipes.load(path)


def near(recipe: Recipe, run: Path) -> Recipe:
    """The recipe with paths of files that hold from here: what is not found is looked for beside and above the run.

    Names of models stay as they are, unless they can only be paths: a folder of the same name is no model's id.
    """
    places = [run.resolve(), *run.resolve().parents]

    def found(given: str) -> str:
        if Path(given).is_absolute() or Path(given).exists():
            return given
        return next((str(place / given) for place in places if (place / given).exists()), given)

    task, policy = recipe.task, recipe.policy
    files: dict[str, Any] = {name: found(given) for name in DATA if isinstance(given := getattr(task, name, None), str)}
    if hasattr(task, "images"):
        files["images"] = tuple(found(one) for one in task.images)
    models = {"task": getattr(task, "model", None), "policy": policy.model}
    paths = {room: {"model": found(name)} for room, name in models.items() if name and _is_path(name)}
    banned = policy.constraints.banned_file
    bans = {"constraints": policy.constraints.model_copy(update={"banned_file": found(banned)})} if banned else {}
    changed_task = task.model_copy(update=files | paths.get("task", {}))
    changed_policy = policy.model_copy(update=bans | paths.get("policy", {}))
    return recipe.model_copy(update={"task": changed_task, "policy": changed_policy})


def _is_path(model: str) -> bool:
    return model.startswith((".", "~")) or model.endswith(".gguf")


def result_of(folder: Path) -> Result:
    """The result that a finished run left in its folder."""
    changed = changed_since(folder, {"result.json"})
    if changed:
        raise RunError(f"{folder}: {changed[0]} Resume the run to write it again.")
    data = read_run(folder, prompts=False).result
    for name, kinds in RESULT.items():
        if name not in data:
            raise RunError(f"{folder / 'result.json'} lacks '{name}'; run it again with --force")
        if not isinstance(data[name], kinds) or (isinstance(data[name], bool) and bool not in kinds):
            raise RunError(
                f"{folder / 'result.json'} has a {type(data[name]).__name__} as '{name}', which pinprompt does not "
                "write; remove the file and resume the run, or run it again with --force"
            )
    return Result(
        data["prompt"], data["score"], data["dev"], data["test"], data["calls"], data["seconds"], folder, data
    )


def run(
    recipe: Recipe,
    folder: Path | str,
    *,
    task: Task | None = None,
    device: str | None = None,
    threads: int | None = None,
    resume: bool = False,
    force: bool = False,
    report: bool = True,
    listeners: Sequence[Listener] = (),
    notes: Callable[[str], None] = lambda note: None,
) -> Result:
    """Carry out a recipe in a run folder; killed and called again with `resume`, it ends as if nothing had happened.

    Without `report` it ends when the prompt is found: nothing is evaluated on test, nothing compared with hand-written
    prompts, and no report.html written. Called again with `resume` and a report, it makes up for that.
    """
    threads = build.set_threads(threads)
    device = build.choose_device(device)
    with RunFolder(folder, resume=resume, force=force) as record:
        if resume and record.identity is None:
            notes(f"there is nothing to resume in {record.path}; this is a new run")
        if resume:
            recipe = _with_earlier_words(recipe, record.path)
        for note in record.notes:
            notes(note)
        if _finished(recipe, record, notes, report):
            notes(f"the run in {record.path} is finished: there is nothing left to do")
            return result_of(record.path)
        # A run that is resumed from another folder keeps its recipe; only its files are looked for.
        here = near(recipe, record.path) if resume else recipe
        task = complete(task or build.build_task(here, device))
        recipe = build.with_label_words(recipe, task)
        for note in (*task.notes, *build.language_notes(recipe, task)):
            notes(note)
        task.check_window(recipe.policy.length)
        check_race(recipe, task)
        few = check_budget(recipe, task)
        if few:
            notes(few)
        # The user named the recipe or agreed to it, so the folder that it leaves is not asked about.
        consent.vouch(recipe)
        # Only now is there a run: what could not even be built leaves a folder that can be used again.
        record.begin(recipes.to_toml(recipe), task.fingerprint)
        rows = {} if recipe.private else task.shown_rows()
        if rows:
            record.save_json("rows.json", rows)
        judges = {} if recipe.private else task.kept_judges()  # the words that a style judge knows are of the data
        if judges:
            record.save_json("judges.json", judges)
        _keep_environment(record, build.environment(device, threads), notes)
        evaluator = build.build_evaluator(recipe, task, record, device, threads, notes)

        told: list[str] = []

        def emit(event: Event) -> None:
            told.append(event.kind)
            for listener in (record.record, *listeners):
                listener(event)

        writer = cache(lambda: build.build_writer(here, task, device))
        held: list[Reservation] = []

        def open_reserve() -> None:
            while held:
                evaluator.budget.release(held.pop())

        search = Search(
            task, evaluator, emit, record.checkpoint, recipe.seed, device, record.path, recipe.policy, writer,
            open_reserve, recipe.scoring,
        )  # fmt: skip
        if record.checkpoint.size("events") == 0:
            emit(Event("start", 0, {"method": recipe.method, "task": task.name, "seed": recipe.seed,
                                    "length": recipe.policy.length, "primary": task.primary}))  # fmt: skip
        method = build.build_method(recipe)
        for_report = hold_for_report(recipe, task, evaluator.budget)
        if (for_dev := build.hold_for_dev(recipe, task, evaluator.budget)) is not None:
            held.append(for_dev)
        outcome = _search(method, search, told) if resume else method(search)
        open_reserve()
        if outcome.finalists is None:
            finalists = select(search, outcome.candidates, outcome.steps)
        else:
            finalists = announce(search, outcome.finalists, outcome.steps)
        if for_report is not None:
            evaluator.budget.release(for_report)
        try:
            result = conclude(recipe, search, outcome, finalists, writer, record, report)
        except BudgetSpent as spent:
            raise BudgetSpent(f"the search is done, but not its report: {spent}; raise that limit and resume") from None
        evaluator.close()
        record.save_prompts(evaluator.prompts_table())
        record.save_json("result.json", result)
        if report:
            from pinprompt.records.report import write_report

            write_report(record.path)
        record.finish()
        return result_of(record.path)


def _keep_environment(record: RunFolder, here: dict[str, Any], notes: Callable[[str], None]) -> None:
    """Warn where a run is resumed on another machine or with other libraries; environment.json keeps them all."""
    try:
        kept = read_environment(record.path)
    except RunError as error:
        notes(f"{error} It is written again.")
        kept = {}
    if not kept:
        record.save_json("environment.json", here)
        return
    later = [one for one in sequence(kept.get("resumed_on")) if isinstance(one, dict)]
    last = dict(kept)
    for one in later:
        last |= one
    changed = {name: value for name, value in here.items() if last.get(name) != value}
    if changed:
        told = ", ".join(f"{name} {_said(last.get(name), value)}" for name, value in changed.items())
        notes(
            f"this run is resumed where something is different ({told}); numbers may differ in their last digits, and "
            "the run may go another way than it would have gone"
        )
        record.save_json("environment.json", {**kept, "resumed_on": [*later, changed]})


def _said(before: Any, now: Any) -> str:
    """How a fact of the environment changed; of versions only those that did."""
    if isinstance(before, dict) and isinstance(now, dict):
        return ", ".join(f"{name} {_said(before.get(name), value)}" for name, value in now.items()
                         if before.get(name) != value)  # fmt: skip
    return f"{'unknown' if before is None else str(before)[:80]} -> {now}"  # the file may be a stranger's


def _search(method: Callable[[Search], Outcome], search: Search, told: Sequence[str]) -> Outcome:
    """Run the method; a failure before it scores or reports anything is blamed on the folder, not on the method."""
    evaluator: Any = search.evaluator
    asked, heard = evaluator.requests, len(told)
    try:
        return method(search)
    except PinpromptError:
        raise
    except Exception as error:
        if (evaluator.requests, len(told)) != (asked, heard):
            raise
        raise RunError(
            f"the run in {search.folder} cannot be resumed ({type(error).__name__}: {str(error)[:200]}): its "
            "checkpoint is damaged or not this recipe's; start again with --force"
        ) from error


def _with_earlier_words(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the label words that the folder's run chose, where this one leaves the choice open too."""
    path = folder / "recipe.toml"
    if not path.is_file() or not build.lacks_words(recipe):
        return recipe
    earlier: Any = recipes.validate(recipes.read_toml(path)).task
    return build.with_words(recipe, getattr(earlier, "words", {}))


def _finished(recipe: Recipe, record: RunFolder, notes: Callable[[str], None], report: bool) -> bool:
    """True where the folder's run is complete for this recipe; a recipe that computes something else is refused."""
    folder, known = record.path, record.identity
    if known is None or not (folder / "recipe.toml").is_file():
        return False
    earlier = recipes.validate(recipes.read_toml(folder / "recipe.toml"))
    ours, theirs = _computed(recipe), _computed(earlier)
    changed = [name for name in ours if ours[name] != theirs.get(name)]
    if changed:
        raise RunError(
            f"{folder} was made with other settings ({', '.join(changed)}); resume it with its own recipe, "
            "change only the budget, or start again with --force"
        )
    if recipe.budget != earlier.budget:
        return False
    if report and _unreported(folder):
        return False
    if known.files is None:
        return record.earlier and (folder / "result.json").exists()
    damage = changed_files(folder, known.files)
    if damage:
        notes(f"{folder} was finished, but {', '.join(damage)}; what is damaged is made again")
    return not damage


def _unreported(folder: Path) -> bool:
    """True where a run ended without its report."""
    try:
        return read_run(folder, prompts=False, events=False).result.get("reported") is False
    except RunError:
        return False  # what is damaged is looked for apart


def _computed(recipe: Recipe) -> dict[str, Any]:
    """The sections that say what a run computes; those of other methods say nothing."""
    moot = {*MAY_CHANGE, *recipe.other_methods}
    sections = {name: value for name, value in recipe.model_dump().items() if name not in moot}
    return sections | {"remote": {name: value for name, value in sections["remote"].items() if name not in MANNERS}}
