"""The budget: hand-worked sums, and ten thousand random traces that must never overshoot."""

from __future__ import annotations

import random
import threading
import time
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.answers.budget import Amounts, Budget, Reservation
from pinprompt.errors import BudgetSpent, RunError, ServerDown, SettingError
from pinprompt.recipe.sections import BudgetSettings, Price

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
    assert budget.calls_left() == 8
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
    with pytest.raises(BudgetSpent, match=r"0\.0455 left"):
        budget.reserve(tokens_in=20_000, model="dear")
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
    assert second.seconds_left() == pytest.approx(15)
    second.reserve()
    clock.now += 15
    assert second.expired()


def test_state_comes_back() -> None:
    budget = Budget(BudgetSettings(prices=PRICES))
    budget.settle(budget.reserve(7, 100, 20, "dear"))
    budget.settle(budget.reserve(3, 10, 1, "dear", report=True))
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
def test_a_damaged_state_gives_a_clear_error(state: dict[str, object]) -> None:
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
    assert budget.calls_left() == 7
    assert budget.paid() + budget.reserved.money == pytest.approx(Decimal("0.00135"))
    with pytest.raises(BudgetSpent, match="tokens has 670 left, up to 671 needed"):
        budget.reserve(tokens_in=671)
    budget.settle(held)
    with pytest.raises(BudgetSpent, match="tokens has 670 left, up to 671 needed"):
        budget.reserve(tokens_in=671)


def test_nothing_is_booked_that_was_not_asked_for() -> None:
    budget = Budget(BudgetSettings(calls=5))
    budget.settle(budget.reserve())
    assert budget.spent == Amounts()
    budget.settle(budget.reserve(model="free of charge", tokens_in=10**6))
    assert budget.spent == Amounts(0, 10**6, 0, Decimal(0))
    budget.settle(budget.reserve(3, report=True))
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
    with pytest.raises(ValueError, match="already"):
        budget.settle(held)
    with pytest.raises(ValueError, match="already"):
        budget.release(held)
    assert budget.spent.calls == 5


@pytest.mark.parametrize("wanted", [{"calls": -1}, {"tokens_in": -1}, {"tokens_out": -1}])
def test_negative_reservations_are_refused(wanted: dict[str, int]) -> None:
    budget = Budget(BudgetSettings())
    with pytest.raises(ValueError, match=r"^a reservation cannot be negative"):
        budget.reserve(**{"calls": 1, "tokens_in": 1, "tokens_out": 1} | wanted)
    assert budget.reserved == Amounts()


def test_calls_and_minutes_do_not_limit_a_report() -> None:
    clock = Clock()
    budget = Budget(BudgetSettings(calls=1, minutes=1.0), clock)
    budget.start()
    held = budget.reserve(500, report=True)
    budget.reserve(1)  # what is held for a report takes nothing from the search
    clock.now += 3600
    budget.settle(held, 400)
    budget.settle(budget.reserve(100, report=True))
    assert budget.report == Amounts(500)
    assert budget.spent == Amounts()


def test_total_calls_tokens_and_money_limit_search_and_report_together() -> None:
    budget = Budget(BudgetSettings(calls=10, total_calls=12, tokens=100, money=0.001, prices=PRICES))
    held = budget.reserve(5, 40, report=True)
    budget.settle(budget.reserve(7, 50))
    with pytest.raises(BudgetSpent, match="12 calls in all has 0 left, up to 1 needed"):
        budget.reserve(1)
    budget.settle(held, 5, 40, 0)
    with pytest.raises(BudgetSpent, match="100 tokens has 10 left, up to 11 needed"):
        budget.reserve(tokens_in=11, report=True)
    # 0.0003 for 100 tokens in.
    budget = Budget(BudgetSettings(money=0.0004, prices=PRICES))
    budget.settle(budget.reserve(1, 100, 0, "dear", report=True))
    assert budget.paid() == Decimal("0.0003")
    with pytest.raises(BudgetSpent, match="money"):
        budget.reserve(1, 34, 0, "dear")


def test_what_is_sent_has_the_same_limits_and_is_what_was_paid() -> None:
    budget = Budget(BudgetSettings(total_calls=3, tokens=100, money=0.001, prices=PRICES))
    budget.metered = True
    first, second = budget.send(1, 10, 2, "dear"), budget.send(1, 10, 2, "dear")
    with pytest.raises(ServerDown, match=r"3 calls in all.*raise --calls or budget\.total_calls"):
        budget.send(2, 1, 0, "dear")
    with pytest.raises(ServerDown, match=r"100 tokens.*raise budget\.tokens"):
        budget.send(1, 77, 0, "dear")
    with pytest.raises(ServerDown, match=r"money.*raise budget\.money"):
        budget.send(1, 0, 70, "dear")
    budget.land(first, Amounts(1, 9, 1, budget.price("dear", 9, 1)))
    budget.land(second, Amounts())  # refused by the server: not billed
    assert budget.sent == Amounts(1, 9, 1, Decimal("0.000042"))
    assert budget.flying == Amounts()
    assert budget.paid() == Decimal("0.000042")
    # What the search is charged costs no money on top.
    budget.settle(budget.reserve(1, 9, 1, "dear"))
    assert budget.paid() == Decimal("0.000042")


def test_more_than_reserved_is_booked_in_full() -> None:
    budget = Budget(BudgetSettings(calls=10))
    budget.settle(budget.reserve(2), calls=5)
    assert budget.calls_left() == 5


def test_without_limits_nothing_is_left_to_say() -> None:
    assert Budget(BudgetSettings()).calls_left() is None


LIMITS = BudgetSettings(calls=40, total_calls=56, tokens=900, money=0.004, prices=PRICES)


