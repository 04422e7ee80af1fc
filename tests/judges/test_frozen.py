"""Frozen judges: vectors of a text alone, alignment and BERTScore worked by hand, classifiers by name, and fluency."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from style_toys import SOURCE, TARGET, causal_lm, encoder, save, tokenizer

from pinprompt.errors import SettingError
from pinprompt.judges.frozen import (
    Acceptability,
    Alignment,
    BertScore,
    Classifier,
    Encoder,
    LanguageModel,
    PerplexityFluency,
    Remembered,
    baseline_of,
)
from pinprompt.models.loading import load_encoder
from pinprompt.models.passes import passes

TEXTS = ["the food was good", "we hate it", "", "very nice", "they love the very very nice place and it is good ."]


def test_passes_have_a_fixed_shape_and_hold_every_text_once() -> None:
    texts = [[5] * n for n in (1, 3, 9, 17, 8, 20, 0, 2, 2, 2)]
    seen: list[int] = []
    for places, ids, mask in passes(texts, batch=3, window=20, pad=1):
        assert ids.shape[0] == 3
        assert ids.shape == mask.shape
        assert ids.shape[1] in (8, 16, 20)
        for row, place in enumerate(places):
            assert ids[row].tolist()[: len(texts[place])] == texts[place]
            assert mask[row].sum() == max(1, len(texts[place]))
        seen += places
    assert sorted(seen) == list(range(10))


def test_vectors_are_the_models_own_without_special_tokens() -> None:
    model, tok = encoder(), tokenizer(wrap=True)
    found = Encoder(model, tok).tokens(["the food was good"])[0]
    with torch.no_grad():
        states = model(
            **{k: v for k, v in tok("the food was good", return_tensors="pt").items() if k != "token_type_ids"}
        )
    expected = torch.nn.functional.normalize(states.last_hidden_state[0, 1:-1], dim=-1).numpy()
    assert found.shape == (4, 32)
    assert np.allclose(found, expected, atol=1e-5)


def test_a_text_does_not_depend_on_its_batch() -> None:
    model, tok = encoder(), tokenizer(wrap=True)
    together = Encoder(model, tok, batch=4).tokens(TEXTS)
    for text, vectors in zip(TEXTS, together, strict=True):
        alone = Encoder(model, tok, batch=4).tokens([text])[0]
        assert alone.tobytes() == vectors.tobytes()


def test_an_empty_text_has_no_tokens_and_a_long_one_is_cut() -> None:
    made = Encoder(encoder(), tokenizer(wrap=True))
    empty, long = made.tokens(["", "very " * 500])
    assert empty.shape == (0, 32)
    assert 0 < len(long) < 64
    assert np.all(made.pooled([""]) == 0)


def test_another_layer_and_a_decoder_can_be_read(tmp_path: Path) -> None:
    last, first = (Encoder(encoder(), tokenizer(wrap=True), layer=layer).pooled(["very nice"]) for layer in (-1, 1))
    assert not np.allclose(last, first)
    folder = save(tmp_path / "lm", causal_lm())
    assert Encoder(*load_encoder(folder)).tokens(["very nice place"])[0].shape == (3, 32)


def test_the_number_of_cached_texts_is_limited() -> None:
    made = Encoder(encoder(), tokenizer(wrap=True), keep=2)
    first = made.tokens(["very nice"])[0]
    assert made.tokens(["very nice"])[0] is first
    made.tokens(["we", "they"])
    assert made.tokens(["very nice"])[0] is not first


class _Known:
    """Stands in for an encoder: each word is a vector that is given."""

    name = "known"
    vectors = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (0.6, 0.8), "d": (-1.0, 0.0)}  # noqa: RUF012

    def tokens(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([self.vectors[word] for word in text.split()]).reshape(-1, 2) for text in texts]


def test_alignment_by_hand() -> None:
    judge = Alignment(_Known())  # type: ignore[arg-type]
    # Text "c" against source "a b": c's best is 0.8; a finds 0.6, b finds 0.8. F1(0.8, 0.7) = 1.12 / 1.5.
    # "d" against "a": the cosine -1 counts as nothing.
    assert judge(["a b", "a", "a b", "a", ""], ["c", "d", "a b", "", "a"]) == pytest.approx([1.12 / 1.5, 0, 1, 0, 0])


def test_bertscore_by_hand() -> None:
    # Text "a d" against source "a": precision (1 - 1) / 2 = 0, so F is 0; "c" against "a" is 0.6, rescaled by 0.2: 0.5.
    assert BertScore(_Known(), 0.2)(["a", "a", "a"], ["a d", "c", "a"]) == pytest.approx([0, 0.5, 1])  # type: ignore[arg-type]
    # Text "c a" against "a b": precision (0.8 + 1) / 2, recall (1 + 0.8) / 2.
    assert BertScore(_Known())(["a b"], ["c a"]) == pytest.approx([0.9])  # type: ignore[arg-type]
    # Below the baseline is 0, not less.
    assert BertScore(_Known(), 0.7)(["a"], ["c"]) == [0.0]  # type: ignore[arg-type]


def test_the_baseline_is_what_different_texts_score() -> None:
    texts = ["a " * n + "b" for n in range(1, 13)]
    # Every pair has all its words in both texts: F is 1 whichever pairs are drawn.
    assert baseline_of(_Known(), texts, seed=0) == pytest.approx(1)  # type: ignore[arg-type]
    assert baseline_of(_Known(), ["a", "b"], seed=0) == 0.0  # type: ignore[arg-type]


def test_a_question_is_asked_once_until_memory_is_full() -> None:
    asked: list[str] = []
    judge = Remembered[str, float](lambda new: asked.extend(new) or [len(text) for text in new], most=3)
    assert judge(["aa", "b", "aa"]) == [2, 1, 2]
    assert judge(["b", "ccc"]) == [1, 3]
    assert asked == ["aa", "b", "ccc"]
    assert judge(["dddd", "b"]) == [4, 1]
    assert asked == ["aa", "b", "ccc", "dddd", "b"]


def test_probabilities_are_the_models_own(classifier: Classifier) -> None:
    texts = ["the food was bad", "we love it", "", "very " * 200]
    found = classifier.probabilities(texts)
    for text, row in zip(texts[:3], found, strict=False):
        inputs = classifier.tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            expected = torch.softmax(classifier.model(**inputs).logits[0], -1).numpy()
        assert np.allclose(row, expected, atol=1e-5)
    assert np.allclose(found.sum(1), 1)
    assert np.array_equal(classifier.probabilities(texts[1:2]), found[1:2])


def test_a_label_is_found_by_name_and_by_number(classifier: Classifier) -> None:
    assert [classifier.place(label) for label in ("Positive", "LABEL_1", "1", "negative")] == [1, 1, 1, 0]
    with pytest.raises(SettingError, match="did you mean 'positive'"):
        classifier.place("positif")


def test_likelihoods_are_the_language_models_own() -> None:
    model, tok = causal_lm("gpt2"), tokenizer()
    lm = LanguageModel(model, tok, batch=4)
    texts = ["the food was good .", "nice", ""]
    found = lm.nll(texts)
    for text, (total, count) in zip(texts[:2], found, strict=False):
        ids = tok(text)["input_ids"]
        with torch.no_grad():
            loss = model(torch.tensor([[2, *ids]]), labels=torch.tensor([[-100, *ids]])).loss
        assert count == len(ids)
        assert total / count == pytest.approx(float(loss), abs=1e-4)
    assert found[2] == (0.0, 0)
    assert lm.perplexities(texts)[2] == math.inf


def test_fluent_means_within_the_ninetieth_percentile_of_perplexity() -> None:
    lm = LanguageModel(causal_lm("gpt2"), tokenizer())
    texts = SOURCE[:10]
    judge = PerplexityFluency.calibrated(lm, texts)
    assert sum(judge(texts)) == 9
    assert judge([""]) == [0.0]
    assert PerplexityFluency.calibrated(lm, [""])(["nice"]) == [0.0]


def test_acceptability_is_the_likeliest_label(classifier: Classifier) -> None:
    texts = [*SOURCE[:5], *TARGET[:5], ""]
    expected = [float(row[0] > row[1]) for row in classifier.probabilities(texts)]
    assert Acceptability(classifier, "0")(texts) == [*expected[:-1], 0.0]
    with pytest.raises(SettingError, match="no label"):
        Acceptability(classifier, "fluent")
