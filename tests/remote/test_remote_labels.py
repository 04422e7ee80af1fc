"""Labels from servers that tell much, little or nothing, and the way that is chosen for each."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_servers import Action, raw, refuse, reply, said, serving

from pinprompt.errors import ModelError, SettingError
from pinprompt.models.label_text import Frame
from pinprompt.recipe.task_sections import RemoteSettings, is_remote
from pinprompt.remote.client import RemoteClient, open_client
from pinprompt.remote.labels import CERTAINTY, RemoteClassifier, dig
from pinprompt.tasks.prompts import parse

WORDS = {"0": "terrible", "1": "great"}
FRAME = Frame("", " It was", None)


def classify(url: str, **more: Any) -> RemoteClassifier:
    values = {"base_url": url, "timeout": 900.0, "retries": 0, **more}
    client = RemoteClient(RemoteSettings(**values), "small", sleep=lambda _: None)
    client.resends = 0
    return RemoteClassifier(client, WORDS)


def completion(tops: dict[str, float]) -> dict[str, Any]:
    usage = {"prompt_tokens": 6, "completion_tokens": 1}
    return {"choices": [{"text": " x", "logprobs": {"top_logprobs": [tops]}}], "usage": usage}


def chat_tops(tops: dict[str, float]) -> dict[str, Any]:
    entries = [{"token": token, "logprob": value} for token, value in tops.items()]
    answer = said("x")
    answer["choices"][0]["logprobs"] = {"content": [{"token": "x", "top_logprobs": entries}]}
    return answer


def like(text: str) -> dict[str, float]:
    """A model's next tokens: 'great' after good texts, else 'terrible'."""
    good, bad = (0.6, 0.2) if "good" in text else (0.1, 0.4)
    return {" great": math.log(good), " terr": math.log(bad), " the": math.log(0.15)}


def test_completions_are_asked_like_a_local_model() -> None:
    with serving(lambda n, path, body: reply(completion(like(body["prompt"])))) as server:
        model = classify(server.url)
        assert model.way == "completions"
        assert "log-probabilities of the label words in completions" in model.notes[0]
        inputs = model.prepare(["a good film.", "a bad film."])
        logs, failures, tokens = model.answers(FRAME, inputs)
        assert np.exp(logs) == pytest.approx(np.array([[0.25, 0.75], [0.8, 0.2]]))
        asked = {body["prompt"] for _, body, _ in server.seen[1:]}
        assert asked == {"a good film. It was", "a bad film. It was"}
        assert all(body["max_tokens"] == 1 and body["logprobs"] == 200 for _, body, _ in server.seen)
        assert (failures, tokens) == ({}, (12, 2))
        most_in, most_out = model.most_tokens(FRAME, inputs)
        assert most_in >= 12
        assert most_out == 2


def test_a_server_that_gives_five_at_the_most_is_asked_for_five() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return refuse(400, "logprobs must be at most 5") if body["logprobs"] > 5 else reply(completion(like("good")))

    with serving(script) as server:
        model = classify(server.url)
        assert model.way == "completions"
        model.answers(FRAME, model.prepare(["x"]))
        assert [body["logprobs"] for _, body, _ in server.seen] == [200, 20, 5, 5]


def test_chats_with_log_probabilities() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        if path.endswith("/v1/completions"):
            return refuse(404, "not here")
        assert body["top_logprobs"] == 200
        return reply(chat_tops({"Great": math.log(0.5), "Terr": math.log(0.25), "GREAT": math.log(0.125)}))

    with serving(script) as server:
        model = classify(server.url)
        assert model.way == "chat"
        logs, _, _ = model.answers(FRAME, model.prepare(["x"]))
        assert np.exp(logs[0]) == pytest.approx([0.25 / 0.875, 0.625 / 0.875])
        (message,) = server.seen[-1][1]["messages"]
        question = "Which of these labels fits the text: terrible or great? Answer with the label only."
        assert message == {"role": "user", "content": f"x It was\n\n{question}"}


