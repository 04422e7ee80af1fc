"""The budget of a run, which is never exceeded.

Before a call its worst case is reserved; afterwards the actual cost is charged and the rest is released. A reservation
that does not fit on top of everything spent and reserved raises BudgetSpent, so no combination of parallel calls,
retries and failures can exceed a limit.

Calls and tokens are *charged* when a prompt is first scored in a run, whether the score comes from the model or from
the memo, so that a run is the same with and without a memo. `calls` limits the search alone (for a model behind an API
it is the recipe's limit minus what the report needs); `total_calls`, `tokens` and `money` limit search and report
together. The report's worst case is reserved before the search starts, so that a search that used up its budget still
gets its report.

What is *sent* to a server is counted separately, request by request (`send` and `land`), including what a search is
never charged for: truncated answers that were requested again, pending requests of a killed process, probes of the
server. The same limits apply to it. If they are reached early because too much was lost, the run stops with an error
and can be resumed; lost requests never change what a search finds. Money is the actual cost: of the requests if they
are counted, otherwise of what was charged.

Minutes come from a monotonic clock. They are checked before each call, and end waiting for a server. They limit the
search, not the report.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from pinprompt.errors import BudgetSpent, RunError, ServerDown, SettingError, did_you_mean
from pinprompt.recipe.sections import BudgetSettings

MILLION = Decimal(1_000_000)


@dataclass
class Amounts:
    """An amount spent or reserved; money is decimal, so that many small sums add up exactly."""

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
    report: bool = False
    open: bool = True


class Budget:
    """What a run has spent and reserved; safe to use from several threads."""

    def __init__(self, settings: BudgetSettings, clock: Callable[[], float] | None = None) -> None:
        self.settings = settings
        self.metered = False
        """True where all requests to the task model are counted one by one: then `sent` is what was paid."""
        self._limit_money = None if settings.money is None else Decimal(str(settings.money))
        self._prices = {
            name: (Decimal(str(price.input)), Decimal(str(price.output))) for name, price in settings.prices.items()
        }
        self._clock = clock or (time.process_time if settings.clock == "cpu" else time.monotonic)
        self._earlier = 0.0
        self._started: float | None = None
        self._lock = threading.Lock()
        self.spent = Amounts()
        """Charged to the search."""
        self.report = Amounts()
        """Charged to the report."""
        self.reserved = Amounts()
        self._for_report = 0
        """Calls of `reserved` that belong to the report."""
        self.sent = Amounts()
        """Requests to a server for any purpose that are counted individually."""
        self.flying = Amounts()
        """Pending requests, at their maximum."""

    def start(self) -> None:
        """Start the clock, now or at the first reservation, whichever comes first."""
        if self._started is None:
            self._started = self._clock()

    def seconds(self) -> float:
        """Seconds of searching, earlier sessions included; never decreases."""
        with self._lock:
            return self._elapsed()

    def _elapsed(self) -> float:
        """As `seconds`, for callers that hold the lock."""
        if self._started is not None:
            now = self._clock()
            self._earlier += max(0.0, now - self._started)
            self._started = now
        return self._earlier

    def expired(self) -> bool:
        """True when the minutes are used up."""
        left = self.seconds_left()
        return left is not None and left <= 0

    def seconds_left(self) -> float | None:
        """The remaining seconds; None if minutes are not limited."""
        with self._lock:
            return None if self.settings.minutes is None else self.settings.minutes * 60 - self._elapsed()

    def price(self, model: str | None, tokens_in: int, tokens_out: int) -> Decimal:
        """The cost of a model's tokens; 0 for a model without a price, unless money is limited."""
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

    def priced(self, model: str | None) -> bool:
        """Whether the cost is known: the model has a price, or is not billed."""
        return model is None or model in self._prices

    def reserve(
        self, calls: int = 0, tokens_in: int = 0, tokens_out: int = 0, model: str | None = None, *, report: bool = False
    ) -> Reservation:
        """Reserve the worst case, or raise BudgetSpent; without a model it costs no money.

        For a report `calls` and `minutes` do not apply.
        """
        if min(calls, tokens_in, tokens_out) < 0:
            raise ValueError(f"a reservation cannot be negative: {calls} calls, {tokens_in} + {tokens_out} tokens")
        wanted = Amounts(calls, tokens_in, tokens_out, self.price(model, tokens_in, tokens_out))
        with self._lock:
            self.start()
            reason = self._refusal(wanted, report)
            if reason:
                raise BudgetSpent(reason)
            self.reserved.add(wanted)
            self._for_report += calls if report else 0
        return Reservation(wanted, model, report)

    def settle(
        self,
        reservation: Reservation,
        calls: int | None = None,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> None:
        """Charge what was actually used (by default all that was reserved) and release the rest.

        More than was reserved is charged in full, since it was spent; avoiding that is up to the caller.
        """
        worst = reservation.amounts
        calls = worst.calls if calls is None else calls
        tokens_in = worst.tokens_in if tokens_in is None else tokens_in
        tokens_out = worst.tokens_out if tokens_out is None else tokens_out
        took = Amounts(calls, tokens_in, tokens_out, self.price(reservation.model, tokens_in, tokens_out))
        with self._lock:
            self._close(reservation)
            (self.report if reservation.report else self.spent).add(took)

    def release(self, reservation: Reservation) -> None:
        """Release an unused reservation."""
        with self._lock:
            self._close(reservation)

    def send(self, calls: int, tokens_in: int, tokens_out: int, model: str | None) -> Amounts:
        """Register a request at its maximum; ServerDown if all requests together would exceed a limit."""
        wanted = Amounts(calls, tokens_in, tokens_out, self.price(model, tokens_in, tokens_out))
        with self._lock:
            going = Amounts()
            for part in (self.sent, self.flying, wanted):
                going.add(part)
            for limit, sum_, name, what in (
                (self.settings.total_calls, going.calls, "total_calls", "calls in all"),
                (self.settings.tokens, going.tokens, "tokens", "tokens"),
                (self._limit_money, going.money, "money", "(money)"),
            ):
                if limit is not None and sum_ > limit:
                    raise ServerDown(
                        f"the budget of {limit:,} {what} is used up by {self.sent.calls:,} requests, including lost "
                        f"ones; raise {'--calls or ' * (name == 'total_calls')}budget.{name}"
                    )
            self.flying.add(wanted)
        return wanted

    def land(self, flight: Amounts, took: Amounts) -> None:
        """Charge what a request actually used."""
        with self._lock:
            self.flying.add(flight, -1)
            self.sent.add(took)

    def paid(self) -> Decimal:
        """The money actually spent so far, reports included."""
        with self._lock:
            return self._paid()

    def _paid(self) -> Decimal:
        return self.sent.money + (Decimal(0) if self.metered else self.spent.money + self.report.money)

    def calls_left(self) -> int | None:
        """The calls that the search may still reserve; None if they are not limited."""
        with self._lock:
            return None if self.settings.calls is None else self.settings.calls - self._calls()

    def state(self) -> dict[str, Any]:
        """The state as JSON values, without open reservations, which end with the process."""
        with self._lock:
            return {"seconds": self._elapsed(), "spent": _pack(self.spent), "report": _pack(self.report)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier session; what was sent comes from the record of requests."""
        try:
            seconds, spent, report = float(state["seconds"]), _unpack(state["spent"]), _unpack(state["report"])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RunError(f"the budget in the checkpoint cannot be read: {error!r}") from error
        if not math.isfinite(seconds) or seconds < 0:
            raise RunError(f"the budget in the checkpoint cannot be read: it says {seconds} seconds")
        with self._lock:
            self._earlier, self._started = seconds, None
            self.spent, self.report = spent, report
            self.reserved, self._for_report = Amounts(), 0

    def at_least(self, money: Decimal, seconds: float) -> None:
        """Raise money and time to what was actually spent after the last checkpoint, according to its answers."""
        with self._lock:
            self.spent.money += max(Decimal(0), money - self._paid())
            self._earlier = max(self._elapsed(), seconds)

    def _close(self, reservation: Reservation) -> None:
        if not reservation.open:
            raise ValueError("this reservation was already settled or released")
        reservation.open = False
        self.reserved.add(reservation.amounts, -1)
        self._for_report -= reservation.amounts.calls if reservation.report else 0

    def _calls(self) -> int:
        return self.spent.calls + self.reserved.calls - self._for_report

    def _refusal(self, wanted: Amounts, report: bool) -> str:
        """Why an amount no longer fits, or ''."""
        limits = self.settings
        if not report:
            if limits.minutes is not None and self._elapsed() >= limits.minutes * 60:
                return f"the budget of {limits.minutes:g} minutes is used up"
            if limits.calls is not None and wanted.calls and self._calls() + wanted.calls > limits.calls:
                left = max(0, limits.calls - self._calls())
                return f"the budget of {limits.calls:,} calls has {left:,} left, {wanted.calls:,} needed"
        calls, tokens = (
            sum(getattr(part, name) for part in (self.spent, self.report, self.reserved))
            for name in ("calls", "tokens")
        )
        for limit, used, more, what in (
            (limits.total_calls, calls, wanted.calls, "calls in all"),
            (limits.tokens, tokens, wanted.tokens, "tokens"),
        ):
            if limit is not None and more and used + more > limit:
                return f"the budget of {limit:,} {what} has {max(0, limit - used):,} left, up to {more:,} needed"
        money = self._paid() + self.reserved.money
        if self._limit_money is not None and wanted.money and money + wanted.money > self._limit_money:
            left_money = max(Decimal(0), self._limit_money - money)
            return f"the budget of {self._limit_money} (money) has {left_money} left, up to {wanted.money} needed"
        return ""


def _pack(amounts: Amounts) -> dict[str, Any]:
    return {**asdict(amounts), "money": str(amounts.money)}


def _unpack(row: Mapping[str, Any]) -> Amounts:
    amounts = Amounts(int(row["calls"]), int(row["tokens_in"]), int(row["tokens_out"]), Decimal(str(row["money"])))
    counts = (amounts.calls, amounts.tokens_in, amounts.tokens_out)
    if min(counts) < 0 or not amounts.money.is_finite() or amounts.money < 0:
        raise ValueError("a negative amount")
    return amounts
