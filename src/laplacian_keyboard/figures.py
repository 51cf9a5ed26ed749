"""Drawing: maps of grid worlds, curves, and figures as bytes. No global state, no display."""

import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from laplacian_keyboard.envs.grid import MOVES, GridMap
from laplacian_keyboard.stats import mean_interval

WALL, AGENT, GOAL = "#3b4252", "#d8572a", "#2a9d4b"
DIVERGING, SEQUENTIAL = "RdBu_r", "viridis"


def new_figure(rows: int, columns: int, *, cell: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes, each `cell` inches large."""
    figure = Figure(figsize=(columns * cell[0], rows * cell[1]), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def to_png(figure: Figure, *, dpi: int = 110) -> bytes:
    """A figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def draw_map(
    axes: Axes, grid: GridMap, values: np.ndarray, *, title: str = "", diverging: bool = True
) -> None:
    """A function of the cells as colours; diverging colours are centred on zero."""
    picture = grid.paint(values)
    largest = np.nanmax(np.abs(picture)) or 1.0
    limits = (-largest, largest) if diverging else (np.nanmin(picture), np.nanmax(picture))
    colours = matplotlib.colormaps[DIVERGING if diverging else SEQUENTIAL].with_extremes(bad=WALL)
    axes.imshow(picture, cmap=colours, norm=Normalize(*limits), interpolation="nearest")
    _bare(axes, title)


def draw_policy(
    axes: Axes,
    grid: GridMap,
    actions: np.ndarray,
    *,
    title: str = "",
    goals: list[int] | None = None,
    path: list[int] | None = None,
) -> None:
    """Arrows for the action in every cell, goals marked, and a path walked so far."""
    walls = np.isnan(grid.paint(np.zeros(grid.num_states)))
    axes.imshow(walls, cmap=ListedColormap(["#f4f4f2", WALL]), interpolation="nearest")
    cells = grid.cells
    rows, columns = cells[:, 0], cells[:, 1]
    moves = np.array(MOVES)[actions]
    axes.quiver(
        columns,
        rows,
        moves[:, 1],
        -moves[:, 0],
        pivot="mid",
        scale=16,
        width=0.011,
        headwidth=4.5,
        color="#6b7280",
    )
    for goal in goals or []:
        axes.add_patch(
            Rectangle((columns[goal] - 0.5, rows[goal] - 0.5), 1, 1, color=GOAL, alpha=0.85, lw=0)
        )
    if path:
        axes.plot(columns[path], rows[path], color=AGENT, lw=2.4, solid_capstyle="round")
        axes.plot(columns[path[0]], rows[path[0]], "o", color=AGENT, ms=7)
    _bare(axes, title)


def _bare(axes: Axes, title: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(title, fontsize=9)


def draw_interval(
    axes: Axes, steps: Any, returns: Any, *, label: str, color: str | None = None
) -> tuple[Any, np.ndarray]:
    """Means of `returns[step]` over the steps, shaded by their 95 % bootstrap intervals; returns
    the curve's colour and the means."""
    rng = np.random.default_rng(0)
    estimates = [mean_interval(np.asarray(each), rng=rng) for each in returns]
    means = np.array([mean for mean, _ in estimates])
    low, high = np.transpose([interval for _, interval in estimates])
    (line,) = axes.plot(steps, means, lw=1.8, label=label, color=color)
    axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, lw=0)
    return line.get_color(), means


def panels(count: int, *, cell: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most four in a row."""
    columns = min(count, 4)
    figure, axes = new_figure(-(-count // columns), columns, cell=cell)
    for one in axes.flat[count:]:
        one.set_visible(False)
    return figure, list(axes.flat[:count])


def draw_curves(
    axes: Axes,
    x: Any,
    curves: dict[str, Any],
    *,
    xlabel: str,
    ylabel: str = "",
    title: str = "",
    log: bool = False,
) -> None:
    """Named curves over x."""
    for name, values in curves.items():
        axes.plot(x, values, label=name, lw=1.6)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, frameon=False)
