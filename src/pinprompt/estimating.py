"""What a recipe will spend, said before anything is spent."""

from __future__ import annotations

import time
from typing import Any

from pinprompt import assembly
from pinprompt.errors import PinpromptError
from pinprompt.methods.catalogue import FIXED, RL
from pinprompt.recipe import Recipe
from pinprompt.streams import derive
from pinprompt.tasks.protocol import Task
from pinprompt.values import Prompt

PROBES = 16
"""Prompts that are scored to learn how long a call takes: as many as a step writes."""
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life",
    "child", "world", "school", "state", "family", "student", "group", "country", "problem",
)  # fmt: skip


def prompts_planned(recipe: Recipe) -> tuple[int, int]:
    """How many prompts a recipe scores on train and on dev at the most, if no limit stops it."""
    if recipe.method in RL:
        settings = recipe.q_learning
        greedy = settings.steps // settings.eval_every + 1
        return settings.steps * settings.prompts + greedy, greedy + settings.finalists
    if recipe.method in FIXED:
        return 1, 1
    section: Any = getattr(recipe, recipe.method.replace("-", "_"))
    train, dev = section.planned()
    return int(train), int(dev)


def calls_planned(recipe: Recipe, task: Task) -> int:
    """Calls that the search and the choice on dev will make: what the plan needs, or the budget where that is less."""
    train, dev = prompts_planned(recipe)
    calls = train * task.calls("train") + (dev * task.calls("dev") if "dev" in task.splits else 0)
    return calls if recipe.budget.calls is None else min(calls, recipe.budget.calls)


def estimate(recipe: Recipe, device: str | None = None, probe: bool = True) -> dict[str, Any]:
    """Calls, tokens, money and minutes of a recipe.

    Minutes come from scoring a few prompts first (`probe`), so they are those of this machine. A model behind an API is
    asked nothing, since asking costs money: its minutes are unknown, and its tokens the most that they can be.
    """
    remote = assembly.is_remote(recipe)
    task = assembly.build_task(recipe, assembly.choose_device(device), contact=not remote)
    calls = calls_planned(recipe, task)
    report = sum(task.calls(split) for split in task.splits if split != "train") * (1 + len(task.baselines()))
    figures: dict[str, Any] = {"method": recipe.method, "calls": calls, "report_calls": report, "minutes": None}
    figures |= _tokens_and_money(recipe, task, calls)
    if remote:
        address = recipe.remote.base_url
        figures["note"] = f"{address} was not asked anything; minutes are not known, tokens are the most that can be"
    elif probe:
        seconds = _seconds_per_call(recipe, task)
        figures["seconds_per_call"] = seconds
        minutes = seconds * calls / 60
        figures["minutes"] = minutes if recipe.budget.minutes is None else min(minutes, recipe.budget.minutes)
        figures["report_minutes"] = seconds * report / 60
    return figures


def rough(recipe: Recipe) -> dict[str, Any]:
    """The same for a dry run of a sweep: without loading a model that is not at hand, and without probing."""
    train, dev = prompts_planned(recipe)
    figures: dict[str, Any] = {"prompts": train + dev, "calls": recipe.budget.calls, "minutes": recipe.budget.minutes}
    settings: Any = recipe.task
    if settings.kind == "classification":
        # 16 examples per class by two to fourteen classes; the number of words says which.
        from pinprompt.data.catalogue import lookup

        try:
            classes = len(settings.words) or len(lookup(settings.dataset).words)
        except (PinpromptError, TypeError):
            return figures
        planned = (train + dev) * classes * settings.shots
        figures["calls"] = planned if recipe.budget.calls is None else min(planned, recipe.budget.calls)
    elif settings.kind == "inversion":
        figures["calls"] = train if recipe.budget.calls is None else min(train, recipe.budget.calls)
    return figures


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


def _tokens_and_money(recipe: Recipe, task: Any, calls: int) -> dict[str, Any]:
    """For tasks that are billed by tokens: the most that so many calls can take."""
    if not hasattr(task, "tokens"):
        return {}
    tokens_in, tokens_out = task.tokens(Prompt("x " * recipe.policy.length), "train")
    prompts = calls / max(1, task.calls("train"))
    price = recipe.budget.prices.get(str(getattr(task, "billed", "")))
    money = 0.0 if price is None else (tokens_in * price.input + tokens_out * price.output) * prompts / 1e6
    return {"tokens": int((tokens_in + tokens_out) * prompts), "money": money}
