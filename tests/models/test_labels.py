"""Labels by models on this machine: equal to plain forward passes, whatever is shared, kept or read in parts."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from label_toys import TEXTS, WORDS, make

from pinprompt.errors import SettingError, TaskError
from pinprompt.models import labels as label_module
from pinprompt.models.continuations import WholePrompts
from pinprompt.models.label_text import Frame, window_of
from pinprompt.models.labels import DEPTH, CausalLabels, MaskedLabels
from pinprompt.models.passes import token_bytes

PROMPTS = [" It was", " It was truly", " It felt", " the answer is one word", " It was"]
FRAMES = [Frame("", prompt) for prompt in PROMPTS]


def plain(model: Any, tokenizer: Any, whole: str, words: list[str]) -> torch.Tensor:
    """Label probabilities of one string by the model's own forward, one word at a time, without any of our code."""
    logs = []
    for word in words:
        start = tokenizer(whole)["input_ids"]
        ids = start + tokenizer(" " + word, add_special_tokens=False)["input_ids"]
        every = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
        logs.append(sum(every[place - 1, ids[place]] for place in range(len(start), len(ids))))
    return torch.softmax(torch.stack(logs), -1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "gemma2"])
@pytest.mark.parametrize("keep", [True, False])
def test_equals_plain_forward(name: str, keep: bool) -> None:
    model, tokenizer = make(name)
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    answers = labels.log_probs(FRAMES, labels.prepare(TEXTS, keep=keep))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        for text, row in zip(TEXTS, answer, strict=True):
            assert torch.allclose(row.exp(), plain(model, tokenizer, text + prompt, list(WORDS.values())), atol=1e-4)


def test_soft_capped_attention_falls_back_to_whole_passes() -> None:
    model, tokenizer = make("gemma2")
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    inputs = labels.prepare(TEXTS, keep=True)
    labels.log_probs(FRAMES, inputs)
    assert inputs.reader is None


@pytest.mark.parametrize("keep", [True, False])
def test_words_of_several_tokens(keep: bool) -> None:
    model, tokenizer = make("llama")
    words = {"a": "great", "b": "awfully slow", "c": "unforgettable"}
    labels = CausalLabels(model, tokenizer, words, FRAMES[0])
    assert [len(ids) > 1 for ids in labels.words.ids] == [False, True, True]
    answer = labels.log_probs(FRAMES[:2], labels.prepare(TEXTS, keep=keep))[1]
    for text, row in zip(TEXTS, answer, strict=True):
        assert torch.allclose(row.exp(), plain(model, tokenizer, text + PROMPTS[1], list(words.values())), atol=1e-4)


@pytest.mark.parametrize("keep", [True, False])
def test_a_score_does_not_depend_on_its_batch(keep: bool) -> None:
    model, tokenizer = make("llama")
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0], tokens=64)
    inputs = labels.prepare(TEXTS, keep=keep)
    together = labels.log_probs(FRAMES, inputs)
    for frame, answer in reversed(list(zip(FRAMES, together, strict=True))):
        assert torch.equal(labels.log_probs([frame], inputs)[0], answer)


def test_prompts_are_read_in_as_many_passes_as_their_lengths_and_number_need() -> None:
    model, tokenizer = make("llama")
    rows = [tokenizer(text)["input_ids"] for text in TEXTS]
    paths = [
        (300, 301, 302, 303),
        (300, 302, 303, 304),
        (304,),
        (305, 306, 307, 308, 309),
        (300, 301, 302, 303),
        (5, 6, 7, 8),
    ]
    behind = WholePrompts(model, rows, 8, tokens=2 * 4 * len(rows), limit=1 << 30)
    assert (behind.groups(4), behind.groups(8)) == (2, 1)
    answers = behind.logits(paths, [5, 6, 7])
    assert behind.passes == 4  # two of four tokens (three prompts, two at a time), one of one token, one of five
    assert torch.equal(answers[0], answers[4])
    with pytest.raises(MemoryError):
        WholePrompts(model, rows, 8, tokens=64, limit=1000)


