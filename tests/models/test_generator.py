"""Sampling: the model's own distribution, whatever is sampled beside it, and no work past the cut."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from style_toys import VOCABULARY, causal_lm, tokenizer

from pinprompt.errors import ModelError, SettingError
from pinprompt.models import passes as slots_module
from pinprompt.models.generator import TEMPLATE, Generator, Request, filled, new_tokens, tidy
from pinprompt.models.loading import load_causal_lm
from pinprompt.models.passes import Slots, read

KINDS = ("llama", "gpt2", "opt")


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (' great food" and more', "great food"),
        (" great food. and more", "great food."),
        ("Great! Really. ", "Great!"),
        ("  no end in sight ", "no end in sight"),
        ('" nothing', ""),
        ("", ""),
        ("...", "."),
        ('is it? "no."', "is it?"),
    ],
)
def test_tidy_keeps_the_first_sentence_inside_the_quote(raw: str, kept: str) -> None:
    assert tidy(raw) == kept


def test_tidy_lowers_when_asked() -> None:
    assert tidy("The Food. X", lower=True) == "the food."


def test_new_tokens_are_limited_by_the_length_of_the_text() -> None:
    assert [new_tokens(n) for n in (1, 8, 20, 21, 30)] == [11, 18, 30, 31, 45]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_different_positions_match_the_plain_model(kind: str) -> None:
    model = causal_lm(kind)
    texts = [[4, 9, 12, 8, 15, 7], [10, 11], [20, 9, 9, 5], [13, 8, 17, 12, 9, 10, 11, 14, 15]]
    pasts = [read(model, ids[:-1])[0] for ids in texts]
    slots = Slots(model, 6, 16, pasts[0])
    for slot, past in zip((4, 0, 5, 2), pasts, strict=True):
        # In two parts, as a branch is: what is shared, and what is its own.
        slots.load(slot, past[:, :, :, :1], past[:, :, :, 1:])
    tokens, places = [0] * 6, [0] * 6
    for slot, ids in zip((4, 0, 5, 2), texts, strict=True):
        tokens[slot], places[slot] = ids[-1], len(ids) - 1
    given = slots.step(tokens, places)
    for slot, ids in zip((4, 0, 5, 2), texts, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, -1]
        assert torch.allclose(given[slot], expected, atol=2e-5)
    # One more token: the columns written by the last pass are the past of this one.
    again = slots.step([0, 0, 9, 0, 0, 0], [0, 0, len(texts[3]), 0, 0, 0])
    with torch.no_grad():
        expected = model(torch.tensor([[*texts[3], 9]])).logits[0, -1]
    assert torch.allclose(again[2], expected, atol=2e-5)
    assert model.config._attn_implementation != "pinprompt_slots"


def _enumerated(model: Any, tok: Any, text: str, top_k: int, steps: int, temperature: float) -> dict[str, float]:
    """The distribution of tidied outputs, by reading every possible continuation whole: no cache, no stopping."""
    start = tok(text)["input_ids"]
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(steps):
        longer: dict[tuple[int, ...], float] = {}
        for ids, chance in chances.items():
            if 3 in ids:
                longer[ids] = longer.get(ids, 0) + chance
                continue
            with torch.no_grad():
                logits = model(torch.tensor([[*start, *ids]])).logits[0, -1].double() / temperature
            values, tokens = logits.topk(top_k)
            for token, part in zip(tokens.tolist(), torch.softmax(values, 0).tolist(), strict=True):
                longer[(*ids, token)] = chance * part
        chances = longer
    texts: dict[str, float] = {}
    for ids, chance in chances.items():
        kept = tidy(tok.decode(list(ids), skip_special_tokens=True))
        texts[kept] = texts.get(kept, 0) + chance
    return texts


@pytest.mark.parametrize(("kind", "temperature"), [("llama", 1.0), ("gpt2", 1.7)])
def test_samples_have_the_enumerated_distribution(kind: str, temperature: float) -> None:
    model, tok = causal_lm(kind, seed=3), tokenizer()
    generator = Generator(model, tok, top_k=4, temperature=temperature, max_new_tokens=4, batch=8)
    expected = _enumerated(model, tok, generator.fill("good", "the food was bad"), 4, 4, temperature)
    count = 6000
    drawn = Counter(generator.sample([Request("good", "the food was bad", count, 11)])[0].texts)
    assert set(drawn) <= set(expected)
    frequent = [text for text, chance in expected.items() if chance * count >= 5]
    rare = 1 - sum(expected[text] for text in frequent)
    seen = [*(drawn[text] for text in frequent), count - sum(drawn[text] for text in frequent)]
    wanted = [*(expected[text] * count for text in frequent), rare * count]
    if wanted[-1] < 5:
        seen, wanted = seen[:-1], [value * sum(seen[:-1]) / sum(wanted[:-1]) for value in wanted[:-1]]
    assert len(frequent) >= 8
    assert chisquare(seen, wanted).pvalue > 1e-3


def test_samples_are_those_of_generate_and_tidy() -> None:
    model, tok = causal_lm("llama", seed=5), tokenizer()
    generator = Generator(model, tok, top_k=5, max_new_tokens=6, batch=8)
    count = 3000
    ours = Counter(generator.sample([Request("nice", "we hate the food", count, 2)])[0].texts)
    inputs = tok(generator.fill("nice", "we hate the food"), return_tensors="pt")
    inputs.pop("token_type_ids", None)
    torch.manual_seed(0)
    rows = model.generate(**inputs, do_sample=True, top_k=5, max_new_tokens=6, num_return_sequences=count)
    theirs = Counter(
        tidy(text) for text in tok.batch_decode(rows[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    )
    common = [text for text in ours if ours[text] + theirs[text] >= 10]
    table = [[one[text] for text in common] + [count - sum(one[text] for text in common)] for one in (ours, theirs)]
    columns = [column for column in zip(*table, strict=True) if sum(column) > 0]
    assert len(columns) >= 5
    assert chi2_contingency(np.array(columns).T).pvalue > 1e-3


def _requests() -> list[Request]:
    sources = ("the food was bad", "we hate it", "very very awful place , they hate the food")
    pairs = itertools.product(("good", "love the nice place", ""), sources)
    return [Request(prompt, source, 12, seed) for seed, (prompt, source) in enumerate(pairs)]


@pytest.mark.parametrize("kind", KINDS)
def test_grouping_changes_nothing(kind: str) -> None:
    generator = Generator(causal_lm(kind, seed=1), tokenizer(), batch=6)
    together = generator.sample(_requests())
    assert generator.sample(_requests()[::-1])[::-1] == together
    assert [generator.sample([request])[0] for request in _requests()] == together
    assert len({text for one in together for text in one.texts}) > 20


def test_a_sample_does_not_depend_on_how_many_are_drawn() -> None:
    generator = Generator(causal_lm(seed=1), tokenizer(), batch=6)
    few, many = (generator.sample([Request("good", "we hate it", count, 4)])[0].texts for count in (5, 40))
    assert many[:5] == few
    other = generator.sample([Request("good", "we hate it", 40, 5)])[0].texts
    assert other != many


class _Sayer:
    """A model that can only ever say one token."""

    def __new__(cls, word: str) -> Any:
        model = causal_lm("gpt2")
        plain = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            answer = plain(*args, **kwargs)
            answer.logits = answer.logits.clone()
            answer.logits[..., VOCABULARY.index(word)] += 1e4
            return answer

        model.forward = forward
        return model


def test_no_pass_is_spent_beyond_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    plain = Slots.step
    monkeypatch.setattr(slots_module.Slots, "step", lambda *given: passes.append(1) or plain(*given))
    silent = Generator(_Sayer('"'), tokenizer(), batch=4)
    passes.clear()
    assert silent.sample([Request("good", "we hate it", 9, 0)])[0].texts == ("",) * 9
    assert passes == []
    endless = Generator(_Sayer("very"), tokenizer(), batch=4, max_new_tokens=7)
    passes.clear()
    assert endless.sample([Request("good", "we hate it", 9, 0)])[0].texts == (" ".join(["very"] * 7),) * 9
    assert len(passes) == 6  # nine equal samples are one row; the first token comes from reading the text


def test_the_end_token_ends_a_text() -> None:
    assert Generator(_Sayer("[EOS]"), tokenizer()).sample([Request("good", "we hate it", 2, 0)])[0].texts == ("", "")


def test_a_text_that_does_not_fit_is_recorded_and_the_others_are_made() -> None:
    generator = Generator(causal_lm(places=64), tokenizer(), batch=4)
    long, short = generator.sample([Request("good", "very " * 60, 3, 0), Request("good", "we hate it", 3, 1)])
    assert long.texts == ("", "", "")
    assert long.failure is not None
    assert "64" in long.failure
    assert short.failure is None
    assert any(short.texts)


def test_quotes_and_braces_in_a_text_leave_the_template_whole() -> None:
    generator = Generator(causal_lm(), tokenizer())
    assert generator.fill("{prompt}", 'they "love" {text}') == '{prompt} "they \'love\' {text}" "'
    assert generator.sample([Request("{prompt}", '"""', 2, 0)])[0].failure is None


