"""The paper's table of zero-shot returns over the size of the basis and the explorer."""

from pathlib import Path
from typing import Any

from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.common import (
    data_for,
    over_seeds,
    require_robot,
    zero_shot_cell,
)
from laplacian_keyboard.parallel import spread

SIZES = {"smoke": (1, 2), "cpu": (1, 3, 10), "paper": (1, 2, 3, 5, 10, 20, 50)}
EXPLORERS = {"smoke": ("babble",), "cpu": ("babble", "rnd"), "paper": ("aps", "proto", "rnd")}


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/basis-size",
    domain: str = "cheetah",
    dataset: str = "",
) -> list[dict[str, Any]]:
    """One row for each explorer, k and task. With a `dataset` of the user's own, only that."""
    require_robot("basis-size", domain)
    folder = Path(out) / domain
    if dataset:
        named = {load_dataset(dataset).description.get("explorer", "given"): dataset}
    else:
        named = {name: str(folder / f"data-{name}") for name in EXPLORERS[preset]}
    cells = []
    for explorer, place in named.items():
        place = data_for(domain, preset, Path(place), dataset=dataset, explorer=explorer)
        cells += [
            (place, preset, str(folder / explorer), "laplacian", k, seed)
            for k in SIZES[preset]
            for seed in range(seeds)
        ]
    results = spread("keyboards", zero_shot_cell, cells)
    rows = []
    for explorer in named:
        for k in SIZES[preset]:
            chosen = [r for r in results if (r["explorer"], r["k"]) == (explorer, k)]
            for task in chosen[0]["returns"]:
                returns = over_seeds([r["returns"][task] for r in chosen])
                published = paper.table("basis-size").find(
                    explorer=explorer, domain=domain, task=task, k=k
                )
                rows.append(
                    {"explorer": explorer, "k": k, "task": task, **returns, "paper": published}
                )
    return rows
