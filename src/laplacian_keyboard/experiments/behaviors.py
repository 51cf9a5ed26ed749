"""The paper's figures of behaviors: film strips of single keys, and what they do to the body."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard.envs.dmc import quantities_from_physics
from laplacian_keyboard.experiments.robots import Keys, folder_of, keyboards, largest, robot_of
from laplacian_keyboard.figures import to_png
from laplacian_keyboard.files import make_folder, write_atomically
from laplacian_keyboard.film import film_strip
from laplacian_keyboard.keyboard import Keyboard
from laplacian_keyboard.run_report import film_keys


def run(
    preset: str = "cpu",
    seeds: int = 1,
    out: str = "runs/behaviors",
    domain: str = "cheetah",
    dataset: str = "",
) -> list[dict[str, Any]]:
    """One row for each seed and key of +-e_1 to +-e_3: means of physical quantities over its film.
    The film strips go to `out`."""
    robot, folder = robot_of(domain, preset, out, dataset=dataset), Path(out) / domain
    cells = [(robot, Keys("laplacian", largest(preset), seed)) for seed in range(seeds)]
    keyboards(cells)
    make_folder(folder)
    rows = []
    for seed, cell in enumerate(cells):
        films = film_keys(Keyboard.load(folder_of(*cell)))
        write_atomically(folder / f"behaviors-{seed}.png", to_png(film_strip(domain, films)))
        for name, film in films.items():
            seen = quantities_from_physics(domain, film)
            means = {key: round(float(np.mean(values)), 3) for key, values in seen.items()}
            rows.append({"seed": seed, "key": name.strip("$"), **means})
    return rows
