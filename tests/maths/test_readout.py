"""The learnt readout: leave-one-out by brute force, what it learns, when it falls back, and what it keeps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pinprompt.maths import readout
from pinprompt.maths.labels import Floats, Ints
from pinprompt.maths.readout import Said

EVEN = np.full(3, 1 / 3)


def made(seed: int, rows: int = 36, words: int = 80, signal: float = 2.0) -> tuple[Said, Ints]:
    """Answers in which the first three words of each of three labels speak for it, and label words say nothing."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    own = _logs(random.normal(size=(rows, 3)))
    others = random.normal(size=(rows, words))
    for label in range(3):
        others[labels == label, 3 * label : 3 * label + 3] += signal
    return Said(own, tuple(f"w{number}" for number in range(words)), _logs(others)), labels


def some(given: Said, rows: Any) -> Said:
    """What was said on some rows."""
    assert given.others is not None
    return Said(given.own[rows], given.words, given.others[rows])


def _logs(scores: Floats) -> Floats:
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))


def test_leave_one_out_is_ridge_regression_without_the_row() -> None:
    """Against a fit of the normal equations for each row left out, with an intercept that is not shrunk."""
    random = np.random.default_rng(0)
    weights = random.uniform(0.5, 2.0, size=14)
    features, targets = random.normal(size=(14, 30)), random.normal(size=(14, 2))
    features -= np.average(features, axis=0, weights=weights)
    taught, middle, left_out = readout._ridge(features, targets, weights)
    for row in range(14):
        kept = np.arange(14) != row
        predictions = []
        for strength in readout.STRENGTHS:
            design = np.hstack([features[kept], np.ones((13, 1))])
            shrunk = np.diag([*[strength] * 30, 0.0])
            scaled = design * weights[kept, None]
            solved = np.linalg.solve(design.T @ scaled + shrunk, scaled.T @ targets[kept])
            predictions.append(np.append(features[row], 1.0) @ solved)
        assert left_out[row] == pytest.approx(np.mean(predictions, axis=0))
    assert middle == pytest.approx(np.average(targets, axis=0, weights=weights))
    assert taught.shape == (30, 2)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_the_words_that_speak_for_a_label(seed: int) -> None:
    found = readout.fit(*made(seed), EVEN)
    given, labels = made(seed + 100, rows=300)
    chances = found.readout.probabilities(given)
    assert np.mean(chances.argmax(axis=1) == labels) > 0.8, "label words alone are right in a third of the rows"
    for label in range(3):
        named = [
            word for word, speaks in zip(found.readout.words, found.readout.speaks, strict=True) if speaks == label
        ]
        assert set(named[:3]) & {f"w{3 * label + number}" for number in range(3)}
    assert len(found.readout.words) <= 3 * readout.SIZES[-1]


def test_label_words_are_read_as_they_are_where_calibration_would_harm() -> None:
    """All rows are right as they are; one extreme row moves the mean so far that calibration turns three around."""
    margins = np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -40.0])
    labels = (margins < 0).astype(np.int64)
    own = _logs(np.stack([margins / 2, -margins / 2], axis=1))
    noise = _logs(np.random.default_rng(0).normal(size=(8, 5)))
    given = Said(own, tuple("abcde"), noise)
    found = readout.fit(given, labels, np.full(2, 0.5))
    assert found.readout.words == ()
    assert found.readout.bias == pytest.approx(np.zeros(2))
    assert (found.readout.probabilities(given).argmax(axis=1) == labels).all()
    moved = readout.fit(given, labels, np.full(2, 0.5), ())  # calibrated, as asked for
    assert (moved.readout.probabilities(given).argmax(axis=1) == labels).sum() == 5


def test_probabilities_of_a_row_do_not_know_its_label() -> None:
    """Labels that have nothing to do with the answers are not learnt by heart."""
    given, labels = made(4, rows=60, signal=0.0)
    found = readout.fit(given, labels, EVEN)
    assert np.mean(found.left_out.argmax(axis=1) == labels) < 0.6


def test_without_evidence_it_is_the_calibrated_label_words() -> None:
    random = np.random.default_rng(5)
    labels = np.arange(24) % 3
    own = _logs(3.0 * np.eye(3)[labels] + random.normal(size=(24, 3)) + [2.0, 0.0, 0.0])
    noise = _logs(random.normal(size=(24, 40)))
    given = Said(own, tuple(f"w{number}" for number in range(40)), noise)
    found = readout.fit(given, labels, EVEN)
    assert np.mean(found.left_out.argmax(axis=1) == labels) > 0.9
    for few in (readout.fit(some(given, slice(5)), labels[:5], EVEN), readout.fit(given, labels, EVEN, ())):
        assert few.readout.words == ()
        assert few.readout.weights == pytest.approx(np.eye(3))
        assert few.left_out == pytest.approx(few.readout.probabilities(Said(own[: len(few.left_out)])))


