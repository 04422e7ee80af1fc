"""Classifiers by name, the style judge that is trained here, and fluency."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from style_toys import causal_lm, encoder, save, tokenizer

from pinprompt.errors import DataError, SettingError
from pinprompt.judges.encoder import Encoder
from pinprompt.judges.fluency import Acceptability, LanguageModel, PerplexityFluency
from pinprompt.judges.style import Classifier, Embedding, NamedStyle, Together, Words, _regress, train_style
from pinprompt.models.loading import load_sequence_classifier

SOURCE = [
    f"the {thing} was {how} {word}"
    for thing in ("food", "place")
    for how in ("very", "a", "is")
    for word in ("bad", "awful", "hate")
]
TARGET = [text.replace("bad", "good").replace("awful", "nice").replace("hate", "love") for text in SOURCE]


@pytest.fixture
def classifier(tmp_path: Path) -> Classifier:
    folder = save(tmp_path / "judge", encoder(["negative", "positive"]), wrap=True)
    return Classifier(*load_sequence_classifier(folder), name="judge")


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


def test_a_named_style_judge_gives_the_labels_probability(classifier: Classifier) -> None:
    judge = NamedStyle(classifier, "positive")
    assert judge(["we love it", ""]) == [pytest.approx(classifier.probabilities(["we love it"])[0, 1]), 0.0]
    assert "positive" in judge.name
    assert judge.accuracy is None


@pytest.mark.learning
def test_a_judge_is_trained_that_tells_the_styles_apart() -> None:
    judge = train_style(SOURCE, TARGET, Words(), seed=1)
    assert judge.accuracy == 1.0
    assert "held-out accuracy 1.000" in judge.name
    bad, good, empty = judge(["it is awful", "it is nice", ""])
    assert bad < 0.5 < good
    assert empty == 0.0
    again = train_style(SOURCE, TARGET, Words(), seed=1)
    assert np.array_equal(again.weights, judge.weights)


@pytest.mark.learning
def test_features_stand_side_by_side() -> None:
    both = Together([Embedding(Encoder(encoder(), tokenizer(wrap=True), name="bert")), Words()])
    judge = train_style(SOURCE, TARGET, both, seed=1)
    assert both.name == "bert + words"
    assert len(judge.weights) > 32
    assert judge.accuracy is not None
    assert judge.accuracy >= 0.7


@pytest.mark.learning
def test_styles_that_cannot_be_told_apart_are_refused_with_the_accuracy() -> None:
    with pytest.raises(SettingError, match=r"accuracy on \d+ held-out texts is 0\.\d\d, below 0\.7.* are in both"):
        train_style(SOURCE, SOURCE, Words(), seed=0)
    forced = train_style(SOURCE, SOURCE, Words(), seed=0, force=True)
    assert forced.accuracy is not None
    assert forced.accuracy < 0.7


@pytest.mark.learning
def test_naming_always_the_longer_file_is_no_skill() -> None:
    random = np.random.default_rng(0)
    noise = [" ".join(random.choice(["the", "food", "place", "was"], 6)) for _ in range(220)]
    with pytest.raises(SettingError, match="cannot tell"):
        train_style(noise[:200], noise[200:], Words(), seed=0)


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(DataError, match=r"10 different texts of each style.* 3 of the source"):
        train_style(SOURCE[:3], TARGET, Words(), seed=0)


def test_the_regression_finds_what_scikit_learn_finds() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(1)
    inputs = random.normal(size=(80, 5))
    labels = (inputs @ [1.0, -2.0, 0.5, 0.0, 0.0] + random.normal(size=80) > 0.3).astype(float)
    weights, bias = _regress(inputs, labels, penalty=0.5)
    oracle = linear.LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(inputs, labels)
    assert np.allclose(weights, oracle.coef_[0], atol=1e-3)
    assert bias == pytest.approx(oracle.intercept_[0], abs=1e-3)


def test_likelihoods_are_the_language_models_own() -> None:
    model, tok = causal_lm("gpt2"), tokenizer()
    lm = LanguageModel(model, tok, rows=4)
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
    assert lm.corpus_perplexity(texts) == pytest.approx(math.exp((found[0][0] + found[1][0]) / 6))
    assert lm.corpus_perplexity([""]) == math.inf


def test_fluent_is_what_is_no_more_surprising_than_nine_in_ten() -> None:
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
