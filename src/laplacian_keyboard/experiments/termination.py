"""The paper's table of termination horizons: how long a behavior runs before the next choice."""

from typing import Any

from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.common import over_seeds
from laplacian_keyboard.experiments.robots import Keys, largest, players, robot_of

DOMAIN = "cheetah"
HORIZONS = (5, 10, 15)
PAPER_EVALUATIONS = 20
"""The paper's figures are sums over this many evaluations; ours are means."""


def run(
    preset: str = "cpu", seeds: int = 3, out: str = "runs/termination", dataset: str = ""
) -> list[dict[str, Any]]:
    """One row for each horizon and task: the player's area under the curve, as a mean return."""
    robot = robot_of(DOMAIN, preset, out, dataset=dataset)
    cells = [(robot, Keys("laplacian", largest(preset), seed)) for seed in range(seeds)]
    results = players(cells, HORIZONS)
    published = paper.table("termination")
    return [
        {
            "t_term": t_term,
            "task": task,
            **over_seeds([r["tasks"][task]["area"] for r in results if r["t_term"] == t_term]),
            "paper": published.value(t_term=t_term, task=task).mean / PAPER_EVALUATIONS,
        }
        for t_term in HORIZONS
        for task in tasks_of(DOMAIN)
    ]