def test_in_a_chat_the_prompt_is_the_system_message_or_is_where_its_template_says() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return refuse(404, "not here") if path.endswith("/v1/completions") else reply(said("Pricey"))

    names = {"0": "cheap", "1": "pricey"}
    with serving(script) as server:
        client = RemoteClient(RemoteSettings(base_url=server.url, retries=0), "small", sleep=lambda _: None)
        model = RemoteClassifier(client, WORDS, names=names)
        default = parse(model.template or "", "causal")
        for template in (default, parse("{prompt} {text}", "causal"), parse("{text} {prompt}", "causal")):
            logs, _, _ = model.answers(template.frame("Judge the price."), model.prepare(["9 euros"]))
            assert logs[0].argmax() == 1  # a chat is asked for the names of the labels, not for the label words
    question = "\n\nWhich of these labels fits the text: cheap or pricey? Answer with the label only."
    assert [body["messages"] for _, body, _ in server.seen[-3:]] == [
        [{"role": "system", "content": "Judge the price."}, {"role": "user", "content": "9 euros" + question}],
        [{"role": "user", "content": "Judge the price. 9 euros" + question}],
        [{"role": "user", "content": "9 euros Judge the price." + question}],
    ]


def constrained(n: int, path: str, body: dict[str, Any]) -> Action:
    if "response_format" in body:
        enum = body["response_format"]["json_schema"]["schema"]["properties"]["label"]["enum"]
        return reply(said(json.dumps({"label": enum[1]})))
    return reply(said("I would say it is not terrible but great"))


def test_constrained_answers() -> None:
    with serving(constrained) as server:
        model = classify(server.url)
        assert model.way == "constrained"
        logs, _, _ = model.answers(FRAME, model.prepare(["x"]))
        assert np.exp(logs[0]) == pytest.approx([1 - CERTAINTY, CERTAINTY])


def test_parsed_answers_and_what_cannot_be_parsed() -> None:
    texts = {"a": "Great!", "b": "It is greater than that", "c": "terrible, or great", "d": ""}

    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        if path.endswith("/v1/completions"):
            return refuse(404, "not here")
        return reply(said(texts.get(body["messages"][0]["content"][0], "great")))

    with serving(script) as server:
        model = classify(server.url)
        assert model.way == "parsed"
        assert "free-text answers" in model.notes[0]
        logs, failures, _ = model.answers(FRAME, model.prepare(list(texts)))
        assert np.exp(logs) == pytest.approx(np.array([[0.01, 0.99], [0.5, 0.5], [0.99, 0.01], [0.5, 0.5]]))
        assert list(failures) == [1, 3]
        assert "It is greater" in failures[1]


def test_a_server_that_talks_past_the_probe_is_still_parsed() -> None:
    with serving(lambda *_: reply(said("Sure, let me think about that"))) as server:
        assert classify(server.url).way == "parsed"


def test_the_kind_of_answers_can_be_chosen() -> None:
    with serving(constrained) as server:
        assert classify(server.url, answers="parsed").way == "parsed"
        with pytest.raises(ModelError, match="gave no usable answer for 'small': completions: "):
            classify(server.url, answers="completions")


@pytest.mark.parametrize("action", [raw(b"{}"), refuse(400, "what?"), reply({"choices": [{"message": None}]})])
def test_a_server_without_usable_answers_gives_an_error_message(action: Action) -> None:
    with serving(lambda *_: action) as server, pytest.raises(ModelError, match="gave no usable answer"):
        classify(server.url)


def test_one_malformed_answer_is_one_examples_failure() -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        text = body["prompt"]
        return raw(b'{"choices": ') if "broken" in text else reply(completion(like(text)))

    with serving(script) as server:
        model = classify(server.url)
        logs, failures, _ = model.answers(FRAME, model.prepare(["good", "broken", "bad"]))
        assert logs.argmax(1).tolist()[::2] == [1, 0]
        assert np.exp(logs[1]) == pytest.approx([0.5, 0.5])
        assert list(failures) == [1]
        assert "not JSON" in failures[1]
        assert "broken It was" in failures[1]


