"""What a recipe will spend, told before it spends it."""

from __future__ import annotations

from dataclasses import dataclass

from pinprompt.recipe.sections import BudgetSettings, Price

SECONDS_A_MINUTE = 60.0


@dataclass(frozen=True)
class Plan:
    """What a search means to do; counts are of distinct prompts, since a repeated one costs nothing."""

    prompts: int
    """Distinct prompts that the search will score on train."""
    calls_per_prompt: int
    dev_prompts: int = 0
    """Distinct prompts that will be scored on dev: greedy ones on the way, and the finalists."""
    calls_per_dev: int = 0
    report_calls: int = 0
    """Calls for evaluations after the search (beside the budget)."""


@dataclass(frozen=True)
class Rates:
    """What one thing takes, measured on a few prompts or guessed."""

    seconds_per_call: float = 0.0
    seconds_per_prompt: float = 0.0
    """Writing a prompt and learning from it."""
    tokens_in_per_call: float = 0.0
    tokens_out_per_call: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """The prediction: what search and report will take together, and what ends the search."""

    prompts: int
    calls: int
    report_calls: int
    tokens: int
    money: float
    minutes: float
    ends: str
    """'finished', or the limit of the budget that comes first: calls, tokens, money, minutes."""


def estimate(
    plan: Plan, rates: Rates, budget: BudgetSettings | None = None, price: Price | None = None, workers: int = 1
) -> Estimate:
    """Predict calls, tokens, money and minutes of a plan, cut short where the budget ends it.

    The search is taken as even: a budget that allows a share of its cost allows that share of its prompts. `workers`
    make calls side by side; writing and learning stay in one process.
    """
    search = plan.prompts * plan.calls_per_prompt + plan.dev_prompts * plan.calls_per_dev
    per_call = rates.tokens_in_per_call + rates.tokens_out_per_call
    money_per_call = 0.0
    if price is not None:
        money_per_call = (price.input * rates.tokens_in_per_call + price.output * rates.tokens_out_per_call) / 1e6
    call_seconds = rates.seconds_per_call / max(1, workers)
    minutes = (search * call_seconds + plan.prompts * rates.seconds_per_prompt) / SECONDS_A_MINUTE
    wholes = {"calls": search, "tokens": search * per_call, "money": search * money_per_call, "minutes": minutes}
    share, ends = 1.0, "finished"
    for name, whole in wholes.items():
        limit = getattr(budget, name, None)
        if limit is not None and whole > 0 and limit / whole < share:
            share, ends = limit / whole, name
    calls = int(search * share)
    every = calls + plan.report_calls
    return Estimate(
        prompts=int(plan.prompts * share),
        calls=calls,
        report_calls=plan.report_calls,
        tokens=round(every * per_call),
        money=every * money_per_call,
        minutes=minutes * share + plan.report_calls * call_seconds / SECONDS_A_MINUTE,
        ends=ends,
    )
