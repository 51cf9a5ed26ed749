"""The tables and figures, one file each. A module with `run(preset, seeds, out)` is an experiment
that `lk reproduce` runs."""

import importlib
from types import ModuleType

from laplacian_keyboard.types import UserError

EXPERIMENTS = {
    "eigenvectors": "exact eigenvectors of Four-Rooms, and a reward rebuilt from them",
    "bound": "value error and both bounds over the size of the basis, exact",
    "stitching": "a goal that no single behavior of Four-Rooms reaches, and the player that does",
    "basis-options": "options of the Laplacian objective against exact eigenvectors of Four-Rooms",
    "behavior-options": "choices of the behaviors' training against optimal values of Four-Rooms",
    "goals": "zero-shot goals of Four-Rooms over the optimal value, Laplacian and forward-backward",
    "zero-shot": "Laplacian and forward-backward keyboards on every task of a robot",
    "basis-size": "zero-shot returns over the size of the basis and the explorer",
    "hierarchy": "zero-shot and player over the size of the basis (the paper's main result)",
    "sample-efficiency": "the player's learning speed over flat TD3's, over the size of the basis",
    "termination": "how long a behavior should run before the player chooses again",
    "quadruped-weights": "which eigenvectors each task of the quadruped asks for",
    "behaviors": "film strips of single keys",
    "bases": "keyboards over every basis on the point-maze, zero-shot and composed",
    "continuous-options": "choices of the behaviors' training against zero-shot returns of a robot",
    "item-collector": "the keyboard against a privileged option basis (OKB), where order matters",
    "coverage": "what each explorer reaches on the cheetah, as a table and a picture",
}


def load_experiment(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}; `lk reproduce list` names them all")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
