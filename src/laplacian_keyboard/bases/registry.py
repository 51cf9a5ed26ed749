"""Every basis that can sit under a keyboard, by its name.

Each has a file of its own with `Config` (with k), `init`, `update`, `encoder(state)` and
`phi(config, encoder, obs)`. Forward-backward representations learn basis and behaviors together, so
their `init` and `update` also take the behaviors' config.
"""

from types import ModuleType
from typing import TypeAlias

from laplacian_keyboard.baselines import forward_backward
from laplacian_keyboard.bases import hilp, lap, laplacian, random_features
from laplacian_keyboard.bases.network import FeatureNet
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.types import UserError

Config: TypeAlias = (
    laplacian.Config | lap.Config | hilp.Config | random_features.Config | forward_backward.Config
)
Encoder: TypeAlias = MLP | FeatureNet | hilp.Encoder
"""What is kept of the training: all that `phi` needs."""

BASES: dict[str, ModuleType] = {
    "laplacian": laplacian,
    "lap": lap,
    "fb": forward_backward,
    "hilp": hilp,
    "random": random_features,
}


def basis_module(name: str) -> ModuleType:
    """The basis of a name."""
    if name not in BASES:
        raise UserError(f"unknown basis {name!r}; known bases: {', '.join(BASES)}")
    return BASES[name]


def name_of(config: Config) -> str:
    """The name of the basis a config is for."""
    return next(name for name, module in BASES.items() if type(config) is module.Config)


def module_of(config: Config) -> ModuleType:
    """The basis a config is for."""
    return BASES[name_of(config)]