def test_texts_too_long_to_be_kept_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = make("llama")
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    # Room for two of the longest texts and their prompts, or for more of the short ones; never for all.
    limit = 2 * (max(map(len, ids)) + DEPTH) * token_bytes(model)
    monkeypatch.setattr(label_module, "SLOT_BYTES", limit)
    monkeypatch.setattr(label_module, "_parts", noted := Mock(side_effect=label_module._parts))
    whole = Mock(side_effect=CausalLabels._whole)
    monkeypatch.setattr(CausalLabels, "_whole", whole)
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    inputs = labels.prepare(TEXTS, keep=True)
    answers = labels.log_probs(FRAMES, inputs)
    assert inputs.reader is None
    assert noted.call_count == 1
    assert not whole.called
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        for text, row in zip(TEXTS, answer, strict=True):
            assert torch.allclose(row.exp(), plain(model, tokenizer, text + prompt, list(WORDS.values())), atol=1e-4)
    for frame, answer in reversed(list(zip(FRAMES, answers, strict=True))):
        assert torch.equal(labels.log_probs([frame], inputs)[0], answer)


def test_parts_have_at_most_the_given_number_of_tokens() -> None:
    heads = [[1] * size for size in (3, 5, 10, 300)]
    parts = list(label_module._parts([0, 1, 2, 3], heads, 2 * (5 + DEPTH)))
    assert parts == [[0, 1], [2], [3]]  # the last has more by itself
    assert list(label_module._parts([0, 1, 2, 3], heads, 4 * (300 + DEPTH))) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "opt", "roberta"])
def test_passes_side_by_side_give_the_same_bits(name: str, keep: bool) -> None:
    """Any number of threads, and any company, up to `WORKERS` threads."""
    model, tokenizer = make(name)
    kind: Any = MaskedLabels if name == "roberta" else CausalLabels
    frames = [Frame("", f"{prompt} <mask> .") for prompt in PROMPTS] if name == "roberta" else FRAMES
    labels = kind(model, tokenizer, WORDS, frames[0])
    texts = [f"{text} {number}" for number in range(40) for text in TEXTS]  # more than one batch
    found: list[list[torch.Tensor]] = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(labels.log_probs(frames, labels.prepare(texts, keep=keep)))
            assert torch.get_num_threads() == threads
            alone = labels.log_probs(frames[3:4], labels.prepare(texts, keep=keep))[0]
            assert torch.equal(alone, found[0][3])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
    assert not any(module._forward_hooks for module in model.modules())


def test_tokens_that_merge_at_a_seam_are_read_whole() -> None:
    model, tokenizer = make("gpt2")
    labels = CausalLabels(model, tokenizer, WORDS, Frame("", " it"))
    inputs = labels.prepare(["the stor", "a dra"], keep=True)
    frame = Frame("", "y")  # 'stor' + 'y' is one token, 'dra' + 'y' is not
    answer = labels.log_probs([frame], inputs)[0]
    assert inputs.reader is None
    for text, row in zip(inputs.texts, answer, strict=True):
        assert torch.allclose(row.exp(), plain(model, tokenizer, text + "y", list(WORDS.values())), atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_a_common_beginning_before_the_text_is_exact(name: str) -> None:
    model, tokenizer = make(name)
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    before = "in this task the answer is one word in this task the answer is great or terrible "
    answer = labels.log_probs([Frame(before, " It was")], labels.prepare(TEXTS))[0]
    for text, row in zip(TEXTS, answer, strict=True):
        expected = plain(model, tokenizer, before + text + " It was", list(WORDS.values()))
        assert torch.allclose(row.exp(), expected, atol=1e-4)


def test_a_long_text_is_cut_and_prompt_and_word_are_not() -> None:
    model, tokenizer = make("gpt2")
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    long = "the story felt good and " * 60
    inputs = labels.prepare([long, "bad"], keep=True)
    assert list(inputs.cut) == [0]
    rows, _ = labels.encoder.fit(FRAMES[3], inputs.texts)
    tail = tokenizer(PROMPTS[3])["input_ids"]
    assert all(row[-len(tail) :] == tail and len(row) <= 128 for row in rows)
    longer = Frame("", " It was great and good" * 18)  # leaves less room than was kept free
    rows, _ = labels.encoder.fit(longer, inputs.texts)
    tail = tokenizer(longer.after)["input_ids"]
    assert all(row[-len(tail) :] == tail and len(row) <= 128 for row in rows)
    with pytest.raises(TaskError, match="no text fits"):
        labels.encoder.fit(Frame("", " It was" * 100), ["bad"])


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"a": "great"}, "at least two"),
        ({"a": "great", "b": " "}, "'b' has no label word"),
        ({"a": "great", "b": "great"}, "the same word"),
    ],
)
def test_bad_words(words: dict[str, str], match: str) -> None:
    model, tokenizer = make("gpt2")
    with pytest.raises(SettingError, match=match):
        CausalLabels(model, tokenizer, words, FRAMES[0])


