"""The client against servers that refuse, drip, cut, flood and lie; and the key, which must never be seen."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import time
import traceback
from email.utils import formatdate
from typing import Any

import pytest
from children import LIMIT, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from remote_servers import Action, cut, drip, flood, hang_up, raw, refuse, reply, said, serving

from pinprompt.errors import BudgetSpent, ModelError, PinpromptError, ServerDown, SettingError
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import OVERHEAD, BadAnswer, RemoteClient
from pinprompt.remote.http import NoAnswer, Response, loopback, seconds_of
from pinprompt.remote.secret import Secret

CANARY = "sk-canary-7f3a9b"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]


class Naps:
    """Sleeps that take no time, on a clock of their own."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteClient, "max_bytes", 100_000)
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")


def client(url: str, naps: Naps | None = None, resends: int = 1, **more: Any) -> RemoteClient:
    naps = naps or Naps()
    values = {"base_url": url, "key_env": "CANARY_KEY", "timeout": LIMIT, "concurrency": 4, **more}
    made = RemoteClient(RemoteSettings(**values), "small", sleep=naps.sleep, clock=naps.clock)
    made.resends = resends
    return made


def test_an_answer_and_its_tokens() -> None:
    with serving(lambda *_: reply(said("hi", tokens=(7, 3)))) as server:
        asked = client(server.url)
        for _ in range(3):
            assert asked.chat(MESSAGES, 5, temperature=0)["choices"][0]["message"]["content"] == "hi"
        path, body, headers = server.seen[0]
        assert path == "/v1/chat/completions"
        assert body == {"model": "small", "max_tokens": 5, "messages": MESSAGES, "temperature": 0}
        assert headers["Authorization"] == f"Bearer {CANARY}"
        usage = asked.take()
        assert (usage.calls, usage.tokens_in, usage.tokens_out) == (3, 21, 9)
        assert asked.take().calls == 0


def test_without_a_key_no_header_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_KEY")
    with serving(lambda *_: reply(said("hi"))) as server:
        client(server.url).complete("x", 1)
        assert "Authorization" not in server.seen[0][2]
        assert server.seen[0][0] == "/v1/completions"


def test_retry_after_is_honoured() -> None:
    naps = Naps()
    with serving(lambda n, *_: refuse(429, Retry_After="7") if n < 2 else reply(said("hi"))) as server:
        client(server.url, naps).chat(MESSAGES, 5)
        assert len(server.seen) == 3
    assert naps.taken == [7.0, 7.0]


def test_a_very_long_wait_is_cut_short() -> None:
    naps = Naps()
    with serving(lambda n, *_: refuse(429, Retry_After="99999") if n < 1 else reply(said("hi"))) as server:
        client(server.url, naps).chat(MESSAGES, 5)
    assert naps.taken == [120.0]


def test_back_off_doubles_with_jitter_and_is_the_same_again() -> None:
    waits = []
    for _ in range(2):
        naps = Naps()
        with serving(lambda n, *_: refuse(500 + n) if n < 4 else reply(said("hi"))) as server:
            client(server.url, naps).chat(MESSAGES, 5)
        waits.append(naps.taken)
    assert waits[0] == waits[1]
    for wait, most in zip(waits[0], [0.5, 1, 2, 4], strict=True):
        assert most / 2 <= wait <= most
    assert len({wait / most for wait, most in zip(waits[0], [0.5, 1, 2, 4], strict=True)}) == 4


def test_the_rate_is_kept() -> None:
    naps = Naps()
    with serving(lambda *_: reply(said("hi"))) as server:
        asked = client(server.url, naps, requests_per_minute=30)
        for _ in range(4):
            asked.chat(MESSAGES, 5)
    first, *rest = naps.taken
    assert 0 < first < 2.0, "workers that share a rate do not all begin at once"
    assert rest == [2.0, 2.0, 2.0]


