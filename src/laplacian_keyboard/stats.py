"""Figures of many runs, with intervals.

Scores are `(runs,)`, or `(runs, tasks)` with one column for each task. Randomness always comes from
a generator that the caller gives. Definitions are those of Agarwal et al., "Deep reinforcement
learning at the edge of the statistical precipice" (rliable).

| name | is |
|---|---|
| interquartile mean | mean of the middle half of all scores: robust to a single lucky run |
| stratified bootstrap | runs drawn anew with replacement, in every task by itself |
| probability of improvement | how often a run of X beats a run of Y, averaged over tasks |
| sign test | could this many wins in so many comparisons be a fair coin? |
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

NUM_RESAMPLES = 2_000

Estimate: TypeAlias = tuple[float, tuple[float, float]]
"""A figure and its interval."""


def mean_interval(values: np.ndarray, *, rng: np.random.Generator, level: float = 0.95) -> Estimate:
    """The mean and its percentile bootstrap interval."""
    values = np.asarray(values, np.float64)
    resampled = rng.choice(values, (NUM_RESAMPLES, len(values))).mean(axis=1)
    return float(values.mean()), _middle(resampled, level)


def interquartile_mean(scores: np.ndarray) -> float:
    """The mean without the lowest and the highest quarter of all scores, runs and tasks alike. A
    quarter that is not a whole number is rounded down."""
    ordered = np.sort(np.asarray(scores, np.float64), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def probability_of_improvement(scores_x: np.ndarray, scores_y: np.ndarray) -> float:
    """The probability that a random run of X scores more than a random run of Y on the same task,
    ties counting half, averaged over tasks."""
    x, y = (np.asarray(scores, np.float64) for scores in (scores_x, scores_y))
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(f"scores of {x.shape[1:]} tasks do not fit scores of {y.shape[1:]}")
    return float(np.mean(0.5 + 0.5 * np.sign(x[:, None] - y[None, :])))


def stratified_interval(
    statistic: Callable[..., float],
    *scores: np.ndarray,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """`statistic(*scores)` and its percentile bootstrap interval, stratified by task.

    With several score arrays, as `probability_of_improvement` takes, each is resampled by itself.
    """
    given = [np.asarray(one, np.float64) for one in scores]
    resampled = [statistic(*(_resample(one, rng) for one in given)) for _ in range(num_resamples)]
    return float(statistic(*given)), _middle(np.array(resampled), level)


def _resample(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    index = rng.integers(len(scores), size=scores.shape)
    return np.take_along_axis(scores, index, axis=0)


def _middle(resampled: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class SignTest(NamedTuple):
    """Comparisons won and lost, and how surprising that is."""

    wins: int
    losses: int
    p_value: float
    """Probability of a split at least this uneven, either way, if both were equally good."""


def sign_test(x: np.ndarray, y: np.ndarray) -> SignTest:
    """The exact two-sided sign test of paired figures, such as two methods' means over tasks. Ties
    are left out."""
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape:
        raise ValueError(f"the sign test compares pairs, not {x.shape} with {y.shape}")
    wins, losses = int(np.sum(x > y)), int(np.sum(x < y))
    count, fewer = wins + losses, min(wins, losses)
    tail = sum(math.comb(count, i) for i in range(fewer + 1)) / 2**count
    return SignTest(wins, losses, min(1.0, 2 * tail))
