"""A point that moves continuously between the walls of a grid map, in pure JAX.

A cell of the map is 1 x 1. Positions are (x, y): x runs right with the columns and y down with the
rows, so the cell at (row, column) spans [column, column + 1) x [row, row + 1). An action in
[-1, 1]^2 is a velocity. A step moves along x, then along y, each as far as the wall allows:

    x <- clip(x + speed * action_x, free run of the row around the point)
    y <- clip(y + speed * action_y, free run of the column around the point)

Both pieces of the path lie in free space whatever the speed, and a point that meets a wall slides
along it. A position is the whole physical state: store it, and `label` gives any goal's reward.

    world = PointMaze.from_map(four_rooms(), goal=center_of(9, 9))
    state, obs = world.reset(key)
    state, step = world.step(state, action)
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike, NDArray

from laplacian_keyboard.envs.grid import GridMap, four_rooms
from laplacian_keyboard.envs.gym import JaxEnv, JaxVectorEnv
from laplacian_keyboard.types import Spec, TimeStep, UserError

Position = tuple[float, float]
"""(x, y) in cells, from the map's upper left corner."""

GOAL_RADIUS = 0.5
"""Distance to the goal, in cells, up to which the reward is 1."""
SPEED = 0.25
"""Cells per step at full velocity: 40 steps across a map of 10 cells."""
TIME_LIMIT = 200


class PointState(eqx.Module):
    """Where the point is, and for how many steps the episode has run."""

    position: Float[Array, "2"]
    time: Int[Array, ""]


class PointMaze(eqx.Module):
    """The walls of a map, a goal and an episode's length."""

    x_limits: Float[Array, "rows columns 2"]
    """Lowest and highest x that a point in a cell can reach along its row."""
    y_limits: Float[Array, "rows columns 2"]
    """Lowest and highest y that a point in a cell can reach along its column."""
    corners: Float[Array, "s 2"]
    """Upper left corner of every free cell."""
    goal: Float[Array, "2"]
    """Infinitely far away where there is none, so that nothing is rewarded."""
    speed: float = eqx.field(static=True)
    margin: float = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)

    @classmethod
    def from_map(
        cls,
        grid: GridMap,
        *,
        goal: Position | None,
        speed: float = SPEED,
        margin: float = 0.0,
        time_limit: int = TIME_LIMIT,
    ) -> "PointMaze":
        """The reward is 1 within `GOAL_RADIUS` of the goal and falls to 0 over `margin` cells."""
        if not 0.0 < speed < math.inf:
            raise UserError(f"speed is {speed}: it must be a positive number of cells per step")
        if not 0.0 <= margin < math.inf:
            raise UserError(f"margin is {margin}: it must be a number of cells, 0 or more")
        if time_limit < 1:
            raise UserError(f"time_limit is {time_limit}: it must be at least 1")
        if goal is not None:
            _check_goal(grid, goal)
        free = np.zeros(grid.shape, bool)
        free[tuple(grid.cells.T)] = True
        return cls(
            x_limits=jnp.asarray(_free_runs(free)),
            y_limits=jnp.asarray(_free_runs(free.T).swapaxes(0, 1)),
            corners=jnp.asarray(grid.cells[:, ::-1], jnp.float32),
            goal=jnp.asarray((math.inf, math.inf) if goal is None else goal, jnp.float32),
            speed=float(speed),
            margin=float(margin),
            time_limit=time_limit,
        )

    @property
    def spec(self) -> Spec:
        rows, columns, _ = self.x_limits.shape
        return Spec(rows + columns, action_dim=2)

    def reset(self, key: PRNGKeyArray) -> tuple[PointState, Float[Array, "o"]]:
        """Anywhere in free space, uniformly."""
        key_cell, key_offset = jax.random.split(key)
        corner = jax.random.choice(key_cell, self.corners)
        position = corner + jax.random.uniform(key_offset, (2,))
        # The sum may be rounded up into the next cell, which may be a wall.
        return self.start_at(jnp.minimum(position, jnp.nextafter(corner + 1.0, corner)))

    def start_at(self, position: Float[Array, "2"]) -> tuple[PointState, Float[Array, "o"]]:
        """An episode that begins at a given position, which must be free."""
        return PointState(position, jnp.zeros((), jnp.int32)), self.observe(position)

    def step(self, state: PointState, action: Float[Array, "2"]) -> tuple[PointState, TimeStep]:
        x, y = state.position
        row, column = cell_of(state.position)
        velocity_x, velocity_y = self.speed * jnp.clip(action, -1.0, 1.0)
        x = jnp.clip(x + velocity_x, *self.x_limits[row, column])
        y = jnp.clip(y + velocity_y, *self.y_limits[row, x.astype(jnp.int32)])
        position, time = jnp.stack([x, y]), state.time + 1
        timestep = TimeStep(
            obs=self.observe(position),
            reward=_goal_reward(_distance(position, self.goal), self.margin),
            discount=jnp.ones(()),
            last=time >= self.time_limit,
        )
        return PointState(position, time), timestep

    def observe(self, position: Float[Array, "2"]) -> Float[Array, "o"]:
        """Row and column as one-hot vectors, linearly interpolated between cell centres.

        At a centre this is the observation of the grid world on the same map. Every entry belongs
        to one row or column, so a small network need not bend (x, y) sharply at each wall.
        """
        rows, columns, _ = self.x_limits.shape
        x, y = position
        return jnp.concatenate([_tents(y, rows), _tents(x, columns)])


