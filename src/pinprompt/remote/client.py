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

from pinprompt.answers.requests import Requests
from pinprompt.errors import BudgetSpent, ModelError, ServerDown, SettingError
from pinprompt.recipe.task_sections import REMOTE, RemoteSettings, is_remote
from pinprompt.remote.http import Connections, NoAnswer, Response, seconds_of
from pinprompt.remote.secret import Secret
from pinprompt.values import derive

FIRST_WAIT = 0.5
OVERHEAD = 64
"""Number of tokens that a chat's format may add to its messages; what a server reports may raise it."""
ABSURD = 200_000
"""A server that reports this many tokens more than a request can have is not believed, and the run stops."""
Used = tuple[int, int, int]
"""Calls, tokens in and tokens out."""
T = TypeVar("T")
R = TypeVar("R")
AWAKE = 0.5
"""Maximum seconds of one wait for answers: a Ctrl-C just before a wait is only noticed after it."""


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

    resends = 1
    """Retries after a truncated, late or invalid answer, which may have been billed."""
    longest_wait = 120.0
    """Maximum wait before a retry in seconds, even if the server asks for longer."""
    give_up_after = 3
    """The run stops after this many consecutive requests without an answer."""
    max_bytes = 8_000_000
    """Maximum size of an answer."""

    def __init__(
        self,
        settings: RemoteSettings,
        model: str,
        seed: int = 0,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.model = settings, model
        self._sleep, self._clock = sleep or self._rest, clock
        self._secret = Secret(settings.key_env)
        self.redact = self._secret.redact
        self._connections = Connections(settings.base_url, self._secret.key, settings.timeout, self.max_bytes)
        self._lock = threading.Lock()
        self._halt = threading.Event()
        """Set when answers are no longer needed: ends every wait."""
        self._meter: Requests | None = None
        self._unmetered: Used = (0, 0, 0)
        """What requests used before there was a meter."""
        self._all_told = True
        """Whether the server reported the tokens of all of these."""
        self._usage = Usage()
        self._mine = threading.local()
        """Tokens of the answers to this thread's current question."""
        self._unanswered = 0
        self._random = random.Random(derive(seed, "remote"))  # nosec B311
        self._gap = 60.0 / settings.requests_per_minute if settings.requests_per_minute else 0.0
        """Seconds between two requests, by the rate limit."""
        # Workers that share a rate must not all start at once.
        self._next_send = clock() + self._random.random() * self._gap
        """No request is sent before this time: by the rate limit, or because the server asked for it."""
        self._limit = "max_tokens"
        self._heard = False
        """Whether an answer has said what a request costs."""
        self._largest = (OVERHEAD, 0)
        """The most tokens in and out that the server reported beyond the size of a request."""
        self.overhead = self._largest
        """The same before there was a meter: what a run reserves must not change while it goes on, or is resumed."""

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

    def attach(self, meter: Requests) -> None:
        """Report every request to a meter from now on, and those before."""
        with self._lock:
            used, self._unmetered = self._unmetered, (0, 0, 0)
            self._meter = meter
        if used[0]:
            meter.ended(meter.sending(self.model, *used), *used, "told" if self._all_told else "untold")

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Apply a function to items in parallel, up to the concurrency limit; answers in order.

        If one raises an exception, pending ones are finished, since they are paid for, and the rest is not started. An
        interruption (Ctrl-C) also ends pending ones. Until an answer has said what a request costs, there is one
        request at a time.
        """
        first: list[R] = []
        while items and (not self._heard or len(items) == 1):
            first.append(function(items[0]))
            items = items[1:]
        if not items:
            return first
        pool = ThreadPoolExecutor(min(self.settings.concurrency, max(1, len(items))))
        futures: list[Future[R]] = []
        try:
            for item in items:
                futures.append(pool.submit(function, item))
            done, pending = wait(futures, AWAKE, return_when=FIRST_EXCEPTION)
            while pending and not any(future.exception() for future in done):
                done, pending = wait(futures, AWAKE, return_when=FIRST_EXCEPTION)
            failed = [future for future in futures if future in done and future.exception() is not None]
            return first + [future.result() for future in failed or futures]
        except BaseException as error:
            self._halt.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while not isinstance(error, Exception) and not all(future.done() for future in futures):
                self._connections.cut()
                wait(futures, timeout=0.1)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self._halt.clear()

    def once(self, question: Sequence[Any], ask: Callable[[], T], fits: Callable[[Any], bool]) -> T:
        """The result of `ask`, a JSON value; or the stored answer to the same question in this run, if valid.

        A useless answer that was paid for is stored as well, and is the same BadAnswer again.
        """
        if self._meter is None:
            return ask()
        key = hashlib.sha256(json.dumps(question).encode()).hexdigest()
        known = self._meter.recall(key)
        useless = None if known is None else dig(known[0], "useless")
        if known is not None and (fits(known[0]) or isinstance(useless, str)):
            with self._lock:
                self._usage.tokens_in += known[1]
                self._usage.tokens_out += known[2]
            if isinstance(useless, str):
                raise BadAnswer(useless)
            return known[0]  # type: ignore[no-any-return]
        self._mine.took = (0, 0)
        try:
            answer = ask()
        except BadAnswer as failure:
            if any(self._mine.took):
                self._meter.keep(key, {"useless": self.redact(str(failure))[:300]}, *self._mine.took)
            raise
        self._meter.keep(key, answer, *self._mine.took)
        return answer

    def chat(self, messages: list[dict[str, Any]], most_out: int, **more: Any) -> dict[str, Any]:
        size = sum(size_of(str(message["content"])) + 8 for message in messages)  # pictures as base64: an upper bound
        return self._ask("/chat/completions", {"messages": messages, **more}, size, most_out)

    def complete(self, text: str, most_out: int, **more: Any) -> dict[str, Any]:
        return self._ask("/completions", {"prompt": text, **more}, size_of(text), most_out)

    @property
    def tries(self) -> int:
        """How many requests the reservation for a question covers; a meter counts retries separately."""
        return 1 + self.resends if self._meter is None else 1

    def _ask(self, path: str, body: dict[str, Any], size: int, most_out: int) -> dict[str, Any]:
        """Send until there is an answer; BadAnswer if only this request failed, else another error."""
        samples = int(body.get("n", 1))
        whole = (samples, size, most_out * samples)
        refused = resent = 0
        fresh = False
        while True:
            self._wait_for_turn()
            asked, limit = None, self._limit
            try:
                answer = self._send(path, {"model": self.model, limit: most_out, **body}, whole, fresh)
                if not isinstance(answer, Response):
                    with self._lock:
                        self._unanswered = 0
                    return answer
                reason, asked = self._refusal(answer)
                if answer.status == 400 and limit == "max_tokens" and "max_completion_tokens" in reason:
                    self._limit = "max_completion_tokens"
                    continue
                if answer.status not in (408, 409, 425, 429) and answer.status < 500:
                    raise BadAnswer(reason)
                refused += 1
            except NoAnswer as error:
                reason = self.redact(str(error))[:300]
                if error.stale:
                    fresh = True
                    continue
                refused, resent = refused + (not error.billed), resent + error.billed
            if refused > self.settings.retries or resent > self.resends:
                self._give_up(reason)
            self._back_off(refused + resent, asked)

    def _send(self, path: str, body: dict[str, Any], size: Used, fresh: bool) -> dict[str, Any] | Response:
        """Send once and count what it used; the answer, or the server's refusal."""
        meter = self._meter
        most = (size[0], size[1] + self._largest[0], size[2] + self._largest[1])
        number = 0 if meter is None else meter.sending(self.model, *most)
        used, how = most, "lost"  # whatever happens after it was sent, it may be billed
        try:
            response = self._connections.post(path, body, fresh)
            if response.status != 200:
                used, how = (0, 0, 0), "refused"
                return response
            answer = response.json(self._secret)
            used, how = self._told(answer.get("usage"), size) or (most, "untold")
            return answer
        except NoAnswer as error:
            if not error.billed:
                used, how = (0, 0, 0), "refused"
            raise
        finally:
            if meter is not None:
                meter.ended(number, *used, how)
            self._count(used, how, meter is not None)

    def _told(self, usage: Any, size: Used) -> tuple[Used, str] | None:
        """What an answer used, if the server reports it; an absurd report ends the run."""
        tokens_in, tokens_out = told = dig(usage, "prompt_tokens"), dig(usage, "completion_tokens")
        self._heard = True
        if not all(type(amount) is int for amount in told) or tokens_in <= 0 or tokens_out < 0:
            return None
        over_in, over_out = tokens_in - size[1], tokens_out - size[2]
        if max(over_in, over_out) > ABSURD:
            raise ServerDown(
                f"{self.settings.base_url} reported {tokens_in:,} tokens in and {tokens_out:,} out for a request of "
                f"{size[1]:,} bytes and at most {size[2]:,} tokens out; such a server cannot be kept within a budget, "
                "so the run stops"
            )
        with self._lock:
            self._largest = (max(self._largest[0], over_in), max(self._largest[1], over_out))
            if self._meter is None:
                self.overhead = self._largest
        return (size[0], tokens_in, tokens_out), "told"

    def _count(self, used: Used, how: str, metered: bool) -> None:
        """Add a request to the usage."""
        calls, tokens_in, tokens_out = used
        answered = how in ("told", "untold")
        with self._lock:
            if answered or (how == "lost" and not metered):
                self._usage.calls += 1
                self._usage.tokens_in += tokens_in
                self._usage.tokens_out += tokens_out
            if not metered:
                before = self._unmetered
                self._unmetered = (before[0] + calls, before[1] + tokens_in, before[2] + tokens_out)
                self._all_told &= how in ("told", "refused")
        if answered:
            mine = getattr(self._mine, "took", (0, 0))
            self._mine.took = (mine[0] + tokens_in, mine[1] + tokens_out)

    def _refusal(self, response: Response) -> tuple[str, float | None]:
        """The message of a refusal and the requested wait; an error if retrying is useless."""
        # Truncate after redacting, so that no part of a key is shown.
        said = self.redact(response.body.decode("utf-8", "replace")).strip()[:400]
        reason, server = f"the server answered {response.status}: {said}", self.settings.base_url
        if response.status in (401, 403):
            variable = self.settings.key_env
            given = f"the key in the environment variable {variable}"
            state = given if self._secret.key else f"no key ({variable} is not set)"
            raise ModelError(f"{server} refuses '{self.model}' with {state}: {reason}")
        words = said.lower()
        # "This is a chat model ... did you mean v1/chat/completions": the model exists, but not at this path.
        elsewhere = "chat model" in words or "chat/completions" in words
        if response.status in (404, 405) and "model" in words and not elsewhere:
            raise ModelError(f"{server} has no model '{self.model}': {reason}")
        if 300 <= response.status < 400:
            raise ModelError(f"{server} redirects to another address: set remote.base_url to that address")
        if response.status == 402 or "insufficient_quota" in said:
            raise ServerDown(f"the account at {server} has no credit left; top it up and resume: {reason}")
        return reason, seconds_of(response.retry_after)

    def _wait_for_turn(self) -> None:
        """Wait for the rate limit and any pause that the server asked for; fail at once if the circuit is open."""
        if self._halt.is_set():
            raise _Halted
        with self._lock:
            if self._unanswered >= self.give_up_after:
                raise ServerDown(self._down("it did not answer"))
            now = self._clock()
            turn = max(now, self._next_send)
            self._next_send = turn + self._gap
        self._pause(turn - now)

    def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the run's time limit."""
        left = None if self._meter is None else self._meter.seconds_left()
        ends = left is not None and (left <= 0 or left < seconds)
        if ends:
            seconds = max(0.0, left or 0.0)
        if seconds > 0:
            self._sleep(seconds)
        if ends:
            raise BudgetSpent("the minutes of the budget are used up")

    def _rest(self, seconds: float) -> None:
        """Sleep, unless answers are no longer needed."""
        if self._halt.wait(seconds):
            raise _Halted

    def _back_off(self, tries: int, asked: float | None) -> None:
        """Wait before a retry: as long as the server asked for, or with exponential backoff and jitter."""
        longest = self.longest_wait
        if asked is None:
            self._pause(min(longest, FIRST_WAIT * 2 ** (min(tries, 30) - 1)) * (0.5 + self._random.random() / 2))
            return
        with self._lock:  # the server is busy: all threads wait
            self._next_send = max(self._next_send, self._clock() + min(asked, longest))

    def _give_up(self, reason: str) -> None:
        """A request failed after all retries: a failure of its example, or the end of the run if the server is down.

        This is checked at once: otherwise the first requests without an answer would be recorded as failures of their
        examples, and a resumed run would differ from an uninterrupted one.
        """
        gone = not self._connections.alive()
        with self._lock:
            self._unanswered = self.give_up_after if gone else self._unanswered + 1
            if self._unanswered >= self.give_up_after:
                raise ServerDown(self._down(reason)) from None
        raise BadAnswer(reason) from None

    def _down(self, reason: str) -> str:
        server = self.settings.base_url
        return f"{server} does not answer requests ({reason}); try again, or resume the run, when it is up again"


def size_of(text: str) -> int:
    """The maximum number of tokens of a text: a token has at least one byte."""
    return len(text.encode(errors="replace"))


def open_client(name: str, settings: RemoteSettings) -> RemoteClient:
    """A client for 'remote:<model name>'."""
    model = name.removeprefix(REMOTE).strip()
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


def texts_of(answer: dict[str, Any], *path: str) -> list[str]:
    """The texts at this path of each choice of an answer; BadAnswer if there is none."""
    found = answer.get("choices")
    texts = [dig(choice, *path) for choice in found] if isinstance(found, list) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise BadAnswer("the answer has no text")
    return texts
