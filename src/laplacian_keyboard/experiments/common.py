"""What several experiments share: data to start from, chords side by side, and means over seeds."""

from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.gather import gather
from laplacian_keyboard.keyboard import Keyboard
from laplacian_keyboard.stats import mean_interval

DATA_STEPS = {"smoke": 4_000, "cpu": 500_000, "paper": 5_000_000}
"""Of every explorer, where several take turns."""
ZERO_SHOT_EPISODES = 20
ZERO_SHOT_SEED = 10_000


def data_for(domain: str, preset: str, folder: Path, *, dataset: str = "", explorer: str) -> str:
    """The user's `dataset`, or one collected on the first call; returns its folder. Either is
    packed, so that several processes may open it."""
    if not dataset:
        dataset = str(folder)
        gather(
            lambda count: make_vector_env(domain, None, count),
            folder,
            domain=domain,
            explorer=explorer,
            steps=DATA_STEPS[preset] * len(explorer.split("+")),
            preset=preset,
        )
    load_dataset(dataset)
    return dataset


class ChordOfEach:
    """One chord for each share of the environments."""

    def __init__(self, keyboard: Keyboard, chords: list[Any]):
        self.keyboard, self.chords = keyboard, np.stack(chords)

    def act(self, obs: np.ndarray, first: Any = None) -> Any:
        """Actions of the chords."""
        return self.keyboard.act(obs, np.repeat(self.chords, len(obs) // len(self.chords), axis=0))


def over_seeds(values: list[float], *, digits: int = 1) -> dict[str, Any]:
    """A mean over seeds with its 95 % bootstrap interval."""
    mean, (low, high) = mean_interval(np.array(values), rng=np.random.default_rng(0))
    return {
        "mean": round(mean, digits),
        "ci95": [round(low, digits), round(high, digits)],
        "each": [round(value, digits) for value in values],
    }