class Watch:
    """A meter that only knows how much time is left."""

    def __init__(self, naps: Naps, until: float) -> None:
        self.naps, self.until = naps, until

    def sending(self, *_: Any) -> int:
        return 1

    def ended(self, *_: Any) -> None:
        """Nothing is kept."""

    def seconds_left(self) -> float:
        return self.until - self.naps.now


@pytest.mark.parametrize("headers", [{"Retry_After": "60"}, {}])
def test_no_wait_is_longer_than_the_minutes_of_the_budget(headers: dict[str, str]) -> None:
    naps = Naps()
    with serving(lambda *_: refuse(429, **headers)) as server:
        asked = client(server.url, naps, retries=100)
        asked.attach(Watch(naps, naps.now + 20))  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(BudgetSpent, match="minutes of the budget are used up"):
                asked.chat(MESSAGES, 5)
    assert sum(naps.taken) == pytest.approx(20)


def test_concurrency_has_a_limit_and_answers_are_in_order() -> None:
    lock, together = threading.Lock(), threading.Barrier(3)
    inside: set[int] = set()
    crowds: list[int] = []

    def script(number: int, path: str, body: dict[str, Any]) -> Any:
        def act(handler: Any, body: dict[str, Any]) -> None:
            with lock:
                inside.add(number)
                crowds.append(len(inside))
            if 0 < number < 4:
                together.wait(LIMIT)  # until three are here at once, after the first, which is alone
            time.sleep(random.random() / 20)  # so that answers overtake each other
            with lock:
                inside.remove(number)
            handler.send(f'{{"choices": [{{"text": "{body["prompt"]}"}}]}}'.encode())

        return act

    with serving(script) as server:
        asked = client(server.url, concurrency=3)
        answers = asked.each(lambda n: asked.complete(str(n), 1)["choices"][0]["text"], range(20))
        assert answers == [str(n) for n in range(20)]
        assert max(crowds) == 3


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (cut, "no complete HTTP answer.*message body"),
        (hang_up, "no complete HTTP answer.*without sending a response"),
        (drip, "within 0.6 seconds"),
        (raw(b"<html>"), "not JSON"),
        (raw(b"[1, 2]"), "not a JSON object"),
        (raw(b"\xff\xfe"), "not JSON"),
        (raw(b"[" * 90_000), "not JSON"),
        (raw(b'{"a": "' + b"x" * 150_000 + b'"}'), "larger than 0.1 MB"),
    ],
)
def test_an_answer_that_may_have_been_billed_is_sent_again_once_and_counted(action: Any, words: str) -> None:
    with serving(lambda *_: action) as server:
        asked = client(server.url, timeout=0.6 if action is drip else LIMIT)
        with pytest.raises(BadAnswer, match=words):
            asked.chat(MESSAGES, 5)
        assert len(server.seen) == 2
        usage = asked.take()
    assert usage.calls == 2
    assert usage.tokens_out == 10
    assert usage.tokens_in >= 2 * len("Hello")


@pytest.mark.parametrize("status", [200, 500])
def test_a_response_that_is_too_large_is_not_read(status: int) -> None:
    stopped: list[int] = []
    with serving(lambda *_: flood(status, stopped)) as server, pytest.raises(BadAnswer, match="larger than"):
        client(server.url, resends=0).chat(MESSAGES, 5)
    wait_until(lambda: stopped, "the server noticed that the client hung up")
    assert stopped[0] < 20_000_000  # what fits into the sockets' buffers, not what the server would send


def test_a_cut_answer_is_followed_by_a_good_one() -> None:
    with serving(lambda n, *_: cut if n == 0 else reply(said("hi"))) as server:
        assert client(server.url).chat(MESSAGES, 5) == said("hi")


def test_an_idle_connection_that_the_server_closed_is_no_failure() -> None:
    def act(handler: Any, body: dict[str, Any]) -> None:
        reply(said("hi"))(handler, body)
        handler.close_connection = True  # without saying so

    with serving(lambda *_: act) as server:
        asked = client(server.url, resends=0, retries=0)
        for number in range(3):
            asked.chat(MESSAGES, 5)
            wait_until(lambda number=number: server.closed > number, "the server closed the connection")
        assert asked.take().calls == 3


