"""Item-Collector in pure JAX: a torus with items of two types, to be collected in order.

Five items of each type lie on a 10 x 10 torus. The agent moves up, right, down or left and takes
the item of the cell it enters. The task `first:0` wants all items of type 0 before any of type 1,
the task `first:1` the other way round. Only where the items lie relative to the agent matters, so
the world is kept in the agent's frame: the agent stays in cell (0, 0) and a move rolls the board.

    reset:  10 different cells besides (0, 0), uniformly; 5 for each type
    step:   roll the board against the move
            taken  = the types of the items now in cell (0, 0);  remove them
            reward = 1 for an item in order, `wrong_order_reward` for one of the second type
                     while any of the first type is left
    end:    after 50 steps

| symbol | here | meaning |
|---|---|---|
| s | `observe` | 2 x 10 x 10 flags, flattened: an item of type t, r rows down, c columns right? |
| phi | `collected` | the type taken at a transition, as a one-hot vector: the privileged features |
| r | `label` | the reward of stored transitions, for any task |

The agent itself is not drawn, being always in cell (0, 0). A reward is of a transition and not of a
state: the state that follows does not show whether an item was just taken.

What the papers leave open, and what is done here:

- The reward of an item taken out of order is a parameter, -1 by default. The game's ancestors, the
  scavenger tasks of the option keyboard (Barreto et al. 2019), punish a wrong item as much as they
  reward a right one; and with -1 only the order pays. Taking all ten items in random order earns
  5/3 on average, a random walk about 0; with a reward of 0 it would be 35/6, more than half of what
  is possible without knowing the task at all. The largest return is 10 with either.
- An episode does not end early when everything is collected: the paper's episodes have 50 steps,
  and the empty board earns nothing. So all episodes have one length.
- The end is a time limit and not a termination (discount 1), since no observation shows the time.

A row of one type is one integer whose bit c is the flag of column c: a step touches 20 numbers
instead of 200 flags, and neither gathers nor scatters, which are slow when many worlds are mapped.

    world = ItemCollector.for_task("first:0")
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
from jaxtyping import Float, Int, PRNGKeyArray, UInt16

from laplacian_keyboard.envs.grid import MOVES
from laplacian_keyboard.envs.gym import JaxEnv, JaxVectorEnv
from laplacian_keyboard.types import Spec, TimeStep, UserError

NUM_TYPES = 2
TASKS = ("first:0", "first:1")
"""Which type is to be collected before the other."""
WRONG_ORDER_REWARD = -1.0
TIME_LIMIT = 50
"""Steps of an episode."""
LARGEST_SIZE = 16
"""Columns that fit into the bits of a row."""


class ItemState(eqx.Module):
    """Where the items are, seen from the agent, and for how many steps the episode has run."""

    rows: UInt16[Array, "2 n"]
    """Bit c of `rows[type, r]`: an item r rows below and c columns to the right of the agent."""
    time: Int[Array, ""]


class ItemCollector(eqx.Module):
    """The torus, its items and the order in which they are wanted."""

    wrong_order_reward: Float[Array, ""]
    """An array, so that one compiled program serves every value, or many at once."""
    first: int = eqx.field(static=True)
    """The type wanted first."""
    size: int = eqx.field(static=True)
    num_items: int = eqx.field(static=True)
    """Items of each type."""
    time_limit: int = eqx.field(static=True)

    @classmethod
    def for_task(
        cls,
        task: str = "first:0",
        *,
        wrong_order_reward: float = WRONG_ORDER_REWARD,
        size: int = 10,
        num_items: int = 5,
        time_limit: int = TIME_LIMIT,
    ) -> "ItemCollector":
        """A world of `size x size` cells and `num_items` items of each type, with a task of
        `TASKS`. Without a task in mind take any: the items and moves do not depend on it."""
        if not 2 <= size <= LARGEST_SIZE:
            raise UserError(f"size is {size}: it must lie between 2 and {LARGEST_SIZE} cells")
        most = (size**2 - 1) // NUM_TYPES
        if not 1 <= num_items <= most:
            raise UserError(
                f"num_items is {num_items}: a torus of size {size} holds 1 to {most} of each type"
            )
        if time_limit < 1:
            raise UserError(f"time_limit is {time_limit}: it must be at least 1")
        if not (math.isfinite(wrong_order_reward) and wrong_order_reward <= 1.0):
            raise UserError(
                f"wrong_order_reward is {wrong_order_reward}: it must be a number of at most 1, "
                "the reward of an item in order"
            )
        return cls(
            wrong_order_reward=jnp.asarray(wrong_order_reward, jnp.float32),
            first=find_first(task),
            size=size,
            num_items=num_items,
            time_limit=time_limit,
        )

    @property
    def spec(self) -> Spec:
        return Spec(NUM_TYPES * self.size**2, num_actions=len(MOVES))

    def reset(self, key: PRNGKeyArray) -> tuple[ItemState, Float[Array, "o"]]:
        """Items in any cells but the agent's, every arrangement equally likely."""
        others = self.size**2 - 1
        cells = 1 + draw_different(key, NUM_TYPES * self.num_items, others)
        return self.start_with(cells.reshape(NUM_TYPES, self.num_items))

    def start_with(self, cells: Int[Array, "2 m"]) -> tuple[ItemState, Float[Array, "o"]]:
        """An episode that begins with items of each type in the given, different cells, numbered
        row by row from the agent's cell 0."""
        row, column = jnp.divmod(cells, self.size)
        in_row = row[:, None] == jnp.arange(self.size)[:, None]
        rows = jnp.sum(in_row << column[:, None], axis=-1).astype(jnp.uint16)
        return ItemState(rows, jnp.zeros((), jnp.int32)), self.observe(rows)

    def step(self, state: ItemState, action: Int[Array, ""]) -> tuple[ItemState, TimeStep]:
        moved = self._move(state.rows, action)
        taken = moved & self._agent_cell
        rows, time = moved ^ taken, state.time + 1
        reward = _reward(
            taken[:, 0].astype(jnp.float32),
            jnp.any(state.rows[self.first] != 0),
            self.first,
            self.wrong_order_reward,
        )
        timestep = TimeStep(
            obs=self.observe(rows),
            reward=reward,
            discount=jnp.ones(()),
            last=time >= self.time_limit,
        )
        return ItemState(rows, time), timestep

    def observe(self, rows: UInt16[Array, "2 n"]) -> Float[Array, "o"]:
        """The flags of all cells, type by type and row by row."""
        flags = (rows[..., None] >> jnp.arange(self.size, dtype=jnp.uint16)) & 1
        return flags.astype(jnp.float32).reshape(-1)

    @property
    def _agent_cell(self) -> UInt16[Array, "n"]:
        """The bit of cell (0, 0)."""
        return (jnp.arange(self.size) == 0).astype(jnp.uint16)

    def _move(self, rows: UInt16[Array, "2 n"], action: Int[Array, ""]) -> UInt16[Array, "2 n"]:
        """The board after a move. All four boards are made and one is chosen: they are small."""
        last, inside = self.size - 1, 2**self.size - 1
        up, down = jnp.roll(rows, 1, axis=-1), jnp.roll(rows, -1, axis=-1)
        right = (rows >> 1) | ((rows << last) & inside)
        left = ((rows << 1) & inside) | (rows >> last)
        return jax.lax.select_n(jnp.asarray(action, jnp.int32), up, right, down, left)


