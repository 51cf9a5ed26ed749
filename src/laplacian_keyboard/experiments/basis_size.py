"""The paper's table of zero-shot returns over the size of the basis and the explorer."""

from typing import Any

from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.common import over_seeds
from laplacian_keyboard.experiments.robots import Keys, keyboards, robot_of, sizes_of

EXPLORERS = {"smoke": ("babble",), "cpu": ("babble", "rnd"), "paper": ("aps", "proto", "rnd")}


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/basis-size",
    domain: str = "cheetah",
    dataset: str = "",
    sizes: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    """One row for each explorer, k and task. With a `dataset` of the user's own, only that."""
    explorers = ("",) if dataset else EXPLORERS[preset]
    cells = [
        (robot_of(domain, preset, out, dataset=dataset, explorer=explorer), k)
        for explorer in explorers
        for k in sizes_of(preset, sizes)
    ]
    results = keyboards(
        [(robot, Keys("laplacian", k, seed)) for robot, k in cells for seed in range(seeds)]
    )
    rows = []
    for i, (robot, k) in enumerate(cells):
        chosen = results[i * seeds : (i + 1) * seeds]
        for task in tasks_of(domain):
            published = paper.table("basis-size").find(
                explorer=robot.explorer, domain=domain, task=task, k=k
            )
            returns = over_seeds([r["tasks"][task]["zero_shot"] for r in chosen])
            rows.append(
                {"explorer": robot.explorer, "k": k, "task": task, **returns, "paper": published}
            )
    return rows