@pytest.mark.parametrize("template", [TEMPLATE, "{prompt}: {text} >"])
def test_a_prompt_may_say_where_the_text_goes(template: str) -> None:
    written = 'Before: "they \'love\' {prompt}" After: "'
    assert filled(template, "Before: {text} After:", 'they "love" {prompt}') == written
    assert Generator(causal_lm(), tokenizer(), template=template).fill("A {text} B", "c") == 'A "c" B "'


@pytest.mark.parametrize("template", ["{prompt}", "{text}", ""])
def test_a_template_without_its_parts_is_refused(template: str) -> None:
    with pytest.raises(SettingError, match="template"):
        Generator(causal_lm(), tokenizer(), template=template)


def test_a_model_without_keys_and_values_is_refused() -> None:
    with pytest.raises(ModelError, match="ordinary attention"):
        Generator(causal_lm("mamba"), tokenizer())


def test_broken_weights_are_an_error() -> None:
    model = causal_lm()
    generator = Generator(model, tokenizer())
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="not numbers"):
        generator.sample([Request("good", "we hate it", 2, 0)])


def test_grouping_changes_nothing_on_a_real_model() -> None:
    generator = Generator(*load_causal_lm("smollm2"), batch=4, max_new_tokens=5)
    sources = ("the food was bad.", "they never answer the phone, and the room was cold.")
    asked = [Request("Say it kindly:", source, 3, seed) for seed, source in enumerate(sources)]
    together = generator.sample(asked)
    assert [generator.sample([request])[0] for request in asked[::-1]][::-1] == together
    assert all(text and not set('".!?') & set(text[:-1]) for one in together for text in one.texts)


def test_local_attention_is_read_as_the_model_reads_it() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPTNeoConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, num_layers=2, num_heads=4, window_size=32, initializer_range=0.3,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=96, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    model, tok = transformers.GPTNeoForCausalLM(config).eval(), tokenizer()
    generator = Generator(model, tok, top_k=1, max_new_tokens=12)
    ids = tok(generator.fill("good", "we hate it"))["input_ids"]
    start = len(ids)
    for _ in range(12):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    expected = tidy(tok.decode(ids[start:], skip_special_tokens=True))
    assert generator.sample([Request("good", "we hate it", 1, 0)])[0].texts == (expected,)
    assert generator.window == 32
