"""Beyond the linear span: what a player adds to zero-shot control, over the size of the basis."""

from typing import Any

import numpy as np

from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.robots import Keys, Robot, players, robot_of, sizes_of
from laplacian_keyboard.stats import mean_interval


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/hierarchy",
    domain: str = "cheetah",
    dataset: str = "",
    explorer: str = "",
    sizes: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    """One row for each k and task: means and intervals over seeds, the paper's improvement beside
    them, that of APS where it has not the explorer. `dataset` is a folder of the user's own;
    without it one is collected."""
    sizes = sizes_of(preset, sizes)
    robot = robot_of(domain, preset, out, dataset=dataset, explorer=explorer)
    results = players([(robot, Keys("laplacian", k, i)) for k in sizes for i in range(seeds)])
    return [summary_row(results, robot, k, task) for k in sizes for task in tasks_of(domain)]


def summary_row(results: list[dict[str, Any]], robot: Robot, k: int, task: str) -> dict[str, Any]:
    """Means over seeds with 95 % intervals."""
    cells = [result["tasks"][task] for result in results if result["k"] == k]
    generator = np.random.default_rng(0)
    row: dict[str, Any] = {"k": k, "task": task, "seeds": len(cells)}
    for name in ("zero_shot", "untrained_player", "player", "area"):
        mean, (low, high) = mean_interval(np.array([c[name] for c in cells]), rng=generator)
        row[name] = round(mean, 1)
        row[f"{name}_ci95"] = [round(low, 1), round(high, 1)]
    gains = np.array([c["player"] - c["zero_shot"] for c in cells])
    row["improvement"] = round(float(gains.mean()), 1)
    row["improvement_percent"] = round(100 * row["improvement"] / max(row["zero_shot"], 1e-9), 1)
    row["paper_improvement_percent"] = paper.table("improvement").find(
        explorer=paper.explorer_beside(robot.explorer), domain=robot.domain, task=task, k=k
    )
    row["inside_span"] = round(float(np.mean([c["inside_span"] for c in cells])), 3)
    return row
