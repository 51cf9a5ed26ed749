"""The paper's Figure 2: Laplacian eigenvectors of Four-Rooms, and a reward rebuilt from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from laplacian_keyboard import figures, spectral
from laplacian_keyboard.envs.domains import FOUR_ROOMS_GOAL
from laplacian_keyboard.envs.grid import GridMap, four_rooms
from laplacian_keyboard.files import make_folder, write_atomically

SHOWN_EIGENVECTORS = (1, 2, 3, 4, 10, 50)
SHOWN_SIZES = (2, 5, 10, 25, 50)


def run(
    preset: str = "cpu", seeds: int = 1, out: str = "runs/eigenvectors"
) -> list[dict[str, Any]]:
    """One row for each k: error of the reward rebuilt from e_0 to e_k, and the last eigenvector's
    graph norm. Exact, so neither preset nor seeds matter; the figure goes to `out`."""
    geometry = Geometry.of(four_rooms())
    goal = geometry.grid.cell_number(*FOUR_ROOMS_GOAL)
    reward = (np.arange(geometry.grid.num_states) == goal).astype(float)
    _, errors = reconstruction_errors(geometry, reward, SHOWN_SIZES)
    make_folder(Path(out))
    write_atomically(Path(out) / "eigenvectors.png", figures.to_png(draw(geometry, reward)))
    return [
        {
            "k": k,
            "reconstruction_error": round(error, 6),
            "graph_norm": round(spectral.graph_norm(geometry.P, geometry.basis.vectors[:, k]), 4),
        }
        for k, error in errors.items()
    ]


@dataclass(frozen=True)
class Geometry:
    """A grid world's exact spectral data."""

    grid: GridMap
    dynamics: np.ndarray
    """Table of next states, `(s, a)`."""
    P: np.ndarray
    """Transitions of the uniform random policy."""
    basis: spectral.Eigenbasis
    """All eigenvectors of its Laplacian."""

    @classmethod
    def of(cls, grid: GridMap) -> "Geometry":
        dynamics = grid.next_states()
        P = spectral.transition_matrix(dynamics)
        return cls(grid, dynamics, P, spectral.eigenbasis(spectral.laplacian(P)))

    def first(self, k: int) -> spectral.Eigenbasis:
        """e_0 to e_k."""
        return spectral.Eigenbasis(self.basis.eigenvalues[: k + 1], self.basis.vectors[:, : k + 1])


def reconstruction_errors(geometry: Geometry, reward: np.ndarray, sizes: tuple[int, ...]):
    """Rebuilt rewards and their mean squared errors for several k."""
    rebuilt = {k: spectral.reconstruct(geometry.first(k), reward) for k in sizes}
    return rebuilt, {k: float(np.mean((reward - r) ** 2)) for k, r in rebuilt.items()}


def draw(geometry: Geometry, reward: np.ndarray) -> Figure:
    """Row (a): eigenvectors with graph norms. Row (b): the reward and its reconstructions."""
    grid = geometry.grid
    shown = [i for i in SHOWN_EIGENVECTORS if i < grid.num_states]
    sizes = tuple(k for k in SHOWN_SIZES if k < grid.num_states)
    columns = max(len(shown), len(sizes) + 1)
    figure, axes = figures.new_figure(2, columns, cell=(1.75, 2.0))
    for ax in axes.ravel():
        ax.axis("off")
    for ax, i in zip(axes[0], shown, strict=False):
        vector = geometry.basis.vectors[:, i]
        norm = spectral.graph_norm(geometry.P, vector)
        figures.draw_map(ax, grid, vector, title=f"e{i}  ({norm:.3f})")
        ax.axis("on")
    rebuilt, errors = reconstruction_errors(geometry, reward, sizes)
    figures.draw_map(axes[1, 0], grid, reward, title="reward r")
    axes[1, 0].axis("on")
    for ax, k in zip(axes[1, 1:], sizes, strict=False):
        figures.draw_map(ax, grid, rebuilt[k], title=f"r, k = {k}  ({errors[k]:.4f})")
        ax.axis("on")
    return figure


def draw_learned(geometry: Geometry, learned: np.ndarray, cosines: np.ndarray) -> Figure:
    """Exact eigenvectors above the learned ones, signs matched."""
    k = learned.shape[1]
    figure, axes = figures.new_figure(2, k, cell=(1.3, 1.55))
    for i in range(k):
        exact, column = geometry.basis.vectors[:, i + 1], learned[:, i]
        sign = np.sign(exact @ column) or 1.0
        figures.draw_map(axes[0, i], geometry.grid, exact, title=f"exact e{i + 1}")
        figures.draw_map(axes[1, i], geometry.grid, sign * column, title=f"|cos| {cosines[i]:.3f}")
    return figure
