"""Figures of runs: arrays in, a matplotlib figure out. The files are read in `run_report`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from laplacian_keyboard.figures import DIVERGING, draw_interval, new_figure, panels

RAISED, LOWERED = "#b2404f", "#3f74ac"
"""Weights above and below zero, as in the maps."""


def eigenvalue_bars(eigenvalues: ArrayLike) -> Figure:
    """Eigenvalues of e_1 to e_k, `(k,)` or `(seeds, k)`."""
    values = np.atleast_2d(np.asarray(eigenvalues, float))
    figure, axes = new_figure(1, 1, cell=(5.5, 2.4))
    keys, width = np.arange(1, values.shape[1] + 1), 0.8 / len(values)
    for i, each in enumerate(values):
        axes[0, 0].bar(keys + (i - (len(values) - 1) / 2) * width, each, width)
    _tidy(axes[0, 0], xlabel="i", ylabel="eigenvalue of $e_i$")
    axes[0, 0].set_xticks(_ticks(len(keys)))
    return figure


def correlations(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Correlations between columns of x and of y, `(columns of x, columns of y)`; NaN where one
    of them does not vary."""
    x, y = (np.asarray(z, float) - np.mean(z, axis=0, dtype=float) for z in (x, y))
    size = np.linalg.norm(x, axis=0)[:, None] * np.linalg.norm(y, axis=0)
    return np.divide(x.T @ y, size, out=np.full(size.shape, np.nan), where=size > 1e-9 * len(x))


def correlation_map(values: NDArray[Any], quantities: Sequence[str]) -> Figure:
    """Correlations `(k, quantities)` of features with quantities, written on their colours."""
    rows, columns = values.shape
    figure, axes = new_figure(1, 1, cell=(1.2 + 1.0 * columns, 0.7 + 0.27 * rows))
    one = axes[0, 0]
    one.imshow(values, cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if abs(value) > 0.6 else "black"
            one.text(j, i, f"{value:+.2f}", ha="center", va="center", fontsize=8, color=colour)
    one.set_xticks(range(columns), [name.replace("_", "\n") for name in quantities], fontsize=8)
    one.set_yticks(range(rows), [rf"$\phi_{{{i + 1}}}$" for i in range(rows)])
    one.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    for spine in one.spines.values():
        spine.set_visible(False)
    return figure


def weight_bars(weights: Mapping[str, tuple[ArrayLike, float]]) -> Figure:
    """The weights `(k,)` of every task, and the fraction of its reward inside the span."""
    figure, axes = panels(len(weights), cell=(2.6, 2.2))
    limit = 1.05 * max(float(np.max(np.abs(w))) for w, _ in weights.values())
    for one, (task, (w, inside)) in zip(axes, weights.items(), strict=True):
        w = np.asarray(w)
        one.bar(np.arange(1, len(w) + 1), w, color=np.where(w > 0, RAISED, LOWERED))
        one.axhline(0.0, color="black", lw=0.6)
        one.set_ylim(-limit, limit)
        title = f"{task.replace('_', ' ')}: {100 * inside:.0f} % inside the span"
        _tidy(one, xlabel="key", title=title)
        one.set_xticks(_ticks(len(w)))
    axes[0].set_ylabel("weight", fontsize=9)
    return figure


def learning_curve(
    steps: Sequence[int],
    returns: Sequence[Sequence[Sequence[float]]],
    *,
    zero_shot: float | None = None,
    xlabel: str = "environment steps",
) -> Figure:
    """Mean return and 95 % interval of one or more players over the steps they learned, from
    `returns[step][player][episode]`; step 0 is that of the untrained player."""
    figure, axes = new_figure(1, 1, cell=(7.0, 3.0))
    one = axes[0, 0]
    for player in range(len(returns[0])):
        name = "player" if len(returns[0]) == 1 else f"player {player + 1}"
        colour, means = draw_interval(one, steps, [each[player] for each in returns], label=name)
        if steps[0] == 0:
            untrained = "untrained" if player == 0 else None
            one.plot(0, means[0], "o", color=colour, ms=6, label=untrained)
    if zero_shot is not None:
        one.axhline(zero_shot, color="black", ls="--", lw=1.2, label="zero-shot")
    _tidy(one, xlabel=xlabel, ylabel="return of an episode")
    one.xaxis.set_major_formatter("{x:,.0f}")
    one.legend(fontsize=8, frameon=False)
    return figure


def chord_map(chords: NDArray[Any], t_term: int) -> Figure:
    """Chords `(decisions, k)` over the steps of an episode."""
    decisions, k = chords.shape
    figure, axes = new_figure(1, 1, cell=(8.5, 1.1 + 0.2 * k))
    largest = float(np.abs(chords).max()) or 1.0
    image = axes[0, 0].imshow(
        chords.T,
        cmap=DIVERGING,
        vmin=-largest,
        vmax=largest,
        aspect="auto",
        interpolation="nearest",
        extent=(0, decisions * t_term, k + 0.5, 0.5),
    )
    figure.colorbar(image, ax=axes[0, 0], label="weight", pad=0.01)
    _tidy(axes[0, 0], xlabel="step of the episode", ylabel="key")
    axes[0, 0].set_yticks(_ticks(k))
    axes[0, 0].grid(False)
    return figure


def metric_panels(metrics: Mapping[str, tuple[Sequence[int], Sequence[Any]]]) -> Figure:
    """Steps and values of every metric, one panel each; values may be numbers or one a seed."""
    figure, axes = panels(len(metrics), cell=(2.5, 1.9))
    for one, (name, (steps, values)) in zip(axes, metrics.items(), strict=True):
        marker = "o" if len(steps) == 1 else ""  # a single point makes no line
        columns = np.array(values, float).reshape(len(steps), -1)
        one.plot(steps, columns, marker=marker, ms=4, lw=1.4)
        _tidy(one, title=name.replace("/", ": ").replace("_", " "))
    return figure


def _ticks(count: int) -> range:
    """Keys worth a number on an axis of `count`."""
    return range(1, count + 1) if count <= 12 else range(5, count + 1, 5)


def _tidy(axes: Axes, *, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Labels and a light grid."""
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
