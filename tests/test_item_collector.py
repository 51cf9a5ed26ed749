"""Item-Collector: dynamics, order, labels, its reference lines, and its Gymnasium interfaces."""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard.data import labels
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.envs import item_collector
from laplacian_keyboard.envs.item_collector import (
    TASKS,
    ItemCollector,
    ItemState,
    collected,
    draw_different,
    label,
)
from laplacian_keyboard.envs.item_references import best_return, greedy, random_return
from laplacian_keyboard.types import TimeStep, UserError

UP, RIGHT, DOWN, LEFT = range(4)
MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]


@jax.jit
def reset(world: ItemCollector, key) -> ItemState:
    """The state that an episode begins in."""
    return world.reset(key)[0]


@jax.jit
def rollout(world: ItemCollector, state: ItemState, actions) -> TimeStep:
    """The steps of a sequence of actions."""
    return jax.lax.scan(lambda state, action: world.step(state, action), state, actions)[1]


@jax.jit
def returns_of(world: ItemCollector, state: ItemState, actions):
    """The returns of many sequences of actions, all from one state or each from its own."""
    play = lambda state, actions: rollout(world, state, actions).reward.sum()  # noqa: E731
    return jax.vmap(play, in_axes=(None if state.time.ndim == 0 else 0, 0))(state, actions)


@functools.cache
def random_starts() -> tuple[ItemState, jax.Array]:
    """States that the paper's episodes begin in, and random actions for each."""
    key_reset, key_act = jax.random.split(jax.random.key(0))
    keys = jax.random.split(key_reset, 5_000)
    state = jax.jit(jax.vmap(lambda key: ItemCollector.for_task().reset(key)[0]))(keys)
    return state, jax.random.randint(key_act, (5_000, 50), 0, 4)


