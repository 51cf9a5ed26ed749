"""The paper's bound figure: value error and both bounds over the size of the basis."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from laplacian_keyboard import figures, spectral
from laplacian_keyboard.envs.grid import four_rooms
from laplacian_keyboard.experiments.eigenvectors import Geometry
from laplacian_keyboard.files import make_folder, write_atomically

GAMMA = 0.95
TOLERANCE = 1e-7
"""Value iteration's own error; a smaller excess is not a violation."""


SHOWN_SIZES = (1, 5, 10, 25, 50, 100)


def run(preset: str = "cpu", seeds: int = 1, out: str = "runs/bound") -> list[dict[str, Any]]:
    """One row for each reward and k: value error and both bounds on Four-Rooms. Exact, so neither
    preset nor seeds matter; the figure goes to `out`."""
    geometry = Geometry.of(four_rooms())
    everything = [curves(geometry, name, reward) for name, reward in rewards(geometry).items()]
    make_folder(Path(out))
    write_atomically(Path(out) / "bound.png", figures.to_png(draw(geometry, everything)))
    return [
        {
            "reward": one.name,
            "graph_norm": round(one.graph_norm, 3),
            "k": k,
            "value_error": round(float(one.error[k - 1]), 5),
            "bound": round(float(one.tight[k - 1]), 5),
            "theorems_bound": round(float(one.theorem[k - 1]), 5),
            "violations": one.violations,
        }
        for one in everything
        for k in SHOWN_SIZES
    ]


@dataclass(frozen=True)
class Curves:
    """One reward: its value error and bounds for k = 1, 2, ..."""

    name: str
    reward: np.ndarray
    terminal: np.ndarray
    graph_norm: float
    sizes: np.ndarray
    error: np.ndarray
    tight: np.ndarray
    theorem: np.ndarray

    @property
    def violations(self) -> int:
        """Sizes at which the error exceeds a bound, or the tight bound the theorem's."""
        return int(
            np.sum(self.error > self.tight + TOLERANCE)
            + np.sum(self.tight > self.theorem + TOLERANCE)
        )


def rewards(geometry: Geometry) -> dict[str, np.ndarray]:
    """Four rewards from smooth to rough. The figure shows the paper's only as pictures, so these
    are ours: a slope towards a goal, a room, a goal, and independent noise."""
    grid = geometry.grid
    goal = grid.num_states - 1
    distance = grid.distances(goal)
    cells = grid.cells
    same_room = (cells[:, 0] > grid.shape[0] // 2) & (cells[:, 1] > grid.shape[1] // 2)
    return {
        "slope": 1.0 - distance / distance.max(),
        "room": same_room.astype(float),
        "goal": (np.arange(grid.num_states) == goal).astype(float),
        "noise": np.random.default_rng(0).uniform(-1.0, 1.0, grid.num_states),
    }


def curves(geometry: Geometry, name: str, reward: np.ndarray, gamma: float = GAMMA) -> Curves:
    """Error and bounds of one reward; the episode ends where the reward is largest."""
    terminal = reward == reward.max()
    sizes = np.arange(1, geometry.grid.num_states)
    value = spectral.value_iteration(geometry.dynamics, reward, gamma, terminal=terminal)
    error, tight, theorem = [], [], []
    for k in sizes:
        basis = geometry.first(int(k))
        rebuilt = spectral.reconstruct(basis, reward)
        approximate = spectral.value_iteration(geometry.dynamics, rebuilt, gamma, terminal=terminal)
        bounds = spectral.value_bounds(geometry.P, reward, basis, gamma)
        error.append(np.max(np.abs(value - approximate)))
        tight.append(bounds.tight)
        theorem.append(bounds.theorem)
    norm = spectral.graph_norm(geometry.P, reward)
    return Curves(
        name, reward, terminal, norm, sizes, np.array(error), np.array(tight), np.array(theorem)
    )


def draw(geometry: Geometry, all_curves: list[Curves]) -> Figure:
    """The reward and, below it, its curves."""
    figure, axes = figures.new_figure(2, len(all_curves), cell=(2.9, 2.3))
    for column, one in zip(axes.T, all_curves, strict=True):
        title = f"{one.name}  (graph norm {one.graph_norm:.2f})"
        figures.draw_map(column[0], geometry.grid, one.reward, title=title)
        lines = {
            "value error": np.maximum(one.error, 1e-6),
            "bound |r - r_k| / (1 - gamma)": np.maximum(one.tight, 1e-6),
            "theorem's bound": one.theorem,
        }
        figures.draw_curves(column[1], one.sizes, lines, xlabel="k", log=True)
    return figure
