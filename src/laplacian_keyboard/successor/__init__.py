"""Stage 2: successor features for every task, with discrete or continuous actions."""

from types import ModuleType
from typing import TypeAlias

from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import continuous, discrete

Config: TypeAlias = discrete.Config | continuous.Config
Behaviors: TypeAlias = MLP | continuous.Behaviors
"""What is kept of the training: psi as one network, or an actor and its critic."""


def module_of(config: Config) -> ModuleType:
    """The learner a config is for: both have `init`, `update`, `behaviors` and `act`."""
    return continuous if isinstance(config, continuous.Config) else discrete