def test_a_dead_server_opens_the_circuit() -> None:
    with serving(lambda *_: reply(said("hi"))) as server:
        url = server.url
    asked = client(url, retries=1)
    # At once: no example is booked as failed because nobody was there.
    with pytest.raises(ServerDown, match=r"does not answer requests \(no connection.*resume"):
        asked.chat(MESSAGES, 5)
    with pytest.raises(ServerDown):
        asked.each(lambda _: asked.chat(MESSAGES, 5), range(5))
    assert asked.take().tokens_in == 0  # nothing was sent, nothing is charged


def test_a_server_that_is_there_and_answers_nothing_opens_the_circuit() -> None:
    with serving(lambda *_: refuse(500)) as server:
        asked = client(server.url, retries=1)
        for _ in range(2):
            with pytest.raises(BadAnswer, match="500"):
                asked.chat(MESSAGES, 5)
        with pytest.raises(ServerDown, match=r"does not answer requests.*500.*resume"):
            asked.chat(MESSAGES, 5)
        sent = len(server.seen)
        with pytest.raises(ServerDown):
            asked.chat(MESSAGES, 5)
        assert len(server.seen) == sent


def test_an_answer_closes_the_circuit_again() -> None:
    with serving(lambda n, *_: reply(said("hi")) if n % 5 == 4 else refuse(503)) as server:
        asked = client(server.url, retries=1)
        for _ in range(4):
            for _ in range(2):
                with pytest.raises(BadAnswer, match="503"):
                    asked.chat(MESSAGES, 5)
            asked.chat(MESSAGES, 5)


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        (
            refuse(401, f"bad key {CANARY}"),
            ModelError,
            "refuses 'small' with the key in the environment variable CANARY_KEY",
        ),
        (refuse(403), ModelError, "refuses"),
        (refuse(404, "The model `small` does not exist"), ModelError, "has no model 'small'"),
        (refuse(307, Location="http://127.0.0.1:1/"), ModelError, "redirects"),
        (refuse(402), ServerDown, "no credit left"),
        (refuse(429, '{"code": "insufficient_quota"}'), ServerDown, "no credit left"),
    ],
)
def test_errors_that_are_not_retried(action: Any, kind: type[PinpromptError], words: str) -> None:
    with serving(lambda *_: action) as server:
        with pytest.raises(kind, match=words) as caught:
            client(server.url).chat(MESSAGES, 5)
        assert len(server.seen) == 1
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_refused_request_is_that_examples_failure() -> None:
    with serving(lambda *_: refuse(400, f"too long, {CANARY}")) as server:
        asked = client(server.url)
        with pytest.raises(BadAnswer, match=r"400: too long, \*\*\*"):
            asked.chat(MESSAGES, 5)
        assert len(server.seen) == 1
        assert asked.take().tokens_in == 0


def test_newer_models_want_another_name_for_the_limit() -> None:
    def script(number: int, path: str, body: dict[str, Any]) -> Any:
        if "max_tokens" in body:
            return refuse(400, "Unsupported parameter: use 'max_completion_tokens' instead.")
        return reply(said("hi"))

    with serving(script) as server:
        asked = client(server.url)
        asked.chat(MESSAGES, 5)
        asked.chat(MESSAGES, 5)
        assert [("max_tokens" in body) for _, body, _ in server.seen] == [True, False, False]
        asked = client(server.url)
        assert asked.each(lambda _: asked.chat(MESSAGES, 5), range(2)) == [said("hi")] * 2


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": -5, "completion_tokens": "x"}, [1], {"prompt_tokens": True}]
)
def test_odd_usage_counts_as_the_worst_case(usage: Any) -> None:
    with serving(lambda *_: reply({"choices": [], "usage": usage})) as server:
        asked = client(server.url)
        asked.complete("four", 9)
        taken = asked.take()
        assert taken.tokens_out == 9
        assert 4 <= taken.tokens_in <= 4 + OVERHEAD


