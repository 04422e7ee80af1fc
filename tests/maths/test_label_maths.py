"""Numbers of labels: rewards, metrics, intervals and calibration, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pinprompt.errors import SettingError
from pinprompt.maths import labels

P = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2]])
Y = np.array([0, 0, 1])


def test_gap_reward_by_hand() -> None:
    assert labels.gaps(P, Y) == pytest.approx([0.5, -0.3, 0.0])
    assert labels.gap_reward(P, Y, 180, 200) == pytest.approx([100.0, -54.0, 0.0])
    assert labels.correct(P, Y).tolist() == [True, False, False]


def test_a_tie_is_never_a_win() -> None:
    even = np.array([[0.5, 0.5], [0.5, 0.5]])
    assert labels.gap_reward(even, np.array([0, 1]), 180, 200).tolist() == [0.0, 0.0]
    assert labels.predictions(even, np.array([0, 1])).tolist() == [1, 0]


def test_log_likelihood_stays_finite() -> None:
    found = labels.log_likelihood(np.array([[0.0, 1.0]]), np.array([0]))
    assert np.isfinite(found).all()
    assert found[0] < -700


def test_metrics_of_many_tables_are_those_of_each() -> None:
    tables = np.random.default_rng(0).integers(0, 4, size=(50, 3, 3))
    tables[0] = 0  # no rows at all
    tables[1, :, 2] = tables[1, 2] = 0  # a class that neither occurs nor is predicted
    for metric in (labels.accuracy, labels.macro_f1):
        assert metric(tables).tolist() == pytest.approx([float(metric(table)) for table in tables])


def test_confusion_and_macro_f1_against_sklearn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    table = labels.confusion(y, p, 4)
    assert table.tolist() == sklearn.confusion_matrix(y, p).tolist()
    assert labels.macro_f1(table) == pytest.approx(sklearn.f1_score(y, p, average="macro"))
    assert labels.accuracy(table) == pytest.approx(sklearn.accuracy_score(y, p))


def test_intervals_against_the_binomial() -> None:
    y = np.zeros(400, dtype=np.int64)
    p = np.array([0] * 300 + [1] * 100)
    found = labels.intervals(y, p, 2, {"accuracy": labels.accuracy}, seed=3)
    spread = 1.96 * np.sqrt(0.75 * 0.25 / 400)
    assert found["accuracy"] == pytest.approx((0.75 - spread, 0.75 + spread), abs=0.01)
    assert found == labels.intervals(y, p, 2, {"accuracy": labels.accuracy}, seed=3)


def test_intervals_where_every_row_is_right_or_wrong_are_the_exact_ones() -> None:
    stats = pytest.importorskip("scipy.stats")
    right, wrong = (
        labels.intervals(np.zeros(8, int), np.full(8, value), 2, {"accuracy": labels.accuracy}, seed=3)["accuracy"]
        for value in (0, 1)
    )
    for found, k in ((right, 8), (wrong, 0)):
        exact = stats.binomtest(k, 8).proportion_ci(0.95, "exact")
        assert found == pytest.approx((exact.low, exact.high))


@pytest.mark.filterwarnings("error")
def test_what_is_not_a_number_is_packed_as_no_probability() -> None:
    rows = np.array([[np.nan, np.nan], [0.25, 0.75]])
    assert labels.packed(rows, np.array([0, 1])) == "0100" + "40be"  # 64 and 190 of 254; a prediction stands out


FLAT = np.array([0.5, 0.5])


def test_batch_offsets_by_hand() -> None:
    logs = np.log([[0.8, 0.2], [0.5, 0.5]])
    offsets = labels.batch_offsets(logs, np.array([0, 1]), FLAT)
    # The mean difference of the two classes is (log 4 + log 1) / 2 = log 2, half of it on either side.
    assert offsets == pytest.approx([np.log(2) / 2, -np.log(2) / 2], abs=1e-6)
    found = labels.calibrated(logs, offsets)
    assert found == pytest.approx(np.array([[2 / 3, 1 / 3], [1 / 3, 2 / 3]]), abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_a_prompts_liking_for_a_label_does_not_change_what_it_says(classes: int) -> None:
    random = np.random.default_rng(classes)
    truth = np.concatenate([np.arange(classes), random.integers(0, classes, 20)])
    logs = random.normal(size=(len(truth), classes))
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    liking = random.normal(size=classes) * 5
    flat = np.full(classes, 1 / classes)
    plain = labels.calibrated(logs, labels.batch_offsets(logs, truth, flat))
    biased = labels.calibrated(logs + liking, labels.batch_offsets(logs + liking, truth, flat))
    assert biased == pytest.approx(plain, abs=1e-5)
    prior = random.dirichlet(np.ones(classes) * 3)
    moved = labels.batch_offsets(logs, truth, prior)
    even = labels.batch_offsets(logs, truth, flat)
    odds = labels.calibrated(logs, moved) / labels.calibrated(logs, even) / prior
    assert odds == pytest.approx(np.repeat(odds[:, :1], classes, axis=1), rel=1e-4)


def test_a_class_with_more_rows_weighs_no_more() -> None:
    one = np.log([[0.9, 0.1], [0.3, 0.7]])
    many = np.concatenate([np.repeat(one[:1], 9, axis=0), one[1:]])
    offsets = labels.batch_offsets(many, np.array([0] * 9 + [1]), FLAT)
    assert offsets == pytest.approx(labels.batch_offsets(one, np.array([0, 1]), FLAT), abs=1e-6)


def test_rewards_by_hand() -> None:
    assert labels.reward_of(P, Y, "accuracy", 180, 200).tolist() == [1.0, 0.0, 0.0]
    assert labels.reward_of(P, Y, "log-likelihood", 180, 200) == pytest.approx(np.log([0.7, 0.3, 0.4]))
    assert labels.reward_of(P, Y, "gap", 180, 200) == pytest.approx([100.0, -54.0, 0.0])


def test_offsets_of_zero_leave_probabilities_as_they_are() -> None:
    assert labels.calibrated(np.log(P), (0.0, 0.0, 0.0)) == pytest.approx(P)
    # Odds of 0.7 : 0.2, divided by e.
    found = labels.calibrated(np.log(P[:1]), (1.0, 0.0, -1.0))
    assert found[0, 0] / found[0, 1] == pytest.approx(3.5 / np.e)
    assert found.sum() == pytest.approx(1)


def test_balanced_accuracy_and_label_entropy_by_hand() -> None:
    # Recalls 3/4 and 1/2 of the two classes that occur; 4 rows get the first label, 2 the second.
    table = np.array([[3, 1, 0], [1, 1, 0], [0, 0, 0]])
    assert labels.balanced_accuracy(table) == pytest.approx(0.625)
    assert labels.label_entropy(table) == pytest.approx(-(2 / 3) * np.log(2 / 3) - (1 / 3) * np.log(1 / 3))
    assert labels.label_entropy(np.array([[5, 0], [3, 0]])) == 0


def test_a_prior_is_shares_that_add_up() -> None:
    assert labels.prior_of({}, ("a", "b", "c", "d")).tolist() == [0.25] * 4
    assert labels.prior_of({"b": 3, " a": 1}, ("a", "b")).tolist() == [0.25, 0.75]
    with pytest.raises(SettingError, match="no share for b"):
        labels.prior_of({"a": 1}, ("a", "b"))
    with pytest.raises(SettingError, match="'bb', which is not a label; did you mean 'b'"):
        labels.prior_of({"a": 1, "bb": 1}, ("a", "b"))


def test_few_rows_are_said_to_be_few() -> None:
    assert labels.few_rows(np.array([0, 1] * 8), 2) is None
    assert "14 training rows, 7 of the rarest" in str(labels.few_rows(np.array([0, 1] * 7), 2))
    assert "20 training rows, 0 of the rarest" in str(labels.few_rows(np.array([0, 1] * 10), 3))


def test_pseudo_values_are_what_a_row_adds_to_a_metric() -> None:
    """Against the metric without each row, and for accuracy the correctness of the row itself."""
    random = np.random.default_rng(3)
    true, said = random.integers(3, size=40), random.integers(3, size=40)
    found = labels.pseudo_values(true, said, 3, labels.macro_f1)
    for row in range(40):
        kept = np.arange(40) != row
        left = float(labels.macro_f1(labels.confusion(true[kept], said[kept], 3)))
        assert found[row] == pytest.approx(40 * float(labels.macro_f1(labels.confusion(true, said, 3))) - 39 * left)
    assert labels.pseudo_values(true, said, 3, labels.accuracy) == pytest.approx((true == said).astype(float))
