"""What a recipe will spend, said before anything is spent."""

from __future__ import annotations

import re
import time
from typing import Any

from pinprompt.errors import NotFetched, PinpromptError
from pinprompt.methods.table import METHODS
from pinprompt.models.cache import fetching_nothing
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.sections import CustomSettings
from pinprompt.run import build
from pinprompt.run.reserves import enough_calls, report_cost
from pinprompt.seeds import derive
from pinprompt.tasks.custom import CustomTask
from pinprompt.tasks.protocol import Task, complete
from pinprompt.values import Prompt

PROBES = 16
"""Prompts that are scored to learn how long a call takes: as many as a step writes."""
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life",
    "child", "world", "school", "state", "family", "student", "group", "country", "problem",
)  # fmt: skip

SIZES = {  # parameters in millions, of models whose name does not say; of an image-text model the text side
    "smollm2": 135, "minilm": 22, "emoji-clip": 1.4, "gpt2": 124, "distilgpt2": 82, "gpt2-large": 774,
    "distilroberta-base": 82, "roberta-base": 125, "roberta-large": 355, "bert-base-uncased": 110,
    "clip-vit-h-14-laion2b-s32b-b79k": 354, "clip-vit-base-patch32": 63,
}  # fmt: skip
TOKENS_AROUND = {"classification": 4, "style-transfer": 40, "inversion": 2, "custom": 0}
"""Tokens beside the prompt that a call runs through the task model: the template's, an output's, start and end."""


def prompts_planned(recipe: Recipe) -> tuple[int, int]:
    """How many prompts a recipe scores on train and on dev at the most, if no limit stops it."""
    settings = recipe.method_settings
    if settings is None:
        return 1, 1  # a prompt that nobody searches for
    train, dev = settings.planned()
    return int(train), int(dev)


def calls_planned(recipe: Recipe, task: Task) -> int:
    """Calls that the search and the choice on dev will make: what the plan needs, or the budget where that is less."""
    train, dev = prompts_planned(recipe)
    calls = train * task.calls("train") + (dev * task.calls("dev") if "dev" in task.splits else 0)
    return calls if recipe.budget.calls is None else min(calls, recipe.budget.calls)


def estimate(recipe: Recipe, device: str | None = None, probe: bool = True, task: Task | None = None) -> dict[str, Any]:
    """Calls, tokens, money and minutes of a recipe; `task` takes the place of the one that it names.

    Minutes come from scoring a few prompts first (`probe`), so they are those of this machine. Nothing is imported,
    asked or fetched for it: a function that a recipe names is not called, so that its minutes are unknown; a model
    behind an API is asked nothing, and its tokens are the most that they can be; without a model or dataset that is not
    on this machine yet, the figures are those of the plan alone.
    """
    with fetching_nothing():
        try:
            return _estimate(recipe, device, probe, task)
        except NotFetched as missing:
            calls, note = (
                rough(recipe)["calls"],
                f"{missing}; nothing is fetched for an estimate, minutes are not known",
            )
            return {"method": recipe.method, "calls": calls, "report_calls": None, "minutes": None, "note": note}


def _estimate(recipe: Recipe, device: str | None, probe: bool, given: Task | None) -> dict[str, Any]:
    remote, named = build.is_remote(recipe), False
    if given is None and isinstance(recipe.task, CustomSettings):
        named, given = True, CustomTask(_not_called, calls_per_prompt=recipe.task.calls_per_prompt)
    task = complete(given or build.build_task(recipe, build.choose_device(device), contact=not remote))
    calls = calls_planned(recipe, task)
    report, _, _ = report_cost(recipe, task)
    figures: dict[str, Any] = {
        "method": recipe.method, "calls": calls, "report_calls": report, "total_calls": calls + report, "minutes": None,
        "enough_calls": enough_calls(recipe, task),
    }  # fmt: skip
    figures |= _tokens_and_money(recipe, task, calls)
    if remote:
        address = recipe.remote.base_url
        figures["note"] = f"{address} was not asked anything; minutes are not known, tokens are the most that can be"
    elif named:
        figures["note"] = "the function was not imported; minutes are not known"
    elif probe:
        seconds = _seconds_per_call(recipe, task)
        figures["seconds_per_call"] = seconds
        minutes = seconds * calls / 60
        figures["minutes"] = minutes if recipe.budget.minutes is None else min(minutes, recipe.budget.minutes)
        figures["report_minutes"] = seconds * report / 60
    return figures


def _not_called(prompt: str) -> float:
    raise AssertionError("a function that a recipe names is not called for an estimate")


