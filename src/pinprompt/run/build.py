"""Creates the task, writer, method and evaluator that a recipe names. Imports are lazy."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from pinprompt.data.language import name_of
from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.folder.checkpoint import ANSWERS
from pinprompt.folder.folder import REQUESTS
from pinprompt.methods.protocol import Outcome, Search, outcome_of
from pinprompt.methods.table import METHODS, row_of
from pinprompt.recipe.recipe import Recipe
from pinprompt.tasks.protocol import CHAT, Proposing, Task, billed, calls, split_rows, splits

if TYPE_CHECKING:
    from pinprompt.answers.budget import Budget, Reservation
    from pinprompt.answers.evaluator import Evaluator
    from pinprompt.folder.folder import RunFolder
    from pinprompt.maths.readout import Readout
    from pinprompt.recipe.task_sections import RemoteSettings


def choose_device(name: str | None) -> str:
    """The given device, or the best available: CUDA, then MPS, then the CPU."""
    import torch

    if name in (None, "auto"):
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise SettingError(
            f"the device '{name}' cannot be used ({first}); omit --device to choose one automatically"
        ) from None
    return str(name)


def set_threads(count: int | None) -> int:
    """Let torch use this many threads (results may differ in the last bits between counts); returns the count."""
    import torch

    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()


def build_rewriter(recipe: Recipe, device: str, kept: dict[str, Any]) -> Any:
    """The rewriter of a style run: with the judges stored in its folder, or trained again on its texts."""
    if not kept:
        return build_task(recipe, device)
    from pinprompt.tasks.rewriting import kept_rewriter

    settings: Any = recipe.task
    return kept_rewriter(settings, kept, device, recipe.remote)


def build_task(
    recipe: Recipe,
    device: str,
    contact: bool = True,
    readout: Readout | None = None,
    words: Sequence[str] = (),
    model: Callable[..., Any] | None = None,
    metric: Callable[..., Any] | None = None,
    data: Any = None,
) -> Task:
    """The task of a recipe; without `contact`, a remote model's server is not asked anything (for estimates).

    `readout` is the known one of the only prompt that it will be asked about, `words` are those of further readouts;
    `model` and `metric` are the user's own callables. `data` (LabelledData or AnswerData)
    replaces the rows of a classification or of free answers.
    """
    settings: Any = recipe.task
    if model is not None and settings.kind not in ("classification", "answers"):
        raise SettingError(
            f"a {settings.kind} task has no place for a callable model; classification and answers have one"
        )
    if metric is not None and settings.kind != "answers":
        raise SettingError(f"a {settings.kind} task has its own metric; a task of the kind answers takes yours")
    if settings.kind == "answers":
        from pinprompt.tasks.answers import AnswerTask

        return AnswerTask.build(
            settings, device, data=data, remote=recipe.remote,
            precision=recipe.models.precision, model=model, metric=metric,
        )  # fmt: skip
    if settings.kind == "classification":
        from pinprompt.tasks.classification import ClassificationTask

        return ClassificationTask.build(
            settings, device, recipe.seed, data=data, remote=recipe.remote,
            contact=contact, models=recipe.models, readout=readout, words=words, model=model,
        )  # fmt: skip
    if settings.kind == "style-transfer":
        from pinprompt.tasks.style_transfer import StyleTransferTask

        return StyleTransferTask.build(
            settings, device, remote=recipe.remote, writer=recipe.policy.model, contact=contact,
            precision=recipe.models.precision,
        )  # fmt: skip
    if settings.kind == "inversion":
        from pinprompt.tasks.inversion import InversionTask

        return InversionTask.build(settings, device)
    from pinprompt.tasks.function import FunctionTask

    return FunctionTask.build(settings)


def lacks_words(recipe: Recipe) -> bool:
    """Whether the task has to choose the label words (own file, no words given)."""
    settings: Any = recipe.task
    return settings.kind == "classification" and settings.dataset is None and not settings.words


def with_words(recipe: Recipe, words: Mapping[str, str]) -> Recipe:
    """The recipe with these label words."""
    return recipe.model_copy(update={"task": recipe.task.model_copy(update={"words": dict(words)})})


def with_label_words(recipe: Recipe, task: Any) -> Recipe:
    """The recipe with the label words that its task chose, so that they are stored with the run."""
    return with_words(recipe, task.data.words) if lacks_words(recipe) else recipe


def build_writer(recipe: Recipe, task: Task, device: str) -> Any:
    """The prompt writer, with the recipe's context."""
    from pinprompt.policy.writer import Writer
    from pinprompt.values import derive

    asked = recipe.policy.context
    context = "" if asked == "none" else task.context() if asked == "task" else asked
    policy = recipe.policy
    if task.info.language != "en" and policy.constraints.dictionary:  # the dictionary is English
        constraints = policy.constraints.model_copy(update={"dictionary": False})
        policy = policy.model_copy(update={"constraints": constraints})
    # Tokens carry their own leading space; a space at the end of the context would make every word unlikely.
    return Writer.build(policy, context.rstrip(" "), derive(recipe.seed, "psi"), device)


def language_notes(recipe: Recipe, task: Task) -> list[str]:
    """A note if prompts are to be written in another language than English."""
    if task.info.language == "en" or row_of(recipe.method).kind == "handwritten":
        return []
    name = name_of(task.info.language)
    known = "knows little besides English" if recipe.policy.model == "smollm2" else f"must know {name} for that"
    return [
        f"the texts look {name}: prompts are written in {name}, after examples of the texts. The writer "
        f"{recipe.policy.model} {known}; choose another one with --set policy.model=MODEL"
    ]


