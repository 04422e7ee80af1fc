"""The budget: hand-worked sums, and ten thousand random traces that must never overshoot."""

from __future__ import annotations

import random
import threading
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.errors import BudgetSpent, RunError, SettingError
from pinprompt.recipe.sections import BudgetSettings, Price
from pinprompt.scoring.budget import Amounts, Budget, Reservation

PRICES = {"dear": Price(input=3.0, output=15.0)}


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_calls_are_refused_before_they_overshoot() -> None:
    budget = Budget(BudgetSettings(calls=10))
    first = budget.reserve(calls=6)
    with pytest.raises(BudgetSpent, match="10 calls has 4 left, 5 needed"):
        budget.reserve(calls=5)
    second = budget.reserve(calls=4)
    budget.settle(first, calls=2)
    budget.release(second)
    assert budget.remaining() == {"calls": 8}
    assert budget.spent.calls == 2
    assert budget.reserved == Amounts()


def test_money_is_what_the_price_table_says() -> None:
    budget = Budget(BudgetSettings(money=0.05, prices=PRICES))
    # 1000 x 3 / 1e6 + 2000 x 15 / 1e6 = 0.033
    held = budget.reserve(calls=1, tokens_in=1000, tokens_out=2000, model="dear")
    assert held.amounts.money == Decimal("0.033")
    with pytest.raises(BudgetSpent, match=r"0\.017 left"):
        budget.reserve(tokens_in=0, tokens_out=1200, model="dear")
    budget.settle(held, tokens_in=1000, tokens_out=100)
    assert budget.spent.money == Decimal("0.0045")
    assert budget.remaining()["money"] == pytest.approx(0.0455)
    assert budget.spent.tokens == 1100


def test_a_limit_is_reached_exactly() -> None:
    budget = Budget(BudgetSettings(money=0.3, prices={"m": Price(input=0.1)}))
    for _ in range(3):  # three times a tenth is more than 0.3 in binary fractions
        budget.settle(budget.reserve(tokens_in=1_000_000, model="m"))
    with pytest.raises(BudgetSpent):
        budget.reserve(tokens_in=1, model="m")


def test_without_a_model_tokens_cost_no_money() -> None:
    budget = Budget(BudgetSettings(money=0.01, prices=PRICES))
    budget.settle(budget.reserve(calls=5, tokens_in=10**9))
    assert budget.spent.money == 0


def test_money_needs_a_price() -> None:
    with pytest.raises(SettingError, match=r"no price for the model 'daer'.*did you mean 'dear'"):
        Budget(BudgetSettings(money=1.0, prices=PRICES)).reserve(model="daer")
    with pytest.raises(SettingError, match=r"^the budget limits money but has no price for the model 'm'; add"):
        Budget(BudgetSettings(money=1.0)).reserve(model="m")
    Budget(BudgetSettings(calls=1)).reserve(model="daer")


def test_tokens_in_and_out_count_together() -> None:
    budget = Budget(BudgetSettings(tokens=100))
    budget.settle(budget.reserve(tokens_in=60, tokens_out=30), tokens_in=50, tokens_out=30)
    with pytest.raises(BudgetSpent, match="100 tokens has 20 left, up to 21 needed"):
        budget.reserve(tokens_in=20, tokens_out=1)
    budget.reserve(tokens_in=20)


def test_free_things_fit_into_a_spent_budget() -> None:
    budget = Budget(BudgetSettings(calls=1))
    budget.settle(budget.reserve(calls=1))
    budget.settle(budget.reserve(calls=0))


def test_minutes_come_from_a_clock_that_only_goes_forward() -> None:
    clock = Clock()
    budget = Budget(BudgetSettings(minutes=1.0), clock)
    clock.now += 500  # before the first reservation nobody searches
    budget.reserve()
    clock.now += 30
    assert budget.seconds() == 30
    clock.now -= 3600
    assert budget.seconds() == 30
    clock.now += 29
    assert not budget.expired()
    budget.reserve()
    clock.now += 1
    assert budget.expired()
    with pytest.raises(BudgetSpent, match="1 minutes"):
        budget.reserve()


def test_minutes_of_earlier_sessions_count() -> None:
    clock = Clock()
    first = Budget(BudgetSettings(minutes=1.0), clock)
    first.reserve()
    clock.now += 45
    state = first.state()
    clock.now += 10**6  # between the sessions
    second = Budget(BudgetSettings(minutes=1.0), clock)
    second.restore(state)
    assert second.remaining()["minutes"] == pytest.approx(0.25)
    second.reserve()
    clock.now += 15
    assert second.expired()


