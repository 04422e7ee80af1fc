"""How far a search has come, for whoever shows it: the terminal or a notebook."""

from __future__ import annotations

from pinprompt.methods.table import METHODS
from pinprompt.recipe.recipe import Recipe
from pinprompt.values import Event


def share(recipe: Recipe, event: Event, minutes: float) -> float:
    """How much of a search is done after a step, from 0 to 1: by the nearest of its limits."""
    budget, shares = recipe.budget, [0.0]
    if METHODS[recipe.method].kind == "rl":
        shares.append((event.step + 1) / recipe.q_learning.steps)
    if budget.calls:
        shares.append(event.data.get("calls", 0) / budget.calls)
    if budget.minutes:
        shares.append(minutes / budget.minutes)
    return min(1.0, max(shares))


def sentence(event: Event) -> str:
    """A step in words: the best prompt so far with its score, and what was spent."""
    data = event.data
    support = data.get("support") or []
    parts = [f"best {data['score_best']:.4g}", repr(data["best_prompt"])]
    if data.get("score_mean") is not None:
        parts.append(f"mean {data['score_mean']:.4g}")
    if support:
        parts.append("support " + "/".join(f"{size:.0f}" for size in support[:8]))
    parts.append(f"{data['distinct']} prompts, {data['calls']:,} calls")
    return ", ".join(parts)
