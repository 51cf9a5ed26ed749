"""Bodies that a keyboard moves, one control step at a time: robots, and points on a map.

They have no episodes of their own and no rewards; what they offer is quantities to make rewards of.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from laplacian_keyboard.envs import domains, point_maze, tasks
from laplacian_keyboard.envs.grid import GridMap, grid_observations
from laplacian_keyboard.types import UserError

SHOVE = 3.0
"""Deviation of the velocity a push adds along each axis, m/s."""
GRID_STEP, MAZE_STEP = 0.12, 0.04
"""Seconds that a step on a map takes on the screen; maps have no clock of their own."""

Array = NDArray[Any]


class Body(Protocol):
    """Something to move."""

    seconds: float
    """Duration of one control step."""
    patience: int | None
    """Steps after which an attempt at a goal begins anew; None where there are no goals."""

    def reset(self, rng: np.random.Generator) -> None:
        """Begin in a fresh state."""
        ...

    def observe(self) -> Array:
        """What a behavior sees."""
        ...

    def advance(self, action: Any) -> None:
        """One control step; None is no action at all."""
        ...

    def push(self, rng: np.random.Generator) -> None:
        """Disturb it."""
        ...

    def quantities(self) -> dict[str, float]:
        """What rewards are made of."""
        ...

    def pose(self) -> Array:
        """What is drawn: a robot's joint positions, or (x, y) on a map."""
        ...


def make_body(domain: str, rng: np.random.Generator) -> Body:
    """A body of a domain that can be played."""
    if domain in domains.DMC:
        return Robot(domain, rng)
    if domains.is_grid(domain):
        return GridAgent(domains.grid_map(domain), rng)
    if domains.is_point_maze(domain):
        return MazePoint(domain, rng)
    known = ", ".join([*domains.DMC, "four-rooms", "grid:MAP_FILE", "point-maze"])
    raise UserError(f"cannot play {domain or 'a keyboard without a domain'}: lk play shows {known}")


def named_quantities(domain: str, found: dict[str, Any]) -> dict[str, Any]:
    """Quantities as formulas see them: with `stand`, where a domain has a task of that name."""
    if domain in domains.DMC and "stand" in tasks.tasks_of(domain):
        reward = tasks.find_task(domain, "stand").reward
        try:
            return {**found, "stand": reward(found)}
        except KeyError:  # the stored states do not tell
            return found
    return found


class Robot:
    """A MuJoCo robot."""

    patience: int | None = None

    def __init__(self, domain: str, rng: np.random.Generator):
        from laplacian_keyboard.envs import dmc

        self.domain = dmc.load_domain(domain)
        self.seconds = self.domain.substeps * float(self.domain.model.opt.timestep)
        self._env = dmc.DmcVectorEnv(domain, tasks.tasks_of(domain)[0], 1, num_threads=1)
        self._still = np.zeros((1, self.domain.model.nu))
        self.reset(rng)

    def reset(self, rng: np.random.Generator) -> None:
        self._env.restart(np.array([0]), [rng])

    def observe(self) -> Array:
        return self._env.observations64()[0].astype(np.float32)

    def advance(self, action: Any) -> None:
        self._env.advance(self._still if action is None else np.asarray(action)[None])

    def push(self, rng: np.random.Generator) -> None:
        state, first = self._env.physics_states(), self.domain.model.nq
        # The first three degrees of freedom move the whole body in every domain.
        state[0, first : first + 3] += SHOVE * rng.standard_normal(3)
        self._env.set_physics_states(state)

    def quantities(self) -> dict[str, float]:
        return {name: float(value[0]) for name, value in self._env.quantities().items()}

    def pose(self) -> Array:
        return self._env.physics_states()[0, : self.domain.model.nq]


class GridAgent:
    """An agent on a grid."""

    seconds: float = GRID_STEP
    patience: int | None = 50

    def __init__(self, grid: GridMap, rng: np.random.Generator):
        self._next, self._cells = grid.next_states(), grid.cells
        self._observations = grid_observations(grid)
        self.reset(rng)

    def reset(self, rng: np.random.Generator) -> None:
        self.cell = int(rng.integers(len(self._cells)))

    def observe(self) -> Array:
        return self._observations[self.cell]

    def advance(self, action: Any) -> None:
        if action is not None:
            self.cell = int(self._next[self.cell, int(action)])

    def push(self, rng: np.random.Generator) -> None:
        for _ in range(3):
            self.cell = int(rng.choice(self._next[self.cell]))

    def quantities(self) -> dict[str, float]:
        x, y = self.pose()
        return {"x": float(x), "y": float(y)}

    def pose(self) -> Array:
        return self._cells[self.cell, ::-1] + 0.5


class MazePoint:
    """A point in a maze."""

    seconds: float = MAZE_STEP
    patience: int | None = point_maze.TIME_LIMIT

    def __init__(self, domain: str, rng: np.random.Generator):
        self._world = domains.point_maze_world(domain, None)
        self.reset(rng)

    def reset(self, rng: np.random.Generator) -> None:
        self._state, obs = _start(self._world, jax.random.key(int(rng.integers(2**31))))
        self._obs = np.asarray(obs)

    def observe(self) -> Array:
        return self._obs

    def advance(self, action: Any) -> None:
        if action is not None:
            self._state, obs = _move(self._world, self._state, jnp.asarray(action))
            self._obs = np.asarray(obs)

    def push(self, rng: np.random.Generator) -> None:
        direction = rng.uniform(-1.0, 1.0, 2)
        for _ in range(4):
            self.advance(direction)

    def quantities(self) -> dict[str, float]:
        return {name: float(value) for name, value in point_maze.quantities(self.pose()).items()}

    def pose(self) -> Array:
        return np.asarray(self._state.position, np.float64)


@jax.jit
def _start(world: point_maze.PointMaze, key: Any) -> Any:
    return world.reset(key)


@jax.jit
def _move(world: point_maze.PointMaze, state: Any, action: Any) -> Any:
    state, timestep = world.step(state, action)
    return state, timestep.obs