def test_words_that_cannot_be_distinguished_are_refused() -> None:
    client = RemoteClient(RemoteSettings(), "small")
    for words in ({"0": "Good", "1": " good"}, {"0": "a", "1": " "}):
        with pytest.raises(SettingError, match="must differ"):
            RemoteClassifier(client, words)


def test_the_revision_names_server_model_and_way() -> None:
    with serving(constrained) as server:
        first, second = classify(server.url), classify(server.url, answers="parsed")
        assert server.url in first.revision
        assert "small" in first.revision
        assert first.revision != second.revision


def test_names() -> None:
    assert is_remote("remote:gpt-x")
    assert not is_remote("gpt-x")
    assert open_client("remote: org/gpt-x", RemoteSettings()).model == "org/gpt-x"
    for name in ("gpt-x", "remote:", "remote: "):
        with pytest.raises(SettingError, match="remote:<model name>"):
            open_client(name, RemoteSettings())
    with serving(constrained) as server:
        model = RemoteClassifier(open_client("remote:small", RemoteSettings(base_url=server.url)), WORDS)
        assert model.billed == "small"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.text(max_size=5) | st.sampled_from([" great", "t"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "logprobs", "top_logprobs", "text", "token", "logprob", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    answer=st.dictionaries(st.sampled_from(["choices", "usage"]), JSON),
    way=st.sampled_from(["completions", "chat", "constrained", "parsed"]),
)
def test_any_json_is_a_row_of_probabilities_or_a_failure(answer: dict[str, Any], way: str) -> None:
    client = RemoteClient(RemoteSettings(), "small")
    client._ask = lambda *_: answer  # type: ignore[method-assign]
    model = RemoteClassifier.__new__(RemoteClassifier)
    model.client, model.way, model._top = client, way, 20
    model._use(WORDS)
    logs, failures, _ = model.answers(FRAME, model.prepare(["x"]))
    assert np.exp(logs).sum() == pytest.approx(1.0)
    assert not failures or np.exp(logs[0]) == pytest.approx([0.5, 0.5])


def test_dig() -> None:
    assert dig({"a": [1, {"b": 2}]}, "a", 1, "b") == 2
    for path in (("a", 5), ("b",), ("a", "b"), (0,), ("a", 0, 0)):
        assert dig({"a": [1]}, *path) is None


def test_the_classification_task_takes_it_for_a_local_model() -> None:
    from pinprompt.data.examples import Example
    from pinprompt.recipe.task_sections import ClassificationSettings
    from pinprompt.tasks.classification import ClassificationTask
    from pinprompt.tasks.labelled_data import LabelledData
    from pinprompt.tasks.prompts import parse
    from pinprompt.tasks.protocol import hand_written, split_rows
    from pinprompt.values import Prompt

    rows = [Example("a good film.", "1", 1), Example("a bad film.", "0", 2), Example("good, they say.", "0", 3)]
    data = LabelledData({"train": rows, "dev": rows[:2]}, WORDS, None, ())
    with serving(lambda n, path, body: reply(completion(like(body["prompt"])))) as server:
        model = classify(server.url)
        template = parse("{text} {prompt}", "causal")
        task = ClassificationTask(
            ClassificationSettings(reward="accuracy"),
            data,
            template,
            model,  # type: ignore[arg-type]
            model.revision,
        )
        train, dev = split_rows(task, "train"), split_rows(task, "dev")
        [answers] = task.ask([Prompt("It was")], train)
        assert task.values(answers, train).mean() == pytest.approx(2 / 3)
        assert answers.tokens == (18, 3)
        [answers] = task.ask([Prompt("It was")], dev)
        assert task.metrics(answers, dev).metrics["accuracy"] == 1.0
        assert "default" in hand_written(task)
        assert server.seen[-1][1]["prompt"].endswith("It was")
