"""A client for OpenAI-compatible servers with rate limits, retries and a circuit breaker.

The key is read from the environment, kept in this object only, and removed from every text that leaves it.
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
"""Prefix of the names of remote models."""
FIRST_WAIT = 0.5
OVERHEAD = 64
"""Maximum number of tokens that a chat's format adds to its messages."""
T = TypeVar("T")
R = TypeVar("R")


class BadAnswer(Exception):
    """One request got no usable answer; its example is a recorded failure. The text is safe to show."""


class _Halted(Exception):
    """A waiting request that is no longer needed."""


@dataclass
class Usage:
    """Usage of answers since the last call; without a meter also of requests without an answer."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    failures: list[str] = field(default_factory=list)


class RemoteClient:
    """Requests to one model of one server; thread-safe."""

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
        """Set when answers are no longer needed: ends every wait."""
        self._meter: Meter | None = None
        self._unmetered = [0, 0, 0]
        """Calls and tokens of requests before there was a meter."""
        self._all_told = True
        """Whether the server reported the tokens of all of these."""
        self._mine = threading.local()
        """Tokens of the answers to this thread's current question."""
        self._secret = Secret(settings.key_env)
        self._door: Door = door or Door(
            settings.base_url, self._secret.key, settings.timeout, int(settings.max_mb * 1e6)
        )
        self._lock = threading.Lock()
        self._number = 0
        self._next_send = self._first_turn()
        """No request is sent before this time: by the rate limit, or because the server asked for it."""
        self._unanswered = 0
        self._usage = Usage()
        self._limit = "max_tokens"
        self.completes: bool | None = None
        """Whether the server has /completions; None until known."""
        self.many: bool | None = None
        """Whether the server returns several samples for one request; None until known."""

    def __repr__(self) -> str:
        return f"RemoteClient({self.settings.base_url!r}, {self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a client holds a key and cannot be copied or stored; build a new one from its settings")

    def take(self) -> Usage:
        """The usage and failed examples since the last call."""
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
        """Whether requests are counted individually."""
        return self._meter is not None

    def attach(self, meter: Meter) -> None:
        """Report every request to a meter from now on, and those before."""
        with self._lock:
            (calls, tokens_in, tokens_out), self._unmetered = self._unmetered, [0, 0, 0]
            self._meter = meter
        if calls:
            how = "told" if self._all_told else "untold"
            meter.ended(meter.sending(calls, tokens_in, tokens_out), calls, tokens_in, tokens_out, how)

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Apply a function to items in parallel, up to the concurrency limit; answers in order.

        If one raises an exception, pending ones are finished, since they are paid for, and the rest is not started. An
        interruption (Ctrl-C) also ends pending ones.
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
        """The result of `ask`, a JSON value; or the stored answer to the same question in this run, if valid."""
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
        """How many requests the reservation for a question covers; a meter counts retries separately."""
        return 1 if self.metered else 1 + self.settings.resends

    def most_tokens(self, texts: Sequence[str], most_out: int, times: int = 1) -> tuple[int, int]:
        """The maximum tokens in and out of requests with these texts: a token has at least one byte."""
        tries = self.tries
        tokens_in = sum(len(text.encode(errors="replace")) + OVERHEAD for text in texts)
        return tokens_in * tries, len(texts) * most_out * times * tries

    def _ask(self, path: str, body: dict[str, Any], size: int, most_out: int) -> dict[str, Any]:
        """Send until there is an answer; BadAnswer if only this request failed, else another error."""
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
                flight.land(*worst, "lost")  # if it was sent, it may be billed
                raise
            if last_try:
                self._give_up(reason)
            self._back_off(refused + resent, asked, draw)

    def _refusal(self, response: Response) -> tuple[str, float | None]:
        """The message of a refusal and the requested wait; an error if retrying is useless."""
        # Truncate after redacting, so that no part of a key is shown.
        said = self.redact(response.body.decode("utf-8", "replace")).strip()[:400]
        reason = f"the server answered {response.status}: {said}"
        if response.status in (401, 403):
            variable = self.settings.key_env
            given = f"the key in the environment variable {variable}"
            state = given if self._secret.key else f"no key ({variable} is not set)"
            raise ModelError(f"{self.settings.base_url} refuses '{self.model}' with {state}: {reason}")
        words = said.lower()
        # "This is a chat model ... did you mean v1/chat/completions": the model exists, but not at this path.
        elsewhere = "chat model" in words or "chat/completions" in words
        if response.status in (404, 405) and "model" in words and not elsewhere:
            raise ModelError(f"{self.settings.base_url} has no model '{self.model}': {reason}")
        if 300 <= response.status < 400:
            raise ModelError(
                f"{self.settings.base_url} redirects to another address: set remote.base_url to that address"
            )
        if response.status == 402 or "insufficient_quota" in said:
            raise ServerDown(
                f"the account at {self.settings.base_url} has no credit left; top it up and resume: {reason}"
            )
        return reason, seconds_of(response.retry_after)

    def _first_turn(self) -> float:
        """A random initial delay: workers that share a rate must not all start at once."""
        rate = self.settings.requests_per_minute
        draw = random.Random(derive(self._seed, "turn"))  # nosec B311
        return self._clock() + draw.random() * 60.0 / rate if rate else 0.0

    def _wait_for_turn(self) -> None:
        """Wait for the rate limit and any pause that the server asked for; fail at once if the circuit is open."""
        if self._halt.is_set():
            raise _Halted
        left = None if self._meter is None else self._meter.seconds_left()
        if left is not None and left <= 0:
            raise BudgetSpent("the minutes of the budget are used up")
        with self._lock:
            if self._unanswered >= self.settings.give_up_after:
                raise ServerDown(self._down("it did not answer"))
            now = self._clock()
            turn = max(now, self._next_send)
            rate = self.settings.requests_per_minute
            self._next_send = turn + 60.0 / rate if rate else self._next_send
        if turn > now:
            self._pause(turn - now)

    def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the run's time limit."""
        left = None if self._meter is None else self._meter.seconds_left()
        if left is not None and left < seconds:
            self._sleep(max(0.0, left))
            raise BudgetSpent("the minutes of the budget ended while waiting for the server")
        self._sleep(seconds)

    def _rest(self, seconds: float) -> None:
        """Sleep, unless answers are no longer needed."""
        if self._halt.wait(seconds):
            raise _Halted

    def _back_off(self, tries: int, asked: float | None, draw: random.Random) -> None:
        """Wait before a retry: as long as the server asked for, or with exponential backoff and jitter."""
        longest = self.settings.longest_wait
        if asked is None:
            self._pause(min(longest, FIRST_WAIT * 2 ** (min(tries, 30) - 1)) * (0.5 + draw.random() / 2))
            return
        with self._lock:  # the server is busy: all threads wait
            self._next_send = max(self._next_send, self._clock() + min(asked, longest))

    def _give_up(self, reason: str) -> None:
        """A request failed after all retries: a failure of its example, or the end of the run if the server is down.

        This is checked at once: otherwise the first requests without an answer would be recorded as failures of their
        examples, and a resumed run would differ from an uninterrupted one.
        """
        gone = not self._door.alive()
        with self._lock:
            self._unanswered = self.settings.give_up_after if gone else self._unanswered + 1
            if self._unanswered >= self.settings.give_up_after:
                raise ServerDown(self._down(reason)) from None
        raise BadAnswer(reason) from None

    def _down(self, reason: str) -> str:
        left = f"{self.settings.base_url} does not answer requests"
        return f"{left} ({reason}); try again, or resume the run, when it is up again"

    def _count(self, flight: _Flight, usage: Any, worst: tuple[int, int, int]) -> None:
        """Count the tokens of an answer: as reported by the server, otherwise the maximum."""
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
        """Count a request without an answer that may be billed, at its maximum."""
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
    """A pending request registered with a meter; it is completed once."""

    def __init__(self, meter: Meter | None, worst: tuple[int, int, int]) -> None:
        self._meter = meter
        self._number = None if meter is None else meter.sending(*worst)

    def land(self, calls: int, tokens_in: int, tokens_out: int, how: str) -> None:
        """Report what it used, unless that was done before."""
        if self._meter is not None and self._number is not None:
            number, self._number = self._number, None
            self._meter.ended(number, calls, tokens_in, tokens_out, how)


def _is_amount(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 40


def _bytes_of(messages: list[dict[str, Any]]) -> int:
    """Bytes of the texts in a chat; pictures are counted by their bytes too, which is an upper bound."""
    size = 0
    for message in messages:
        content = message["content"]
        parts = [content] if isinstance(content, str) else [str(part) for part in content]
        size += sum(len(part.encode(errors="replace")) for part in parts) + 8
    return size


def is_remote(name: str) -> bool:
    """Whether a name is that of a remote model."""
    return name.startswith(PREFIX)


def open_client(name: str, settings: RemoteSettings) -> RemoteClient:
    """A client for 'remote:<model name>'."""
    model = name.removeprefix(PREFIX).strip()
    if not is_remote(name) or not model:
        raise SettingError(f"'{name}' is not the name of a remote model; write 'remote:<model name>'")
    # Its seed only affects waiting times: workers that were refused together must not retry together.
    return RemoteClient(settings, model, os.getpid())


def dig(value: Any, *path: str | int) -> Any:
    """The value at a path of an untrusted JSON value, or None."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
