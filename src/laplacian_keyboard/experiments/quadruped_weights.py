"""The paper's figure of zero-shot weights: which eigenvectors the quadruped's tasks ask for."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.data.labels import tasks_of
from laplacian_keyboard.experiments.common import NUM_KEYS, data_for
from laplacian_keyboard.figures import to_png
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.pretraining import pretrain
from laplacian_keyboard.run_figures import weight_bars

DOMAIN = "quadruped"


def run(
    preset: str = "cpu", seeds: int = 1, out: str = "runs/quadruped-weights", dataset: str = ""
) -> list[dict[str, Any]]:
    """One row for each seed and task: its weights, and how much of its reward they explain. The
    first seed's picture goes to `out`."""
    data = load_dataset(data_for(DOMAIN, preset, Path(out) / "data", dataset=dataset))
    rows, first = [], {}
    for seed in range(seeds):
        folder = Path(out) / f"keyboard-{seed}"
        keyboard = pretrain(data, k=NUM_KEYS[preset], preset=preset, seed=seed, out=folder)
        for task in tasks_of(data):
            inference = keyboard.infer_task(task)
            w, inside = np.asarray(inference.w), 1.0 - float(inference.residual)
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
    write_atomically(Path(out) / "weights.png", to_png(weight_bars(first)))
    return rows
