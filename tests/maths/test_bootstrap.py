"""Paired tests: McNemar's by hand and against scipy, the bootstrap over rows against a t-test."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pinprompt.maths.bootstrap import compare_rows, mcnemar


def rows(ours_alone: int, theirs_alone: int, both: int = 0, neither: int = 0) -> tuple[list[float], list[float]]:
    """Outcomes of two prompts with so many rows of each kind."""
    ours = [1.0] * ours_alone + [0.0] * theirs_alone + [1.0] * both + [0.0] * neither
    theirs = [0.0] * ours_alone + [1.0] * theirs_alone + [1.0] * both + [0.0] * neither
    return ours, theirs


@pytest.mark.parametrize(
    ("ours_alone", "theirs_alone", "p"),
    [
        (0, 0, 1.0),  # never apart
        (1, 0, 1.0),  # 2 * 1/2
        (5, 0, 2 / 32),  # 2 * (1/2)^5
        (6, 0, 2 / 64),
        (0, 6, 2 / 64),  # two-sided
        (7, 1, 2 * (1 + 8) / 256),  # C(8, 0) + C(8, 1)
        (3, 3, 1.0),  # 2 * 42/64 is above 1
        (10, 2, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_is_the_binomial_tail(ours_alone: int, theirs_alone: int, p: float) -> None:
    assert mcnemar(*rows(ours_alone, theirs_alone, both=9, neither=4)) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_agrees_with_scipy(ours_alone: int, theirs_alone: int) -> None:
    if ours_alone + theirs_alone == 0:
        return
    known = stats.binomtest(ours_alone, ours_alone + theirs_alone, 0.5).pvalue
    assert mcnemar(*rows(ours_alone, theirs_alone)) == pytest.approx(known, rel=1e-9, abs=1e-300)


def test_rows_must_be_the_same_ones() -> None:
    with pytest.raises(ValueError, match="shorter"):
        mcnemar([1.0, 0.0], [1.0])


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
def test_the_bootstrap_over_rows_agrees_with_a_paired_t_test(shift: float) -> None:
    stream = np.random.default_rng(7)
    theirs = stream.normal(5.0, 3.0, 300)
    ours = theirs + stream.normal(shift, 1.0, 300)
    known = stats.ttest_rel(ours, theirs)
    low, high = known.confidence_interval(0.95)
    found = compare_rows(ours.tolist(), theirs.tolist())
    assert found.mean == pytest.approx(float((ours - theirs).mean()))
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)
    assert found.p == pytest.approx(known.pvalue, abs=0.02)


def test_pairing_sees_a_difference_that_intervals_hide() -> None:
    spread = [random.Random(3).uniform(0, 100) for _ in range(40)]
    better = [value + 1 + 0.5 * (place % 2) for place, value in enumerate(spread)]
    assert compare_rows(better, spread).significant
    assert compare_rows(better, spread).p < 0.001
    assert compare_rows(spread, spread).p == 1.0


def test_the_same_rows_give_the_same_answer() -> None:
    ours, theirs = [0.1, 0.9, 0.4, 0.8, 0.7, 0.2], [0.2, 0.5, 0.1, 0.9, 0.3, 0.3]
    assert compare_rows(ours, theirs) == compare_rows(ours, theirs)
