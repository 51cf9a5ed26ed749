"""The paper's zero-shot table: the Laplacian basis beside forward-backward representations.

Both learn from the same data with the same number of updates, and a task's weights come from its
rewards on the same states. Evaluated at the last checkpoint, 20 episodes a task.
"""

from pathlib import Path
from typing import Any

from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.common import (
    NUM_KEYS,
    data_for,
    over_seeds,
    require_robot,
    zero_shot_cell,
)
from laplacian_keyboard.parallel import spread

METHODS = ("laplacian", "fb")


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/zero-shot",
    domain: str = "cheetah",
    dataset: str = "",
) -> list[dict[str, Any]]:
    """One row for each task: both methods' returns, and the paper's (k = 50, mean over its three
    datasets, although its caption says APS)."""
    require_robot("zero-shot", domain)
    folder, k = Path(out) / domain, NUM_KEYS[preset]
    dataset = data_for(domain, preset, folder / "data", dataset=dataset)
    places = (dataset, preset, str(folder))
    cells = [(*places, method, k, seed) for method in METHODS for seed in range(seeds)]
    results = spread("keyboards", zero_shot_cell, cells)
    published = paper.table("zero-shot")
    return [
        {
            "task": task,
            "k": k,
            **{
                method: over_seeds([r["returns"][task] for r in results if r["basis"] == method])
                for method in METHODS
            },
            **{
                f"paper_{method}": published.value(domain=domain, task=task, method=method).mean
                for method in METHODS
            },
        }
        for task in results[0]["returns"]
    ]