def rough(recipe: Recipe, speed: float | None = None) -> dict[str, Any]:
    """The same for a dry run of a sweep: without loading a model that is not at hand, and without probing.

    Minutes need the machine's speed (`multiplications`) and the sizes of the models: writing and scoring alone, every
    text read once. They tell an hour from a day, not one hour from two.
    """
    train, dev = prompts_planned(recipe)
    figures: dict[str, Any] = {"prompts": train + dev, "calls": recipe.budget.calls, "minutes": recipe.budget.minutes}
    per_prompt = _calls_per_prompt(recipe)
    if per_prompt is not None:
        planned = train * per_prompt[0] + dev * per_prompt[1]
        figures["calls"] = planned if recipe.budget.calls is None else min(planned, recipe.budget.calls)
    if speed is not None and figures["calls"] and (work := _work(recipe, train, figures["calls"], per_prompt)):
        minutes = work / speed / 60
        figures["minutes"] = minutes if recipe.budget.minutes is None else min(minutes, recipe.budget.minutes)
    return figures


def _calls_per_prompt(recipe: Recipe) -> tuple[int, int] | None:
    """Calls for one prompt on train and on dev; None where only the task itself could say."""
    settings: Any = recipe.task
    if settings.kind == "classification":
        # So many examples per class by two to fourteen classes; the number of words says which.
        from pinprompt.data.datasets import lookup

        try:
            rows = (len(settings.words) or len(lookup(settings.dataset).words)) * settings.shots
        except (PinpromptError, TypeError):
            return None
        return rows, rows
    if settings.kind == "style-transfer":
        one = settings.draw == "step" and METHODS[recipe.method].kind == "rl"  # each prompt gets one of its step's
        on_train = (1 if one else settings.sources) * settings.samples * settings.bootstraps
        return on_train, settings.dev_sources * settings.samples * (settings.dev_bootstraps or settings.bootstraps)
    return (1, 0) if settings.kind == "inversion" else None


def _work(recipe: Recipe, prompts: int, calls: int, per_prompt: tuple[int, int] | None) -> float | None:
    """Multiplications that a search takes: each token once through each parameter; None for models of unknown size."""
    kind, length = recipe.task.kind, recipe.policy.length
    task, writer = parameters(getattr(recipe.task, "model", "") or ""), parameters(recipe.policy.model)
    if task is None or writer is None or per_prompt is None:
        return None
    read = length + TOKENS_AROUND[kind]
    written = min(prompts, calls // per_prompt[0]) * length if METHODS[recipe.method].kind != "handwritten" else 0
    return calls * read * task + written * writer


def parameters(model: str) -> float | None:
    """How many parameters a model has, by its name: one that is known here, or one that says it ("opt-1.3b")."""
    name = model.removeprefix("remote:").rsplit("/", 1)[-1].lower()
    if name in SIZES:
        return SIZES[name] * 1e6
    said = re.search(r"(\d+(?:\.\d+)?)([mb])(?![a-z])", name)
    return None if said is None else float(said[1]) * {"m": 1e6, "b": 1e9}[said[2]]


def multiplications(device: str | None = None) -> float:
    """Multiplications a second on this machine, measured in a blink: a few rows through a layer of a small LM."""
    import torch

    place = build.choose_device(device)
    rows, weights = torch.randn(32, 1024, device=place), torch.randn(1024, 4096, device=place)
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < 0.2:
        float((rows @ weights).sum())  # the sum waits for a GPU
        done += rows.shape[0] * weights.numel()
    return done / spent


def _seconds_per_call(recipe: Recipe, task: Task) -> float:
    """From a few prompts scored now; the first pays for caches and is not counted."""
    length = recipe.policy.length
    texts = [[WORDS[(number + 5 * place) % len(WORDS)] for place in range(length)] for number in range(PROBES + 1)]
    prompts = [Prompt(" ".join(words)) for words in texts]
    seeds = [derive(recipe.seed, "estimate", number) for number in range(len(prompts))]
    task.score(prompts[:1], seeds[:1])
    started = time.perf_counter()
    task.score(prompts[1:], seeds[1:])
    return (time.perf_counter() - started) / (PROBES * task.calls("train"))


def _tokens_and_money(recipe: Recipe, task: Task, calls: int) -> dict[str, Any]:
    """For tasks that are billed by tokens: the most that so many calls can take."""
    tokens_in, tokens_out = task.tokens(Prompt("x " * recipe.policy.length), "train")
    if not tokens_in and not tokens_out:
        return {}
    prompts = calls / max(1, task.calls("train"))
    figures: dict[str, Any] = {"tokens": int((tokens_in + tokens_out) * prompts)}
    if task.billed is not None:
        price = recipe.budget.prices.get(task.billed)
        money = None if price is None else (tokens_in * price.input + tokens_out * price.output) * prompts / 1e6
        figures |= {"money": money, "currency": recipe.budget.currency}
    return figures
