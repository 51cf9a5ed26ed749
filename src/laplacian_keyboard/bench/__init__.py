"""Benchmarks: `lk bench NAME`. Every figure is a ratio within one run, the median of repeats."""

import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from laplacian_keyboard.checkpoint import versions
from laplacian_keyboard.parallel import own_cores
from laplacian_keyboard.types import UserError

BENCHMARKS = {
    "compose": "the player's loop beside its updates and MuJoCo alone",
    "item-collector": "steps a second of Item-Collector, and of a player's loop in it",
    "update": "gradient steps of every learner, as a fraction of the machine's peak",
    "peers": "TD3 on cheetah, beside Stable-Baselines3 and SBX",
    "seeds": "the time of several seeds together, over that of one",
    "envs": "environment steps a second, beside dm_control's own loop",
    "load": "a large dataset: packing, opening, memory, and training through a window",
    "play": "the page of lk play in a real browser: from key to frame, and hostile formulas",
}


def load_benchmark(name: str) -> ModuleType:
    """The module of a benchmark; it has `run() -> dict`."""
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise UserError(f"unknown benchmark {name!r}; known benchmarks: {known}")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def machine() -> dict[str, Any]:
    """What a benchmark ran on."""
    return {
        "machine": platform.machine(),
        "cores": len(own_cores()),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": versions(),
    }


def median_rates(contenders: dict[str, Callable[[], int]], *, repeats: int = 5) -> dict[str, float]:
    """Median work per second of each contender. A call does some work and returns how much;
    contenders take turns, so that a disturbance of the machine meets all of them."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for work in contenders.values():
        work()
    for _ in range(repeats):
        for name, work in contenders.items():
            began = time.perf_counter()
            done = work()
            rates[name].append(done / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in rates.items()}
