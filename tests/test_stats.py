"""Figures of many runs: against SciPy, stored numbers of rliable, and closed forms."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard import stats

# Three tasks; a tie between X and Y in the first. rliable 1.2.0 gave the figures below:
#   metrics.aggregate_iqm(X), metrics.probability_of_improvement(X, Y),
#   library.get_interval_estimates({"": X}, metrics.aggregate_iqm, reps=50_000), and for (X, Y).
X = np.array(
    [
        [264, 268, 775],
        [264, 223, 711],
        [302, 330, 756],
        [275, 279, 832],
        [304, 194, 797],
        [328, 169, 759],
        [224, 173, 634],
        [291, 174, 824],
        [306, 239, 573],
    ]
)
Y = np.array(
    [
        [264, 256, 707],
        [234, 222, 641],
        [256, 345, 652],
        [279, 331, 665],
        [277, 269, 704],
        [243, 266, 782],
        [234, 329, 707],
    ]
)
RLIABLE_IQM_X, RLIABLE_IQM_Y = 357.8666666666667, 355.3636363636364
RLIABLE_IQM_INTERVAL_X = (334.93, 384.33)
RLIABLE_MEAN_INTERVAL_X = (394.26, 438.78)
RLIABLE_IMPROVEMENT = 0.5714285714285715
RLIABLE_IMPROVEMENT_INTERVAL = (0.4233, 0.7143)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_figures_are_those_of_rliable():
    assert stats.interquartile_mean(X) == pytest.approx(RLIABLE_IQM_X)
    assert stats.interquartile_mean(Y) == pytest.approx(RLIABLE_IQM_Y)
    assert stats.probability_of_improvement(X, Y) == pytest.approx(RLIABLE_IMPROVEMENT)


@pytest.mark.parametrize(
    ("statistic", "scores", "expected"),
    [
        (stats.interquartile_mean, (X,), RLIABLE_IQM_INTERVAL_X),
        (np.mean, (X,), RLIABLE_MEAN_INTERVAL_X),
        (stats.probability_of_improvement, (X, Y), RLIABLE_IMPROVEMENT_INTERVAL),
    ],
)
def test_stratified_intervals_are_those_of_rliable(statistic, scores, expected):
    estimate, interval = stats.stratified_interval(
        statistic, *scores, rng=rng(), num_resamples=10_000
    )
    assert estimate == statistic(*scores)
    width = expected[1] - expected[0]
    np.testing.assert_allclose(interval, expected, atol=0.03 * width)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
def test_interquartile_mean_is_scipys_trimmed_mean(values):
    expected = scipy.stats.trim_mean(values, 0.25)
    np.testing.assert_allclose(stats.interquartile_mean(np.array(values)), expected, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
)
def test_probability_of_improvement_is_the_mann_whitney_statistic(x, y):
    u = scipy.stats.mannwhitneyu(x, y).statistic
    found = stats.probability_of_improvement(np.array(x), np.array(y))
    assert found == pytest.approx(u / (len(x) * len(y)))


def test_strata_stay_apart():
    """A task whose runs are all equal adds nothing to the width of the interval."""
    noisy = rng().normal(size=(20, 1))
    both = np.concatenate([noisy, np.full((20, 1), 100.0)], axis=1)
    _, (low, high) = stats.stratified_interval(np.mean, noisy, rng=rng())
    _, (low_both, high_both) = stats.stratified_interval(np.mean, both, rng=rng())
    assert high_both - low_both == pytest.approx((high - low) / 2, rel=0.1)
    assert 49.0 < low_both < high_both < 51.0


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says():
    one_rng = rng()
    intervals = [
        stats.stratified_interval(
            np.mean, one_rng.normal(size=50), rng=one_rng, level=0.8, num_resamples=200
        )[1]
        for _ in range(400)
    ]
    assert 0.74 < np.mean([low < 0.0 < high for low, high in intervals]) < 0.84


def test_mean_interval_is_the_one_stratum_case():
    values = rng().normal(3.0, 2.0, 40)
    mean, interval = stats.mean_interval(values, rng=rng())
    _, other = stats.stratified_interval(np.mean, values, rng=rng(), num_resamples=10_000)
    assert mean == pytest.approx(values.mean())
    np.testing.assert_allclose(interval, other, atol=0.06)
    normal = values.mean() + 1.96 * values.std() / np.sqrt(40) * np.array([-1, 1])
    np.testing.assert_allclose(interval, normal, atol=0.08)


def test_a_generator_decides_everything():
    one, same = (stats.stratified_interval(stats.interquartile_mean, X, rng=rng()) for _ in "ab")
    other = stats.stratified_interval(stats.interquartile_mean, X, rng=np.random.default_rng(1))
    assert one == same != other


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_sign_test_is_scipys_binomial_test_without_ties(pairs):
    x, y = np.array(pairs).T
    found = stats.sign_test(x, y)
    assert (found.wins, found.losses) == (np.sum(x > y), np.sum(x < y))
    count = found.wins + found.losses
    expected = scipy.stats.binomtest(found.wins, count).pvalue if count else 1.0
    assert found.p_value == pytest.approx(expected)


def test_sign_test_of_ten_wins_is_two_in_1024():
    assert stats.sign_test(np.arange(10) + 1, np.arange(10)).p_value == 2 / 1024


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="tasks"):
        stats.probability_of_improvement(X, Y[:, :2])
    with pytest.raises(ValueError, match="pairs"):
        stats.sign_test(X[:, 0], Y[:, 0])
