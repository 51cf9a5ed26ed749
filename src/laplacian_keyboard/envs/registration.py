"""The worlds' names in Gymnasium, registered without importing Gymnasium before the user does."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

GRID = "laplacian_keyboard.envs.gym:make_grid"

WORLDS: dict[str, dict[str, Any]] = {
    "FourRooms-v0": {
        "entry_point": GRID,
        "vector_entry_point": f"{GRID}_vector",
        "kwargs": {"goal": (9, 9)},
    },
    "PointMaze-v0": {
        "entry_point": "laplacian_keyboard.envs.point_maze:make",
        "vector_entry_point": "laplacian_keyboard.envs.point_maze:make_vector",
        "kwargs": {"goal": (9, 9)},
    },
    "ItemCollector-v0": {
        "entry_point": "laplacian_keyboard.envs.item_collector:make",
        "vector_entry_point": "laplacian_keyboard.envs.item_collector:make_vector",
        "kwargs": {"task": "first:0"},
    },
    "Grid-v0": {"entry_point": GRID, "vector_entry_point": f"{GRID}_vector"},
    **{
        f"{domain.capitalize()}-v0": {
            "entry_point": "laplacian_keyboard.envs.dmc:DmcEnv",
            "vector_entry_point": "laplacian_keyboard.envs.dmc:DmcVectorEnv",
            "kwargs": {"domain": domain, "task": "run"},
        }
        for domain in ("cheetah", "walker", "quadruped")
    },
}
"""Arguments of `gymnasium.register`, by name under `laplacian_keyboard/`."""


def register() -> None:
    """Register every world that is not registered yet."""
    import gymnasium

    for name, arguments in WORLDS.items():
        if f"laplacian_keyboard/{name}" not in gymnasium.registry:
            gymnasium.register(f"laplacian_keyboard/{name}", **arguments)


def register_when_gymnasium_is_imported() -> None:
    """Register now if Gymnasium is there, else right after its import: `import
    laplacian_keyboard` stays light, and `gymnasium.make` works in either order of imports."""
    if "gymnasium" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterGymnasium())


class _AfterGymnasium(MetaPathFinder):
    """Finds nothing itself; lets the real loader of Gymnasium register our worlds at its end."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    def __init__(self, loader: Loader):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        register()
