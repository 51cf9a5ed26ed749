"""The paper's table of learning speed: the player's area under the curve over flat TD3's.

TD3 learns every task for as many steps as the players, with the same evaluations.
"""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard.checkpoint import read_json
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.common import over_seeds
from laplacian_keyboard.experiments.robots import Keys, Robot, players, robot_of, sizes_of
from laplacian_keyboard.flat import train_flat
from laplacian_keyboard.host_loop import EVALUATE_EPISODES
from laplacian_keyboard.parallel import spread

FLAT_PRESET = {"smoke": "smoke", "cpu": "cleanrl", "paper": "cleanrl"}


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/sample-efficiency",
    domain: str = "cheetah",
    dataset: str = "",
    explorer: str = "",
    sizes: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    """One row for each k and task: areas of both, and their ratio."""
    sizes = sizes_of(preset, sizes)
    robot = robot_of(domain, preset, out, dataset=dataset, explorer=explorer)
    found = players([(robot, Keys("laplacian", k, i)) for k in sizes for i in range(seeds)])
    flat = flat_agents(preset, seeds, out, domain)
    return [_row(robot, k, task, found, flat) for k in sizes for task in tasks_of(domain)]


def flat_agents(preset: str, seeds: int, out: str, domain: str) -> list[dict[str, Any]]:
    """Flat TD3 on every task, for every seed."""
    cells = [
        (preset, out, domain, task, seed) for seed in range(seeds) for task in tasks_of(domain)
    ]
    return spread("flat agents", flat_cell, cells)


def flat_cell(preset: str, out: str, domain: str, task: str, seed: int) -> dict[str, Any]:
    """Flat TD3 on one task."""
    folder = Path(out) / domain / f"td3-{task}-{seed}"
    train_flat(
        make_vector_env(domain, task, 1),
        preset=FLAT_PRESET[preset],
        domain=domain,
        seed=seed,
        out=folder,
        evaluate_in=make_vector_env(domain, task, EVALUATE_EPISODES),
        facts={"task": task},
    )
    result = read_json(folder / "result.json")
    final = float(np.mean(result["curve"]["returns"][-1]))
    return {"task": task, "seed": seed, "final": final, "area": result["area"]}


def _row(
    robot: Robot, k: int, task: str, found: list[dict[str, Any]], flat: list[dict[str, Any]]
) -> dict[str, Any]:
    ours = [cell["tasks"][task]["area"] for cell in found if cell["k"] == k]
    theirs = [cell["area"] for cell in flat if cell["task"] == task]
    return {
        "k": k,
        "task": task,
        "player_area": over_seeds(ours),
        "td3_area": over_seeds(theirs),
        "td3_final": over_seeds([cell["final"] for cell in flat if cell["task"] == task]),
        **ratio_interval(ours, theirs),
        "paper_ratio": paper.table("auc-ratio").find(
            explorer=paper.explorer_beside(robot.explorer), domain=robot.domain, task=task, k=k
        ),
    }


def ratio_interval(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """The ratio of two means, with a 95 % bootstrap interval over the seeds of both."""
    rng = np.random.default_rng(0)
    resample = lambda values: rng.choice(values, (10_000, len(values))).mean(axis=1)  # noqa: E731
    ratios = resample(ours) / np.maximum(resample(theirs), 1e-9)
    ratio = float(np.mean(ours)) / max(float(np.mean(theirs)), 1e-9)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return {"ratio": round(ratio, 2), "ratio_ci95": [round(float(low), 2), round(float(high), 2)]}
