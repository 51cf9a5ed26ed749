"""What is exactly true of a chord on a grid: how much value it earns, how much there is, and how
far from that the span of the basis can be."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laplacian_keyboard import spectral
from laplacian_keyboard.envs.grid import GridMap

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Values:
    """Discounted rewards of one aim, counted at every step without an end."""

    optimal: Array
    """Of the best policy, from every cell."""
    chord: Array
    """Of the chord's behavior."""
    tight: float
    """Most that v* can lose, in any cell, when the reward is replaced by its part in the span."""
    theorem: float
    """The same by the paper's theorem, from smoothness alone."""


class Oracle:
    """Exact answers for one map and a basis of k eigenvectors besides the constant one."""

    def __init__(self, grid: GridMap, k: int, gamma: float):
        self._dynamics, self._gamma = grid.next_states(), gamma
        self._walk = spectral.transition_matrix(self._dynamics)
        laplacian = spectral.laplacian(self._walk)
        self._basis = spectral.eigenbasis(laplacian, min(k + 1, grid.num_states))

    def values(self, rewards: Array, actions: NDArray[np.int64]) -> Values:
        """Values of a reward `(s,)` for entering cells, and of the behavior that does `actions`."""
        optimal = spectral.value_iteration(self._dynamics, rewards, self._gamma, tolerance=1e-6)
        chord = spectral.policy_value(self._dynamics, actions, rewards, self._gamma)
        bounds = spectral.value_bounds(self._walk, rewards, self._basis, self._gamma)
        return Values(optimal, chord, bounds.tight, bounds.theorem)
