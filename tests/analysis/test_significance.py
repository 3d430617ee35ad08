"""Intervals and p-values against scipy, and the bootstrap against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from significance import bootstrap_share, p_value, t_interval

VALUES = st.lists(st.floats(-5.0, 5.0), min_size=2, max_size=8).map(np.array)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_intervals_and_p_values_are_scipys(values: np.ndarray) -> None:
    interval, p = t_interval(values), p_value(values)
    if np.ptp(values) > 1e-6:
        expected = stats.ttest_1samp(values, 0.0)
        ends = expected.confidence_interval(0.95)
        assert (interval.low, interval.high) == (pytest.approx(ends.low), pytest.approx(ends.high))
        assert p == pytest.approx(expected.pvalue)
        assert (p < 0.05) == (not interval.low <= 0.0 <= interval.high)


def test_of_paired_differences_it_is_the_paired_test() -> None:
    sync, delayed = np.array([4.40, 4.42, 4.38]), np.array([4.45, 4.46, 4.44])
    assert p_value(delayed - sync) == pytest.approx(stats.ttest_rel(delayed, sync).pvalue)


def test_values_that_are_all_equal() -> None:
    same = t_interval(np.full(3, 0.5))
    assert (same.low, same.high) == (0.5, 0.5)
    assert p_value(np.full(3, 0.5)) == 0.0
    assert p_value(np.zeros(3)) == 1.0


def test_one_value_tells_nothing_of_its_own_noise() -> None:
    assert t_interval(np.array([0.5])) is None
    assert p_value(np.array([0.5])) is None
    assert bootstrap_share(np.array([0.5]), np.array([1.0]), 0.0) is None


def test_the_bootstrap_is_scipys() -> None:
    generator = np.random.default_rng(0)
    gaps = generator.normal(0.7, 0.1, 12)
    gains = 0.5 * gaps + generator.normal(0.0, 0.05, 12)
    ours = bootstrap_share(gains, gaps, 0.002)
    theirs = stats.bootstrap(
        (gains, gaps), lambda a, b: a.mean() / b.mean(), paired=True, vectorized=False, method="percentile", rng=1
    ).confidence_interval
    assert (ours.low, ours.high) == (pytest.approx(theirs.low, abs=0.01), pytest.approx(theirs.high, abs=0.01))


def test_with_three_seeds_it_is_their_range() -> None:
    gaps, gains = np.array([1.0, 1.0, 1.0]), np.array([0.3, 0.5, 0.6])
    interval = bootstrap_share(gains, gaps, 0.002)
    assert (interval.low, interval.high) == (pytest.approx(0.3, abs=0.05), pytest.approx(0.6, abs=0.05))


def test_a_gap_that_may_be_none_has_no_interval() -> None:
    assert bootstrap_share(np.array([0.1, 0.1, 0.1]), np.array([0.2, 0.2, 0.001]), 0.002) is None
    assert bootstrap_share(np.array([0.1, 0.1, 0.1]), np.array([0.2, 0.2, 0.1]), 0.002) is not None


@pytest.mark.parametrize(("num_seeds", "lowest", "highest"), [(3, 0.6, 0.8), (10, 0.88, 0.97)])
def test_how_often_the_bootstrap_covers_the_truth(num_seeds: int, lowest: float, highest: float) -> None:
    """What its docstring warns of."""
    generator = np.random.default_rng(1)
    covered = []
    for _ in range(300):
        gaps = generator.normal(0.7, 0.07, num_seeds)
        interval = bootstrap_share(0.5 * gaps + generator.normal(0.0, 0.05, num_seeds), gaps, 0.002)
        covered.append(interval.low <= 0.5 <= interval.high)
    assert lowest <= np.mean(covered) <= highest
