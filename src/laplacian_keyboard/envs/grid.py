"""Grid worlds in pure JAX, from text maps.

A map is lines of `#` (wall), space or `.` (free) and `G` (free, and a goal). The agent moves up,
right, down or left; a move into a wall or off the map stays. It sees its row and its column, each
as a one-hot vector, so an observation has `rows + columns` entries whatever the map's size.

    world = GridWorld.from_map(four_rooms(), goals=[cell])
    state, obs = world.reset(key)
    state, step = world.step(state, action)

Everything acts on one world; map it with `jax.vmap` over states, actions and keys.
"""

from collections import deque
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from laplacian_keyboard.types import Spec, TimeStep, UserError

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down, left, as changes of (row, column)."""


@dataclass(frozen=True)
class GridMap:
    """A parsed map. Cells are numbered row by row over the free ones."""

    lines: tuple[str, ...]
    source: str = "map"
    """Where the text came from, for error messages."""

    def __post_init__(self):
        for number, line in enumerate(self.lines, start=1):
            unknown = set(line) - set("#. G")
            if unknown:
                raise UserError(
                    f"{self.source}, line {number}: unknown character {sorted(unknown)[0]!r}; "
                    "use '#' for walls, '.' or space for free cells and 'G' for goals"
                )
        if not any(c in ". G" for line in self.lines for c in line):
            raise UserError(
                f"{self.source} has no free cells; mark at least one with '.' or a space"
            )

    @classmethod
    def parse(cls, text: str, source: str = "map") -> "GridMap":
        """A map from text; blank lines around it are dropped and short lines filled with walls."""
        lines = text.strip("\n").splitlines()
        width = max((len(line) for line in lines), default=0)
        return cls(tuple(line.ljust(width, "#") for line in lines), source)

    @classmethod
    def load(cls, path: str | Path) -> "GridMap":
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the map {path}: {error}") from error
        return cls.parse(text, str(path))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.lines), len(self.lines[0])

    @property
    def cells(self) -> np.ndarray:
        """(row, column) of every free cell, `(s, 2)`."""
        rows = enumerate(self.lines)
        return np.array([(r, c) for r, line in rows for c, char in enumerate(line) if char != "#"])

    @property
    def goals(self) -> np.ndarray:
        """Numbers of the cells marked `G`."""
        marks = [char for line in self.lines for char in line if char != "#"]
        return np.flatnonzero(np.array(marks) == "G")

    @property
    def num_states(self) -> int:
        return sum(char != "#" for line in self.lines for char in line)

    def cell_number(self, row: int, column: int) -> int:
        """The number of the free cell at (row, column)."""
        found = np.flatnonzero((self.cells == (row, column)).all(axis=1))
        if not len(found):
            raise UserError(f"{self.source}: row {row}, column {column} is not a free cell")
        return int(found[0])

    def next_states(self) -> np.ndarray:
        """The cell each move leads to, `(s, 4)`: the dynamics in the form `spectral` takes."""
        cells = self.cells
        number = np.full((self.shape[0] + 2, self.shape[1] + 2), -1)
        number[cells[:, 0] + 1, cells[:, 1] + 1] = np.arange(len(cells))
        columns = []
        for down, right in MOVES:
            reached = number[cells[:, 0] + 1 + down, cells[:, 1] + 1 + right]
            columns.append(np.where(reached < 0, np.arange(len(cells)), reached))
        return np.stack(columns, axis=1)

    def distances(self, goal: int) -> np.ndarray:
        """Length of the shortest path from every cell to `goal`, `(s,)`; -1 where there is none."""
        neighbours = self.next_states()
        distance = np.full(self.num_states, -1)
        distance[goal] = 0
        queue = deque([goal])
        while queue:
            cell = queue.popleft()
            for other in neighbours[cell]:  # moves can be undone, so neighbours are predecessors
                if distance[other] < 0:
                    distance[other] = distance[cell] + 1
                    queue.append(int(other))
        return distance

    def paint(self, values: np.ndarray) -> np.ndarray:
        """Values per cell as a picture `(rows, columns)`, NaN on walls."""
        picture = np.full(self.shape, np.nan)
        cells = self.cells
        picture[cells[:, 0], cells[:, 1]] = values
        return picture


def four_rooms() -> GridMap:
    """Four-Rooms of Sutton, Precup and Singh (1999): 13 x 13, 104 free cells."""
    text = (resources.files("laplacian_keyboard.envs") / "four_rooms.txt").read_text(
        encoding="utf-8"
    )
    return GridMap.parse(text, "four-rooms")


def maze(rows: int, columns: int, *, seed: int = 0, doors: float = 0.1) -> GridMap:
    """A random maze of `rows x columns` cells: a spanning tree of corridors, with a fraction
    `doors` of the remaining walls opened so that paths are not unique."""
    rng = np.random.default_rng(seed)
    grid = np.full((2 * rows + 1, 2 * columns + 1), "#")
    grid[1::2, 1::2] = "."
    visited = np.zeros((rows, columns), bool)
    visited[0, 0] = True
    path = [(0, 0)]
    while path:
        row, column = path[-1]
        options = [
            (row + down, column + right)
            for down, right in MOVES
            if 0 <= row + down < rows
            and 0 <= column + right < columns
            and not visited[row + down, column + right]
        ]
        if not options:
            path.pop()
            continue
        cell = options[rng.integers(len(options))]
        grid[row + cell[0] + 1, column + cell[1] + 1] = "."
        visited[cell] = True
        path.append(cell)
    inner = np.zeros(grid.shape, bool)
    inner[1:-1:2, 2:-1:2] = inner[2:-1:2, 1:-1:2] = True
    grid[inner & (grid == "#") & (rng.random(grid.shape) < doors)] = "."
    return GridMap(tuple("".join(line) for line in grid), f"maze({rows}, {columns}, seed={seed})")


class GridState(eqx.Module):
    """Where the agent is, and for how many steps the episode has run."""

    cell: Int[Array, ""]
    time: Int[Array, ""]


class GridWorld(eqx.Module):
    """The dynamics, rewards and episode ends of a map, as arrays."""

    next_state: Int[Array, "s a"]
    observations: Float[Array, "s o"]
    reward: Float[Array, "s"]
    """Reward for entering a cell."""
    terminal: Bool[Array, "s"]
    """Cells that end the episode when entered."""
    starts: Int[Array, "n"]
    """Cells an episode may start in, equally likely."""
    time_limit: int = eqx.field(static=True)

    @classmethod
    def from_map(
        cls, grid: GridMap, *, goals: list[int] | None = None, time_limit: int = 50
    ) -> "GridWorld":
        """Goals (None: the map's own `G` cells) give reward 1 and end the episode."""
        goals = list(grid.goals) if goals is None else goals
        terminal = np.zeros(grid.num_states, bool)
        terminal[goals] = True
        starts = np.flatnonzero(~terminal) if not terminal.all() else np.arange(len(terminal))
        return cls(
            next_state=jnp.asarray(grid.next_states(), jnp.int32),
            observations=jnp.asarray(grid_observations(grid)),
            reward=jnp.asarray(terminal, jnp.float32),
            terminal=jnp.asarray(terminal),
            starts=jnp.asarray(starts, jnp.int32),
            time_limit=time_limit,
        )

    @property
    def spec(self) -> Spec:
        return Spec(self.observations.shape[-1], num_actions=self.next_state.shape[-1])

    def reset(self, key: PRNGKeyArray) -> tuple[GridState, Float[Array, "o"]]:
        return self.start_at(jax.random.choice(key, self.starts))

    def start_at(self, cell: Int[Array, ""]) -> tuple[GridState, Float[Array, "o"]]:
        """An episode that begins in a given cell."""
        return GridState(cell, jnp.zeros((), jnp.int32)), self.observations[cell]

    def step(self, state: GridState, action: Int[Array, ""]) -> tuple[GridState, TimeStep]:
        cell = self.next_state[state.cell, action]
        time = state.time + 1
        terminal = self.terminal[cell]
        timestep = TimeStep(
            obs=self.observations[cell],
            reward=self.reward[cell],
            discount=1.0 - terminal.astype(jnp.float32),
            last=terminal | (time >= self.time_limit),
        )
        return GridState(cell, time), timestep


def grid_observations(grid: GridMap) -> np.ndarray:
    """One-hot row and one-hot column of every cell, `(s, rows + columns)`."""
    cells, (rows, columns) = grid.cells, grid.shape
    return np.concatenate([np.eye(rows)[cells[:, 0]], np.eye(columns)[cells[:, 1]]], axis=1).astype(
        np.float32
    )
