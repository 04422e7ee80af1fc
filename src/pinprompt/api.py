"""The verbs in Python: tune, evaluate, compare, sweep. Ten lines are enough; the command line calls the same."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.errors import RunError, SettingError
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.run import build, running
from pinprompt.run.running import Result
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Listener, Prompt

if TYPE_CHECKING:
    from pinprompt.run.judging import Judgement

Subject = Recipe | str | Path | Mapping[str, Any] | Callable[..., Any] | Task


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
    on_event: Listener | Sequence[Listener] = (),
    notes: Callable[[str], None] = lambda note: None,
) -> Result:
    """Find a prompt.

    `subject` is a plain function from a prompt's text to a number (or from a list of texts to numbers), a task object,
    a recipe, the path of a recipe's TOML file, or the settings of a task such as
    `{"dataset": "rotten-tomatoes", "model": "smollm2"}`. Everything else has a default: for functions and settings the
    `quick` profile, which is made for minutes on a laptop.
    """
    chosen = {"method": method, "profile": profile, "seed": seed}
    tree: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    budget = {name: value for name, value in {"calls": calls, "minutes": minutes}.items() if value is not None}
    if budget:
        tree["budget"] = budget
    tree = recipes.merge(tree, settings or {})
    recipe, task = _recipe_and_task(subject, tree)
    listeners = [on_event] if callable(on_event) else list(on_event)
    folder = default_folder(recipe) if out is None else Path(out)
    return running.run(
        recipe,
        folder,
        task=task,
        device=device,
        threads=threads,
        resume=resume,
        force=force,
        listeners=listeners,
        notes=notes,
    )


def default_folder(recipe: Recipe) -> Path:
    """Where a run goes that was not told: runs/<task>-<method>-<hash of the recipe>."""
    what = getattr(recipe.task, "dataset", None) or recipe.task.kind
    return Path("runs") / recipes.file_name(f"{what}-{recipe.method}-seed{recipe.seed}-{recipe.hash[:8]}")


def evaluate(
    run: Path | str, *, task_models: Sequence[str] = (), split: str = "test", prompt: str | None = None,
    device: str | None = None, threads: int | None = None,
) -> dict[str, Evaluation]:  # fmt: skip
    """How a run's prompt (or another one) does on a split, with the run's own task model or with others."""
    build.set_threads(threads)
    device = build.choose_device(device)
    recipe = recipe_of(run)
    text = prompt if prompt is not None else running.result_of(Path(run)).prompt
    evaluations = {}
    for model in task_models or (getattr(recipe.task, "model", recipe.task.kind),):
        changed = recipe
        if task_models:
            if "model" not in type(recipe.task).model_fields:
                raise SettingError(f"a {recipe.task.kind} task has no model to exchange; leave --task-model out")
            # A template made for one kind of model may not fit another, so it is chosen anew.
            update = {"model": model, **({"model_kind": "auto"} if hasattr(recipe.task, "model_kind") else {})}
            changed = recipe.model_copy(update={"task": recipe.task.model_copy(update=update)})
        task = _aloud(build.build_task(changed, device))
        if split not in task.splits:
            raise SettingError(f"the task has no {split} split; it has: {', '.join(task.splits)}")
        evaluations[str(model)] = task.evaluate(Prompt(text), split)
    return evaluations


def predict(run: Path | str, texts: Sequence[str], *, device: str | None = None) -> list[tuple[str, dict[str, float]]]:
    """Label new texts with the prompt that a classification run found: (label, probability of each label) per text."""
    recipe = recipe_of(run)
    if recipe.task.kind != "classification":
        raise SettingError(f"{run} is a {recipe.task.kind} run; predict labels texts with a classification run")
    task: Any = _aloud(build.build_task(recipe, build.choose_device(device)))
    predicted: list[tuple[str, dict[str, float]]] = task.predict(
        Prompt(running.result_of(Path(run)).prompt), list(texts)
    )
    return predicted


def rewrite(
    run: Path | str, texts: Sequence[str], *, n: int = 1, seed: int = 0, device: str | None = None
) -> list[list[Any]]:
    """Rewrite texts with the prompt that a style run found: the n best of each, with content, style and score."""
    recipe = recipe_of(run)
    if recipe.task.kind != "style-transfer":
        raise SettingError(f"{run} is a {recipe.task.kind} run; rewrite works with a style-transfer run")
    task: Any = _aloud(build.build_task(recipe, build.choose_device(device)))
    prompt = running.result_of(Path(run)).prompt
    return [task.rewrite(prompt, text, n, seed) for text in texts]


def draw(run: Path | str, *, model: str | None = None, device: str | None = None, seed: int = 0) -> Result:
    """Draw pictures for the prompt of an inversion run (extra `diffusion`) and put them into its result and report."""
    from pinprompt.files import write_atomically, write_json
    from pinprompt.models.diffusion import load_painter
    from pinprompt.models.images import data_uri
    from pinprompt.records.report import write_report

    recipe, found = recipe_of(run), running.result_of(Path(run))
    if recipe.task.kind != "inversion":
        raise SettingError(f"{run} is a {recipe.task.kind} run; pictures are drawn for the prompt of an inversion run")
    folder = Path(run) / "drawings"
    if folder.is_symlink():
        raise RunError(f"{folder} is a link, and files are used where they stand; remove it, then draw again")
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
    folder.mkdir(exist_ok=True)
    drawings = []
    for number, (picture, similarity) in enumerate(zip(pictures, task.image_similarities(pictures), strict=True)):
        content = io.BytesIO()
        picture.save(content, "PNG")
        write_atomically(folder / f"{number}.png", content.getvalue())
        drawings.append({"name": f"{number}.png", "data_uri": data_uri(picture), "similarity": similarity})
    write_json(Path(run) / "result.json", {**found.data, "drawings": drawings})
    write_report(Path(run))
    return running.result_of(Path(run))


def judge(
    runs: Sequence[Path | str] | Path | str,
    *,
    model: str,
    top: int = 1,
    settings: Mapping[str, Any] | None = None,
    memo: bool = True,
    notes: Callable[[str], None] = lambda note: None,
) -> Judgement:
    """Relevance and interpretability (1 to 5) of what inversion runs found, by a vision model behind an API.

    `model` is 'remote:<name>'; `settings` has the server and the limits, such as `{"remote": {"base_url": ...},
    "budget": {"calls": 50}}`. See `pinprompt.run.judging.judge`.
    """
    from pinprompt.run.judging import judge as judge_runs

    folders = [runs] if isinstance(runs, str | Path) else runs
    return judge_runs(folders, model, top=top, settings=settings, memo=memo, notes=notes)


def compare(folders: Sequence[Path | str], metric: str | None = None) -> Any:
    """The paper's tables from run folders alone; see `records.compare`."""
    from pinprompt.records.compare import compare as compare_runs

    return compare_runs(folders, metric)