def test_one_request_at_a_time_until_an_answer_has_said_what_it_costs() -> None:
    crowd: list[int] = []

    def script(number: int, path: str, body: dict[str, Any]) -> Any:
        crowd.append(len(server.seen))
        return refuse(400, "not this one") if number < 2 else reply(said("hi"))

    def ask(number: int) -> str:
        try:
            return str(asked.chat(MESSAGES, 5))
        except BadAnswer as failure:
            return str(failure)

    with serving(script) as server:
        asked = client(server.url, concurrency=8)
        answers = asked.each(ask, range(10))
    assert crowd[:3] == [1, 2, 3]  # refusals say nothing about costs
    assert ["not this one" in one for one in answers] == [True] * 2 + [False] * 8


def test_the_largest_overhead_seen_is_the_worst_case() -> None:
    class Limits(Watch):
        def __init__(self) -> None:
            self.most: list[tuple[int, ...]] = []

        def sending(self, model: str, *most: int) -> int:
            self.most.append(most)
            return 0

        def seconds_left(self) -> None:
            return None

    overheads = [5000, 100, 7000, 0]
    with serving(lambda n, *_: reply(said("hi", tokens=(20 + overheads[n], 9 + n)))) as server:
        asked = client(server.url)
        asked.complete("x" * 20, 5)
        meter = Limits()
        asked.attach(meter)
        first = meter.most.pop()
        assert first[1:] == (5020, 9)
        for _ in range(3):
            asked.complete("x" * 20, 5)
    assert meter.most == [(1, 5020, 9), (1, 5020, 10), (1, 7020, 11)]
    assert asked.overhead == (5000, 4)  # what a run reserves does not change on the way


@pytest.mark.parametrize("tokens", [(10**6, 1), (10, 10**6), (10**39, 1)])
def test_an_absurd_usage_report_stops_at_once(tokens: tuple[int, int]) -> None:
    noticed = threading.Event()

    def script(number: int, *_: Any) -> Action:
        if number > 3:
            noticed.wait(LIMIT)  # until then the other thread could go on asking
        return reply(said("hi", tokens=tokens if number == 3 else (10, 2)))

    def ask(_: int) -> Any:
        try:
            return asked.chat(MESSAGES, 5)
        except ServerDown:
            noticed.set()
            raise

    with serving(script) as server:
        asked = client(server.url, concurrency=2)
        with pytest.raises(ServerDown, match=r"reported .*000 tokens.*|reported 10 tokens in and 1,000,000 out"):
            asked.each(ask, range(100))
        assert len(server.seen) <= 4 + 2


def test_numbers_of_four_hundred_digits_are_no_answer() -> None:
    body = b'{"choices": [{"logprobs": {"top_logprobs": [{" great": -' + b"9" * 400 + b"}]}}]}"
    with serving(lambda *_: raw(body)) as server, pytest.raises(BadAnswer, match="more than 40 digits"):
        client(server.url).complete("text", 1)


