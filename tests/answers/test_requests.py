"""The requests of a run: every one is counted, whatever becomes of it, and no reply is paid for twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remote_servers import cut, hang_up, raw, refuse, reply, said, serving

from pinprompt.answers.budget import Amounts, Budget
from pinprompt.answers.log import Log
from pinprompt.answers.requests import Requests
from pinprompt.errors import BudgetSpent, RunError, ServerDown
from pinprompt.files import seal
from pinprompt.recipe.sections import BudgetSettings, Price
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import BadAnswer, RemoteClient
from pinprompt.remote.http import NoAnswer, Response

PRICES = {"small": Price(input=3.0, output=15.0)}


def session(path: Path, url: str, budget: Budget | None = None, **more: Any) -> tuple[RemoteClient, Requests]:
    """A client that records its requests in a run's file, as a session of the run has it."""
    requests = Requests(Log(path, "one"), budget or Budget(BudgetSettings(prices=PRICES)))
    requests.restore()
    requests.budget.metered = True
    given = {"base_url": url, "timeout": 900, "concurrency": 4, **more}
    client = RemoteClient(RemoteSettings(**given), "small", sleep=lambda seconds: None)
    client.attach(requests)
    return client, requests


def ask(client: RemoteClient, text: str) -> str:
    def send() -> str:
        answer = client.complete(text, 5)
        return str(answer["choices"][0]["message"]["content"])

    return client.once(["question", text], send, lambda value: isinstance(value, str))


def test_an_answer_is_asked_for_once_in_a_run(tmp_path: Path) -> None:
    with serving(lambda n, p, body: reply(said(body["prompt"].upper(), tokens=(7, 3)))) as server:
        client, requests = session(tmp_path / "requests.jsonl", server.url)
        assert client.each(lambda text: ask(client, text), ["a", "b", "c"]) == ["A", "B", "C"]
        assert ask(client, "a") == "A"
        requests.log.close()
        again, later = session(tmp_path / "requests.jsonl", server.url)
        assert ask(again, "b") == "B"
        assert ask(again, "d") == "D"
        assert Counter(body["prompt"] for _, body, _ in server.seen) == Counter("abcd")
    # What was known counts for its prompt's bill as if it had been asked for now; what is paid counts once.
    usage = client.take()
    assert (usage.tokens_in, usage.tokens_out) == (28, 12)
    assert again.take().tokens_in == 14
    assert later.budget.sent == Amounts(4, 28, 12, later.budget.price("small", 28, 12))
    assert later.lost == later.untold == 0


@pytest.mark.parametrize("action", [cut, hang_up, raw(b"<html>")])
def test_requests_without_an_answer_are_counted_at_their_most(tmp_path: Path, action: Any) -> None:
    with serving(lambda n, *_: action if n < 2 else reply(said("hi", tokens=(7, 3)))) as server:
        client, requests = session(tmp_path / "requests.jsonl", server.url)
        client.resends = 2
        assert ask(client, "four") == "hi"
        assert requests.budget.sent.calls == len(server.seen) == 3
    assert requests.lost == 2
    assert requests.budget.sent.tokens_out == 5 + 5 + 3
    assert requests.budget.sent.tokens_in >= 4 + 4 + 7
    assert client.take().tokens_in == 7  # the prompt's bill is that of its answer
    assert session(tmp_path / "requests.jsonl", server.url)[1].budget.sent == requests.budget.sent


def test_what_the_server_refuses_is_not_counted(tmp_path: Path) -> None:
    with serving(lambda n, *_: refuse(503) if n < 3 else reply(said("hi"))) as server:
        client, requests = session(tmp_path / "requests.jsonl", server.url)
        ask(client, "x")
    assert requests.budget.sent.calls == 1
    assert requests.budget.flying == Amounts()


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 12}])
def test_a_server_that_tells_no_usage_is_counted_by_us(tmp_path: Path, usage: Any) -> None:
    with serving(lambda *_: reply({**said("hi"), "usage": usage})) as server:
        client, requests = session(tmp_path / "requests.jsonl", server.url)
        ask(client, "one two three")
    assert requests.untold == 1
    assert requests.budget.sent.tokens_in >= len("one two three")
    assert requests.budget.sent.tokens_out == 5
    assert requests.budget.paid() > 0


def test_what_a_killed_process_left_on_its_way_counts_at_its_most(tmp_path: Path) -> None:
    first = session(tmp_path / "requests.jsonl", "http://127.0.0.1:9/v1")[1]
    number = first.sending("small", 1, 100, 5)
    first.sending("small", 2, 30, 10)
    first.ended(number, 1, 60, 1)
    first.log.close()
    later = session(tmp_path / "requests.jsonl", "http://127.0.0.1:9/v1")[1]
    assert later.budget.sent == Amounts(3, 90, 11, later.budget.price("small", 90, 11))
    assert later.lost == 2
    assert later.sending("small", 1, 1, 1) == 2


