"""The paper's stitching figure: a goal outside the span, which one behavior misses and a player
reaches by playing several.

Everything here is exact: worlds are small enough to follow every start state, and to find the best
sequence of chords by dynamic programming.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from laplacian_keyboard import figures, spectral
from laplacian_keyboard.envs.domains import FOUR_ROOMS_GOAL
from laplacian_keyboard.envs.grid import GridMap, four_rooms, grid_observations
from laplacian_keyboard.experiments.eigenvectors import Geometry
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.keyboard import Keyboard, Player
from laplacian_keyboard.successor.weights import to_sphere

PATIENCE = 3
"""A start counts as a success if the goal is reached within this many shortest paths."""
NEVER = np.iinfo(np.int64).max // 2


def run(preset: str = "cpu", seeds: int = 1, out: str = "runs/stitching") -> list[dict[str, Any]]:
    """One row for each seed: success of the single chord and of the player from every start. Runs
    the demo where it has not run; the figures go to `out`."""
    from laplacian_keyboard.experiments.demo import run_demo  # which draws with this file

    geometry = Geometry.of(four_rooms())
    goal = geometry.grid.cell_number(*FOUR_ROOMS_GOAL)
    shown = ("zero_shot_success", "player_success", "player_path_ratio", "best_path_ratio")
    rows = []
    for seed in range(seeds):
        folder = Path(out) / f"seed-{seed}"
        result = run_demo(preset=preset, seed=seed, out=folder)
        player = Player.load(folder)
        reward = (np.arange(geometry.grid.num_states) == goal).astype(np.float32)
        w = player.keyboard.infer(grid_observations(geometry.grid), reward)
        start = far_start(geometry.grid, goal, 3 * player.config.t_term)
        figure = draw(geometry, player, np.asarray(w), goal, start)
        write_atomically(Path(out) / f"stitching-{seed}.png", figures.to_png(figure))
        rows.append({"seed": seed, **{name: result[name] for name in shown}})
    return rows


@dataclass(frozen=True)
class Success:
    """How an agent reaches a goal from every other cell."""

    fraction: float
    """Starts from which the goal is reached within `PATIENCE` shortest paths."""
    path_ratio: float
    """Steps over the shortest path, averaged over those successes (nan if there are none)."""


def actions_of_chords(keyboard: Keyboard, grid: GridMap, w: np.ndarray) -> np.ndarray:
    """The action of every chord in every cell, `(m, s)` for chords `(m, k)`."""
    obs = jnp.asarray(grid_observations(grid))
    per_chord = jax.vmap(lambda one: keyboard.act(obs, one))
    return np.asarray(per_chord(jnp.asarray(w, jnp.float32)))


def steps_of_chord(grid: GridMap, actions: np.ndarray, goal: int, limit: int) -> np.ndarray:
    """Steps to the goal from every cell with one behavior `(s,)` throughout; NEVER past `limit`."""
    dynamics = grid.next_states()
    cell, steps = np.arange(grid.num_states), np.full(grid.num_states, NEVER)
    steps[goal] = 0
    for step in range(1, limit + 1):
        cell = dynamics[cell, actions[cell]]
        steps = np.where((cell == goal) & (steps == NEVER), step, steps)
    return steps


def steps_of_player(
    grid: GridMap, actions: np.ndarray, goal: int, t_term: int, limit: int
) -> np.ndarray:
    """The same for a player: `actions[c]` is the behavior `(s,)` it picks in cell c."""
    dynamics = grid.next_states()
    cell, steps = np.arange(grid.num_states), np.full(grid.num_states, NEVER)
    steps[goal] = 0
    chosen_at = cell
    for step in range(1, limit + 1):
        if (step - 1) % t_term == 0:
            chosen_at = cell
        cell = dynamics[cell, actions[chosen_at, cell]]
        steps = np.where((cell == goal) & (steps == NEVER), step, steps)
    return steps


def steps_of_best_player(grid: GridMap, actions: np.ndarray, goal: int, t_term: int) -> np.ndarray:
    """The fewest steps any player could take with the chords whose behaviors are `(m, s)`:
    dynamic programming over stretches of t_term steps."""
    dynamics = grid.next_states()
    chords = np.arange(len(actions))[:, None]
    cell = np.tile(np.arange(grid.num_states), (len(actions), 1))
    arrived = np.full(cell.shape, NEVER)
    for step in range(1, t_term + 1):
        moved = dynamics[cell, actions[chords, cell]]
        cell = np.where(arrived < NEVER, cell, moved)
        arrived = np.where((cell == goal) & (arrived == NEVER), step, arrived)
    steps = np.full(grid.num_states, NEVER)
    steps[goal] = 0
    while True:
        through = np.where(arrived < NEVER, arrived, np.minimum(t_term + steps[cell], NEVER))
        better = np.minimum(steps, through.min(axis=0))
        if np.array_equal(better, steps):
            return steps
        steps = better


def success(grid: GridMap, steps: np.ndarray, goal: int) -> Success:
    """How often and how directly the goal is reached, from the steps of every start."""
    shortest = grid.distances(goal)
    others = shortest > 0
    reached = others & (steps <= PATIENCE * shortest)
    ratio = float(np.mean(steps[reached] / shortest[reached])) if reached.any() else float("nan")
    return Success(float(reached[others].mean()), ratio)


def best_success(
    keyboard: Keyboard, grid: GridMap, goal: int, t_term: int, *, num_chords: int = 1_000
) -> Success:
    """An exact planner over many chords spread over the sphere: what a player could reach."""
    directions = np.random.default_rng(0).standard_normal((num_chords, keyboard.k))
    actions = actions_of_chords(keyboard, grid, directions)
    return success(grid, steps_of_best_player(grid, actions, goal, t_term), goal)


def player_success(player: Player, grid: GridMap, goal: int) -> Success:
    """The same for a player, followed from every cell."""
    limit = PATIENCE * int(grid.distances(goal).max())
    chosen = np.asarray(player.choose(grid_observations(grid)))
    actions = actions_of_chords(player.keyboard, grid, chosen)
    steps = steps_of_player(grid, actions, goal, player.config.t_term, limit)
    return success(grid, steps, goal)


def chord_success(keyboard: Keyboard, grid: GridMap, w: np.ndarray, goal: int) -> Success:
    """The same for one behavior, followed from every cell."""
    limit = PATIENCE * int(grid.distances(goal).max())
    actions = actions_of_chords(keyboard, grid, np.asarray(w)[None])[0]
    return success(grid, steps_of_chord(grid, actions, goal, limit), goal)


def in_span_value(keyboard: Keyboard, geometry: Geometry, *, num_tasks: int = 20) -> float:
    """Value of the behaviors for random rewards w . phi over the optimal value, averaged over the
    tasks and all start states."""
    grid, gamma = geometry.grid, keyboard.config.successor.gamma
    phi = np.asarray(keyboard.phi(grid_observations(grid)), np.float64)
    weights = np.asarray(
        to_sphere(jnp.asarray(np.random.default_rng(0).standard_normal((num_tasks, keyboard.k))))
    )
    ratios = []
    for w, actions in zip(weights, actions_of_chords(keyboard, grid, weights), strict=True):
        reward = phi @ w
        best = spectral.value_iteration(geometry.dynamics, reward, gamma)
        value = spectral.policy_value(geometry.dynamics, actions, reward, gamma)
        ratios.append(value.mean() / best.mean())
    return float(np.mean(ratios))


def draw(geometry: Geometry, player: Player, w: np.ndarray, goal: int, start: int) -> Figure:
    """The optimal and the zero-shot policy, and the player's behaviors one by one from `start`."""
    grid, dynamics, t_term = geometry.grid, geometry.dynamics, player.config.t_term
    reward = (np.arange(grid.num_states) == goal).astype(float)
    gamma, terminal = player.config.gamma, reward > 0
    value = spectral.value_iteration(dynamics, reward, gamma, terminal=terminal)
    optimal = spectral.greedy_policy(dynamics, reward, value, gamma, terminal)
    zero_shot = actions_of_chords(player.keyboard, grid, np.asarray(w)[None])[0]
    limit = PATIENCE * int(grid.distances(goal).max())

    panels = [
        ("optimal policy", optimal, _walk(dynamics, optimal, start, goal, limit)),
        ("zero-shot behavior", zero_shot, _walk(dynamics, zero_shot, start, goal, limit)),
    ]
    obs, cell = grid_observations(grid), start
    while cell != goal and len(panels) < 7:
        chord = np.asarray(player.choose(obs[cell]))
        actions = actions_of_chords(player.keyboard, grid, chord[None])[0]
        path = _walk(dynamics, actions, cell, goal, t_term)
        panels.append((f"player, behavior {len(panels) - 1}", actions, path))
        cell = path[-1]
    figure, axes = figures.new_figure(1, len(panels), cell=(2.3, 2.5))
    for ax, (title, actions, path) in zip(axes[0], panels, strict=True):
        figures.draw_policy(ax, grid, actions, title=title, goals=[goal], path=path)
    return figure


def far_start(grid: GridMap, goal: int, steps: int) -> int:
    """A cell as many steps from the goal as possible, at most `steps`."""
    distance = grid.distances(goal)
    return int(np.argmax(np.where(distance <= steps, distance, -1)))


def _walk(dynamics: np.ndarray, actions: np.ndarray, start: int, goal: int, limit: int):
    path = [start]
    while path[-1] != goal and len(path) <= limit:
        path.append(int(dynamics[path[-1], actions[path[-1]]]))
    return path
