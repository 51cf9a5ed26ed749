"""Labels: the reward of any task on the stored states of a dataset.

MuJoCo tasks are functions of named quantities. With stored physics every quantity is known; without
it only those that the observation contains, and so only some tasks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.envs import item_collector, point_maze, tasks
from laplacian_keyboard.envs.domains import (
    DMC,
    grid_goals,
    grid_map,
    is_function,
    is_grid,
    is_point_maze,
    point_maze_goal,
    point_maze_map,
    task_named,
)
from laplacian_keyboard.envs.host import find_reward
from laplacian_keyboard.types import UserError

OBSERVED: dict[str, dict[str, int]] = {
    "cheetah": {},
    "walker": {"upright": 0, "height": 14},
    "quadruped": {"speed": 44, "upright": 47},
}
"""Quantities that are entries of the observation, by domain."""


def sample_states(dataset: Dataset, count: int = 10_000, seed: int = 0) -> Dataset:
    """`count` different next states of a dataset, as rows without episodes: what a task is
    inferred from (the paper's N = 10^4)."""
    return states_at(dataset, rows_to_label(dataset, dataset.sample_next_rows(count, seed)))


def rows_to_label(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """Those of the rows that can be labelled: without the ones whose stored physics is damaged."""
    if dataset.physics is None:
        return rows
    return rows[np.isfinite(dataset.physics[rows]).all(axis=1)]


def states_at(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """Some rows of a dataset, on their own."""
    return replace(
        dataset,
        observation=dataset.observation[rows],
        action=dataset.action[rows],
        reward=dataset.reward[rows],
        discount=dataset.discount[rows],
        physics=None if dataset.physics is None else dataset.physics[rows],
        lengths=np.zeros(len(rows), int),
        files=(),
    )


def tasks_of(dataset: Dataset) -> tuple[str, ...]:
    """The tasks whose rewards can be computed from what the dataset stores."""
    domain = dataset.domain or ""
    if is_grid(domain):
        return ("goal",) if domain == "four-rooms" or len(grid_map(domain).goals) else ()
    if is_point_maze(domain):
        has_goal = domain == "point-maze" or len(point_maze_map(domain).goals)
        return ("goal",) if has_goal and dataset.physics is not None else ()
    if domain == "item-collector":
        return item_collector.TASKS if dataset.physics is not None else ()
    if domain not in DMC:
        return ("env",)
    if dataset.physics is not None:
        return tasks.tasks_of(domain)
    known = OBSERVED[domain].keys()
    return tuple(task for task in tasks.tasks_of(domain) if needed(domain, task) <= known)


def relabel(dataset: Dataset, task: str, rows: np.ndarray | None = None) -> np.ndarray:
    """Rewards `(n,)` for being in the states of `rows` (None: all), for any task of the domain.

    `env` is the reward that robots and Gymnasium's environments gave when the data were collected,
    and in worlds of ours their first task; `module:function` is a function of your own of the
    observations.
    """
    rows = np.arange(len(dataset.observation)) if rows is None else rows
    domain = dataset.domain or ""
    if task == "env" and (domain in DMC or task_named(domain, task) == "env"):
        return np.asarray(dataset.reward[rows], np.float32).reshape(-1)
    if is_function(task):
        return find_reward(task)(np.asarray(dataset.observation[rows], np.float32))
    task = task_named(domain, task) or task
    if is_grid(domain):
        return _grid_labels(dataset, domain, task, rows)
    if is_point_maze(domain):
        return _point_maze_labels(dataset, domain, task, rows)
    if domain == "item-collector":
        counts = _physics(dataset, domain, rows)
        return np.asarray(item_collector.label_inventory(counts, task), np.float32)
    if domain not in DMC:
        raise UserError(
            f"{domain or dataset.path} has no task {task!r}; use env or module:function"
        )
    reward = tasks.find_task(domain, task).reward
    if dataset.physics is None and not needed(domain, task) <= OBSERVED[domain].keys():
        possible = ", ".join(tasks_of(dataset)) or "none"
        raise UserError(
            f"{dataset.path} stores no physics, which {task} needs; possible tasks: {possible}"
        )
    return np.asarray(reward(quantities(dataset, rows)), np.float32)


def quantities(dataset: Dataset, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The physical quantities of stored states that are known."""
    rows = np.arange(len(dataset.observation)) if rows is None else rows
    domain = dataset.domain or ""
    if is_point_maze(domain) and dataset.physics is not None:
        return point_maze.quantities(dataset.physics[rows])
    if domain not in DMC:
        return {}
    if dataset.physics is not None:
        from laplacian_keyboard.envs import dmc

        return dmc.quantities_from_physics(domain, dataset.physics[rows])
    return {
        name: np.asarray(dataset.observation[rows, column], np.float64)
        for name, column in OBSERVED[domain].items()
    }


def needed(domain: str, task: str) -> set[str]:
    """The quantities a task's reward looks at."""
    seen = _Watched()
    tasks.find_task(domain, task).reward(seen)
    return seen.names


class _Watched(Mapping[str, float]):
    """Quantities that note which of them are asked for."""

    def __init__(self):
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.names.add(name)
        return 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _point_maze_labels(dataset: Dataset, domain: str, task: str, rows: np.ndarray) -> np.ndarray:
    positions = _physics(dataset, domain, rows)
    goal = point_maze_goal(domain, task)
    assert goal is not None, "a task has a goal"
    return np.asarray(point_maze.label(point_maze_map(domain), goal, positions), np.float32)


def _physics(dataset: Dataset, domain: str, rows: np.ndarray) -> np.ndarray:
    if dataset.physics is None:
        raise UserError(f"{dataset.path} stores no physics, which every task of {domain} needs")
    return np.asarray(dataset.physics[rows])


def _grid_labels(dataset: Dataset, domain: str, task: str, rows: np.ndarray) -> np.ndarray:
    grid = grid_map(domain)
    height = grid.shape[0]
    obs = np.asarray(dataset.observation[rows])
    place = np.stack([obs[:, :height].argmax(axis=1), obs[:, height:].argmax(axis=1)], axis=1)
    goals = grid.cells[grid_goals(domain, task)]
    return (place[:, None] == goals[None]).all(axis=-1).any(axis=-1).astype(np.float32)