def test_no_output_contains_the_key(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    seen = []
    actions = [cut, hang_up, raw(CANARY.encode()), refuse(500, CANARY), refuse(400, CANARY), refuse(401, CANARY)]
    for action in actions:
        with serving(lambda *_, action=action: action) as server:  # type: ignore[misc]
            asked = client(server.url, retries=1)
            asked.fail(f"failed with {CANARY}")
            for _ in range(4):
                try:
                    asked.chat(MESSAGES, 5)
                except (BadAnswer, PinpromptError) as error:
                    seen += ["".join(traceback.TracebackException.from_exception(error).format()), repr(error)]
            seen += [repr(asked), str(asked.take()), repr(asked.settings), asked.settings.model_dump_json()]
            for keep in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot be copied"):
                    keep(asked)
    seen += list(capfd.readouterr())
    assert len(seen) > 40
    assert not [text for text in seen if CANARY in text]


def test_invalid_keys_are_refused_without_showing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for odd in ("two words", "line\nbreak-secret", "schlüssel-secret"):
        monkeypatch.setenv("CANARY_KEY", odd)
        with pytest.raises(SettingError, match="CANARY_KEY does not contain a valid key") as caught:
            client("http://127.0.0.1:9/v1")
        assert odd not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"base_url": "ftp://x/v1"},
        {"base_url": "http://"},
        {"base_url": "https://me:secret@host/v1"},
        {"base_url": "https://host/v1?key=secret"},
        {"base_url": "https://host/v1?"},
        {"base_url": "https://host/v1#secret"},
        {"key_env": "sk-secret-secret"},
        {"concurrency": 0},
        {"key": "sk-secret"},
    ],
)
def test_settings_hold_no_keys(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RemoteSettings(**values)


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost@evil.example/v1", "http://@evil.example/v1", "http://127.0.0.1:80@evil.example/v1",
        "http://localhost\\@evil.example/v1", "http://evil.example\\.localhost/v1", "http://[::1]evil.example/v1",
        "http://[::1%25eth0]/v1", "http://evil.example%2f.localhost/v1", "https://\u0430pple.example/v1",
        "http://\uff4cocalhost/v1", "http://127\u30020\u30020\u30021/v1", "https://e\u202evil.example/v1",
        "http://local\thost/v1", "http://lo calhost/v1", "http://localhost:99999/v1", "https://host/v1\x1b[2J",
        "https://host/v 1", "https://host/\r\nX-Key: y", "https://.example/v1", "https://host\u212a/v1",
    ],
)  # fmt: skip
def test_an_address_that_reads_like_another_is_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        RemoteSettings(base_url=address)


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:8000/v1", "HTTP://LOCALHOST/v1", "http://[::1]:8000/v1", "http://my_server:8000/v1",
        "https://xn--pple-43d.example/v1", "https://api.example.org./v1", "https://host/a/b-c/v1", "https://host",
        "https://host/deployments/m@2/v1",
    ],
)  # fmt: skip
def test_plain_addresses_are_taken_as_they_are(address: str) -> None:
    assert RemoteSettings(base_url=address).base_url == address


def test_only_this_machine_is_this_machine() -> None:
    for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1", "0:0:0:0:0:0:0:1"):
        assert loopback(host), host
    for host in (
        "localhost.example.org", "localhost.", "127.0.0.1.example.org", "127.1", "2130706433", "0x7f.1", "0", "0.0.0.0",
        "::", "::ffff:192.168.1.5", "192.168.1.5", "fe80::1", "xn--localhost-", "",
    ):  # fmt: skip
        assert not loopback(host), host


def test_the_key_is_not_sent_to_a_redirect() -> None:
    with serving(lambda *_: reply(said("hi"))) as other:
        for status in (301, 302, 303, 307, 308):
            with serving(lambda *_, status=status: refuse(status, Location=f"{other.url}/chat/completions")) as server:
                with pytest.raises(ModelError, match="redirects"):
                    client(server.url).chat(MESSAGES, 5)
                assert len(server.seen) == 1
        assert other.seen == []


def test_retry_after_in_all_its_forms() -> None:
    assert seconds_of("3") == 3
    assert seconds_of("0.5") == 0.5
    assert seconds_of("-4") == 0
    assert 20 < (seconds_of(formatdate(time.time() + 30, usegmt=True)) or 0) <= 30
    assert seconds_of(formatdate(time.time() - 30, usegmt=True)) == 0
    for odd in (None, "soon", "nan", "", "Mon, 99 Foo"):
        assert seconds_of(odd) is None


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_body_is_an_object_or_no_answer(body: bytes) -> None:
    try:
        assert isinstance(Response(200, body, None).json(Secret("")), dict)
    except NoAnswer as error:
        assert error.billed  # noqa: PT017