def draw_different(key: PRNGKeyArray, count: int, total: int) -> Int[Array, "count"]:
    """`count` different numbers below `total` in random order, all outcomes equally likely.

    The first steps of a Fisher-Yates shuffle without its array: step i swaps the entries i and
    `places[i]`, and what lies at a place by then is found by undoing the earlier swaps. For a few
    of many numbers this takes a twentieth of the time of sorting all of them.
    """
    places = jax.random.randint(key, (count,), jnp.arange(count), total)
    step, value = jnp.arange(count), places
    for earlier in reversed(range(count)):
        is_swapped = (step > earlier) & (value == places[earlier])
        value = jnp.where(is_swapped, earlier, value)
    return value


def find_first(task: str) -> int:
    """The type that a task wants first."""
    if task not in TASKS:
        raise UserError(f"unknown task {task!r} of item-collector; use {' or '.join(TASKS)}")
    return TASKS.index(task)


def collected(obs: Any, next_obs: Any) -> Any:
    """The type taken at stored transitions, one-hot `(..., 2)` float32, zero where none was: the
    reward features that OKB is given and the Laplacian keyboard is not. NumPy or JAX."""
    return _count(obs) - _count(next_obs)


def label(
    obs: Any, next_obs: Any, task: str, *, wrong_order_reward: float = WRONG_ORDER_REWARD
) -> Any:
    """The task's rewards `(...,)` of stored transitions. NumPy or JAX."""
    return _label(_count(obs), _count(next_obs), task, wrong_order_reward)


def inventory(obs: np.ndarray) -> np.ndarray:
    """What rewards are a function of, for the rows `(t, o)` of one episode: items of each type on
    the board before the step that led to a row, then after it, `(t, 4)`. Nothing was taken before
    the first row. Stored as the physics of a dataset, so that any row can be labelled by itself."""
    after = _count(obs)
    before = np.concatenate([after[:1], after[:-1]])
    return np.concatenate([before, after], axis=1)


def label_inventory(
    counts: np.ndarray, task: str, *, wrong_order_reward: float = WRONG_ORDER_REWARD
) -> np.ndarray:
    """The task's rewards `(n,)` of rows with these inventories `(n, 4)`."""
    before, after = np.split(np.asarray(counts, np.float32), 2, axis=-1)
    return _label(before, after, task, wrong_order_reward)


def _label(before: Any, after: Any, task: str, wrong_order_reward: float) -> Any:
    first = find_first(task)
    return _reward(before - after, before[..., first] > 0, first, wrong_order_reward)


def _count(obs: Any) -> Any:
    """Items of each type on the board."""
    return obs.reshape(*obs.shape[:-1], NUM_TYPES, -1).sum(axis=-1, dtype=np.float32)


def _reward(taken: Any, first_left: Any, first: int, wrong_order_reward: Any) -> Any:
    """The one formula of live and stored rewards. `first_left`: before the step."""
    out_of_order = taken[..., 1 - first] * first_left
    return taken.sum(axis=-1) - out_of_order * (1.0 - wrong_order_reward)


def make(**arguments: Any) -> JaxEnv:
    """One copy of the world that `ItemCollector.for_task` makes of the arguments."""
    return JaxEnv(ItemCollector.for_task(**arguments))


def make_vector(num_envs: int = 1, **arguments: Any) -> JaxVectorEnv:
    """Many copies of the world that `ItemCollector.for_task` makes of the arguments."""
    return JaxVectorEnv(ItemCollector.for_task(**arguments), num_envs)