def test_state_comes_back() -> None:
    budget = Budget(BudgetSettings(prices=PRICES))
    budget.settle(budget.reserve(7, 100, 20, "dear"))
    budget.book_report(3, 10, 1, "dear")
    budget.reserve(100)
    other = Budget(BudgetSettings(prices=PRICES))
    other.restore(budget.state())
    assert other.spent == Amounts(7, 100, 20, Decimal("0.0006"))
    assert other.report == Amounts(3, 10, 1, Decimal("0.000045"))
    assert other.reserved == Amounts()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"seconds": "x", "spent": {}, "report": {}},
        {"seconds": 1, "spent": {"calls": -1, "tokens_in": 0, "tokens_out": 0, "money": "0"}, "report": {}},
        {"seconds": 1, "spent": {"calls": 1, "tokens_in": 0, "tokens_out": 0, "money": "NaN"}, "report": {}},
        {"seconds": 1, "spent": {"calls": 1, "tokens_in": 0, "tokens_out": 0, "money": "lots"}, "report": {}},
        {"seconds": 1, "spent": None, "report": {}},
    ],
)
def test_a_damaged_state_is_a_sentence(state: dict[str, object]) -> None:
    with pytest.raises(RunError, match="budget in the checkpoint"):
        Budget(BudgetSettings()).restore(state)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_seconds_are_refused(seconds: float) -> None:
    state = Budget(BudgetSettings()).state() | {"seconds": seconds}
    with pytest.raises(RunError, match="seconds"):
        Budget(BudgetSettings()).restore(state)


@pytest.mark.parametrize(
    "change", [{"calls": -1}, {"tokens_in": -1}, {"tokens_out": -1}, {"money": "-1"}, {"money": "Infinity"}]
)
def test_each_impossible_amount_is_refused(change: dict[str, object]) -> None:
    state = Budget(BudgetSettings()).state()
    state["spent"] = state["spent"] | change
    with pytest.raises(RunError, match="budget in the checkpoint"):
        Budget(BudgetSettings()).restore(state)


def test_what_is_reserved_is_not_left() -> None:
    budget = Budget(BudgetSettings(calls=10, tokens=1000, money=1.0, prices=PRICES))
    budget.settle(budget.reserve(1, 100, 10, "dear"))
    held = budget.reserve(2, 200, 20, "dear")
    # 0.0003 + 0.00015 spent and twice as much reserved
    assert budget.remaining() == {"calls": 7, "tokens": 670, "money": pytest.approx(1 - 3 * 0.00045)}
    with pytest.raises(BudgetSpent, match="tokens has 670 left, up to 671 needed"):
        budget.reserve(tokens_in=671)
    budget.settle(held)
    assert budget.remaining()["tokens"] == 670


def test_nothing_is_booked_that_was_not_asked_for() -> None:
    budget = Budget(BudgetSettings(calls=5))
    budget.settle(budget.reserve())
    assert budget.spent == Amounts()
    budget.settle(budget.reserve(model="free of charge", tokens_in=10**6))
    assert budget.spent == Amounts(0, 10**6, 0, Decimal(0))
    budget.book_report(3)
    assert budget.report == Amounts(3)
    budget.settle(budget.reserve(5))
    with pytest.raises(BudgetSpent, match="5 calls has 0 left, 1 needed"):
        budget.reserve(1)


def test_a_spent_limit_has_nothing_left() -> None:
    budget = Budget(BudgetSettings(tokens=5, prices=PRICES))
    budget.settle(budget.reserve(tokens_in=5))
    with pytest.raises(BudgetSpent, match="5 tokens has 0 left"):
        budget.reserve(tokens_out=1)
    budget = Budget(BudgetSettings(money=0.000003, prices=PRICES))
    budget.settle(budget.reserve(tokens_in=1, model="dear"))
    with pytest.raises(BudgetSpent, match=r"\(money\) has 0.* left"):
        budget.reserve(tokens_in=1, model="dear")


def test_at_least_only_raises() -> None:
    budget = Budget(BudgetSettings())
    budget.at_least(Decimal("2.5"), 60.0)
    budget.at_least(Decimal("1.5"), 30.0)
    assert budget.spent.money == Decimal("2.5")
    assert budget.seconds() == 60.0


def test_a_reservation_is_settled_once() -> None:
    budget = Budget(BudgetSettings())
    held = budget.reserve(5)
    budget.settle(held)
    with pytest.raises(ValueError, match="before"):
        budget.settle(held)
    with pytest.raises(ValueError, match="before"):
        budget.release(held)
    assert budget.spent.calls == 5


