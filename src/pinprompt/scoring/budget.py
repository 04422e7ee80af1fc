"""What a run may spend, and the promise that it never spends more.

Before a call its worst case is reserved; after it, what it really took is settled and the rest is free again. A
reservation that would not fit, on top of everything spent and everything reserved, is refused with BudgetSpent, so no
mix of parallel calls, retries and failures can overshoot.

Calls and tokens are *charged*: booked when a prompt is first scored in a run, whether the answer came from the model or
from the memo, so that a run is the same with and without a memo. Money and minutes are what was *really* spent.
Minutes come from a clock that only goes forward; they are looked at before each call, so the one that is under way when
they run out is finished. What a report costs after the search is counted apart and never refused: a search that used up
its budget still gets its final evaluation.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pinprompt.errors import BudgetSpent, RunError, SettingError, did_you_mean
from pinprompt.recipe.sections import BudgetSettings

MILLION = Decimal(1_000_000)


@dataclass
class Amounts:
    """What was spent, or is reserved; money is decimal, so that a million small sums add up exactly."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    money: Decimal = Decimal(0)

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def add(self, other: Amounts, sign: int = 1) -> None:
        """Add (or with sign -1 take away) another amount in place."""
        self.calls += sign * other.calls
        self.tokens_in += sign * other.tokens_in
        self.tokens_out += sign * other.tokens_out
        self.money += sign * other.money


@dataclass(eq=False)
class Reservation:
    """The worst case of something that is about to be done; to be settled or released, once."""

    amounts: Amounts
    model: str | None
    open: bool = field(default=True)