def test_it_does_not_matter_among_which_words_a_model_normalises() -> None:
    given, labels = made(6)
    found = readout.fit(given, labels, EVEN).readout
    alone = Said(given.own, found.words, _logs(given.of(found.words)))
    assert found.probabilities(alone) == pytest.approx(found.probabilities(given), abs=1e-3)


def test_a_rare_class_counts_as_much_as_the_others() -> None:
    given, labels = made(7, rows=90)
    kept = np.array([row for row in range(90) if labels[row] != 2 or row % 9 == 2])  # 30, 30 and 10 rows
    found = readout.fit(some(given, kept), labels[kept], EVEN).readout
    given, labels = made(107, rows=300)
    chances = found.probabilities(given)
    assert np.mean(chances.argmax(axis=1)[labels == 2] == 2) > 0.7


def test_a_prior_moves_the_labels_to_it() -> None:
    given = made(8)
    found, moved = readout.fit(*given, EVEN), readout.fit(*given, np.array([0.8, 0.1, 0.1]))
    assert moved.left_out[:, 0].mean() > found.left_out[:, 0].mean()


def test_a_regression_on_features_is_ridge_regression_with_equal_classes() -> None:
    """Against the normal equations, for unbalanced classes; labels without evidence are not learnt by heart."""
    random = np.random.default_rng(10)
    labels = np.array([0] * 30 + [1] * 10)
    features = random.normal(size=(40, 6))
    features[labels == 1, 0] += 2.0
    found = readout.regression(features, labels, np.array([0.5, 0.5]))
    weights = np.where(labels == 1, 2.0, 2 / 3)
    design = np.hstack([features, np.ones((40, 1))])
    slopes = []
    for strength in readout.STRENGTHS:
        shrunk = np.diag([*[strength] * 6, 0.0])
        scaled = design * weights[:, None]
        slopes.append(np.linalg.solve(design.T @ scaled + shrunk, scaled.T @ np.where(labels == 0, 1.0, -1.0)))
    scores = design @ np.mean(slopes, axis=0)
    odds = np.log(found.readout.probabilities(Said(features)))
    assert np.corrcoef(odds[:, 0] - odds[:, 1], scores)[0, 1] == pytest.approx(1.0, abs=1e-6)
    assert np.sign(odds[:, 0] - odds[:, 1]).tolist() == np.sign(scores).tolist()
    noise = readout.regression(random.normal(size=(40, 60)), labels, np.array([0.5, 0.5])).left_out
    assert np.mean(noise.argmax(axis=1)[labels == 1] == 1) < 0.8


def test_it_is_stored_as_json_and_read_back() -> None:
    found = readout.fit(*made(9), EVEN).readout
    packed = json.loads(json.dumps(readout.pack(found, ["a", "b", "c"])))
    back = readout.unpack(packed)
    assert (back.words, back.speaks) == (found.words, found.speaks)
    assert back.weights.tolist() == found.weights.tolist()
    assert back.bias.tolist() == found.bias.tolist()
    for wrong in ({}, {**packed, "bias": {"a": 1.0}}, {**packed, "bias": {"a": "x", "b": 1, "c": 1}}, {"bias": []}):
        with pytest.raises(ValueError, match="not a readout"):
            readout.unpack(wrong)
    with pytest.raises(ValueError, match="not finite"):
        readout.unpack({**packed, "bias": {"a": float("nan"), "b": 1.0, "c": 1.0}})


def likeliest(given: Said, count: int) -> Said:
    """The same answers from a server that gives only its `count` most likely words."""
    assert given.others is not None
    contents = []
    for own, row in zip(given.own.tolist(), given.others, strict=True):
        best = np.argsort(-row)[:count]
        contents.append(readout.as_content(own, {given.words[place]: float(row[place]) for place in best}))
    return readout.said(json.loads(json.dumps(contents)), 3)


def test_words_are_learnt_from_the_most_likely_words_of_a_server() -> None:
    given, labels = made(11, rows=60)
    found = readout.fit(likeliest(given, 10), labels, EVEN)
    assert found.readout.words
    given, labels = made(111, rows=300)
    assert np.mean(found.readout.probabilities(likeliest(given, 10)).argmax(axis=1) == labels) > 0.65


def test_a_word_that_a_server_does_not_give_is_at_most_as_likely_as_its_last_one() -> None:
    rows = [
        readout.as_content([-1.0, -0.5], {"good": -0.1, "bad": -3.0}),
        readout.as_content([0.0, 0.0], {"bad": -0.2}),
    ]
    given = readout.said(rows, 2)
    assert given.words == ("bad",), "a word of one row only teaches nothing"
    assert given.of(["good", "bad", "new"]).tolist() == [[-0.1, -3.0, -3.0], [-0.2, -0.2, -0.2]]
    assert given.own.tolist() == [[-1.0, -0.5], [0.0, 0.0]]
    failed = readout.said([*rows, readout.as_content([0.0, 0.0], {})], 2)
    assert failed.of(["bad"])[2, 0] == pytest.approx(-1.6), "a row without an answer is like the mean of the others"