@pytest.mark.parametrize("wanted", [{"calls": -1}, {"tokens_in": -1}, {"tokens_out": -1}])
def test_negative_reservations_are_refused(wanted: dict[str, int]) -> None:
    budget = Budget(BudgetSettings())
    with pytest.raises(ValueError, match=r"^a reservation cannot be negative"):
        budget.reserve(**{"calls": 1, "tokens_in": 1, "tokens_out": 1} | wanted)
    assert budget.reserved == Amounts()


def test_a_report_is_counted_apart_and_never_refused() -> None:
    budget = Budget(BudgetSettings(calls=1, money=0.001, prices=PRICES))
    budget.book_report(500, 10_000, 0, "dear")
    assert budget.report == Amounts(500, 10_000, 0, Decimal("0.03"))
    assert budget.spent == Amounts()
    budget.reserve(1)


def test_more_than_reserved_is_booked_in_full() -> None:
    budget = Budget(BudgetSettings(calls=10))
    budget.settle(budget.reserve(2), calls=5)
    assert budget.remaining() == {"calls": 5}


def test_without_limits_nothing_is_left_to_say() -> None:
    assert Budget(BudgetSettings()).remaining() == {}


@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(trace=st.binary(max_size=72))
def test_no_trace_overshoots(trace: bytes) -> None:
    """Any mix of reservations side by side, retries, failures, settlements and sessions stays within every limit.

    Three bytes make a step. The sums are kept here by hand, beside the budget's own.
    """
    limits = BudgetSettings(calls=40, tokens=900, money=0.004, prices=PRICES)
    budget = Budget(limits)
    calls, tokens_in, tokens_out, money = 0, 0, 0, Decimal(0)
    held: list[tuple[Reservation, int, int, int, bool]] = []
    for step in range(0, len(trace) - 2, 3):
        kind, a, b = trace[step : step + 3]
        if kind < 128:
            want, worst_in, worst_out, billed = a % 9, b, a % 32, kind % 2 == 0
            open_calls = sum(entry[1] for entry in held)
            open_tokens = sum(entry[2] + entry[3] for entry in held)
            open_money = sum((_cost(entry[2], entry[3]) for entry in held if entry[4]), Decimal(0))
            fits = (
                (not want or calls + open_calls + want <= 40)
                and (not worst_in + worst_out or tokens_in + tokens_out + open_tokens + worst_in + worst_out <= 900)
                and (
                    not billed
                    or not worst_in + worst_out
                    or money + open_money + _cost(worst_in, worst_out) <= Decimal("0.004")
                )
            )
            try:
                entry = budget.reserve(want, worst_in, worst_out, "dear" if billed else None)
                assert fits
                held.append((entry, want, worst_in, worst_out, billed))
            except BudgetSpent:
                assert not fits
        elif held and kind < 208:
            entry, want, worst_in, worst_out, billed = held.pop(a % len(held))
            took, took_in, took_out = min(want, b % 9), min(worst_in, a), min(worst_out, b % 32)
            budget.settle(entry, took, took_in, took_out)
            calls, tokens_in, tokens_out = calls + took, tokens_in + took_in, tokens_out + took_out
            money += _cost(took_in, took_out) if billed else 0
        elif held and kind < 248:
            budget.release(held.pop(a % len(held))[0])
        elif not held:
            state = budget.state()
            budget = Budget(limits)
            budget.restore(state)
        assert (budget.spent.calls, budget.spent.tokens_in, budget.spent.tokens_out) == (calls, tokens_in, tokens_out)
        assert budget.spent.money == money
        assert calls <= 40
        assert tokens_in + tokens_out <= 900
        assert money <= Decimal("0.004")
        assert min(budget.remaining().values()) >= 0


def _cost(tokens_in: int, tokens_out: int) -> Decimal:
    return Decimal(tokens_in * 3 + tokens_out * 15).scaleb(-6)


def test_threads_do_not_overshoot() -> None:
    budget = Budget(BudgetSettings(calls=500))
    refused = threading.Event()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        while not refused.is_set():
            try:
                held = budget.reserve(draw.randint(1, 7))
            except BudgetSpent:
                refused.set()
                return
            if draw.random() < 0.2:
                budget.release(held)
            else:
                budget.settle(held, draw.randint(0, held.amounts.calls))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.spent.calls + 6 * 8 >= 494
    assert budget.spent.calls <= 500
    assert budget.reserved == Amounts()
