"""Minari datasets (Farama) as folders of ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from laplacian_keyboard.data.dataset import Dataset, Progress, load_dataset
from laplacian_keyboard.data.exorl import EpisodeWriter, rows_of_steps
from laplacian_keyboard.types import UserError

if TYPE_CHECKING:
    from minari import MinariDataset


def convert(
    source: "MinariDataset | str", folder: str | Path, *, progress: Progress | None = None
) -> Dataset:
    """Write a Minari dataset, given itself or its id, into a folder, and open it.

    Observations must be a flat Box. Box actions are scaled from their bounds to [-1, 1], Discrete
    ones start at 0. A termination has discount 0; a truncation keeps 1. An interrupted conversion
    continues where it stopped.
    """
    try:
        import minari

        data = minari.load_dataset(source) if isinstance(source, str) else source
    except ImportError as error:
        raise UserError(
            f"reading Minari data needs {error.name or 'minari'}: "
            "pip install laplacian-keyboard[minari]"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"Minari dataset {source} cannot be opened; list local ones with `minari list local`, "
            f"fetch it with `minari download {source}`"
        ) from error
    actions = _Actions(data.action_space, data.id)
    _require_flat_box(data.observation_space, data.id)
    description = {
        "domain": f"gym:{data.env_spec.id}" if data.env_spec else data.id,
        "explorer": f"minari:{data.id}",
        "seed": None,
        **actions.description,
    }
    total = len(data.episode_indices)
    with EpisodeWriter(folder, description) as writer:
        for episode in data.iterate_episodes(data.episode_indices[writer.episodes :]):
            action = actions.convert(np.asarray(episode.actions))
            alive = 1 - np.asarray(episode.terminations, np.float32)
            writer.add(**rows_of_steps(episode.observations, action, episode.rewards, alive))
            if progress:
                progress(writer.episodes, total)
    return load_dataset(folder)


class _Actions:
    """How the actions of a space become ours."""

    def __init__(self, space: Any, dataset_id: str):
        from gymnasium.spaces import Box, Discrete

        if isinstance(space, Discrete):
            self.description: dict[str, Any] = {"num_actions": int(space.n)}
            self.first_action: int | None = int(space.start)
            return
        if not isinstance(space, Box) or len(space.shape) != 1 or not space.is_bounded("both"):
            raise UserError(
                f"Minari dataset {dataset_id}: its actions are {space}; only Discrete and flat Box "
                "actions with finite bounds can be converted"
            )
        self.first_action = None
        self.low, self.high = space.low.astype(np.float64), space.high.astype(np.float64)
        bounds = {"action_low": self.low.tolist(), "action_high": self.high.tolist()}
        self.description = {"num_actions": 0} | bounds

    def convert(self, actions: np.ndarray) -> np.ndarray:
        if self.first_action is not None:
            return actions.astype(np.int32) - self.first_action
        return (2 * (actions - self.low) / (self.high - self.low) - 1).astype(np.float32)


def _require_flat_box(space: Any, dataset_id: str) -> None:
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or len(space.shape) != 1:
        raise UserError(
            f"Minari dataset {dataset_id}: its observations are {space}; only a flat Box can be "
            "converted, so collect it through gymnasium.wrappers.FlattenObservation"
        )
