"""Answers of local chat models: those of `generate`, whatever is asked beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from style_toys import causal_lm, tokenizer

from pinprompt.models.chat import Chat, Messages

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} . {% endfor %}assistant"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE


def chat_model(template: str | None = TEMPLATE, **more: Any) -> Chat:
    spoken = tokenizer()
    spoken.chat_template = template
    return Chat(causal_lm("llama"), spoken, **{"max_new_tokens": 6, "batch": 4, **more})


def chats(*texts: str) -> list[Messages]:
    return [[{"role": "system", "content": "the food"}, {"role": "user", "content": text}] for text in texts]


def generated(model: Chat, messages: Messages, most: int) -> torch.Tensor:
    """What the model's own `generate` says."""
    ids = torch.tensor([model.ids(messages)])
    seen = torch.ones_like(ids)
    said = model.model.generate(ids, attention_mask=seen, max_new_tokens=most, do_sample=False, pad_token_id=0)
    return said[0, ids.shape[1] :]


TEXTS = ("the food was bad", "great", "bad bad food", "it was great food and it was bad")


def test_answers_are_those_of_greedy_generation() -> None:
    model = chat_model()
    for reply, messages in zip(model.answers(chats(*TEXTS)), chats(*TEXTS), strict=True):
        said = generated(model, messages, 6)
        assert reply.text == model.tokenizer.decode(said, skip_special_tokens=True).strip()
        assert not reply.failure


def test_an_answer_depends_on_its_chat_alone() -> None:
    together = chat_model().answers(chats(*TEXTS))
    assert together == [chat_model().answers([one])[0] for one in chats(*TEXTS)]
    assert together[::-1] == chat_model(batch=4).answers(chats(*TEXTS[::-1]))


def test_sharing_the_beginning_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = chat_model()
    answers = shared.answers(chats(*TEXTS))
    assert len(shared._prefixes) == 1
    monkeypatch.setattr(Chat, "_shared", lambda self, messages, ids: 0)
    assert chat_model().answers(chats(*TEXTS)) == answers


def test_a_chat_that_is_too_long_is_a_failure_and_the_others_are_answered() -> None:
    model = chat_model()
    first, second = model.answers(chats("great " * 10_000, "great"))
    assert "does not fit" in first.failure
    assert not second.failure


def test_an_answer_that_did_not_end_is_marked() -> None:
    model = chat_model(max_new_tokens=2)
    for reply, messages in zip(model.answers(chats(*TEXTS)), chats(*TEXTS), strict=True):
        assert reply.cut == (not any(model.ends(int(token)) for token in generated(model, messages, 2)))


def test_a_template_without_a_system_role_gets_its_words_before_the_text() -> None:
    [messages] = chats("great")
    assert chat_model(NO_SYSTEM).rendered(messages) == "user the food\n\ngreat . assistant"


def test_without_a_template_the_answer_is_one_line() -> None:
    model = chat_model(None)
    [messages] = chats("great")
    assert model.ids(messages) == model.encode("the food\n\ngreat\n\nAnswer:")
    assert all("\n" not in reply.text for reply in model.answers(chats(*TEXTS)))


def test_drawn_answers_are_those_of_their_seeds() -> None:
    model = chat_model()
    first = model.drawn(chats(*TEXTS), [1, 2, 3, 4])
    assert first == model.drawn(chats(*TEXTS), [1, 2, 3, 4])
    assert first[1] == model.drawn(chats(TEXTS[1]), [2])[0]
    assert len({model.drawn(chats("great"), [seed])[0].text for seed in range(20)}) > 1
