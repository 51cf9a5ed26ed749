"""Domains by name, and their tasks."""

from pathlib import Path

from gymnasium.vector import VectorEnv

from laplacian_keyboard.envs import item_collector, point_maze, tasks
from laplacian_keyboard.envs.grid import GridMap, GridWorld, four_rooms
from laplacian_keyboard.envs.gym import JaxVectorEnv
from laplacian_keyboard.envs.item_collector import ItemCollector
from laplacian_keyboard.types import UserError, World

DOMAINS = (
    "four-rooms",
    "grid:MAP_FILE",
    "point-maze",
    "point-maze:MAP_FILE",
    "item-collector",
    "cheetah",
    "walker",
    "quadruped",
    "gym:ENV_ID",
)
DMC = ("cheetah", "walker", "quadruped")
WORLDS = ("four-rooms", "grid", "point-maze", "item-collector", *DMC)
"""Kinds of domains that come with the package."""
ANGLES = {"cheetah": (1,)}
"""Entries of a domain's observation that are angles without bound: the cheetah's pitch."""
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


def canonical(domain: str) -> str:
    """A domain's name with the path of its map, if it has one, made absolute, so that what is
    stored under it can be used from anywhere."""
    kind, colon, path = domain.partition(":")
    if kind in ("grid", "point-maze") and path:
        return f"{kind}{colon}{Path(path).resolve()}"
    return domain


def is_grid(domain: str) -> bool:
    """Whether a domain is a grid world."""
    return domain == "four-rooms" or domain.startswith("grid:")


def is_function(task: str | None) -> bool:
    """Whether a task is `module:function`, a reward of the user's own."""
    if task is None or task.startswith("goal:") or task in item_collector.TASKS:
        return False
    return ":" in task


def task_named(domain: str, task: str | None) -> str | None:
    """A task by the domain's own name for it: `env` is the first of its tasks. In Gymnasium's
    environments it stays `env`."""
    if task != "env" or domain.startswith("gym:") or not domain:
        return task
    if domain in DMC:
        return tasks.tasks_of(domain)[0]
    return item_collector.TASKS[0] if domain == "item-collector" else "goal"


def make_vector_env(domain: str, task: str | None, num_envs: int) -> VectorEnv:
    """Many environments of a domain; with no task any of its rewards is given, to be ignored."""
    if num_envs < 1:
        raise UserError(f"num_envs is {num_envs}: it must be at least 1")
    task = task_named(domain, task)
    if task and is_function(task) and not domain.startswith("gym:"):
        from laplacian_keyboard.envs.host import HostVectorEnv

        return HostVectorEnv(domain, num_envs, task, envs=make_vector_env(domain, None, num_envs))
    if domain in DMC:
        from laplacian_keyboard.envs import dmc

        return dmc.DmcVectorEnv(domain, task or tasks.tasks_of(domain)[0], num_envs)
    if domain.startswith("gym:"):
        from laplacian_keyboard.envs.host import make_host

        return make_host(domain.removeprefix("gym:"), num_envs, task or "env")
    if is_point_maze(domain):
        return JaxVectorEnv(point_maze_world(domain, task), num_envs)
    return JaxVectorEnv(discrete_world(domain, task), num_envs)


def is_point_maze(domain: str) -> bool:
    """Whether a domain is a point maze."""
    return domain.partition(":")[0] == "point-maze"


def point_maze_map(domain: str) -> GridMap:
    """The map of a point-maze domain: Four-Rooms, or a file."""
    path = domain.partition(":")[2]
    return GridMap.load(path) if path else four_rooms()


def point_maze_goal(domain: str, task: str | None) -> tuple[float, float] | None:
    """Where a task of a point maze wants the point to be."""
    default = FOUR_ROOMS_GOAL if domain == "point-maze" else None
    return point_maze.find_goal(point_maze_map(domain), task, default=default)


def point_maze_world(domain: str, task: str | None) -> point_maze.PointMaze:
    """A point maze with the reward of a task; with none it has no reward."""
    goal = point_maze_goal(domain, task)
    return point_maze.PointMaze.from_map(point_maze_map(domain), goal=goal)


def is_walked(domain: str) -> bool:
    """Whether a domain is a pure-JAX world with discrete actions."""
    return is_grid(domain) or domain == "item-collector"


def discrete_world(domain: str, task: str | None) -> World:
    """The world of such a domain with a task's reward; with no task its reward means nothing."""
    if domain == "item-collector":
        return ItemCollector.for_task(task or item_collector.TASKS[0])
    return jax_world(domain, task)


def jax_world(domain: str, task: str | None, *, time_limit: int = 50) -> GridWorld:
    """A grid world with a task's reward; with no task it has no reward and does not end."""
    return GridWorld.from_map(
        grid_map(domain), goals=grid_goals(domain, task), time_limit=time_limit
    )
