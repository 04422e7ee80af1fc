from __future__ import annotations

import numpy as np
import pytest

from pinprompt.tasks import metrics

P = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2]])
Y = np.array([0, 0, 1])


def test_gap_reward_by_hand() -> None:
    assert metrics.gaps(P, Y) == pytest.approx([0.5, -0.3, 0.0])
    assert metrics.gap_reward(P, Y, 180, 200) == pytest.approx([100.0, -54.0, 0.0])
    assert metrics.correct(P, Y).tolist() == [True, False, False]


def test_a_tie_is_never_a_win() -> None:
    even = np.array([[0.5, 0.5], [0.5, 0.5]])
    labels = np.array([0, 1])
    assert metrics.gap_reward(even, labels, 180, 200).tolist() == [0.0, 0.0]
    assert metrics.predictions(even, labels).tolist() == [1, 0]


def test_log_likelihood_stays_finite() -> None:
    found = metrics.log_likelihood(np.array([[0.0, 1.0]]), np.array([0]))
    assert np.isfinite(found).all()
    assert found[0] < -700


def test_confusion_and_macro_f1_against_sklearn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    table = metrics.confusion(y, p, 4)
    assert table.tolist() == sklearn.confusion_matrix(y, p).tolist()
    assert metrics.macro_f1(table) == pytest.approx(sklearn.f1_score(y, p, average="macro"))
    assert metrics.accuracy(table) == pytest.approx(sklearn.accuracy_score(y, p))


def test_intervals_against_the_binomial() -> None:
    y = np.zeros(400, dtype=np.int64)
    p = np.array([0] * 300 + [1] * 100)
    found = metrics.intervals(y, p, 2, {"accuracy": metrics.accuracy}, seed=3)
    spread = 1.96 * np.sqrt(0.75 * 0.25 / 400)
    assert found["accuracy"] == pytest.approx((0.75 - spread, 0.75 + spread), abs=0.01)
    assert found == metrics.intervals(y, p, 2, {"accuracy": metrics.accuracy}, seed=3)


@pytest.mark.filterwarnings("error")
def test_what_is_not_a_number_is_packed_as_no_probability() -> None:
    rows = np.array([[np.nan, np.nan], [0.25, 0.75]])
    assert metrics.packed(rows, np.array([0, 1])) == "0100" + "40be"  # 64 and 190 of 254; a prediction stands out
