"""What the explorers reach: the spread of physical quantities on the cheetah, all five beside each
other."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from laplacian_keyboard import figures
from laplacian_keyboard.data import labels
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.gather import EXPLORERS, gather

DOMAIN = "cheetah"
STEPS = {"smoke": 2_000, "cpu": 500_000, "paper": 2_000_000}
SHOWN = ("speed", "height", "upright", "angular_momentum")
NUM_BINS = 60


def run(preset: str = "cpu", seeds: int = 1, out: str = "runs/coverage") -> list[dict[str, Any]]:
    """One row for each explorer and seed: percentiles of every quantity, the spread of the speed
    over that of random actions, each task's mean reward. Datasets and a picture go to `out`."""
    rows, first = [], {}
    for explorer in EXPLORERS:
        for seed in range(seeds):
            folder = Path(out) / (explorer if seeds == 1 else f"{explorer}-{seed}")
            gather(
                lambda count: make_vector_env(DOMAIN, None, count),
                folder,
                domain=DOMAIN,
                explorer=explorer,
                steps=STEPS[preset],
                seed=seed,
                preset=preset,
            )
            data = load_dataset(folder)
            quantities = labels.quantities(data)
            first.setdefault(explorer, quantities)
            picked = data.sample_next_rows(100_000, seed=0)
            rows.append(
                {
                    "explorer": explorer,
                    "seed": seed,
                    "steps": data.num_transitions,
                    "percentiles_5_50_95": {
                        name: np.percentile(values, [5, 50, 95]).round(4).tolist()
                        for name, values in quantities.items()
                    },
                    "speed_spread": float(_spread(quantities["speed"])),
                    "task_rewards": {
                        task: float(labels.relabel(data, task, picked).mean())
                        for task in labels.tasks_of(data)
                    },
                }
            )
    at_random = np.mean([row["speed_spread"] for row in rows if row["explorer"] == "random"])
    for row in rows:
        row["speed_spread_over_random"] = round(row["speed_spread"] / at_random, 2)
    write_atomically(Path(out) / "coverage.png", figures.to_png(draw(first)))
    return rows


def _spread(values: np.ndarray) -> float:
    low, high = np.percentile(values, [5, 95])
    return high - low


def draw(quantities: dict[str, dict[str, np.ndarray]]) -> Figure:
    """A row for each quantity, a column for each explorer, common scales in a row."""
    figure, axes = figures.new_figure(len(SHOWN), len(quantities), cell=(2.1, 1.35))
    for row, name in zip(axes, SHOWN, strict=True):
        everything = np.concatenate([values[name] for values in quantities.values()])
        limits = np.percentile(everything, [0.1, 99.9])
        for ax, (explorer, values) in zip(row, quantities.items(), strict=True):
            ax.hist(values[name], bins=NUM_BINS, range=limits, density=True, color="#4c72b0")
            ax.set_yscale("log")
            ax.set_xlim(*limits)
            ax.tick_params(labelsize=6)
            if name == SHOWN[0]:
                ax.set_title(explorer, fontsize=9)
        row[0].set_ylabel(name.replace("_", " "), fontsize=8)
    return figure
