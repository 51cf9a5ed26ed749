"""The paper's zero-shot table: the Laplacian basis beside forward-backward representations.

Both learn from the same data with the same number of updates, and a task's weights come from its
rewards on the same states.
"""

from typing import Any

from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.common import over_seeds
from laplacian_keyboard.experiments.robots import Keys, keyboards, largest, robot_of

METHODS = ("laplacian", "fb")


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/zero-shot",
    domain: str = "cheetah",
    dataset: str = "",
    explorer: str = "",
) -> list[dict[str, Any]]:
    """One row for each task: both methods' returns, and the paper's for k = 50: with the explorer,
    where it has it, else the mean over its three datasets (its main table, although the caption
    says APS)."""
    robot = robot_of(domain, preset, out, dataset=dataset, explorer=explorer)
    k, of_paper = largest(preset), {"domain": domain}
    cells = [(robot, Keys(method, k, seed)) for method in METHODS for seed in range(seeds)]
    results = keyboards(cells)
    published = paper.table("zero-shot")
    if paper.explorer_beside(robot.explorer) == robot.explorer:
        published, of_paper = (
            paper.table("zero-shot-by-dataset"),
            {**of_paper, "explorer": robot.explorer},
        )
    return [
        {
            "task": task,
            "k": k,
            **{
                method: over_seeds(
                    [r["tasks"][task]["zero_shot"] for r in results if r["basis"] == method]
                )
                for method in METHODS
            },
            **{
                f"paper_{method}": published.value(**of_paper, task=task, method=method).mean
                for method in METHODS
            },
        }
        for task in tasks_of(domain)
    ]
