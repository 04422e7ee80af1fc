"""Rewards from raw scores."""

from __future__ import annotations

import numpy as np
import pytest

from pinprompt.methods.pin.replay import normalise, z_scores
from pinprompt.values import Score


def test_z_scores_by_hand() -> None:
    # mean 4, population deviation 2
    assert z_scores([2, 4, 6, 2, 6]) == pytest.approx([x / (1.7888543819998317 + 1e-4) for x in (-2, 0, 2, -2, 2)])
    assert z_scores([3.0, 3.0]) == [0.0, 0.0]
    assert z_scores([5.0]) == [0.0]


def score(rows: dict[int, float | list[float]]) -> Score:
    """A score from its value, or its draws, on each row."""
    values = np.array(list(rows.values()), dtype=np.float64)
    return Score(float(values.mean()), values, tuple(rows))


def test_batch_and_none() -> None:
    scores = [score({0: 1.0}), score({0: 3.0})]
    assert normalise(scores, "none") == [1.0, 3.0]
    assert normalise(scores, "batch") == pytest.approx([-1 / 1.0001, 1 / 1.0001])


def test_per_input_compares_prompts_on_the_same_input_only() -> None:
    # Row 0 is easy (values around 90), row 1 is hard (around 10): the better prompt is the first on both.
    scores = [score({0: 92, 1: 10}), score({0: 88, 1: 10})]
    assert normalise(scores, "input") == pytest.approx([1 / 2.0001 * 2 / 2, -1 / 2.0001 * 2 / 2], rel=1e-3)


def test_prompts_on_other_rows_are_not_compared() -> None:
    scores = [score({0: 90}), score({1: 10}), score({0: 80}), score({1: 20})]
    assert normalise(scores, "input") == pytest.approx([5 / 5.0001, -5 / 5.0001, -5 / 5.0001, 5 / 5.0001])


def test_the_draws_of_a_row_are_pooled() -> None:
    # One row, two prompts with two draws each: the mean of all four is 5, their population deviation sqrt(5).
    scores = [score({7: [2, 4]}), score({7: [6, 8]})]
    deviation = 5**0.5 + 1e-4
    assert normalise(scores, "input") == pytest.approx([-2 / deviation, 2 / deviation])
    # Between the prompts' means the deviation would be 2, and the rewards -1 and 1.
    # A prompt on another row is not compared with them.
    assert normalise([*scores, score({8: [50, 50]})], "input")[2] == 0


def test_a_batch_is_compared_across_rows() -> None:
    scores = [score({0: 1.0}), score({1: 3.0})]
    assert normalise(scores, "batch") == pytest.approx([-1 / 1.0001, 1 / 1.0001])
    assert normalise(scores, "input") == [0.0, 0.0], "each is alone on its row"
