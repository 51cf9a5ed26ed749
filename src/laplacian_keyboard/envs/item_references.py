"""What to compare an Item-Collector agent with: the best, a random and a greedy collector.

The first two are exact. With the items of an episode fixed, a state is the agent's cell and the
set of items left, and the returns of all of them follow backward in time:

    entered(c, left) = reward of taking c's item, if it is left + value(c, left without it)
    value(c, left)   = max or mean over the moves from c to c':  entered(c', left)

That is `size^2 * 2^items` numbers a step, 100 x 1024 for the paper's world: a tenth of a second.

    best = best_return(world, state);  chance = random_return(world, state)
    action = greedy(world, state)
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from laplacian_keyboard.envs.grid import MOVES
from laplacian_keyboard.envs.item_collector import NUM_TYPES, ItemCollector, ItemState
from laplacian_keyboard.types import UserError

MOST_ITEMS = 14
"""Items that the exact values can be computed for: twice the time and memory for each more."""


def best_return(world: ItemCollector, state: ItemState) -> float:
    """The largest reward that can be earned from a state to the end of the episode."""
    return _exact_return(world, state, lambda entered: entered.max(axis=1))


def random_return(world: ItemCollector, state: ItemState) -> float:
    """The reward that uniformly random moves earn from a state on average."""
    return _exact_return(world, state, lambda entered: entered.mean(axis=1))


def _exact_return(
    world: ItemCollector, state: ItemState, over_moves: Callable[[np.ndarray], np.ndarray]
) -> float:
    board = np.asarray(world.observe(state.rows)).reshape(NUM_TYPES, -1)
    kind, cell = np.nonzero(board)
    if len(cell) > MOST_ITEMS:
        raise UserError(f"{len(cell)} items are too many to plan exactly: at most {MOST_ITEMS}")
    item = 1 << np.arange(len(cell))
    left = np.arange(2 ** len(cell))  # all sets of items, as bits
    first_left = (left & item[kind == world.first].sum()) != 0
    item_at, second_at = np.zeros(world.size**2, int), np.zeros(world.size**2, bool)
    item_at[cell], second_at[cell] = item, kind != world.first

    is_taken = (left & item_at[:, None]) != 0
    is_wrong = is_taken & second_at[:, None] & first_left
    reward = np.where(is_wrong, float(world.wrong_order_reward), is_taken.astype(float))
    left_after = left & ~item_at[:, None]

    place = np.arange(world.size**2).reshape(world.size, world.size)
    reached = np.stack([np.roll(place, (-down, -right), (0, 1)) for down, right in MOVES], axis=-1)
    reached = reached.reshape(-1, len(MOVES))
    value = np.zeros(reward.shape)
    for _ in range(world.time_limit - int(state.time)):
        entered = reward + np.take_along_axis(value, left_after, axis=1)
        value = over_moves(entered[reached])
    return float(value[0, -1])


def greedy(world: ItemCollector, state: ItemState) -> Int[Array, ""]:
    """The first move of a shortest way to the nearest item of the type that is due, around the
    items that are not. It knows the rules and looks no further than the next item."""
    shape = (NUM_TYPES, world.size, world.size)
    board = world.observe(state.rows).reshape(shape)
    first, second = board[world.first], board[1 - world.first]
    first_left = jnp.any(first > 0)
    wanted = jnp.where(first_left, first, second)
    # No way around is longer than all cells, so an item is taken out of order only if there is
    # no way around.
    enter = 1.0 + world.size**2 * jnp.where(first_left, second, 0.0)

    def costs(distance: Array) -> Array:
        """The length of the way to the nearest wanted item if it begins with each of the moves."""
        through = enter + distance
        return jnp.stack([jnp.roll(through, (-down, -right), (0, 1)) for down, right in MOVES])

    def relax(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        distance, _ = carry
        shorter = jnp.minimum(distance, jnp.min(costs(distance), axis=0))
        return shorter, jnp.any(shorter < distance)

    start = jnp.where(wanted > 0, 0.0, jnp.inf)
    distance, _ = jax.lax.while_loop(lambda carry: carry[1], relax, (start, jnp.bool_(True)))
    return jnp.argmin(costs(distance)[:, 0, 0])
