"""A server that speaks OpenAI's protocol, asked with patience and with limits: rates, retries, a circuit breaker.

The key is read from the environment, lives in this object alone, and is taken out of every text that leaves it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pinprompt.errors import BudgetSpent, ModelError, ServerDown, SettingError
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.http import Door, NoAnswer, Response, Secret, seconds_of
from pinprompt.values import Meter, derive

PREFIX = "remote:"
"""Names of models behind an API begin with it."""
FIRST_WAIT = 0.5
OVERHEAD = 64
"""Tokens that a chat's frame adds at the most to the text of its messages."""
T = TypeVar("T")
R = TypeVar("R")


class BadAnswer(Exception):
    """One request got no usable answer; its example is a recorded failure. The text is safe to show."""


class _Halted(Exception):
    """A request that waited for its turn, and is not wanted any more."""


@dataclass
class Usage:
    """What answers took since it was last taken; without a meter also what requests took that got none."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    failures: list[str] = field(default_factory=list)


class RemoteClient:
    """Requests to one model of one server; safe to use from several threads."""

    def __init__(
        self,
        settings: RemoteSettings,
        model: str,
        seed: int = 0,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        door: Any = None,
    ) -> None:
        self.settings, self.model, self._seed = settings, model, seed
        self._sleep, self._clock = sleep or self._rest, clock
        self._halt = threading.Event()
        """Set while nobody wants answers any more: it ends every wait."""
        self._meter: Meter | None = None
        self._unmetered = [0, 0, 0]
        """Calls and tokens of requests before there was a meter."""
        self._all_told = True
        """Did the server tell the tokens of all of these?"""
        self._mine = threading.local()
        """Tokens of the answers that this thread got for its question."""
        self._secret = Secret(settings.key_env)
        self._door: Door = door or Door(
            settings.base_url, self._secret.key, settings.timeout, int(settings.max_mb * 1e6)
        )
        self._lock = threading.Lock()
        self._number = 0
        self._next_send = self._first_turn()
        """No request is sent before this time: the rate limit, or what the server asked for."""
        self._unanswered = 0
        self._usage = Usage()
        self._limit = "max_tokens"
        self.completes: bool | None = None
        """Whether the server has /completions; None until it was asked."""
        self.many: bool | None = None
        """Whether the server gives several samples for one request; None until it was asked."""

    def __repr__(self) -> str:
        return f"RemoteClient({self.settings.base_url!r}, {self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a client holds a key and cannot be copied or stored; build a new one from its settings")

    def take(self) -> Usage:
        """What was used since the last time this was asked, and which examples failed."""
        with self._lock:
            usage, self._usage = self._usage, Usage()
        return usage

    def fail(self, failure: str) -> None:
        """Record that one example failed."""
        with self._lock:
            self._usage.failures.append(self.redact(failure))

    def redact(self, text: str) -> str:
        """A text without the key in it."""
        return self._secret.redact(text)

    @property
    def metered(self) -> bool:
        """True where each request is counted on its own."""
        return self._meter is not None

    def attach(self, meter: Meter) -> None:
        """Tell a meter of every request from now on, and of those before."""
        with self._lock:
            (calls, tokens_in, tokens_out), self._unmetered = self._unmetered, [0, 0, 0]
            self._meter = meter
        if calls:
            how = "told" if self._all_told else "untold"
            meter.ended(meter.sending(calls, tokens_in, tokens_out), calls, tokens_in, tokens_out, how)

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Apply a function to items side by side, up to the limit of concurrency; answers in order.

        Where one of them raises, those that are under way are finished, since they are paid for, and the rest is not
        begun. An interruption (Ctrl-C) also cuts those under way.
        """
        if len(items) == 1:
            return [function(items[0])]
        pool = ThreadPoolExecutor(min(self.settings.concurrency, max(1, len(items))))
        futures: list[Future[R]] = []
        try:
            for item in items:
                futures.append(pool.submit(function, item))
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future for future in futures if future in done and future.exception() is not None]
            return [future.result() for future in failed or futures]
        except BaseException as error:
            self._halt.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while not isinstance(error, Exception) and not all(future.done() for future in futures):
                self._door.cut()
                wait(futures, timeout=0.1)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self._halt.clear()

    def once(self, question: Sequence[Any], ask: Callable[[], T], fits: Callable[[Any], bool]) -> T:
        """What `ask` gives, a JSON value; or what the same question gave before in this run, where that fits."""
        if self._meter is None:
            return ask()
        key = hashlib.sha256(json.dumps(question).encode()).hexdigest()
        known = self._meter.recall(key)
        if known is not None and fits(known[0]):
            with self._lock:
                self._usage.tokens_in += known[1]
                self._usage.tokens_out += known[2]
            return known[0]  # type: ignore[no-any-return]
        self._mine.took = (0, 0)
        answer = ask()
        self._meter.keep(key, answer, *self._mine.took)
        return answer

    def chat(self, messages: list[dict[str, Any]], most_out: int, **more: Any) -> dict[str, Any]:
        """One request to /chat/completions."""
        return self._ask("/chat/completions", {"messages": messages, **more}, _bytes_of(messages), most_out)

    def complete(self, text: str, most_out: int, **more: Any) -> dict[str, Any]:
        """One request to /completions."""
        return self._ask("/completions", {"prompt": text, **more}, len(text.encode(errors="replace")), most_out)

    @property
    def tries(self) -> int:
        """How many requests of one question the reservation for it covers; a meter counts new tries by themselves."""
        return 1 if self.metered else 1 + self.settings.resends

    def most_tokens(self, texts: Sequence[str], most_out: int, times: int = 1) -> tuple[int, int]:
        """The most tokens in and out that requests with these texts can take: a token has at least one byte."""
        tries = self.tries
        tokens_in = sum(len(text.encode(errors="replace")) + OVERHEAD for text in texts)
        return tokens_in * tries, len(texts) * most_out * times * tries

    def _ask(self, path: str, body: dict[str, Any], size: int, most_out: int) -> dict[str, Any]:
        """Send until there is an answer; BadAnswer for this request alone, an error of ours when nothing would help."""
        with self._lock:
            number, self._number = self._number, self._number + 1
        draw = random.Random(derive(self._seed, "remote", number))  # nosec B311
        refused = resent = 0
        samples = int(body.get("n", 1))
        worst = (samples, size + OVERHEAD, most_out * samples)
        fresh = False
        while True:
            self._wait_for_turn()
            flight = _Flight(self._meter, worst)
            try:
                response = self._door.post(path, {"model": self.model, self._limit: most_out, **body}, fresh)
                if response.status == 200:
                    answer = self._secret.clean(response.json())
                    self._count(flight, answer.get("usage"), worst)
                    with self._lock:
                        self._unanswered = 0
                    return answer
                flight.land(0, 0, 0, "refused")
                reason, asked = self._refusal(response)
                if response.status == 400 and self._limit == "max_tokens" and "max_completion_tokens" in reason:
                    self._limit = "max_completion_tokens"
                    continue
                if response.status not in (408, 409, 425, 429) and response.status < 500:
                    raise BadAnswer(reason)
                refused += 1
                last_try = refused > self.settings.retries
            except NoAnswer as error:
                reason, asked = self.redact(str(error))[:300], None
                if error.billed:
                    self._lose(flight, worst)
                    if error.stale:
                        fresh = True
                        continue
                    resent += 1
                    last_try = resent > self.settings.resends
                else:
                    flight.land(0, 0, 0, "refused")
                    refused += 1
                    last_try = refused > self.settings.retries
            except BaseException:
                flight.land(*worst, "lost")  # where it was sent, it may be billed
                raise
            if last_try:
                self._give_up(reason)
            self._back_off(refused + resent, asked, draw)

    def _refusal(self, response: Response) -> tuple[str, float | None]:
        """What a refusal says, and how long it asks to wait; an error of ours where trying again is of no use."""
        # Cut after redacting: half a key is a key half given away.
        said = self.redact(response.body.decode("utf-8", "replace")).strip()[:400]
        reason = f"the server answered {response.status}: {said}"
        if response.status in (401, 403):
            variable = self.settings.key_env
            given = f"the key in the environment variable {variable}"
            state = given if self._secret.key else f"no key ({variable} is not set)"
            raise ModelError(f"{self.settings.base_url} refuses '{self.model}' with {state}: {reason}")
        words = said.lower()
        # "This is a chat model ... did you mean v1/chat/completions": the model is there, only not behind this path.
        elsewhere = "chat model" in words or "chat/completions" in words
        if response.status in (404, 405) and "model" in words and not elsewhere:
            raise ModelError(f"{self.settings.base_url} has no model '{self.model}': {reason}")
        if 300 <= response.status < 400:
            raise ModelError(
                f"{self.settings.base_url} is not where the server is (it redirects): set its true address"
            )
        if response.status == 402 or "insufficient_quota" in said:
            raise ServerDown(f"the account at {self.settings.base_url} is used up; top it up and resume: {reason}")
        return reason, seconds_of(response.retry_after)

    def _first_turn(self) -> float:
        """Somewhere before the second turn: workers that share a rate must not all begin at once."""
        rate = self.settings.requests_per_minute
        draw = random.Random(derive(self._seed, "turn"))  # nosec B311
        return self._clock() + draw.random() * 60.0 / rate if rate else 0.0

    def _wait_for_turn(self) -> None:
        """Keep the rate, and any pause that the server asked for; refuse at once when the circuit is open."""
        if self._halt.is_set():
            raise _Halted
        left = None if self._meter is None else self._meter.seconds_left()
        if left is not None and left <= 0:
            raise BudgetSpent("the minutes of the budget are used up")
        with self._lock:
            if self._unanswered >= self.settings.give_up_after:
                raise ServerDown(self._down("it answered nothing"))
            now = self._clock()
            turn = max(now, self._next_send)
            rate = self.settings.requests_per_minute
            self._next_send = turn + 60.0 / rate if rate else self._next_send
        if turn > now:
            self._pause(turn - now)

    def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the time that the run has."""
        left = None if self._meter is None else self._meter.seconds_left()
        if left is not None and left < seconds:
            self._sleep(max(0.0, left))
            raise BudgetSpent("the minutes of the budget ended while the server was to be waited for")
        self._sleep(seconds)

    def _rest(self, seconds: float) -> None:
        """Sleep, until nobody wants answers any more."""
        if self._halt.wait(seconds):
            raise _Halted

    def _back_off(self, tries: int, asked: float | None, draw: random.Random) -> None:
        """Wait before trying again: what the server asked for, or twice as long each time, with jitter."""
        longest = self.settings.longest_wait
        if asked is None:
            self._pause(min(longest, FIRST_WAIT * 2 ** (min(tries, 30) - 1)) * (0.5 + draw.random() / 2))
            return
        with self._lock:  # the server is busy for everybody: nobody sends before it said
            self._next_send = max(self._next_send, self._clock() + min(asked, longest))

    def _give_up(self, reason: str) -> None:
        """A request had all its tries: its example's failure, or the end of the run where the server is gone.

        Whether it is gone is asked for at once: otherwise the first requests that a dead server leaves unanswered would
        be booked as failures of their examples, and a resumed run would differ from an undisturbed one.
        """
        gone = not self._door.alive()
        with self._lock:
            self._unanswered = self.settings.give_up_after if gone else self._unanswered + 1
            if self._unanswered >= self.settings.give_up_after:
                raise ServerDown(self._down(reason)) from None
        raise BadAnswer(reason) from None

    def _down(self, reason: str) -> str:
        left = f"{self.settings.base_url} leaves requests without an answer"
        return f"{left} ({reason}); try again, or resume the run, when it is up again"

    def _count(self, flight: _Flight, usage: Any, worst: tuple[int, int, int]) -> None:
        """Count the tokens of an answer: as the server says, or the most that it can have been."""
        told = usage if isinstance(usage, dict) else {}
        given = _is_amount(told.get("prompt_tokens"), 1) and _is_amount(told.get("completion_tokens"), 0)
        tokens_in, tokens_out = (told["prompt_tokens"], told["completion_tokens"]) if given else worst[1:]
        flight.land(worst[0], tokens_in, tokens_out, "told" if given else "untold")
        with self._lock:
            self._usage.calls += 1
            self._usage.tokens_in += tokens_in
            self._usage.tokens_out += tokens_out
            self._add_unmetered(worst[0], tokens_in, tokens_out)
            self._all_told &= given or self._meter is not None
        before = getattr(self._mine, "took", (0, 0))
        self._mine.took = (before[0] + tokens_in, before[1] + tokens_out)

    def _lose(self, flight: _Flight, worst: tuple[int, int, int]) -> None:
        """Count a request that may be billed but has no answer, at the most that it can have taken."""
        flight.land(*worst, "lost")
        with self._lock:
            if self._meter is None:
                self._usage.calls += 1
                self._usage.tokens_in += worst[1]
                self._usage.tokens_out += worst[2]
            self._add_unmetered(*worst)
            self._all_told &= self._meter is not None

    def _add_unmetered(self, *took: int) -> None:
        if self._meter is None:
            self._unmetered = [before + more for before, more in zip(self._unmetered, took, strict=True)]


class _Flight:
    """A request on its way, as a meter counts it; it lands once."""

    def __init__(self, meter: Meter | None, worst: tuple[int, int, int]) -> None:
        self._meter = meter
        self._number = None if meter is None else meter.sending(*worst)

    def land(self, calls: int, tokens_in: int, tokens_out: int, how: str) -> None:
        """Say what it took, if nobody did before."""
        if self._meter is not None and self._number is not None:
            number, self._number = self._number, None
            self._meter.ended(number, calls, tokens_in, tokens_out, how)


def _is_amount(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 40


def _bytes_of(messages: list[dict[str, Any]]) -> int:
    """Bytes of the texts in a chat; a picture is counted by its bytes too, which is more than it can take."""
    size = 0
    for message in messages:
        content = message["content"]
        parts = [content] if isinstance(content, str) else [str(part) for part in content]
        size += sum(len(part.encode(errors="replace")) for part in parts) + 8
    return size


def is_remote(name: str) -> bool:
    """True for the name of a model behind an API."""
    return name.startswith(PREFIX)


def open_client(name: str, settings: RemoteSettings) -> RemoteClient:
    """A client for 'remote:<model name>'."""
    model = name.removeprefix(PREFIX).strip()
    if not is_remote(name) or not model:
        raise SettingError(f"'{name}' does not name a model behind an API; write 'remote:<model name>'")
    # Its seed only decides how long it waits: workers that were refused together must not come back together.
    return RemoteClient(settings, model, os.getpid())


def dig(value: Any, *path: str | int) -> Any:
    """What stands at a path in a JSON value from a stranger, or None."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
