"""The tables and figures, one file each. A module with `run(preset, seeds, out)` is an experiment
that `lk reproduce` runs."""

import importlib
from types import ModuleType

from laplacian_keyboard.types import UserError

EXPERIMENTS = {
    "basis-options": "options of the Laplacian objective against exact eigenvectors of Four-Rooms",
    "behavior-options": "choices of the behaviors' training against optimal values of Four-Rooms",
    "hierarchy": "zero-shot and player over the size of the basis (the paper's main result)",
    "continuous-options": "choices of the behaviors' training against zero-shot returns of a robot",
    "item-collector": "the keyboard against a privileged option basis (OKB), where order matters",
    "coverage": "what each explorer reaches on the cheetah, as a table and a picture",
}


def load_experiment(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}; `lk reproduce list` names them all")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
