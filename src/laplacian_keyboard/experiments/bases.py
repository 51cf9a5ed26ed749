"""A family of keyboards: every basis under the same behaviors and player, on the point-maze.

The tasks are goals in different rooms; one keyboard serves them all. Players learn each with the
steps of the preset, and the learning curve's area counts too: a good keyboard is quick to learn.
"""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard.bases.registry import BASES
from laplacian_keyboard.checkpoint import read_json
from laplacian_keyboard.composing import compose
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.evaluate import episode_returns
from laplacian_keyboard.experiments.common import (
    ZERO_SHOT_EPISODES,
    ZERO_SHOT_SEED,
    ChordOfEach,
    data_for,
    over_seeds,
)
from laplacian_keyboard.host_loop import EVALUATE_EPISODES
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.pretraining import pretrain

DOMAIN = "point-maze"
TASKS = ("goal", "goal:2,2", "goal:2,9")
"""Inside three of the four rooms."""
NUM_KEYS = {"smoke": 2, "cpu": 5, "paper": 10}
PLAYER_STEPS = {"smoke": 400, "cpu": 20_000, "paper": 200_000}


def run(
    preset: str = "cpu", seeds: int = 3, out: str = "runs/bases", dataset: str = ""
) -> list[dict[str, Any]]:
    """One row for each basis: zero-shot and composed returns, means over tasks and seeds."""
    dataset = data_for(DOMAIN, preset, Path(out) / "data", dataset=dataset, explorer="random")
    cells = [(dataset, preset, out, basis, seed) for basis in BASES for seed in range(seeds)]
    results = spread("keyboards and players", cell, cells)
    return [
        {
            "basis": basis,
            "k": NUM_KEYS[preset],
            **{
                name: over_seeds(
                    [float(np.mean(r[name])) for r in results if r["basis"] == basis], digits=2
                )
                for name in ("zero_shot", "untrained", "composed", "area")
            },
        }
        for basis in BASES
    ]


def cell(dataset: str, preset: str, out: str, basis: str, seed: int) -> dict[str, Any]:
    """One keyboard: its zero-shot return and its player's on every task."""
    folder = Path(out) / f"{basis}-{seed}"
    data = load_dataset(dataset)
    keyboard = pretrain(
        data, k=NUM_KEYS[preset], basis=basis, preset=preset, seed=seed, out=folder / "keyboard"
    )
    found: dict[str, Any] = {"basis": basis, "seed": seed}
    for task in TASKS:
        env = make_vector_env(DOMAIN, task, ZERO_SHOT_EPISODES)
        agent = ChordOfEach(keyboard, [keyboard.infer_task(task).w])
        returns, _ = episode_returns(env, agent, ZERO_SHOT_EPISODES, seed=ZERO_SHOT_SEED)
        player = folder / task.replace(":", "-")
        compose(
            keyboard,
            make_vector_env(DOMAIN, task, 1),
            steps=PLAYER_STEPS[preset],
            preset=preset,
            seed=seed,
            out=player,
            evaluate_in=make_vector_env(DOMAIN, task, EVALUATE_EPISODES),
            facts={"task": task},
        )
        learned = read_json(player / "result.json")
        curve = learned["curve"]["returns"]
        for name, value in {
            "zero_shot": float(np.mean(returns)),
            "untrained": float(np.mean(curve[0])),
            "composed": float(np.mean(curve[-1])),
            "area": learned["area"],
        }.items():
            found.setdefault(name, []).append(value)
    return found