def world_in_numpy(cells, size, first, wrong_order_reward, actions):
    """The same game on a fixed torus with a moving agent: observations, rewards, types taken."""
    agent = (3 % size, 1 % size)
    items = [
        {((agent[0] + c // size) % size, (agent[1] + c % size) % size) for c in of_type}
        for of_type in np.asarray(cells).tolist()
    ]
    seen, rewards, types = [], [], []
    for action in actions:
        agent = tuple((a + d) % size for a, d in zip(agent, MOVES[action], strict=True))
        reward, taken = 0.0, [0.0, 0.0]
        for kind in (0, 1):
            if agent in items[kind]:
                in_order = kind == first or not items[first]
                reward, taken[kind] = 1.0 if in_order else wrong_order_reward, 1.0
                items[kind].remove(agent)
        view = np.zeros((2, size, size), np.float32)
        for kind in (0, 1):
            for row, column in items[kind]:
                view[kind, (row - agent[0]) % size, (column - agent[1]) % size] = 1.0
        seen.append(view.ravel())
        rewards.append(reward)
        types.append(taken)
    return np.array(seen), np.array(rewards), np.array(types)


@settings(max_examples=25, deadline=None)
@given(
    which=st.sampled_from([(2, 1, "first:0"), (3, 4, "first:1"), (16, 9, "first:1")]),
    wrong=st.sampled_from([-1.0, 0.0, 0.5]),
    seed=st.integers(0, 2**31 - 1),
)
def test_steps_are_those_of_a_torus_with_a_moving_agent(which, wrong, seed):
    size, num_items, task = which
    world = ItemCollector.for_task(
        task, wrong_order_reward=wrong, size=size, num_items=num_items, time_limit=200
    )
    rng = np.random.default_rng(seed)
    cells = rng.choice(np.arange(1, size**2), (2, num_items), replace=False)
    actions = rng.integers(4, size=200)
    state, first_obs = world.start_with(jnp.asarray(cells))
    steps = rollout(world, state, jnp.asarray(actions))
    seen, rewards, types = world_in_numpy(cells, size, TASKS.index(task), wrong, actions)
    np.testing.assert_array_equal(steps.obs, seen)
    np.testing.assert_allclose(steps.reward, rewards)

    obs = np.concatenate([np.asarray(first_obs)[None], seen[:-1]])
    np.testing.assert_array_equal(collected(obs, seen), types)
    for stored, next_stored in [
        (obs.astype(np.uint8), seen.astype(np.uint8)),
        (jnp.asarray(obs), jnp.asarray(seen)),
    ]:
        labels = label(stored, next_stored, task, wrong_order_reward=wrong)
        np.testing.assert_allclose(labels, rewards)
        np.testing.assert_array_equal(collected(stored, next_stored), types)


def test_items_are_only_moved_or_taken():
    world = ItemCollector.for_task()
    state, actions = jax.tree.map(lambda x: x[:200], random_starts())
    first_obs = jax.vmap(world.observe)(state.rows)
    steps = jax.vmap(functools.partial(rollout, world))(state, actions)
    obs = np.concatenate([np.asarray(first_obs)[:, None], np.asarray(steps.obs)], axis=1)
    assert obs.shape == (200, 51, world.spec.obs_dim) == (200, 51, 200)
    assert set(np.unique(obs)) == {0.0, 1.0}
    board = obs.reshape(200, 51, 2, 10, 10)
    assert (board[:, 0].sum(axis=(-1, -2)) == 5).all(), "five of each type at first"
    assert (board.sum(axis=2) <= 1).all(), "one item in a cell"
    assert not board[..., 0, 0].any(), "none under the agent"
    taken = collected(obs[:, :-1], obs[:, 1:])
    assert set(np.unique(taken)) == {0.0, 1.0} and (taken.sum(axis=-1) <= 1).all()
    np.testing.assert_array_equal(taken.sum(axis=1) + board[:, -1].sum(axis=(-1, -2)), 5.0)
    np.testing.assert_array_equal(np.abs(steps.reward), taken.sum(axis=-1))


def test_swapping_the_types_swaps_the_tasks():
    cells = jnp.array([[1, 12, 33, 70, 99], [2, 13, 34, 71, 98]])
    actions = jnp.asarray(np.random.default_rng(0).integers(4, size=50))
    one, other = (ItemCollector.for_task(task) for task in TASKS)
    steps = rollout(one, one.start_with(cells)[0], actions)
    swapped = rollout(other, other.start_with(cells[::-1])[0], actions)
    assert steps.reward.any()
    np.testing.assert_array_equal(steps.reward, swapped.reward)


def test_only_the_time_limit_ends_an_episode():
    world = ItemCollector.for_task(size=2, num_items=1, time_limit=6)
    state, _ = world.start_with(jnp.array([[1], [3]]))
    steps = rollout(world, state, jnp.array([RIGHT, DOWN, UP, UP, UP, UP]))
    assert steps.reward.tolist() == [1, 1, 0, 0, 0, 0], "all is taken, and time goes on"
    assert steps.discount.tolist() == [1.0] * 6
    assert steps.last.tolist() == [False] * 5 + [True]
    assert not steps.obs[1:].any()


def test_the_wrong_order_reward_may_be_many():
    """One program for a sweep over the reward that the papers do not tell."""
    world = ItemCollector.for_task(size=2, num_items=1)
    worlds = eqx.tree_at(lambda w: w.wrong_order_reward, world, jnp.array([-1.0, 0.0, 1.0]))
    state, _ = world.start_with(jnp.array([[1], [2]]))
    step = jax.vmap(lambda w: w.step(state, jnp.int32(DOWN))[1])(worlds)
    assert step.reward.tolist() == [-1.0, 0.0, 1.0]


def test_different_numbers_are_drawn_and_all_draws_are_equally_likely():
    keys = jax.random.split(jax.random.key(0), 12_000)
    few = np.asarray(jax.jit(jax.vmap(lambda key: draw_different(key, 3, 4)))(keys))
    draws, counts = np.unique(few, axis=0, return_counts=True)
    assert draws.tolist() == [list(draw) for draw in itertools.permutations(range(4), 3)]
    assert np.abs(counts - 500).max() < 4.5 * np.sqrt(500)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), wrong=st.sampled_from([-1.0, 0.3]))
def test_exact_returns_are_those_of_all_sequences_of_moves(seed, wrong):
    world = ItemCollector.for_task(
        "first:1", wrong_order_reward=wrong, size=3, num_items=2, time_limit=6
    )
    state = reset(world, jax.random.key(seed))
    sequences = jnp.array(list(itertools.product(range(4), repeat=6)))
    returns = returns_of(world, state, sequences)
    assert best_return(world, state) == pytest.approx(float(returns.max()), abs=1e-5)
    assert random_return(world, state) == pytest.approx(float(returns.mean()), abs=1e-5)


def test_everything_can_be_collected_in_order_on_small_boards_and_on_the_papers():
    for size, num_items in ((2, 1), (3, 2), (4, 3), (10, 5)):
        world = ItemCollector.for_task(size=size, num_items=num_items)
        state = reset(world, jax.random.key(size))
        assert best_return(world, state) == 2 * num_items
    assert best_return(world, ItemState(state.rows, jnp.int32(50))) == 0.0, "no time left"


def test_an_item_in_the_way_is_a_matter_of_price():
    """On a 2 x 2 torus with one step, the only thing to take may be out of order."""
    for wrong, best in ((-1.0, 0.0), (0.5, 0.5)):
        world = ItemCollector.for_task(size=2, num_items=1, time_limit=1, wrong_order_reward=wrong)
        state, _ = world.start_with(jnp.array([[3], [1]]))
        assert best_return(world, state) == best


def test_random_moves_earn_what_their_exact_value_says():
    world = ItemCollector.for_task()
    state, actions = random_starts()
    state = jax.tree.map(lambda x: x[0], state)
    returns = returns_of(world, state, actions)
    error = float(returns.std()) / np.sqrt(len(returns))
    assert abs(float(returns.mean()) - random_return(world, state)) < 4 * error


def test_random_moves_earn_nothing_on_average():
    """As many items are taken too early as in order; rarely is a whole type collected."""
    world = ItemCollector.for_task()
    returns = returns_of(world, *random_starts())
    assert abs(float(returns.mean())) < 0.08 and 1.3 < float(returns.std()) < 1.5


@jax.jit
def collect_greedily(world: ItemCollector, state: ItemState) -> TimeStep:
    """The steps of the greedy collector."""
    step = lambda state, _: world.step(state, greedy(world, state))  # noqa: E731
    return jax.lax.scan(step, state, length=world.time_limit)[1]


def test_the_greedy_collector_collects_all_in_order():
    world = ItemCollector.for_task("first:1")
    state, _ = jax.tree.map(lambda x: x[:50], random_starts())
    steps = jax.vmap(functools.partial(collect_greedily, world))(state)
    np.testing.assert_array_equal(steps.reward.sum(axis=1), 10.0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_the_greedy_collector_is_never_better_than_the_best(seed):
    world = ItemCollector.for_task(size=4, num_items=3, time_limit=9)
    state = reset(world, jax.random.key(seed))
    assert float(collect_greedily(world, state).reward.sum()) <= best_return(world, state)


def test_the_greedy_collector_goes_around_what_is_not_due():
    world = ItemCollector.for_task(size=7, num_items=1, time_limit=5)
    for near, far in ((7, 14), (42, 35), (1, 2), (6, 5)):  # below, above, right, left
        state, _ = world.start_with(jnp.array([[far], [near]]))
        assert collect_greedily(world, state).reward.tolist() == [0, 0, 0, 1, 1]


def test_the_greedy_collector_breaks_through_where_there_is_no_way_around():
    world = ItemCollector.for_task(size=3, num_items=4, time_limit=12)
    # The agent's neighbours are all of the type that is not due.
    state, _ = world.start_with(jnp.array([[4, 5, 7, 8], [1, 2, 3, 6]]))
    rewards = collect_greedily(world, state).reward
    assert rewards[0] == -1.0 and rewards.sum() == 6.0


@pytest.mark.filterwarnings("ignore:.*A Box observation space")
def test_the_world_passes_gymnasiums_checks():
    check_env(item_collector.make(task="first:1"), skip_render_check=True)


def test_vector_environments_end_together():
    env = item_collector.make_vector(4, task="first:1", time_limit=3)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4, 200) and obs in env.observation_space
    for cut in (False, False, True, False):
        _, _, terminated, truncated, infos = env.step(np.full(4, UP))
        assert not terminated.any()
        np.testing.assert_array_equal(truncated, cut)
        assert ("final_obs" in infos) == cut


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "last:0"}, "unknown task 'last:0' of item-collector; use first:0 or first:1"),
        ({"size": 1}, "size is 1: it must lie between 2 and 16"),
        ({"size": 17}, "size is 17"),
        ({"size": 3, "num_items": 5}, "num_items is 5: a torus of size 3 holds 1 to 4"),
        ({"num_items": 0}, "num_items is 0"),
        ({"time_limit": 0}, "time_limit is 0: it must be at least 1"),
        ({"wrong_order_reward": float("nan")}, "wrong_order_reward is nan"),
        ({"wrong_order_reward": 2.0}, "wrong_order_reward is 2.0: it must be a number of at most"),
    ],
)
def test_impossible_worlds_are_one_line_errors(arguments, message):
    with pytest.raises(UserError, match=message):
        ItemCollector.for_task(**arguments)


