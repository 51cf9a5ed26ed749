"""The paper's figure of zero-shot weights: which eigenvectors the quadruped's tasks ask for."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard.experiments.robots import Keys, keyboards, largest, robot_of
from laplacian_keyboard.figures import to_png
from laplacian_keyboard.files import make_folder, write_atomically
from laplacian_keyboard.run_figures import weight_bars

DOMAIN = "quadruped"


def run(
    preset: str = "cpu", seeds: int = 1, out: str = "runs/quadruped-weights", dataset: str = ""
) -> list[dict[str, Any]]:
    """One row for each seed and task: its weights, and how much of its reward they explain. The
    first seed's picture goes to `out`."""
    robot = robot_of(DOMAIN, preset, out, dataset=dataset)
    found = keyboards([(robot, Keys("laplacian", largest(preset), seed)) for seed in range(seeds)])
    rows, first = [], {}
    for seed, result in enumerate(found):
        for task, figures in result["tasks"].items():
            w, inside = np.array(figures["w"]), figures["inside_span"]
            first.setdefault(task, (w, inside))
            rows.append(
                {
                    "seed": seed,
                    "task": task,
                    "w": w.round(3).tolist(),
                    "inside_span": round(inside, 3),
                    "largest_key": int(np.argmax(np.abs(w))) + 1,
                    "share_of_largest": round(float(np.max(np.square(w)) / np.sum(w**2)), 3),
                }
            )
    make_folder(Path(out))
    write_atomically(Path(out) / "weights.png", to_png(weight_bars(first)))
    return rows
