"""A cap that caps: whole runs against servers that die, cut, keep quiet about tokens, or let one wait."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import LIMIT, child, wait_until

from pinprompt.remote.client import RemoteClient
from tests.safety.remote_runs import (
    KEY_ENV,
    USAGE,
    Action,
    call,
    labelled,
    labeller,
    rewriter,
    server_at,
    styled,
    writer,
)

from remote_servers import cut, hang_up, refuse, reply, serving  # isort: skip
from pinprompt.recipe.task_sections import RemoteSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))


def asked(body: dict[str, Any]) -> str:
    """What a request asks, whoever asks it again."""
    return json.dumps({name: body[name] for name in ("prompt", "seed") if name in body})


@pytest.mark.parametrize("verb", ["classify", "restyle"])
def test_a_server_that_dies_every_few_answers_is_asked_nothing_twice(
    tmp_path: Path, lm_folder: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteClient, "give_up_after", 2)
    script = labeller if verb == "classify" else rewriter
    data = labelled(tmp_path) if verb == "classify" else styled(tmp_path)
    with serving(script) as server:
        port = server.server_address[1]
        command = [verb, *data, *writer(lm_folder), *server_at(server.url), "--no-memo"]
        command += ["--calls", 120, "--set", "budget.total_calls=1000", "--json", "--quiet"]
        whole = call(*command, "--out", tmp_path / "whole")
        assert whole.exit_code == 0, whole.output
        undisturbed = Counter(asked(body) for _, body, _ in server.seen)
    answered: Counter[str] = Counter()
    sessions = seen = 0
    done = None
    while done is None or done.exit_code != 0:
        count = 0

        def dying(number: int, path: str, body: dict[str, Any]) -> Action:
            nonlocal count
            with server.lock:
                count += 1
                last = count
            if last > 14:
                server.die()
                return hang_up
            if (path, "logprobs" in body) != ("/v1/completions", verb == "classify"):
                return refuse(404, "no such path")
            answered[asked(body)] += 1
            return script(number, path, body)

        with serving(dying, port) as server:
            done = call(*command, "--out", tmp_path / "run", "--resume")
        sessions, seen = sessions + 1, seen + len(server.seen)
        assert sessions < 40, done.output
    assert sessions > 3
    # Only the question at the start of a session, which finds out what the server can do, is asked more than once.
    twice = [question for question, times in answered.items() if times > 1]
    assert len(twice) == 1
    assert answered[twice[0]] == sessions
    assert set(answered) == set(undisturbed)
    result, before = json.loads(done.stdout), json.loads(whole.stdout)
    assert result["calls"] == before["calls"] <= 120
    # What was sent: all that the server saw, answered or not, and what was on its way to it when it died.
    samples, lost = 1 if verb == "classify" else 3, sessions * RemoteSettings().concurrency
    assert sum(answered.values()) * samples <= result["paid_calls"] <= (seen + lost) * samples
    for name in ("events.jsonl", "prompts.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_totals_are_what_the_server_saw(tmp_path: Path, lm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteClient, "resends", 2)
    lock, cuts = threading.Lock(), [0]

    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        with lock:
            if number % 7 == 3:
                cuts[0] += 1
                return cut
        return labeller(number, path, body)

    with serving(script) as server:
        sets = ["--set", "budget.prices={toy={input=2.0,output=10.0}}", "--set", "budget.total_calls=200"]
        run = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url), *sets]
        done = call(*run, "--calls", 60, "--out", tmp_path / "run")
        assert done.exit_code == 0, done.output
        sent = len(server.seen)
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    spent = result["spent"]
    assert spent["search"]["calls"] == result["calls"] <= 60
    assert spent["report"]["calls"] == result["report_calls"] > 0
    assert spent["sent"]["calls"] == result["paid_calls"] == sent
    assert spent["sent"]["lost"] == cuts[0] > 0
    assert spent["sent"]["untold"] == 0
    # Answers took what the server told; those that were cut count at their most, which is more.
    tokens = [USAGE["prompt_tokens"] * (sent - cuts[0]), USAGE["completion_tokens"] * (sent - cuts[0])]
    assert spent["sent"]["tokens_in"] > tokens[0]
    assert spent["money"] > (tokens[0] * 2.0 + tokens[1] * 10.0) / 1e6
    assert f"calls actually sent: {sent:,}, {cuts[0]} of them lost" in done.stdout.replace("\n", " ")
    assert "money" in done.stdout
    report = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert f"{sent:,}, {cuts[0]} of them lost" in report


def test_a_price_that_was_not_given_is_unknown(tmp_path: Path, lm_folder: Path) -> None:
    def quiet(number: int, path: str, body: dict[str, Any]) -> Action:
        def act(handler: Any, body: dict[str, Any]) -> None:
            told = json.loads(answer(labeller(number, path, body), body))
            told.pop("usage")
            reply(told)(handler, body)

        return act if path == "/v1/completions" and isinstance(body.get("logprobs"), int) else refuse(404, "no path")

    with serving(quiet) as server:
        run = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url)]
        figures = json.loads(call(*run, "--estimate", "--json", "--calls", 60).stdout)
        assert figures["money"] is None
        assert "unknown" in call(*run, "--estimate", "--calls", 60).stdout
        done = call(*run, "--calls", 60, "--out", tmp_path / "run")
        assert done.exit_code == 0, done.output
        sent = len(server.seen)
    spent = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))["spent"]
    assert spent["money"] is None
    assert spent["sent"]["untold"] == spent["sent"]["calls"] == sent
    assert spent["sent"]["tokens_in"] > sent
    assert "money: unknown" in done.stdout
    assert "unknown" in (tmp_path / "run" / "report.html").read_text("utf-8")


def answer(action: Action, body: dict[str, Any]) -> bytes:
    """What an action would send."""
    sent: list[bytes] = []

    class Catch:
        def send(self, data: bytes, *_: Any, **__: Any) -> None:
            sent.append(data)

    action(Catch(), body)  # type: ignore[arg-type]
    return sent[0]


@pytest.mark.parametrize("manner", ["it asks for an hour", "it never answers"])
def test_ctrl_c_ends_waiting_for_a_server(tmp_path: Path, lm_folder: Path, manner: str) -> None:
    """Each wait here is an hour, longer than the test waits for the end of the process."""
    held = threading.Event()

    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        if number < 10:  # more than are in flight at once, so that some are written down
            return labeller(number, path, body)
        if manner == "it asks for an hour":
            return refuse(429, Retry_After="3600")
        return hold

    def hold(handler: Any, body: dict[str, Any]) -> None:
        held.wait(2 * LIMIT)
        hang_up(handler, body)

    try:
        with serving(script) as server:
            patience = {"timeout": 3600, "retries": 5}
            words = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url, **patience)]
            command = [sys.executable, "-m", "pinprompt", *map(str, words), "--out", str(tmp_path / "run")]
            environment = {**os.environ, KEY_ENV: "none", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
            with child(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
                wait_until(lambda: len(server.seen) > 10, "it was let wait", process)
                process.send_signal(signal.SIGINT)
                _, told = process.communicate(timeout=LIMIT)
    finally:
        held.set()
    assert process.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in told
    lines = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text("utf-8").splitlines()]
    assert sum(line["kind"] == "reply" for line in lines) >= 1  # what came before is kept


SYSTEM = 5000
"""Tokens that a server adds to every request without being asked."""


def with_usage(extra: Callable[[int], int]) -> Any:
    """Answers as the labeller does, and bills more than was sent; what was billed is in `billed`."""
    billed: list[int] = []

    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        def act(handler: Any, body: dict[str, Any]) -> None:
            told = json.loads(answer(labeller(number, path, body), body))
            told["usage"] = {"prompt_tokens": 12 + extra(number), "completion_tokens": 1}
            with lock:
                billed.append(13 + extra(number))
            reply(told)(handler, body)

        return act if path == "/v1/completions" and isinstance(body.get("logprobs"), int) else refuse(404, "no path")

    lock = threading.Lock()
    return script, billed


@pytest.mark.parametrize("limit", ["tokens=60000", "money=0.05"])
def test_a_server_that_adds_a_long_system_prompt_stays_within_the_cap(
    tmp_path: Path, lm_folder: Path, limit: str
) -> None:
    script, billed = with_usage(lambda number: SYSTEM)
    with serving(script) as server:
        sets = ["--set", f"budget.{limit}", "--set", "budget.prices={toy={input=1.0,output=1.0}}"]
        run = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url, concurrency=8), *sets]
        done = call(*run, "--out", tmp_path / "run", "--json")
    assert sum(billed) <= (60_000 if "tokens" in limit else 50_000)
    assert done.exit_code in (0, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    if done.exit_code:
        assert "budget" in done.output


def test_a_price_that_changes_on_the_way_costs_at_most_the_requests_on_their_way(
    tmp_path: Path, lm_folder: Path
) -> None:
    """The bound of docs/remote.md: `remote.concurrency` requests at the difference."""
    script, billed = with_usage(lambda number: SYSTEM if number > 30 else 0)
    with serving(script) as server:
        run = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url, concurrency=4)]
        done = call(*run, "--set", "budget.tokens=9000", "--out", tmp_path / "run", "--json")
    assert sum(billed) <= 9000 + 4 * SYSTEM
    assert done.exit_code == 2, done.output
    assert "budget of 9,000 tokens" in json.loads(done.stdout)["error"]


def test_one_absurd_usage_report_stops_the_run_at_once(tmp_path: Path, lm_folder: Path) -> None:
    script, billed = with_usage(lambda number: 10**9 if number == 20 else 0)
    with serving(script) as server:
        run = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url, concurrency=4)]
        done = call(*run, "--set", "budget.tokens=900000", "--out", tmp_path / "run", "--json")
    assert done.exit_code == 2, done.output
    assert "reported 1,000,000,012 tokens" in json.loads(done.stdout)["error"]
    assert len(billed) <= 21 + 4


@pytest.mark.parametrize("useless", ["an error body", "not a number", "no label word", "no choices"])
def test_a_run_whose_first_answers_are_useless_stops_and_says_so(tmp_path: Path, lm_folder: Path, useless: str) -> None:
    bodies = {
        "an error body": {"error": {"message": "overloaded"}},
        "not a number": {"choices": [{"logprobs": {"top_logprobs": [{" great": math.nan, " terrible": math.nan}]}}]},
        "no label word": {"choices": [{"logprobs": {"top_logprobs": [{" xyz": -0.1}]}}]},
        "no choices": {"choices": []},
    }

    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        if path != "/v1/completions" or "opposite" in body["prompt"] or number < 3:  # the probe, and two good answers
            return labeller(number, path, body)
        return reply({**bodies[useless], "usage": USAGE})

    with serving(script) as server:
        run = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url), "--out", tmp_path / "run"]
        done = call(*run, "--calls", 400, "--json")
        assert done.exit_code == 2, done.output
        assert "of the first" in json.loads(done.stdout)["error"]
        assert "cannot be used" in done.stderr
        paid = len(server.seen)
        assert paid < 40
        assert "cannot be used" in (tmp_path / "run" / "report.html").read_text("utf-8")
        again = call(*run, "--calls", 400, "--resume")  # nothing of it is paid for again, but for the probe
        assert again.exit_code == 2
        assert len(server.seen) == paid + 1


def test_a_useless_answer_is_paid_for_once_whenever_the_run_is_killed(tmp_path: Path, lm_folder: Path) -> None:
    """Killed in the middle of a prompt, whose answers are not in the table yet."""
    texts: Counter[str] = Counter()
    held, full = threading.Event(), threading.Event()

    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        if path != "/v1/completions" or "opposite" in body["prompt"]:
            return labeller(number, path, body)
        texts[body["prompt"]] += 1
        if sum(texts.values()) == 5 and not held.is_set():
            return hold
        return reply({"choices": [], "usage": USAGE}) if "bad" in body["prompt"] else labeller(number, path, body)

    def hold(handler: Any, body: dict[str, Any]) -> None:
        full.set()
        held.wait(LIMIT)
        hang_up(handler, body)

    lines = [f"a {'bad' if n % 3 == 0 else 'fine'} text {n},{n % 2}" for n in range(12)]
    data = labelled(tmp_path)
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n", "utf-8")
    with serving(script) as server:
        run = ["classify", *data, *writer(lm_folder), *server_at(server.url, concurrency=1), "--calls", "100"]
        run = [*map(str, run), "--out", str(tmp_path / "run"), "--no-memo", "--resume"]
        environment = {**os.environ, KEY_ENV: "none", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        with child([sys.executable, "-m", "pinprompt", *run], env=environment) as process:
            wait_until(full.is_set, "four answers", process)
            process.kill()
            process.wait(LIMIT)
        held.set()
        before = Counter(texts)
        useless = [prompt for prompt in before if "bad" in prompt]
        assert useless
        done = call(*run)
        assert done.exit_code == 0, done.output
    assert [texts[prompt] for prompt in useless] == [1] * len(useless)