def test_questions_before_the_run_are_counted_in_it(tmp_path: Path) -> None:
    requests = Requests(Log(tmp_path / "requests.jsonl"), Budget(BudgetSettings()))
    with serving(lambda *_: reply(said("hi", tokens=(7, 3)))) as server:
        client = RemoteClient(RemoteSettings(base_url=server.url), "small")
        client.complete("probe", 1)
        client.attach(requests)
        client.complete("row", 1)
    assert requests.budget.sent == Amounts(2, 14, 6)


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"kind": "took"},
        {"kind": "send", "number": 0, "most": [-1, 0, 0]},
        {"kind": "send", "number": 0, "most": [1, 0]},
        {"kind": "took", "number": 0, "took": [1, "many", 0], "how": "told"},
        {"kind": "reply", "key": "x"},
    ],
)
def test_a_line_that_cannot_be_gives_a_clear_error(tmp_path: Path, line: dict[str, Any]) -> None:
    (tmp_path / "requests.jsonl").write_bytes(seal(line, "one") + b"\n")
    with pytest.raises(RunError, match=r"requests\.jsonl cannot be read"):
        session(tmp_path / "requests.jsonl", "http://127.0.0.1:9/v1")


def test_an_answer_that_does_not_fit_is_asked_for_again(tmp_path: Path) -> None:
    with serving(lambda *_: reply(said("hi"))) as server:
        client, _ = session(tmp_path / "requests.jsonl", server.url)
        ask(client, "x")
        assert client.once(["question", "x"], lambda: 7, lambda value: isinstance(value, int)) == 7


def test_minutes_end_waiting_and_sending(tmp_path: Path) -> None:
    now = [0.0]
    budget = Budget(BudgetSettings(minutes=1), clock=lambda: now[0])
    budget.start()
    with serving(lambda *_: refuse(429, Retry_After="3600")) as server:
        client, requests = session(tmp_path / "requests.jsonl", server.url, budget)
        client.longest_wait = 7200
        client._sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)
        with pytest.raises(BudgetSpent, match="minutes"):
            ask(client, "x")
        assert now == [60.0]
        assert len(server.seen) == 1
        with pytest.raises(BudgetSpent, match="minutes"):
            ask(client, "y")
        assert len(server.seen) == 1
        requests.limited = False  # a report is made whatever the clock says
        server.script = lambda *_: reply(said("hi"))
        assert ask(client, "z") == "hi"


def test_too_many_lost_answers_stop_the_run(tmp_path: Path) -> None:
    budget = Budget(BudgetSettings(total_calls=10))
    with serving(lambda n, *_: cut if n % 2 else reply(said("hi"))) as server:
        client, _ = session(tmp_path / "requests.jsonl", server.url, budget)
        for number in range(5):
            ask(client, str(number))
        with pytest.raises(ServerDown, match="10 calls in all is used up by 10 requests"):
            ask(client, "one more")
        assert len(server.seen) == budget.sent.calls == 10


class Wire:
    """A server without a wire: does by turns what a trace says, and keeps what it was asked and what it answered."""

    def __init__(self, trace: bytes) -> None:
        self.acts = iter(trace)
        self.billed = 0
        self.answered: Counter[str] = Counter()

    def post(self, path: str, body: dict[str, Any], fresh: bool = False) -> Response:
        act = next(self.acts, 0) % 8
        if act == 1:
            return Response(503, b"busy", None)
        if act == 2:
            raise NoAnswer("no connection", billed=False)
        self.billed += 1
        if act == 3:
            raise NoAnswer("cut", billed=True)
        if act == 4:
            raise NoAnswer("closed", billed=True, stale=True)
        if act == 5:
            raise Killed
        self.answered[body["prompt"]] += 1
        told = said(body["prompt"], tokens=(3, 1)) if act != 6 else {"choices": said(body["prompt"])["choices"]}
        return Response(200, json.dumps(told).encode(), None)

    def alive(self) -> bool:
        return True


class Killed(BaseException):
    """The process dies."""


@settings(max_examples=1000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(trace=st.binary(max_size=80))
def test_whatever_a_server_does_every_request_is_counted_and_no_answer_is_bought_twice(
    trace: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wire, path = Wire(trace), tmp_path_factory.mktemp("run") / "requests.jsonl"
    for _ in range(40):
        budget = Budget(BudgetSettings(total_calls=24))
        client, requests = session(path, "http://127.0.0.1:9/v1", budget, retries=1)
        client.give_up_after = 100
        client._connections = wire  # type: ignore[assignment]
        assert budget.sent.calls == wire.billed
        try:
            for number in range(12):
                try:
                    assert ask(client, f"text {number}") == f"text {number}"
                except BadAnswer:
                    continue
            break
        except (Killed, ServerDown):
            continue
        finally:
            requests.log.close()
    assert wire.billed == budget.sent.calls <= 24
    assert set(wire.answered.values()) <= {1}
