"""Domains by name, and their tasks."""

from gymnasium.vector import VectorEnv

from laplacian_keyboard.envs.grid import GridMap, GridWorld, four_rooms
from laplacian_keyboard.envs.gym import JaxVectorEnv
from laplacian_keyboard.types import UserError

DOMAINS = ("four-rooms", "grid:MAP_FILE", "cheetah", "walker", "quadruped")
DMC = ("cheetah", "walker", "quadruped")
FOUR_ROOMS_GOAL = (9, 9)
"""(row, column) of the goal of Four-Rooms' task `goal`: inside a room, where no single behavior of
a small basis stops."""


def grid_map(domain: str) -> GridMap:
    """The map of a grid domain."""
    if domain == "four-rooms":
        return four_rooms()
    if domain.startswith("grid:"):
        return GridMap.load(domain.removeprefix("grid:"))
    raise UserError(f"unknown domain {domain!r}; known domains: {', '.join(DOMAINS)}")


def grid_goals(domain: str, task: str | None) -> list[int]:
    """The goal cells of a task: `goal` (Four-Rooms' own, or the map's `G` cells) or
    `goal:ROW,COLUMN`; None is no task, so no goals."""
    grid = grid_map(domain)
    if task is None:
        return []
    name, _, place = task.partition(":")
    if name != "goal":
        raise UserError(f"unknown task {task!r} of {domain}; use goal or goal:ROW,COLUMN")
    if place:
        try:
            row, column = (int(part) for part in place.split(","))
        except ValueError as error:
            raise UserError(f"task {task!r}: write the goal as goal:ROW,COLUMN") from error
        return [grid.cell_number(row, column)]
    if domain == "four-rooms":
        return [grid.cell_number(*FOUR_ROOMS_GOAL)]
    if not len(grid.goals):
        raise UserError(f"{grid.source} marks no goal; add a 'G' or use --task goal:ROW,COLUMN")
    return [int(goal) for goal in grid.goals]


def is_grid(domain: str) -> bool:
    return domain == "four-rooms" or domain.startswith("grid:")


def make_vector_env(domain: str, task: str | None, num_envs: int) -> VectorEnv:
    """Many environments of a domain; with no task any of its rewards is given, to be ignored."""
    if domain in DMC:
        from laplacian_keyboard.envs import dmc, tasks

        return dmc.DmcVectorEnv(domain, task or tasks.tasks_of(domain)[0], num_envs)
    return JaxVectorEnv(jax_world(domain, task), num_envs)


def jax_world(domain: str, task: str | None, *, time_limit: int = 50) -> GridWorld:
    """A pure-JAX world with a task's reward; with no task it has no reward and does not end."""
    return GridWorld.from_map(
        grid_map(domain), goals=grid_goals(domain, task), time_limit=time_limit
    )