def test_smollm2() -> None:
    from pinprompt.models.loading import load_causal_lm

    model, tokenizer = load_causal_lm("smollm2")
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    assert tokenizer.convert_ids_to_tokens([ids[0] for ids in labels.words.ids]) == ["Ġterrible", "Ġgreat"]
    answer = labels.log_probs(FRAMES[:2], labels.prepare(TEXTS[:2], keep=True))[1]
    for text, row in zip(TEXTS[:2], answer, strict=True):
        assert torch.allclose(row.exp(), plain(model, tokenizer, text + PROMPTS[1], list(WORDS.values())), atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "gemma2"])
def test_texts_before_vectors_are_read_once_with_the_same_loss_and_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = make(name)
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    end = tokenizer(" so", add_special_tokens=False)["input_ids"]
    sides = [(tokenizer(text)["input_ids"], end if place % 2 else []) for place, text in enumerate(TEXTS)]
    start = model.get_input_embeddings().weight[[5, 9, 7]].detach()

    def answer() -> tuple[torch.Tensor, torch.Tensor]:
        vectors = start.clone().requires_grad_(True)
        logits = labels.vector_logits(vectors, sides, labels.words.firsts)
        (gradient,) = torch.autograd.grad(torch.log_softmax(logits, -1)[:, 0].sum(), vectors)
        return logits, gradient

    kept, again = answer(), answer()
    assert torch.equal(kept[1], again[1])
    assert bool(labels._pasts) == (name != "gemma2")  # soft-capped attention is read whole
    for place, (left, right) in enumerate(sides):
        embed = model.get_input_embeddings()
        row = torch.cat([embed(torch.tensor(left)), start, embed(torch.tensor(right, dtype=torch.long))])
        plainly = model(inputs_embeds=row[None]).logits[0, -1, list(labels.words.firsts)]
        assert torch.allclose(kept[0][place], plainly, atol=1e-4)
    monkeypatch.setattr(labels, "_keeps", lambda ids: False)
    assert torch.allclose(kept[1], answer()[1], atol=1e-4)


def test_texts_before_vectors_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = make("llama")
    labels = CausalLabels(model, tokenizer, WORDS, FRAMES[0])
    one = labels._past(tuple(tokenizer(TEXTS[0])["input_ids"]))
    monkeypatch.setattr("pinprompt.models.labels.PAST_BYTES", one.nbytes)
    sides = [(tokenizer(text)["input_ids"], []) for text in TEXTS]
    labels.vector_logits(one.new_zeros(2, model.config.hidden_size), sides, labels.words.firsts)
    assert len(labels._pasts) == 1


BEHIND = Frame("", " It was  .", ("after", len(" It was ")))
IN_FRONT = Frame(" news : ", "", ("before", 0))


def plain_in_mask(model: Any, tokenizer: Any, whole: str, ids: list[int]) -> torch.Tensor:
    given = tokenizer(whole, return_tensors="pt")
    place = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    logits = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).logits[0, place, ids]
    return torch.softmax(logits.float(), -1)


@pytest.mark.parametrize("name", ["roberta", "bert", "electra", "distilbert"])
@pytest.mark.parametrize("frame", [BEHIND, IN_FRONT], ids=["behind", "in front"])
def test_a_masked_model_equals_plain_forward(name: str, frame: Frame) -> None:
    model, tokenizer = make(name)
    labels = MaskedLabels(model, tokenizer, WORDS if frame is BEHIND else {"neg": "dull", "pos": "this"}, frame)
    assert labels.words.single
    answer = labels.log_probs([frame], labels.prepare(TEXTS))[0]
    ids = [ids[0] for ids in labels.words.ids]
    for text, row in zip(TEXTS, answer, strict=True):
        whole = frame.around(text, tokenizer.mask_token)[0]
        assert whole.count(tokenizer.mask_token) == 1
        assert torch.allclose(row.exp(), plain_in_mask(model, tokenizer, whole, ids), atol=1e-4)


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