def _tents(coordinate: Float[Array, ""], count: int) -> Float[Array, "n"]:
    """1 at a cell's centre, falling to 0 at the centres beside it, for each of `count` cells."""
    return jnp.maximum(0.0, 1.0 - jnp.abs(coordinate - 0.5 - jnp.arange(count)))


def _free_runs(free: np.ndarray) -> np.ndarray:
    """Lowest and highest coordinate along the last axis of the free cells around each one.

    The highest is the last number before the wall: a cell does not contain its upper bound, so
    that rounding down always names the cell and the bound itself belongs to the wall.
    """
    size = free.shape[1]
    start = np.maximum.accumulate(np.where(free, 0, np.arange(1, size + 1)), axis=1)
    end = np.minimum.accumulate(np.where(free, size, np.arange(size))[:, ::-1], axis=1)[:, ::-1]
    highest = np.nextafter(end.astype(np.float32), np.float32(0.0))
    return np.stack([start.astype(np.float32), highest], axis=-1)


def _distance(position: Any, goal: Any) -> Any:
    return ((position - goal) ** 2).sum(axis=-1) ** 0.5


def _goal_reward(distance: Any, margin: float) -> Any:
    """The one formula of live (JAX) and stored (NumPy) rewards."""
    if margin == 0.0:
        return (distance <= GOAL_RADIUS).astype(distance.dtype)
    return (1.0 - (distance - GOAL_RADIUS) / margin).clip(0.0, 1.0)


def cell_of(position: Any) -> Any:
    """(row, column) of the cells around positions, `(..., 2)` int32; NumPy or JAX."""
    return position.astype(np.int32)[..., ::-1]


def center_of(row: int, column: int) -> Position:
    """The middle of a cell."""
    return column + 0.5, row + 0.5


def find_goal(
    grid: GridMap, task: str | None, *, default: tuple[int, int] | None = None
) -> Position | None:
    """The place of a task: `goal` (the map's first `G`, else the cell `default`) or
    `goal:ROW,COLUMN`; None is no task, so no goal."""
    if task is None:
        return None
    name, _, place = task.partition(":")
    if name != "goal":
        raise UserError(f"unknown task {task!r} of point-maze; use goal or goal:ROW,COLUMN")
    if place:
        try:
            row, column = (int(part) for part in place.split(","))
        except ValueError as error:
            raise UserError(f"task {task!r}: write the goal as goal:ROW,COLUMN") from error
    elif len(grid.goals):
        row, column = grid.cells[grid.goals[0]].tolist()
    elif default is not None:
        row, column = default
    else:
        raise UserError(f"{grid.source} marks no goal; add a 'G' or use --task goal:ROW,COLUMN")
    grid.cell_number(row, column)  # raises where that is a wall
    return center_of(row, column)


def label(
    grid: GridMap, goal: Position, positions: ArrayLike, *, margin: float = 0.0
) -> NDArray[np.float64]:
    """Rewards (...) of stored positions (..., 2) for a goal on the map.

    They are the live rewards computed in float64, so they may differ where rounding decides.
    """
    _check_goal(grid, goal)
    return _goal_reward(quantities(positions, goal)["distance"], margin)


def quantities(
    positions: ArrayLike, goal: Position | None = None
) -> dict[str, NDArray[np.float64]]:
    """x and y (...) of stored positions (..., 2), and the straight distance to a goal, in cells."""
    positions = np.asarray(positions, np.float64)
    if positions.ndim == 0 or positions.shape[-1] != 2:
        raise UserError(f"positions have shape {positions.shape}: the last axis must be (x, y)")
    if not np.isfinite(positions).all():
        raise UserError("positions are not finite: the states are damaged, leave them out")
    named = {"x": positions[..., 0], "y": positions[..., 1]}
    return named if goal is None else named | {"distance": _distance(positions, np.array(goal))}


def _check_goal(grid: GridMap, goal: Position) -> None:
    x, y = goal
    if not (math.isfinite(x) and math.isfinite(y)):
        raise UserError(f"the goal {goal} is not finite: give x and y in cells")
    grid.cell_number(math.floor(y), math.floor(x))


def load(
    map_file: str | None = None,
    goal: tuple[int, int] | None = None,
    speed: float = SPEED,
    margin: float = 0.0,
    time_limit: int = TIME_LIMIT,
) -> PointMaze:
    """A point in Four-Rooms or a map file. `goal` is the (row, column) of a cell; None is the map's
    first `G`, and no reward where it has none."""
    grid = four_rooms() if map_file is None else GridMap.load(map_file)
    if goal is not None:
        place = center_of(*goal)
    else:
        place = find_goal(grid, "goal" if len(grid.goals) else None)
    return PointMaze.from_map(grid, goal=place, speed=speed, margin=margin, time_limit=time_limit)


def make(**arguments: Any) -> JaxEnv:
    """One copy of the world that `load` makes of the arguments."""
    return JaxEnv(load(**arguments))


def make_vector(num_envs: int = 1, **arguments: Any) -> JaxVectorEnv:
    """Many copies of the world that `load` makes of the arguments."""
    return JaxVectorEnv(load(**arguments), num_envs)
