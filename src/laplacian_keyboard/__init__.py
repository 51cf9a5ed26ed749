"""The Laplacian Keyboard: behaviors from the eigenvectors of the graph Laplacian, and a player that
composes them beyond their linear span.

Names are imported when first used, so that `import laplacian_keyboard` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

from laplacian_keyboard.envs.registration import register_when_gymnasium_is_imported

if TYPE_CHECKING:
    from laplacian_keyboard import spectral
    from laplacian_keyboard.composing import compose
    from laplacian_keyboard.data.dataset import Dataset, load_dataset, save_dataset
    from laplacian_keyboard.data.labels import relabel
    from laplacian_keyboard.keyboard import Keyboard, Player, load
    from laplacian_keyboard.pretraining import pretrain
    from laplacian_keyboard.types import UserError

__version__ = "0.1.0"

_HOMES = {
    "Dataset": "data.dataset",
    "Keyboard": "keyboard",
    "Player": "keyboard",
    "UserError": "types",
    "compose": "composing",
    "load": "keyboard",
    "load_dataset": "data.dataset",
    "pretrain": "pretraining",
    "relabel": "data.labels",
    "save_dataset": "data.dataset",
    "spectral": None,
}
"""Where each public name lives; None is a module of that name."""

__all__ = [
    "Dataset",
    "Keyboard",
    "Player",
    "UserError",
    "compose",
    "load",
    "load_dataset",
    "pretrain",
    "relabel",
    "save_dataset",
    "spectral",
]

register_when_gymnasium_is_imported()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    module = importlib.import_module(f"{__name__}.{home or name}")
    return module if home is None else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
