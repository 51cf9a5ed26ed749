"""The paper's figure of zero-shot weights: which eigenvectors the quadruped's tasks ask for."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.experiments.robots import Keys, folder_of, keyboards, robot_of, sizes_of
from laplacian_keyboard.figures import to_png
from laplacian_keyboard.files import make_folder, write_atomically
from laplacian_keyboard.keyboard import Keyboard
from laplacian_keyboard.run_figures import weight_bars

DOMAIN = "quadruped"


def run(
    preset: str = "cpu",
    seeds: int = 1,
    out: str = "runs/quadruped-weights",
    dataset: str = "",
    sizes: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    """One row for each size of the basis, seed and task: its weights as they were regressed, and
    how much of its reward they explain. The first seed's pictures go to `out`, one a size."""
    robot = robot_of(DOMAIN, preset, out, dataset=dataset)
    wanted = [Keys("laplacian", k, i) for k in sizes_of(preset, sizes) for i in range(seeds)]
    keyboards([(robot, keys) for keys in wanted])
    rows = []
    make_folder(Path(out))
    for keys in wanted:
        keyboard = Keyboard.load(folder_of(robot, keys))
        inferred = {task: keyboard.infer_task(task) for task in tasks_of(DOMAIN)}
        drawn = {task: (np.asarray(i.raw), 1 - float(i.residual)) for task, i in inferred.items()}
        if keys.seed == 0:
            write_atomically(Path(out) / f"weights-k{keys.k}.png", to_png(weight_bars(drawn)))
        for task, (w, inside) in drawn.items():
            rows.append(
                {
                    "k": keys.k,
                    "seed": keys.seed,
                    "task": task,
                    "w": w.round(3).tolist(),
                    "inside_span": round(inside, 3),
                    "largest_key": int(np.argmax(np.abs(w))) + 1,
                    "share_of_largest": round(float(np.max(w**2) / np.sum(w**2)), 3),
                }
            )
    return rows
