"""What the report after a search takes, and the part of a budget that is set aside for it."""

from __future__ import annotations

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.recipe.recipe import Recipe
from pinprompt.scoring.budget import Budget, Reservation
from pinprompt.tasks.protocol import Task
from pinprompt.values import Prompt

PARTS = 16
"""Words of the found prompt that the report leaves out in turn, at the most."""
WORD = 12
"""Bytes of a word of a prompt that is not known yet; long ones have fewer."""
SPARE = 100
"""Calls to a server that may get lost at the least before a run stops."""


def hand_written(recipe: Recipe, task: Task) -> dict[str, str]:
    """The hand-written prompts that a report compares with, by name."""
    return {name: text for name, text in task.baselines().items() if name not in (recipe.method, "in-context")}


def report_cost(recipe: Recipe, task: Task) -> tuple[int, int, int]:
    """Calls, tokens in and tokens out of the report, at the most.

    The found prompt and the hand-written ones are evaluated on every split but train, hand-written ones are calibrated
    on train where the task calibrates, and the found prompt is scored on train without each of its words.
    """
    found = Prompt("x" * WORD * recipe.policy.length)
    hand = [Prompt(text) for text in hand_written(recipe, task).values()]
    splits = [split for split in task.splits if split != "train"] or ["train"]
    costs = [task.evaluation_cost(prompt, split) for prompt in (found, *hand) for split in splits]
    on_train = [found] * min(PARTS, recipe.policy.length) + (hand if task.calibrates else [])
    costs += [(task.calls("train"), *task.tokens(prompt, "train")) for prompt in on_train]
    calls, tokens_in, tokens_out = (sum(column) for column in zip(*costs, strict=True))
    return calls, tokens_in, tokens_out


def hold_for_report(recipe: Recipe, task: Task, budget: Budget) -> Reservation | None:
    """Set aside what the report will take, so that the search can't spend it; a SettingError where too little is left.

    The most tokens that a report can take are several times what it does take, so half of a limit on tokens or money is
    enough of it. All follows from the recipe, so that a resumed run sets aside the same.
    """
    calls, tokens_in, tokens_out = report_cost(recipe, task)
    limits = recipe.budget
    if task.billed is not None and limits.calls is not None and limits.total_calls is None:
        planned = limits.calls + calls
        budget.total_calls = planned + max(SPARE, planned // 10)
    share = 1.0
    if limits.tokens is not None and tokens_in + tokens_out:
        share = min(share, limits.tokens / 2 / (tokens_in + tokens_out))
    money = budget.price(task.billed, tokens_in, tokens_out)
    if limits.money is not None and money:
        share = min(share, limits.money / 2 / float(money))
    try:
        return budget.reserve(calls, int(tokens_in * share), int(tokens_out * share), task.billed, report=True)
    except BudgetSpent as refusal:
        if budget.spent.calls or budget.sent.calls:
            return None  # resumed: what was set aside is in use, or the limit is lower than it was
        least = calls + (limits.calls or task.calls("train"))
        raise SettingError(
            f"{refusal} for the report alone; raise budget.total_calls to {least:,} or more, or test on fewer rows"
        ) from None