class Books:
    """The sums of a trace, kept by hand beside the budget's own."""

    def __init__(self) -> None:
        self.search, self.report, self.sent = [0, 0, 0], [0, 0, 0], [0, 0, 0]
        self.held: list[tuple[Reservation, tuple[int, int, int], bool]] = []
        self.flying: list[tuple[Amounts, tuple[int, int, int]]] = []

    def fits(self, wanted: tuple[int, int, int], report: bool) -> bool:
        """Does a reservation fit, by hand?"""
        held = [sum(one[1][place] for one in self.held) for place in range(3)]
        searching = sum(one[1][0] for one in self.held if not one[2])
        calls, tokens = wanted[0], wanted[1] + wanted[2]
        charged = sum(self.search[1:]) + sum(self.report[1:]) + sum(held[1:])
        return (
            (report or not calls or self.search[0] + searching + calls <= 40)
            and (not calls or self.search[0] + self.report[0] + held[0] + calls <= 56)
            and (not tokens or charged + tokens <= 900)
            and (not tokens or _cost(*self.sent[1:]) + _cost(*held[1:]) + _cost(*wanted[1:]) <= Decimal("0.004"))
        )

    def may_go(self, wanted: tuple[int, int, int]) -> bool:
        """May a request be sent, by hand?"""
        going = [self.sent[place] + sum(one[1][place] for one in self.flying) + wanted[place] for place in range(3)]
        return going[0] <= 56 and going[1] + going[2] <= 900 and _cost(*going[1:]) <= Decimal("0.004")


@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(trace=st.binary(max_size=96))
def test_no_trace_overshoots(trace: bytes) -> None:
    """Any mix of search and report, requests side by side, sent again, cut and lost, and sessions: within every limit.

    Three bytes make a step.
    """
    budget, books = _opened(), Books()
    for step in range(0, len(trace) - 2, 3):
        kind, a, b = trace[step : step + 3]
        wanted = (a % 9, b, a % 32)
        if kind < 80:
            report = kind % 4 == 0
            fits = books.fits(wanted, report)
            try:
                books.held.append((budget.reserve(*wanted, "dear", report=report), wanted, report))
                assert fits
            except BudgetSpent:
                assert not fits
        elif kind < 144:
            may_go = books.may_go(wanted)
            try:
                books.flying.append((budget.send(*wanted, "dear"), wanted))
                assert may_go
            except ServerDown:
                assert not may_go
        elif kind < 184 and books.flying:
            flight, most = books.flying.pop(a % len(books.flying))
            # Answered, lost (at its most) or refused (nothing).
            took = [tuple(min(one, b) for one in most), most, (0, 0, 0)][kind % 3]
            budget.land(flight, Amounts(*took, _cost(*took[1:])))
            books.sent = [before + more for before, more in zip(books.sent, took, strict=True)]
        elif kind < 216 and books.held:
            entry, most, report = books.held.pop(a % len(books.held))
            took = tuple(min(one, b) for one in most)
            budget.settle(entry, *took)
            into = books.report if report else books.search
            into[:] = [before + more for before, more in zip(into, took, strict=True)]
        elif kind < 240 and books.held:
            budget.release(books.held.pop(a % len(books.held))[0])
        elif kind >= 248:
            # Killed: reservations die with the process, requests that were on their way count at their most.
            state, sent = budget.state(), budget.sent
            for flight, most in books.flying:
                sent.add(flight)
                books.sent = [before + more for before, more in zip(books.sent, most, strict=True)]
            budget, books.held, books.flying = _opened(), [], []
            budget.restore(state)
            budget.sent = sent
        assert [budget.spent.calls, budget.spent.tokens_in, budget.spent.tokens_out] == books.search
        assert [budget.report.calls, budget.report.tokens_in, budget.report.tokens_out] == books.report
        assert [budget.sent.calls, budget.sent.tokens_in, budget.sent.tokens_out] == books.sent
        assert budget.paid() == _cost(*books.sent[1:]) <= Decimal("0.004")
        assert books.search[0] <= 40
        assert books.search[0] + books.report[0] <= 56
        assert sum(books.search[1:]) + sum(books.report[1:]) <= 900
        assert books.sent[0] <= 56
        assert sum(books.sent[1:]) <= 900


def _opened() -> Budget:
    budget = Budget(LIMITS)
    budget.metered = True
    return budget


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


def test_minutes_are_those_of_the_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """`clock = "cpu"` counts what this process computed, not what it waited for."""
    monkeypatch.setattr(time, "monotonic", Clock())
    monkeypatch.setattr(time, "process_time", computed := Clock())
    on_the_wall, of_the_cpu = Budget(BudgetSettings(minutes=1)), Budget(BudgetSettings(minutes=1, clock="cpu"))
    for budget in (on_the_wall, of_the_cpu):
        budget.start()
    computed.now += 45.0
    assert (on_the_wall.seconds_left(), of_the_cpu.seconds_left()) == (60.0, 15.0)
    assert Budget(BudgetSettings(calls=5)).seconds_left() is None


def test_a_cost_is_known_with_a_price_or_without_a_bill() -> None:
    budget = Budget(BudgetSettings(prices=PRICES))
    assert [budget.priced(model) for model in (None, "dear", "unknown")] == [True, True, False]


def test_what_is_left_in_all_counts_the_report() -> None:
    budget = Budget(BudgetSettings(calls=10, total_calls=30))
    budget.settle(budget.reserve(calls=4))
    budget.settle(budget.reserve(calls=3, report=True))
    budget.reserve(calls=2)
    assert budget.calls_left() == 4
    with pytest.raises(BudgetSpent, match="30 calls in all has 21 left"):
        budget.reserve(calls=22, report=True)
