"""Paired tests: McNemar's by hand and against scipy, the bootstrap by enumeration and against a t-test."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pinprompt.maths.bootstrap import (
    Difference,
    compare_paired,
    compare_rows,
    interval_of_mean,
    mcnemar,
    mcnemar_interval,
    mean,
    pairs,
    standard_error,
)


def rows(ours_alone: int, theirs_alone: int, both: int = 0, neither: int = 0) -> tuple[list[float], list[float]]:
    """Outcomes of two prompts with these numbers of rows of each kind."""
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


@pytest.mark.parametrize("rows", [5, 20, 200])
def test_where_all_rows_are_right_or_wrong_the_interval_is_exact(rows: int) -> None:
    for value in (0.0, 1.0):
        known = stats.binomtest(round(rows * value), rows).proportion_ci(0.95, method="exact")
        assert interval_of_mean([value] * rows, 0, shares=True) == pytest.approx((known.low, known.high))
    assert interval_of_mean([3.0] * rows, 0) == (3.0, 3.0), "a score that is no share"


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


def test_the_mean_and_its_standard_error_by_hand() -> None:
    assert mean([0.1] * 10) == 0.1  # a plain sum of tenths is not 1
    assert standard_error([3.0]) is None
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)  # variance 2, over 2
    assert standard_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx((5 / 3 / 4) ** 0.5)


def test_pairs_are_of_the_same_split_and_seed_or_of_a_value_that_has_no_seed() -> None:
    ours = {("a", 0): 3.0, ("a", 1): 5.0, ("b", 0): 1.0, ("c", 0): 7.0}
    theirs = {("a", 0): 1.0, ("a", None): 2.0, ("b", 0): 4.0, ("d", 0): 9.0}
    assert pairs(ours, theirs) == {("a", 0): 2.0, ("a", 1): 3.0, ("b", 0): -3.0}


def apart(differences: dict[tuple[str, int | None], float]) -> Difference | None:
    """The comparison of values that are higher than others by these differences."""
    return compare_paired(differences, dict.fromkeys(differences, 0.0))


def test_few_pairs_are_enumerated() -> None:
    assert apart({("a", 0): 1.0}) is None
    # The four samples of (1, 3) have the means 1, 2, 2, 3; p is no smaller than four samples can tell.
    found = apart({("a", 0): 1.0, ("b", 0): 3.0})
    assert found == Difference(2.0, pytest.approx(1.075), pytest.approx(2.925), 0.5, 2)
    # Of the 27 samples of (-1, 2, 2), seven have a mean of 0 or less: those with two or three times -1.
    found = apart({("a", 0): -1.0, ("b", 0): 2.0, ("c", 0): 2.0})
    assert found is not None
    assert (found.mean, found.p, found.pairs) == (1.0, pytest.approx(14 / 27), 3)
    # A mean of 0 counts for both sides: -1, 0, 0, 1.
    assert apart({("a", 0): -1.0, ("b", 0): 1.0}) == Difference(
        0.0, pytest.approx(-0.925), pytest.approx(0.925), 1.0, 2
    )


def test_the_split_is_what_is_drawn_and_seeds_where_there_is_one_split() -> None:
    splits = apart({("a", 0): 1.0, ("a", 1): 3.0, ("b", 0): 4.0})
    assert splits is not None
    assert (splits.mean, splits.pairs) == (3.0, 2)
    seeds = apart({("a", 0): 1.0, ("a", 1): 3.0, ("a", 2): 5.0})
    assert seeds is not None
    assert (seeds.mean, seeds.pairs) == (3.0, 3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_significant_is_what_leaves_out_zero_with_five_pairs_or_more(sign: float) -> None:
    found = {count: apart({(str(split), 0): sign for split in range(count)}) for count in (4, 5, 6)}
    assert {count: one is not None and one.significant for count, one in found.items()} == {4: False, 5: True, 6: True}
    assert found[5] == Difference(sign, sign, sign, 2 / 5**5, 5)  # every sample
    assert found[6] == Difference(sign, sign, sign, 2 / 10_000, 6)  # ten thousand of them
    around = apart({(str(split), 0): sign * (split - 1.5) for split in range(6)})
    assert around is not None
    assert around.low < 0 < around.high
    assert not around.significant


def test_many_pairs_are_drawn_the_same_way_every_time() -> None:
    values = {(str(split), 0): float(split) for split in range(8)}
    found = apart(values)
    assert found == apart(values)
    assert found is not None
    drawn = np.random.default_rng(1).choice(8, size=(40_000, 8)).mean(axis=1)
    assert found.mean == 3.5
    assert found.low == pytest.approx(np.quantile(drawn, 0.025), abs=0.15)
    assert found.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.15)


@pytest.mark.parametrize(("count", "draws"), [(2, 10_000), (2000, 10_000), (4000, 5000), (40_000, 1000)])
def test_the_more_rows_the_fewer_samples_down_to_a_thousand(count: int, draws: int) -> None:
    found = compare_rows([1.0] * count, [0.0] * count)
    assert found == Difference(1.0, 1.0, 1.0, 2 / draws, count)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 30))
def test_the_exact_interval_agrees_with_the_exact_test(ours_alone: int, theirs_alone: int, both: int) -> None:
    ours = [1.0] * ours_alone + [0.0] * theirs_alone + [1.0] * both
    theirs = [0.0] * ours_alone + [1.0] * theirs_alone + [1.0] * both
    low, high = mcnemar_interval(ours, theirs)
    assert low - 1e-9 <= (ours_alone - theirs_alone) / len(ours) <= high + 1e-9
    assert (low > 1e-9 or high < -1e-9) == (mcnemar(ours, theirs) < 0.05)


def test_the_exact_interval_by_hand() -> None:
    # Two rows differ, both in favour of ours: the lower end of 2 of 2 is sqrt(0.025).
    low, high = mcnemar_interval([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0])
    assert low == pytest.approx((2 * 0.025**0.5 - 1) * 2 / 4)
    assert high == pytest.approx(2 / 4)