def test_too_many_items_to_plan_are_an_error():
    world = ItemCollector.for_task(num_items=8)
    state = reset(world, jax.random.key(0))
    with pytest.raises(UserError, match="16 items are too many"):
        best_return(world, state)


def test_any_stored_row_can_be_labelled_by_itself():
    """Rewards of rows, and of states kept without their episodes, are those the world gave."""
    world = ItemCollector.for_task("first:1", size=3, num_items=3)
    data = collect_random_walks(world, steps=400, length=20, seed=0)
    episodes = data.observation.reshape(-1, 21, world.spec.obs_dim)
    physics = np.concatenate([item_collector.inventory(episode) for episode in episodes])
    description = {"domain": "item-collector"}
    data = dataclasses.replace(data, physics=physics, description=description)
    rewards = label(episodes[:, :-1], episodes[:, 1:], "first:1")
    rewards = np.concatenate([np.zeros((len(rewards), 1)), rewards], axis=1).ravel()
    assert {-1.0, 0.0, 1.0} == set(rewards)
    np.testing.assert_array_equal(labels.relabel(data, "first:1"), rewards)
    rows = np.array([0, 3, 40, 100])
    kept = labels.states_at(data, rows)
    np.testing.assert_array_equal(labels.relabel(kept, "first:1"), rewards[rows])
    assert labels.tasks_of(data) == TASKS
    with pytest.raises(UserError, match="physics"):
        labels.relabel(dataclasses.replace(data, physics=None), "first:0")
