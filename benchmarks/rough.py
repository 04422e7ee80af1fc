"""A rough estimate of a recipe's calls, minutes, tokens and money, from the recipe alone: for the costs of a sweep."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from typing import Any

from pinprompt.errors import PinpromptError
from pinprompt.methods.table import row_of
from pinprompt.recipe.recipe import Recipe
from pinprompt.run.estimating import prompts_planned

SIZES = {  # parameters in millions, for models whose name does not contain them; of image-text models the text side
    "smollm2": 135, "minilm": 22, "emoji-clip": 1.4, "gpt2": 124, "distilgpt2": 82, "gpt2-large": 774,
    "distilroberta-base": 82, "roberta-base": 125, "roberta-large": 355, "bert-base-uncased": 110,
    "clip-vit-h-14-laion2b-s32b-b79k": 354, "clip-vit-base-patch32": 63,
}  # fmt: skip
TOKENS_AROUND = {"classification": 4, "style-transfer": 40, "inversion": 2, "custom": 0}
"""Tokens of a call besides the prompt: the template's, an output's, start and end."""

ROW_TOKENS = {"classification": 64, "style-transfer": 20, "inversion": 0, "custom": 0}
"""Approximate number of tokens of an input: a film review, a short review."""
ANSWER_TOKENS = {"classification": 1, "style-transfer": 20}
"""Approximate number of tokens of a remote model's answer."""


def rough(recipe: Recipe, speed: float | None = None) -> dict[str, Any]:
    """Calls, minutes, tokens and money of a search, without loading models and without probing.

    Minutes are computed from a speed in multiplications per second and the sizes of the models, for writing and
    scoring only. A causal model reads every input once, a masked one in every call. They are a rough order of
    magnitude. A remote model has tokens instead of minutes, and money if its price is known.
    """
    train, dev = prompts_planned(recipe)
    figures: dict[str, Any] = {"prompts": train + dev, "calls": recipe.budget.calls, "minutes": recipe.budget.minutes}
    per_prompt = _calls_per_prompt(recipe)
    if per_prompt is not None:
        planned = train * per_prompt[0] + dev * per_prompt[1]
        figures["calls"] = planned if recipe.budget.calls is None else min(planned, recipe.budget.calls)
        if figures["calls"] < planned and not row_of(recipe.method).cost:
            figures["prompts"] = figures["calls"] // per_prompt[0]  # the budget ends the search before its plan does
    if speed is not None and figures["calls"] and (work := _work(recipe, train, figures["calls"], per_prompt)):
        minutes = work / speed / 60
        figures["minutes"] = minutes if recipe.budget.minutes is None else min(minutes, recipe.budget.minutes)
    if figures["calls"] and recipe.served is not None:
        figures |= _rough_money(recipe, figures["calls"])
    return figures


def _rough_money(recipe: Recipe, calls: int) -> dict[str, Any]:
    kind, name = recipe.task.kind, str(getattr(recipe.task, "model", "")).removeprefix("remote:")
    sent = calls * (ROW_TOKENS[kind] + recipe.policy.length + TOKENS_AROUND[kind])
    received = calls * ANSWER_TOKENS.get(kind, 0)
    price = recipe.budget.prices.get(name)
    money = None if price is None else (sent * price.input + received * price.output) / 1e6
    return {"tokens": sent + received, "money": money}


def _calls_per_prompt(recipe: Recipe) -> tuple[int, int] | None:
    """Calls for one prompt on train and on dev; None if only the task itself knows."""
    settings: Any = recipe.task
    if settings.kind == "classification":
        # Examples per class times the number of classes, taken from the label words.
        from pinprompt.data.datasets import lookup

        try:
            rows = (len(settings.words) or len(lookup(settings.dataset).words)) * settings.shots
        except (PinpromptError, TypeError):
            return None
        return rows, rows
    if settings.kind == "style-transfer":
        # Each prompt is scored on one source of its step.
        one = settings.draw == "step" and row_of(recipe.method).kind == "rl"
        on_train = (1 if one else settings.sources) * settings.samples * settings.bootstraps
        return on_train, settings.dev_sources * settings.samples * settings.bootstraps
    return (1, 0) if settings.kind == "inversion" else None


def _work(recipe: Recipe, prompts: int, calls: int, per_prompt: tuple[int, int] | None) -> float | None:
    """Multiplications of a search: each token once per parameter; None for models of unknown size."""
    kind, length = recipe.task.kind, recipe.policy.length
    task, writer = parameters(getattr(recipe.task, "model", "") or ""), parameters(recipe.policy.model)
    if task is None or writer is None or per_prompt is None:
        return None
    read = length + TOKENS_AROUND[kind] + (ROW_TOKENS[kind] if _masked(recipe) else 0)
    written = min(prompts, calls // per_prompt[0]) * length if row_of(recipe.method).kind != "handwritten" else 0
    return calls * read * task + written * writer


def _masked(recipe: Recipe) -> bool:
    """Whether the task model is a masked LM, by its name."""
    return recipe.task.kind == "classification" and "bert" in recipe.task.model.lower()


def parameters(model: str) -> float | None:
    """The number of parameters of a model, if it is known or part of the name ("opt-1.3b")."""
    name = model.removeprefix("remote:").rsplit("/", 1)[-1].lower()
    if name in SIZES:
        return SIZES[name] * 1e6
    said = re.search(r"(\d+(?:\.\d+)?)([mb])(?![a-z])", name)
    return None if said is None else float(said[1]) * {"m": 1e6, "b": 1e9}[said[2]]


def elapsed(minutes: Sequence[float], workers: int) -> float:
    """Minutes until all cells are finished, if each goes to the first free worker, longest first."""
    free = [0.0] * workers
    for cost in sorted(minutes, reverse=True):
        heapq.heapreplace(free, free[0] + cost)
    return max(free)