def load_method(recipe: Recipe) -> Any:
    """The function or object of a recipe's method."""
    from pinprompt.tasks.function import import_function

    if recipe.method not in METHODS:
        return import_function(recipe.method, "method")
    return imported(METHODS[recipe.method].function)


def imported(place: str) -> Any:
    """The function at 'module:name' of this package."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def build_method(recipe: Recipe, method: Any) -> Callable[[Search], Outcome]:
    """The method of a recipe with its settings: a function of a `Search`."""
    if recipe.method in METHODS:
        return partial(method, settings=recipe.method_settings)
    model = getattr(method, "settings", None)
    try:
        own = () if model is None else (model.model_validate(recipe.own),)
    except ValueError as error:
        raise SettingError(f"the settings of the method '{recipe.method}' (own.*) cannot be used: {error}") from None
    if model is None and recipe.own:
        raise SettingError(f"the method '{recipe.method}' has no settings, but own.* has: {', '.join(recipe.own)}")

    def search_with(search: Search) -> Outcome:
        try:
            return outcome_of(method(search, *own), search, recipe.method)
        except BudgetSpent:
            return Outcome(search.candidates(source=recipe.method), "budget")

    return search_with


def build_evaluator(
    recipe: Recipe, task: Task, record: RunFolder, device: str, threads: int, notes: Callable[[str], None]
) -> Evaluator:
    """The evaluator, restored from the run folder's checkpoint."""
    from pinprompt.answers.budget import Budget
    from pinprompt.answers.evaluator import Evaluator
    from pinprompt.answers.log import Log
    from pinprompt.answers.memo import Memo
    from pinprompt.answers.requests import Requests
    from pinprompt.answers.table import Table
    from pinprompt.models.cache import home

    settings = recipe.scoring
    memo = Memo(home() / "memo.sqlite", warn=notes) if settings.memo else None
    executor = None
    if settings.workers > 1:
        from pinprompt.answers.executors import Ray

        if recipe.task.kind == "custom" and ":" not in recipe.task.function:
            raise SettingError("a function passed as an object cannot be sent to Ray workers; name it as 'module:name'")
        chunk = max(1, task.info.chunk // settings.workers)
        shared = recipe.model_copy(update={"remote": share_of_rate(recipe.remote, settings.workers)})
        executor = Ray(partial(build_task, shared, device), settings.workers, threads, chunk)
    budget, model = Budget(recipe.budget), billed(task)
    logs = [Log(record.path / ANSWERS, record.run, record.check)]
    requests = None
    proposer = task.proposer_billed if isinstance(task, Proposing) else None
    if executor is not None and proposer is not None:
        raise SettingError("a model behind an API cannot propose prompts for Ray workers; set scoring.workers=1")
    if proposer is not None or (model is not None and executor is None):  # Ray workers count themselves, per prompt
        logs.append(Log(record.path / REQUESTS, record.run, record.check))
        requests = Requests(logs[1], budget)
    table = Table(logs[0], recipe.private)
    evaluator = Evaluator(task, budget, memo=memo, executor=executor, seed=recipe.seed, table=table, requests=requests)
    for log in logs:
        if bad := log.bad():
            notes(f"{bad}; they are ignored, and their questions are asked again")
    evaluator.restore(record.checkpoint.provided("evaluator"), record.checkpoint.provided("spent"))
    record.checkpoint.marked["evaluator"] = evaluator.position
    record.checkpoint.providers["spent"] = evaluator.spent
    record.checkpoint.syncs.append(logs[0].sync)
    return evaluator


def share_of_rate(settings: RemoteSettings, workers: int) -> RemoteSettings:
    """The settings of one worker: each has its own client and its share of the run's limit per minute."""
    rate = settings.requests_per_minute
    return settings if rate is None else settings.model_copy(update={"requests_per_minute": rate / workers})


def hold_for_dev(recipe: Recipe, task: Task, budget: Budget) -> Reservation | None:
    """Reserve the cost of scoring the finalists on dev, so that the search cannot spend it.

    For Q-learning methods this includes the last greedy prompt, which is scored on train and dev after the search, and
    hand-written prompts if they are candidates. The amount depends on the recipe alone, never on what is left: a
    resumed run reserves the same.
    """
    left = budget.calls_left()
    if recipe.budget.calls is None or left is None or "dev" not in splits(task):
        return None
    train, dev = (calls(task, split_rows(task, split)) for split in ("train", "dev"))
    finalists = recipe.scoring.finalists if row_of(recipe.method).finalists else 0
    wanted = finalists * dev
    named = len({one.name for one in task.drafts()} - {"", CHAT})
    by_hand = named if finalists and recipe.scoring.choose == "rows" else 0
    greedy = row_of(recipe.method).kind == "rl"
    wanted += (by_hand + greedy) * (train + dev)
    # If the budget is too small for that, most of it still goes to the search.
    wanted = min(wanted, recipe.budget.calls // 4)
    if wanted <= 0 or left <= 0 or budget.expired():
        return None  # a resumed run may have spent its whole budget
    return budget.reserve(min(wanted, left))


def environment(device: str, threads: int) -> dict[str, Any]:
    """Facts about the machine, for environment.json and the report."""
    import torch

    from pinprompt.policy.words import seal

    packages = ("pinprompt", "torch", "transformers", "tokenizers", "numpy", "safetensors")
    versions, banned = {}, seal()
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "device": device,
        "threads": threads,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "packages": versions,
        **({} if banned is None else {"ban_list": banned}),
    }
