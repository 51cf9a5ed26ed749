"""Zero-shot behaviors for goals of Four-Rooms, over the optimal value: the Laplacian keyboard and
forward-backward, where both can be checked exactly."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard import spectral
from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.envs.domains import jax_world
from laplacian_keyboard.envs.grid import four_rooms
from laplacian_keyboard.experiments.common import over_seeds
from laplacian_keyboard.experiments.demo import DATA_STEPS, EPISODE
from laplacian_keyboard.experiments.eigenvectors import Geometry
from laplacian_keyboard.experiments.stitching import actions_of_chords, grid_observations
from laplacian_keyboard.keyboard import Keyboard
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.pretraining import pretrain

METHODS = ("laplacian", "fb")
NUM_KEYS = {"smoke": 2, "cpu": 50, "paper": 50}
NUM_GOALS = 20


def run(preset: str = "cpu", seeds: int = 3, out: str = "runs/goals") -> list[dict[str, Any]]:
    """One row for each method: its value over the optimal one, a mean over goals and starts."""
    cells = [(preset, out, method, seed) for method in METHODS for seed in range(seeds)]
    results = spread("keyboards", cell, cells)
    return [
        {
            "basis": method,
            "k": NUM_KEYS[preset],
            "goals": NUM_GOALS,
            **{
                name: over_seeds([r[name] for r in results if r["basis"] == method], digits=4)
                for name in ("of_optimal", "of_optimal_worst_goal")
            },
        }
        for method in METHODS
    ]


def cell(preset: str, out: str, method: str, seed: int) -> dict[str, Any]:
    """One keyboard on all goals; kept in `out/METHOD-SEED`."""
    folder = Path(out) / f"{method}-{seed}"
    described = {"kind": "goals", "preset": preset, "basis_name": method, "seed": seed}
    run = RunFolder(folder, described)
    if run.is_done:
        return run.result()
    world = jax_world("four-rooms", None, time_limit=EPISODE + 1)
    data = collect_random_walks(world, steps=DATA_STEPS[preset], length=EPISODE, seed=seed)
    keyboard = pretrain(
        data, k=NUM_KEYS[preset], basis=method, preset=preset, seed=seed, out=folder / "keyboard"
    )
    ratios = goal_values(keyboard, Geometry.of(four_rooms()))
    result = {
        "basis": method,
        "seed": seed,
        "of_optimal": float(ratios.mean()),
        "of_optimal_worst_goal": float(ratios.min()),
    }
    run.finish(result)
    return result


def goal_values(keyboard: Keyboard, geometry: Geometry) -> np.ndarray:
    """For each of some random goals, the value of the behavior that is inferred from its reward
    over the optimal value, both as means over all starts."""
    grid, gamma = geometry.grid, keyboard.config.successor.gamma
    goals = np.random.default_rng(0).choice(grid.num_states, NUM_GOALS, replace=False)
    rewards = np.eye(grid.num_states)[goals]
    observations = grid_observations(grid)
    chords = np.stack([np.asarray(keyboard.infer(observations, reward)) for reward in rewards])
    ratios = []
    for reward, actions in zip(rewards, actions_of_chords(keyboard, grid, chords), strict=True):
        best = spectral.value_iteration(geometry.dynamics, reward, gamma)
        value = spectral.policy_value(geometry.dynamics, actions, reward, gamma)
        ratios.append(value.mean() / best.mean())
    return np.array(ratios)
