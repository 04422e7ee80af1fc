"""Rewards from raw scores."""

from __future__ import annotations

import pytest

from pinprompt.methods.pin.replay import normalise, z_scores
from pinprompt.values import Score


def test_z_scores_by_hand() -> None:
    # mean 4, population deviation 2
    assert z_scores([2, 4, 6, 2, 6]) == pytest.approx([x / (1.7888543819998317 + 1e-4) for x in (-2, 0, 2, -2, 2)])
    assert z_scores([3.0, 3.0]) == [0.0, 0.0]
    assert z_scores([5.0]) == [0.0]


def test_batch_and_none() -> None:
    scores = [Score(1.0), Score(3.0)]
    assert normalise(scores, "none") == [1.0, 3.0]
    assert normalise(scores, "batch") == pytest.approx([-1 / 1.0001, 1 / 1.0001])


def test_per_input_compares_prompts_on_the_same_input_only() -> None:
    # Input 0 is easy (scores around 90), input 1 is hard (around 10): the better prompt is the first on both.
    scores = [
        Score(51, details={"input/0": 92, "input/1": 10, "other": 5}),
        Score(49, details={"input/0": 88, "input/1": 10}),
    ]
    assert normalise(scores, "input") == pytest.approx([1 / 2.0001 * 2 / 2, -1 / 2.0001 * 2 / 2], rel=1e-3)


def test_per_input_falls_back_on_groups() -> None:
    scores = [Score(90, group="a"), Score(10, group="b"), Score(80, group="a"), Score(20, group="b")]
    assert normalise(scores, "input") == pytest.approx([5 / 5.0001, -5 / 5.0001, -5 / 5.0001, 5 / 5.0001])


def test_the_maxima_of_blocks_are_pooled_by_input() -> None:
    # One source, two prompts with two maxima each: the mean of all four is 5, their population deviation sqrt(5).
    scores = [Score(3, details={"input/7/0": 2, "input/7/1": 4}), Score(7, details={"input/7/0": 6, "input/7/1": 8})]
    deviation = 5**0.5 + 1e-4
    assert normalise(scores, "input") == pytest.approx([-2 / deviation, 2 / deviation])
    # Between the prompts' means the deviation would be 2, and the rewards -1 and 1.
    # A prompt of another source is not compared with them.
    assert normalise([*scores, Score(50, details={"input/8/0": 50, "input/8/1": 50})], "input")[2] == 0


def test_a_batch_is_compared_across_groups_and_inputs() -> None:
    scores = [Score(1.0, group="a", details={"input/0": 7}), Score(3.0, group="b", details={"input/1": 9})]
    assert normalise(scores, "batch") == pytest.approx([-1 / 1.0001, 1 / 1.0001])
    assert normalise(scores, "input") == [0.0, 0.0], "each is alone on its input"
