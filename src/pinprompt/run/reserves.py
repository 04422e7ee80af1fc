"""What a budget of calls must hold: enough for the method to learn from, and the report after the search."""

from __future__ import annotations

from typing import Any

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.table import METHODS
from pinprompt.recipe.recipe import Recipe
from pinprompt.scoring.budget import Budget, Reservation
from pinprompt.tasks.protocol import Task, blocks_of
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


def report_plan(recipe: Recipe, task: Task, found: Prompt, parts: int) -> list[tuple[Prompt, str, bool]]:
    """What the report asks: prompts with the split, and whether that is an evaluation or a score.

    The found prompt and the hand-written ones are evaluated on every split but train, hand-written ones are calibrated
    on train where the task calibrates, and the found prompt is scored on train without each of its words.
    """
    hand = [Prompt(text) for text in hand_written(recipe, task).values()]
    splits = [split for split in task.splits if split != "train"] or ["train"]
    asked = [(prompt, split, True) for prompt in (found, *hand) for split in splits]
    return asked + [(prompt, "train", False) for prompt in [found] * parts + (hand if task.calibrates else [])]


def report_cost(recipe: Recipe, task: Task) -> tuple[int, int, int]:
    """Calls, tokens in and tokens out of the report, at the most."""
    found = Prompt("x" * WORD * recipe.policy.length)
    plan = report_plan(recipe, task, found, min(PARTS, recipe.policy.length))
    costs = [
        task.evaluation_cost(prompt, split) if evaluation else (task.calls(split), *task.tokens(prompt, split))
        for prompt, split, evaluation in plan
    ]
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


def check_race(recipe: Recipe, task: Task) -> None:
    """A SettingError where `scoring.race` is set and the method or the task cannot be raced."""
    row = METHODS[recipe.method]
    if not recipe.scoring.race:
        return
    if row.whole_scores or row.gradients or row.kind == "handwritten":
        raise SettingError(
            f"{recipe.method} compares prompts on all rows, so they cannot be raced; set scoring.race to 0, or choose "
            "random, beam or one of the Q-learning methods"
        )
    if not task.blocks or task.stochastic:
        raise SettingError(
            f"scoring.race needs a task whose rows can be scored in parts; '{task.name}' cannot: set it to 0"
        )


def enough_calls(recipe: Recipe, task: Task) -> int:
    """Calls with which a method does what it is made for.

    The RL family: as many prompts after the first update as before it, and the choice on dev. Race: its last
    `race.least` prompts on every row of train and dev with half of the calls. Others: more prompts than finalists.
    """
    settings, train = recipe.method_settings, task.calls("train")
    dev = task.calls("dev") if "dev" in task.splits else 0
    if METHODS[recipe.method].kind == "handwritten" or settings is None:
        return train + dev
    if recipe.method == "race":
        from pinprompt.methods.race import race_cost

        costs, hand = race_costs(task)
        least = max(settings.least, hand + 1)
        return int(max(race_cost(costs, least, hand, settings), 2 * settings.least * sum(costs)))
    finalists = getattr(settings, "finalists", 1)
    if METHODS[recipe.method].kind == "rl":
        return int(2 * _before_learning(settings) * train + (finalists + 1) * dev + train)
    return int((finalists + 1) * train + finalists * dev)


def check_budget(recipe: Recipe, task: Task) -> str:
    """A sentence where the calls are too few to learn from, else ''; a SettingError where the method can't begin."""
    calls = recipe.budget.calls
    if calls is None:
        return ""
    enough = enough_calls(recipe, task)
    if recipe.method == "race":
        from pinprompt.methods.race import plan

        costs, hand = race_costs(task)
        blocks, count = plan(costs, calls, hand, recipe.race)
        rows = f"{count} prompts on {sum(costs[:blocks])} of {sum(costs)} rows"
        what = f"race begins with {rows}: fewer rows, so a less certain choice"
    elif METHODS[recipe.method].kind == "rl":
        needed = _before_learning(recipe.q_learning)
        what = f"{recipe.method} learns nothing before it has scored {needed} prompts, and they pay for about "
        what += f"{calls // max(1, task.calls('train'))}"
    else:
        what = f"they pay for about {calls // max(1, task.calls('train'))} prompts"
    return f"{calls:,} calls are few ({what}); {enough:,} are enough" if calls < enough else ""


def _before_learning(settings: Any) -> int:
    """Prompts that are scored before the first update."""
    return int((settings.warmup or settings.batch) if settings.replay else settings.prompts)


def race_costs(task: Task) -> tuple[list[int], int]:
    """What a prompt costs on each block, and how many hand-written prompts take part."""
    return [task.calls(block) for block in blocks_of(task)], len(set(task.baselines()) - {"in-context"})