def recipe_of(run: Path | str) -> Recipe:
    """The recipe that a run folder was made with."""
    path = Path(run) / "recipe.toml"
    if not path.is_file():
        raise SettingError(f"{run} is not a run folder: there is no recipe.toml in it")
    return recipes.load(path)


def _aloud(task: Task) -> Task:
    """Say what a reader should know of the task, such as how a model behind an API is asked."""
    for note in getattr(task, "notes", ()):
        logging.getLogger("pinprompt.models").info(note)
    return task


def _recipe_and_task(subject: Subject, tree: dict[str, Any]) -> tuple[Recipe, Task | None]:
    if isinstance(subject, Recipe):
        return recipes.validate(recipes.merge(subject.model_dump(), tree)), None
    if isinstance(subject, str | Path):
        return recipes.resolve(recipes.merge(recipes.read_toml(subject), tree)), None
    tree = {"profile": "quick", **tree}
    if isinstance(subject, Mapping):
        return recipes.resolve(recipes.merge({"task": dict(subject)}, tree)), None
    # An object is trusted as it is; the recipe can only say that there was one.
    custom = {"task": {"kind": "custom", "function": getattr(subject, "__name__", type(subject).__name__)}}
    recipe = recipes.resolve(recipes.merge(custom, tree))
    if isinstance(subject, Task):
        return recipe, subject
    if not callable(subject):
        raise SettingError(f"a {type(subject).__name__} is no task: give a function from text to a number, or a recipe")
    from pinprompt.tasks.custom import CustomTask

    return recipe, CustomTask(subject, stochastic=bool(getattr(recipe.task, "stochastic", False)))