class Budget:
    """The ledger of a run; safe to use from several threads."""

    def __init__(self, settings: BudgetSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._limit_money = None if settings.money is None else Decimal(str(settings.money))
        self._prices = {
            name: (Decimal(str(price.input)), Decimal(str(price.output))) for name, price in settings.prices.items()
        }
        self._clock = clock
        self._earlier = 0.0
        self._started: float | None = None
        self._lock = threading.Lock()
        self.spent = Amounts()
        self.reserved = Amounts()
        self.report = Amounts()

    def start(self) -> None:
        """Let the minutes run, from now or from the first reservation, whichever comes first."""
        if self._started is None:
            self._started = self._clock()

    def seconds(self) -> float:
        """Seconds of searching, those of earlier sessions included; never less than it said before."""
        with self._lock:
            return self._elapsed()

    def _elapsed(self) -> float:
        """As `seconds`, for those who hold the lock."""
        if self._started is not None:
            now = self._clock()
            self._earlier += max(0.0, now - self._started)
            self._started = now
        return self._earlier

    def expired(self) -> bool:
        """True when the minutes are used up."""
        with self._lock:
            return self.settings.minutes is not None and self._elapsed() >= self.settings.minutes * 60

    def price(self, model: str | None, tokens_in: int, tokens_out: int) -> Decimal:
        """What so many tokens of a model cost; nothing for a model that has no price, unless money is limited."""
        if model is None:
            return Decimal(0)
        if model not in self._prices:
            if self._limit_money is None:
                return Decimal(0)
            known = f" ({did_you_mean(model, self._prices)})" if self._prices else ""
            raise SettingError(
                f"the budget limits money but has no price for the model '{model}'{known}; "
                f'add [budget.prices."{model}"] with input and output per million tokens'
            )
        price_in, price_out = self._prices[model]
        return (price_in * tokens_in + price_out * tokens_out) / MILLION

    def reserve(self, calls: int = 0, tokens_in: int = 0, tokens_out: int = 0, model: str | None = None) -> Reservation:
        """Set the worst case aside, or refuse with BudgetSpent; without a model it costs no money."""
        if min(calls, tokens_in, tokens_out) < 0:
            raise ValueError(f"a reservation cannot be negative: {calls} calls, {tokens_in} + {tokens_out} tokens")
        wanted = Amounts(calls, tokens_in, tokens_out, self.price(model, tokens_in, tokens_out))
        with self._lock:
            self.start()
            reason = self._refusal(wanted)
            if reason:
                raise BudgetSpent(reason)
            self.reserved.add(wanted)
        return Reservation(wanted, model)

    def settle(
        self,
        reservation: Reservation,
        calls: int | None = None,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> None:
        """Book what was really taken (by default all that was reserved) and free the rest.

        More than was reserved is booked in full, since it was spent; that promise was the caller's to keep.
        """
        worst = reservation.amounts
        took_in = worst.tokens_in if tokens_in is None else tokens_in
        took_out = worst.tokens_out if tokens_out is None else tokens_out
        took = Amounts(
            worst.calls if calls is None else calls, took_in, took_out, self.price(reservation.model, took_in, took_out)
        )
        with self._lock:
            self._close(reservation)
            self.spent.add(took)

    def release(self, reservation: Reservation) -> None:
        """Free a reservation of which nothing was used."""
        with self._lock:
            self._close(reservation)

    def book_report(self, calls: int, tokens_in: int = 0, tokens_out: int = 0, model: str | None = None) -> None:
        """Count what a report cost, beside the search's budget."""
        took = Amounts(calls, tokens_in, tokens_out, self.price(model, tokens_in, tokens_out))
        with self._lock:
            self.report.add(took)

    def remaining(self) -> dict[str, float]:
        """What is left of each limit that is set, reservations taken off."""
        with self._lock:
            left: dict[str, float] = {}
            if self.settings.calls is not None:
                left["calls"] = self.settings.calls - self.spent.calls - self.reserved.calls
            if self.settings.tokens is not None:
                left["tokens"] = self.settings.tokens - self.spent.tokens - self.reserved.tokens
            if self._limit_money is not None:
                left["money"] = float(self._limit_money - self.spent.money - self.reserved.money)
            if self.settings.minutes is not None:
                left["minutes"] = max(0.0, self.settings.minutes - self._elapsed() / 60)
            return left

    def state(self) -> dict[str, Any]:
        """The ledger as JSON values; open reservations are not part of it, they die with the process."""
        with self._lock:
            return {
                "seconds": self._elapsed(),
                "spent": _pack(self.spent),
                "report": _pack(self.report),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the ledger of an earlier session."""
        try:
            seconds, spent, report = float(state["seconds"]), _unpack(state["spent"]), _unpack(state["report"])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RunError(f"the budget in the checkpoint cannot be read: {error!r}") from error
        if not math.isfinite(seconds) or seconds < 0:
            raise RunError(f"the budget in the checkpoint cannot be read: it says {seconds} seconds")
        with self._lock:
            self._earlier, self._started = seconds, None
            self.spent, self.report, self.reserved = spent, report, Amounts()

    def at_least(self, money: Decimal, seconds: float) -> None:
        """Raise money and time to what a journal says was really spent after the last checkpoint."""
        with self._lock:
            self.spent.money = max(self.spent.money, money)
            self._earlier = max(self._elapsed(), seconds)

    def _close(self, reservation: Reservation) -> None:
        if not reservation.open:
            raise ValueError("this reservation was settled or released before")
        reservation.open = False
        self.reserved.add(reservation.amounts, -1)

    def _refusal(self, wanted: Amounts) -> str:
        """Why an amount does not fit any more, or ''."""
        limits = self.settings
        if limits.minutes is not None and self._elapsed() >= limits.minutes * 60:
            return f"the budget of {limits.minutes:g} minutes is used up"
        calls = self.spent.calls + self.reserved.calls
        if limits.calls is not None and wanted.calls and calls + wanted.calls > limits.calls:
            left = max(0, limits.calls - calls)
            return f"the budget of {limits.calls:,} calls has {left:,} left, {wanted.calls:,} needed"
        tokens = self.spent.tokens + self.reserved.tokens
        if limits.tokens is not None and wanted.tokens and tokens + wanted.tokens > limits.tokens:
            left = max(0, limits.tokens - tokens)
            return f"the budget of {limits.tokens:,} tokens has {left:,} left, up to {wanted.tokens:,} needed"
        money = self.spent.money + self.reserved.money
        if self._limit_money is not None and wanted.money and money + wanted.money > self._limit_money:
            left_money = max(Decimal(0), self._limit_money - money)
            return f"the budget of {self._limit_money} (money) has {left_money} left, up to {wanted.money} needed"
        return ""


def _pack(amounts: Amounts) -> dict[str, Any]:
    return {
        "calls": amounts.calls,
        "tokens_in": amounts.tokens_in,
        "tokens_out": amounts.tokens_out,
        "money": str(amounts.money),
    }


def _unpack(row: Mapping[str, Any]) -> Amounts:
    amounts = Amounts(int(row["calls"]), int(row["tokens_in"]), int(row["tokens_out"]), Decimal(str(row["money"])))
    if (
        min(amounts.calls, amounts.tokens_in, amounts.tokens_out) < 0
        or not amounts.money.is_finite()
        or amounts.money < 0
    ):
        raise ValueError("a negative amount")
    return amounts
