"""Means with intervals."""

import numpy as np

NUM_RESAMPLES = 2_000


def mean_interval(
    values: np.ndarray, *, rng: np.random.Generator, level: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """The mean and its percentile bootstrap interval."""
    values = np.asarray(values, np.float64)
    resampled = rng.choice(values, (NUM_RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return float(values.mean()), (float(low), float(high))
