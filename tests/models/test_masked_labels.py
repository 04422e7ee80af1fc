"""Masked models of several families against their plain forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from label_toys import TEXTS, WORDS, make

from pinprompt.errors import SettingError
from pinprompt.models.label_text import Frame, window_of
from pinprompt.models.masked_labels import MaskedLabels

BEHIND = Frame("", " It was  .", ("after", len(" It was ")))
IN_FRONT = Frame(" news : ", "", ("before", 0))


def plain(model: Any, tokenizer: Any, whole: str, ids: list[int]) -> torch.Tensor:
    given = tokenizer(whole, return_tensors="pt")
    place = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    logits = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).logits[0, place, ids]
    return torch.softmax(logits.float(), -1)


@pytest.mark.parametrize("name", ["roberta", "bert", "electra", "distilbert"])
@pytest.mark.parametrize("frame", [BEHIND, IN_FRONT], ids=["behind", "in front"])
def test_equals_plain_forward(name: str, frame: Frame) -> None:
    model, tokenizer = make(name)
    labels = MaskedLabels(model, tokenizer, WORDS if frame is BEHIND else {"neg": "dull", "pos": "this"}, frame)
    assert labels.words.single
    answer = labels.log_probs([frame], labels.prepare(TEXTS))[0]
    ids = [ids[0] for ids in labels.words.ids]
    for text, row in zip(TEXTS, answer, strict=True):
        whole = frame.around(text, tokenizer.mask_token)[0]
        assert whole.count(tokenizer.mask_token) == 1
        assert torch.allclose(row.exp(), plain(model, tokenizer, whole, ids), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "frame", "spaced", "expected"),
    [
        ("roberta", BEHIND, None, ["Ġterrible", "Ġgreat"]),
        ("roberta", BEHIND, True, ["Ġterrible", "Ġgreat"]),
        ("bert", BEHIND, None, ["terrible", "great"]),
        ("bert", IN_FRONT, True, ["terrible", "great"]),
    ],
)
def test_words_as_the_tokenizer_family_writes_them(
    name: str, frame: Frame, spaced: bool | None, expected: list[str]
) -> None:
    model, tokenizer = make(name)
    labels = MaskedLabels(model, tokenizer, WORDS, frame, spaced=spaced)
    assert [tokenizer.convert_ids_to_tokens(list(ids)) for ids in labels.words.ids] == [[word] for word in expected]


def test_a_word_in_front_has_no_space() -> None:
    model, tokenizer = make("roberta")
    labels = MaskedLabels(model, tokenizer, {"0": "dull", "1": "this"}, IN_FRONT)
    assert [tokenizer.convert_ids_to_tokens(list(ids)) for ids in labels.words.ids] == [["dull"], ["this"]]


def test_words_of_several_tokens_take_as_many_masks() -> None:
    model, tokenizer = make("roberta")
    words = {"a": "great", "b": "unforgettable"}
    labels = MaskedLabels(model, tokenizer, words, BEHIND)
    count = len(labels.words.ids[1])
    assert count > 1
    answer = labels.log_probs([BEHIND], labels.prepare(TEXTS))[0]
    for text, row in zip(TEXTS, answer, strict=True):
        logs = []
        for ids in labels.words.ids:
            given = tokenizer(f"{text} It was {'<mask>' * len(ids)} .", return_tensors="pt")
            every = torch.log_softmax(model(**{k: given[k] for k in ("input_ids", "attention_mask")}).logits[0], -1)
            places = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
            assert len(places) == len(ids)
            logs.append(sum(every[place, token] for place, token in zip(places, ids, strict=True)))
        assert torch.allclose(row.exp(), torch.softmax(torch.stack(logs), -1), atol=1e-4)


def test_words_that_are_the_same_token() -> None:
    model, tokenizer = make("bert")
    with pytest.raises(SettingError, match="the same to the task model's tokenizer"):
        MaskedLabels(model, tokenizer, {"a": "great", "b": "Great"}, BEHIND)
    with pytest.raises(SettingError, match="unknown"):
        MaskedLabels(model, tokenizer, {"a": "great", "b": "日本"}, BEHIND)


def test_truncation_cuts_the_text_and_never_the_mask() -> None:
    model, tokenizer = make("roberta")
    assert window_of(model, tokenizer) == 64
    labels = MaskedLabels(model, tokenizer, WORDS, BEHIND)
    rows, _ = labels.encoder.fit(BEHIND, ["the story felt good " * 50], mask_token="<mask>")
    assert len(rows[0]) <= 64
    tail = tokenizer(" It was <mask> .")["input_ids"][1:]
    assert rows[0][-len(tail) :] == tail
    answer = labels.log_probs([BEHIND, IN_FRONT], labels.prepare(["the story felt good " * 50, "bad"]))
    assert all(bool(torch.isfinite(part).all()) for part in answer)


def test_the_templates_mask_is_read_where_a_text_holds_one_too() -> None:
    model, tokenizer = make("bert")
    labels = MaskedLabels(model, tokenizer, WORDS, BEHIND)
    answer = labels.log_probs([BEHIND], labels.prepare(["the [MASK] felt good"]))[0]
    given = tokenizer("the [MASK] felt good It was [MASK] .", return_tensors="pt")
    place = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[1].item()
    logits = model(given["input_ids"]).logits[0, place, [ids[0] for ids in labels.words.ids]]
    assert torch.allclose(answer[0].exp(), torch.softmax(logits, -1), atol=1e-4)


def test_the_head_is_left_as_it_was() -> None:
    model, tokenizer = make("roberta")
    ids = tokenizer("the story felt <mask>", return_tensors="pt")["input_ids"]
    before = model(ids).logits
    labels = MaskedLabels(model, tokenizer, WORDS, BEHIND)
    labels.log_probs([BEHIND], labels.prepare(TEXTS))
    assert torch.equal(model(ids).logits, before)
