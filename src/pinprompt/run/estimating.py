"""What a recipe will spend, said before anything is spent."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pinprompt.errors import NotFetched, PinpromptError
from pinprompt.methods.table import METHODS
from pinprompt.models.cache import fetching_nothing
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.sections import CustomSettings
from pinprompt.run import build
from pinprompt.run.reserves import PARTS, enough_calls, race_costs, report_cost, report_plan
from pinprompt.seeds import derive
from pinprompt.tasks.custom import CustomTask
from pinprompt.tasks.protocol import Task, complete
from pinprompt.values import Prompt

PROBES = 16
"""Prompts that are scored to learn how long a call takes: as many as a step writes."""
RACED_WORDS = 6
"""Words of a prompt that a race finds, usually."""
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
    train, dev = settings.planned(recipe.policy.length)
    return int(train), int(dev)


def calls_planned(recipe: Recipe, task: Task) -> int:
    """Calls that the search and the choice on dev will make: what the plan needs, or the budget where that is less."""
    if recipe.method == "race":
        from pinprompt.methods.race import plan, race_cost

        costs, hand = race_costs(task)
        blocks, count = plan(costs, recipe.budget.calls, hand, recipe.race)
        return race_cost(costs[:blocks], count, hand, recipe.race)
    train, dev = prompts_planned(recipe)
    calls = train * task.calls("train") + (dev * task.calls("dev") if "dev" in task.splits else 0)
    return calls if recipe.budget.calls is None else min(calls, recipe.budget.calls)


def estimate(recipe: Recipe, device: str | None = None, probe: bool = True, task: Task | None = None) -> dict[str, Any]:
    """Calls, tokens, money and minutes of a recipe; `task` takes the place of the one that it names.

    `calls` are those of the search, which `budget.calls` limits; `report_calls` come on top. Minutes come from writing
    and scoring a few prompts first (`probe`), so they are those of this machine, and include loading. Nothing is
    imported, asked or fetched for it: a function that a recipe names is not called, and a model behind an API is asked
    nothing, so that their minutes are unknown; without a model or dataset that is not on this machine yet, the figures
    are those of the plan alone. `tokens` and `money` are what search and report will likely take, `most_tokens` is the
    most that they can take; money is None where the price is not known.
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
    started, device = time.perf_counter(), build.choose_device(device)
    task = complete(given or build.build_task(recipe, device, contact=not remote))
    loading = time.perf_counter() - started
    calls, report = calls_planned(recipe, task), _report(recipe, task)
    report_calls = sum(asked.calls for asked in report)
    figures: dict[str, Any] = {
        "method": recipe.method,
        "calls": calls,
        "report_calls": report_calls,
        "total_calls": calls + report_calls,
        "enough_calls": enough_calls(recipe, task),
        "minutes": None,
    }
    figures |= _tokens_and_money(recipe, task, calls, report)
    if remote:
        way = "as completions; chats take more" if recipe.remote.answers == "auto" else f"as {recipe.remote.answers}"
        figures["note"] = (
            f"{recipe.remote.base_url} was not asked anything: minutes are not known, tokens are counted {way}"
        )
    elif named:
        figures["note"] = "the function was not imported; minutes are not known"
    elif probe:
        seconds = _seconds_per_call(recipe, task)
        figures["seconds_per_call"] = seconds
        minutes = (loading + _writing(recipe, task, device, calls) + seconds * calls) / 60
        limit = recipe.budget.minutes
        figures["minutes"] = minutes if limit is None else min(minutes, limit + loading / 60)
        figures["report_minutes"] = seconds * report_calls / 60
    return figures


def _not_called(prompt: str) -> float:
    raise AssertionError("a function that a recipe names is not called for an estimate")


@dataclass(frozen=True)
class _Asked:
    """One thing that a report asks, as it will likely be."""

    calls: int
    tokens_in: float
    tokens_out: float


def _words(recipe: Recipe) -> int:
    """Words that a found prompt likely has."""
    return min(RACED_WORDS, recipe.policy.length) if recipe.method == "race" else recipe.policy.length


def _report(recipe: Recipe, task: Task) -> list[_Asked]:
    """What the report will likely ask."""
    words = _words(recipe)
    found = Prompt(" ".join(WORDS[place % len(WORDS)] for place in range(words)))
    asked = []
    for prompt, split, evaluation in report_plan(recipe, task, found, min(PARTS, words)):
        scored = prompt is found or recipe.method == "race"  # all that race looks at is scored on train and dev
        if scored and (
            prompt is not found if not evaluation else split == "dev" and recipe.task.kind == "classification"
        ):
            continue  # it follows from these scores
        calls = task.evaluation_cost(prompt, split)[0] if evaluation else task.calls(split)
        share = calls / max(1, task.calls(split))
        tokens_in, tokens_out = task.likely_tokens(prompt, split)
        asked.append(_Asked(calls, tokens_in * share, tokens_out * share))
    return asked


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


def _writing(recipe: Recipe, task: Task, device: str, calls: int) -> float:
    """Seconds to load the writer and to write as many prompts as the search scores, from a few written now."""
    if METHODS[recipe.method].kind not in ("rl", "search"):
        return 0.0
    import torch

    started = time.perf_counter()
    writer = build.build_writer(recipe, task, device)
    loading = time.perf_counter() - started
    random, length = torch.Generator().manual_seed(recipe.seed), writer.length
    counts = [PROBES, 2 * PROBES]
    taken = []
    for count in counts:  # the first pays for the context and for caches
        started = time.perf_counter()
        writer.lm_continue([()] * count, [min(_words(recipe) + 1, length)] * count, random)
        taken.append(time.perf_counter() - started)
    prompts = calls / max(1, task.calls("train"))
    if recipe.method == "race":
        from pinprompt.methods.race import plan

        costs, hand = race_costs(task)
        prompts = max(recipe.race.written, 3 * plan(costs, recipe.budget.calls, hand, recipe.race)[1])
    return loading + taken[0] + prompts * taken[1] / counts[1]


def _tokens_and_money(recipe: Recipe, task: Task, calls: int, report: Sequence[_Asked]) -> dict[str, Any]:
    """For tasks that count tokens: what search and report will likely take, and the most that they can."""
    words = _words(recipe)
    typical = Prompt(" ".join(WORDS[place % len(WORDS)] for place in range(words)))
    prompts = calls / max(1, task.calls("train"))
    most = sum(task.tokens(typical, "train")) * prompts + sum(report_cost(recipe, task)[1:])
    if not most:
        return {}
    tokens_in, tokens_out = (amount * prompts for amount in task.likely_tokens(typical, "train"))
    tokens_in += sum(asked.tokens_in for asked in report)
    tokens_out += sum(asked.tokens_out for asked in report)
    figures: dict[str, Any] = {"tokens": round(tokens_in + tokens_out), "most_tokens": round(most)}
    if task.billed is not None:
        price = recipe.budget.prices.get(task.billed)
        money = None if price is None else (tokens_in * price.input + tokens_out * price.output) / 1e6
        figures |= {"money": money, "currency": recipe.budget.currency}
    return figures
