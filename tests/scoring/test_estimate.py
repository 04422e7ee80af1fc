"""Estimates, worked by hand."""

from __future__ import annotations

import pytest

from pinprompt.recipe.sections import BudgetSettings, Price
from pinprompt.scoring.estimate import Plan, Rates, estimate


def test_a_whole_plan() -> None:
    plan = Plan(prompts=100, calls_per_prompt=32, dev_prompts=10, calls_per_dev=32, report_calls=500)
    rates = Rates(seconds_per_call=0.01, seconds_per_prompt=0.5, tokens_in_per_call=20, tokens_out_per_call=1)
    told = estimate(plan, rates, price=Price(input=1.0, output=2.0))
    assert told.ends == "finished"
    assert told.prompts == 100
    assert told.calls == 3520
    assert told.report_calls == 500
    assert told.tokens == 4020 * 21
    assert told.money == pytest.approx(4020 * 22 / 1e6)
    assert told.minutes == pytest.approx((35.2 + 50 + 5) / 60)


@pytest.mark.parametrize(
    ("budget", "ends", "prompts", "calls"),
    [
        (BudgetSettings(calls=320), "calls", 10, 320),
        (BudgetSettings(tokens=6400), "tokens", 20, 640),
        (BudgetSettings(money=0.0032), "money", 10, 320),
        (BudgetSettings(minutes=0.25), "minutes", 25, 800),
        (BudgetSettings(calls=320, tokens=3200), "tokens", 10, 320),
        (BudgetSettings(calls=10**9), "finished", 100, 3200),
    ],
)
def test_the_first_limit_ends_it(budget: BudgetSettings, ends: str, prompts: int, calls: int) -> None:
    if budget.tokens == 3200:
        budget = budget.model_copy(update={"calls": 321})
    plan = Plan(prompts=100, calls_per_prompt=32)
    rates = Rates(seconds_per_call=1 / 64, seconds_per_prompt=0.1, tokens_in_per_call=10)
    told = estimate(plan, rates, budget, Price(input=1.0))
    assert (told.ends, told.prompts, told.calls) == (ends, prompts, calls)


def test_workers_share_the_calls_but_not_the_writing() -> None:
    plan = Plan(prompts=60, calls_per_prompt=10)
    rates = Rates(seconds_per_call=0.1, seconds_per_prompt=1.0)
    assert estimate(plan, rates).minutes == pytest.approx(2.0)
    assert estimate(plan, rates, workers=4).minutes == pytest.approx(1.25)
