"""Style judges: a classifier by name, and the one that is trained here."""

from __future__ import annotations

import numpy as np
import pytest
from style_toys import SOURCE, TARGET, encoder, tokenizer

from pinprompt.errors import DataError, SettingError
from pinprompt.judges.frozen import Classifier, Encoder
from pinprompt.judges.style import Embedding, NamedStyle, Together, Words, _regress, train_style


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
def test_features_are_concatenated() -> None:
    both = Together([Embedding(Encoder(encoder(), tokenizer(wrap=True), name="bert")), Words()])
    judge = train_style(SOURCE, TARGET, both, seed=1)
    assert both.name == "bert + words"
    assert len(judge.weights) > 32
    assert judge.accuracy is not None
    assert judge.accuracy >= 0.7


@pytest.mark.learning
def test_styles_that_a_judge_cannot_separate_are_refused_with_its_accuracy() -> None:
    with pytest.raises(SettingError, match=r"accuracy on \d+ held-out texts is 0\.\d\d, below 0\.7.*--force-judge"):
        train_style(SOURCE, SOURCE, Words(), seed=0)
    forced = train_style(SOURCE, SOURCE, Words(), seed=0, force=True)
    assert forced.accuracy is not None
    assert forced.accuracy < 0.7


@pytest.mark.learning
def test_a_judge_that_names_the_longer_file_is_refused() -> None:
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
