"""Writing and judging behind an API."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from remote_servers import Action, cut, raw, refuse, reply, said, serving

from pinprompt.errors import ModelError, SettingError
from pinprompt.models.generator import Request
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import RemoteClient
from pinprompt.remote.generator import RemoteGenerator, RemoteJudge


def connect(url: str, resends: int = 0, **more: Any) -> RemoteClient:
    values = {"base_url": url, "timeout": 900.0, "retries": 0, **more}
    client = RemoteClient(RemoteSettings(**values), "small", sleep=lambda _: None)
    client.resends = resends
    return client


def choices(*texts: str) -> dict[str, Any]:
    return {"choices": [{"text": text} for text in texts], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}


def test_samples_come_in_order() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return reply(choices(*[f"{body['prompt'][0]}{number}" for number in range(body["n"])]))

    requests = [Request("a:", "short", 2, 1), Request("b:", "a longer text, with more room", 3, 2)]
    with serving(script) as server:
        generator = RemoteGenerator(connect(server.url), temperature=0.5)
        generator.probe(3)
        generator.take()
        probed = len(server.seen)
        assert [one.texts for one in generator.sample(requests)] == [("a0", "a1"), ("b0", "b1", "b2")]
        first, second = sorted((body for _, body, _ in server.seen[probed:]), key=lambda body: body["prompt"])
        assert first["max_tokens"] < second["max_tokens"]
        assert first["stop"] == ['"']
        assert first["temperature"] == 0.5
        assert "top_k" not in first
        assert generator.take().tokens_out == 8
        RemoteGenerator(connect(server.url, top_k=True), top_k=4).probe(1)
        assert server.seen[-1][1]["top_k"] == 4


def test_seeds_differ_and_are_the_same_again() -> None:
    with serving(lambda n, path, body: reply(choices(str(body["seed"])))) as server:
        generator = RemoteGenerator(connect(server.url))
        generator.probe(3)
        (made,) = generator.sample([Request("p", "t", 3, 5)])
        assert len(set(made.texts)) == 3
        assert all(0 <= int(text) < 2**31 for text in made.texts)
        assert generator.sample([Request("p", "t", 3, 5)]) == [made]


def test_failures_are_recorded_with_the_successes() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return {2: cut, 4: reply({})}.get(n, reply(choices("good.")))

    with serving(script) as server:
        generator = RemoteGenerator(connect(server.url, concurrency=1))
        generator.probe(2)
        first, second = generator.sample([Request("p", "t", 2, seed) for seed in (1, 2)])
    assert first.texts == second.texts == ("good.", "")
    assert "no complete HTTP answer" in (first.failure or "")
    assert second.failure == "the answer has no text"


def test_a_generator_rewrites_like_the_local_one() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return reply(choices(*[' The food was good. And more" said'] * body["n"]))

    with serving(script) as server:
        generator = RemoteGenerator(connect(server.url), lower=True)
        generator.probe(3)
        probed = len(server.seen)
        requests = [Request("Make it nice:", 'the "food" was bad', 3, seed) for seed in (1, 2)]
        made = generator.sample(requests)
        assert [one.texts for one in made] == [("the food was good.",) * 3] * 2
        assert made[0].failure is None
        assert server.seen[probed][1]["prompt"] == 'Make it nice: "the \'food\' was bad" "'
        assert len({body["seed"] for _, body, _ in server.seen[probed:]}) == 2
        assert generator.fits("short", 10)
        assert not generator.fits("long " * 4000, 10)
        assert generator.length("p", "t") >= len('p "t" "')


def test_a_generator_without_answers_raises_an_error() -> None:
    with serving(lambda *_: raw(b'{"choices": []}')) as server:
        (made,) = RemoteGenerator(connect(server.url)).sample([Request("p", "t", 2, 0)])
        assert made.texts == ("", "")
        assert made.failure
    with pytest.raises(SettingError, match=r"has no \{text\}"):
        RemoteGenerator(connect("http://127.0.0.1:9/v1"), template="{prompt}")


def test_a_judge_sees_the_picture() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        picture = body["messages"][0]["content"][1]["image_url"]["url"]
        prefix, data = picture.split(",")
        assert prefix == "data:image/jpeg;base64"
        return reply(said(json.dumps({"size": len(base64.b64decode(data))}), tokens=(90, 9)))

    with serving(script) as server:
        answer = RemoteJudge(connect(server.url)).ask_image("How large?", b"\xff" * 77, {"type": "object"})
        assert json.loads(answer.text) == {"size": 77}
        assert (answer.tokens_in, answer.tokens_out) == (90, 9)
        assert server.seen[0][1]["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_a_judge_without_schemas_is_asked_without_one() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return refuse(400, "response_format?") if "response_format" in body else reply(said("{}"))

    with serving(script) as server:
        judge = RemoteJudge(connect(server.url))
        assert [judge.ask_image("?", b"", {}).text for _ in range(2)] == ["{}", "{}"]
        assert len(server.seen) == 3
    with serving(lambda *_: refuse(400)) as server:
        assert RemoteJudge(connect(server.url)).ask_image("?", b"", {}).text == ""


def test_a_generator_finds_out_how_a_server_writes() -> None:
    def many(n: int, path: str, body: dict[str, Any]) -> Action:
        return reply(choices(*["good."] * body["n"]))

    def single(n: int, path: str, body: dict[str, Any]) -> Action:
        return reply(choices("good."))  # whatever was asked for

    def only_chats(n: int, path: str, body: dict[str, Any]) -> Action:
        if path == "/v1/completions":
            return refuse(404, '{"error": {"message": "This is a chat model. Did you mean v1/chat/completions?"}}')
        return refuse(400, "n must be 1") if body["n"] > 1 else reply(said("good."))

    for script, completes, several, words in (
        (many, True, True, "by completions, 4 samples per request"),
        (single, True, False, "by completions, one sample per request"),
        (only_chats, False, False, r"by chat answers \(the server has no completions\), one sample per request"),
    ):
        with serving(script) as server:
            generator = RemoteGenerator(connect(server.url))
            generator.probe(4)
            assert (generator.completes, generator.many) == (completes, several)
            assert re.search(words, generator.notes[0])
            assert "top_k = 10 is not sent" in generator.notes[1]
            probed = len(server.seen)
            made = generator.sample([Request("p", "t", 4, seed) for seed in (1, 2)])
            assert [one.texts for one in made] == [("good.",) * 4] * 2
            seeds = [body["seed"] for _, body, _ in server.seen[probed:]]
            assert len(seeds) == len(set(seeds)) == (2 if several else 8)
            again = len(server.seen)
            generator.sample([Request("p", "t", 4, seed) for seed in (1, 2)])
            assert sorted(body["seed"] for _, body, _ in server.seen[again:]) == sorted(seeds)
    with (
        serving(lambda *_: refuse(400, "go away")) as server,
        pytest.raises(ModelError, match=r"returned no text for 'small': the server answered 400: go away"),
    ):
        RemoteGenerator(connect(server.url)).probe(2)


@pytest.mark.parametrize("several", [True, False])
def test_sampling_stays_within_its_token_limit(several: bool) -> None:
    """Without a usage in the answer, with an answer that was cut: still within what was reserved."""

    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return cut if n == 1 else reply({"choices": [{"text": "good."}] * (body["n"] if several else 1)})

    with serving(script) as server:
        generator = RemoteGenerator(connect(server.url, resends=1))
        generator.probe(3)
        generator.take()
        generator.sample([Request("p", "some text", 3, 0)])
        usage = generator.take()
    most_in, most_out = generator.most_tokens("p", "some text", 3)
    assert 0 < usage.tokens_in <= most_in
    assert generator.limit("some text") * 3 <= usage.tokens_out <= most_out
