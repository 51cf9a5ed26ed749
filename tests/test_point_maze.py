"""The point maze: walls, free movement, observations, rewards, and its Gymnasium interfaces."""

import functools
import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laplacian_keyboard.envs.grid import GridMap, GridWorld, four_rooms, maze
from laplacian_keyboard.envs.gym import JaxEnv, JaxVectorEnv
from laplacian_keyboard.envs.point_maze import (
    PointMaze,
    cell_of,
    center_of,
    find_goal,
    label,
    quantities,
)
from laplacian_keyboard.types import UserError

ROWS, COLUMNS, STEPS = 4, 5, 8  # fixed, so that the random maps share a compiled rollout
JUST_BELOW_1 = float(np.nextafter(np.float32(1), np.float32(0)))


@st.composite
def maps(draw) -> GridMap:
    line = st.text("#..", min_size=COLUMNS, max_size=COLUMNS)
    lines = draw(st.lists(line, min_size=ROWS, max_size=ROWS))
    assume(any("." in line for line in lines))
    return GridMap(tuple(lines))


@st.composite
def free_positions(draw, grid: GridMap) -> np.ndarray:
    """Anywhere in free space, often on an edge or a corner of a cell."""
    row, column = draw(st.sampled_from(grid.cells.tolist()))
    offset = st.sampled_from([0.0, 0.5, JUST_BELOW_1]) | st.floats(0, JUST_BELOW_1, width=32)
    corner = np.array([column, row], np.float32)
    position = corner + np.array([draw(offset), draw(offset)], np.float32)
    return np.minimum(position, np.nextafter(corner + 1, corner))


velocities = st.sampled_from([-1.0, 0.0, 0.5, 1.0]) | st.floats(-1.5, 1.5, width=32)
actions = st.lists(st.tuples(velocities, velocities), min_size=STEPS, max_size=STEPS)
speeds = st.sampled_from([0.25, 0.3, 2.7])


def free_cells(grid: GridMap) -> np.ndarray:
    return np.array([[char != "#" for char in line] for line in grid.lines])


@jax.jit
def rollout(world: PointMaze, position, actions):
    """Positions `(t + 1, 2)`, the first one included, and timesteps."""

    def step(state, action):
        state, timestep = world.step(state, action)
        return state, (state.position, timestep)

    state, _ = world.start_at(position)
    _, (positions, timesteps) = jax.lax.scan(step, state, actions)
    return jnp.concatenate([position[None], positions]), timesteps


def reached(free_line: np.ndarray, start: float, wanted: float) -> float:
    """How far a point gets along one line of cells, walking from cell to cell."""
    cell, direction = math.floor(start), 1 if wanted > start else -1
    while cell != math.floor(wanted):
        if not (0 <= cell + direction < len(free_line) and free_line[cell + direction]):
            return cell + 1.0 if direction == 1 else float(cell)
        cell += direction
    return wanted


@settings(max_examples=100, deadline=None)
@given(st.data(), maps(), speeds, actions)
def test_a_point_goes_as_far_as_walls_allow_and_never_through_them(data, grid, speed, actions):
    start = data.draw(free_positions(grid))
    world = PointMaze.from_map(grid, goal=None, speed=speed)
    positions = np.asarray(rollout(world, start, np.array(actions, np.float32))[0])
    free = free_cells(grid)
    velocity = np.float32(speed) * np.clip(np.array(actions, np.float32), -1, 1)
    for (x0, y0), (x1, y1), (dx, dy) in zip(
        positions[:-1].tolist(), positions[1:].tolist(), velocity.tolist(), strict=True
    ):
        row0, column0, row1, column1 = (math.floor(v) for v in (y0, x0, y1, x1))
        assert 0 <= row1 < ROWS and 0 <= column1 < COLUMNS and free[row1, column1]
        # The path is two straight pieces; every cell of both must be free.
        assert free[row0, min(column0, column1) : max(column0, column1) + 1].all()
        assert free[min(row0, row1) : max(row0, row1) + 1, column1].all()
        assert x1 == pytest.approx(reached(free[row0], x0, x0 + dx), abs=1e-5)
        assert y1 == pytest.approx(reached(free[:, column1], y0, y0 + dy), abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.data(), actions, speeds)
def test_free_movement_is_the_sum_of_velocities_within_the_map(data, actions, speed):
    grid = GridMap(("." * COLUMNS,) * ROWS)
    start = data.draw(free_positions(grid))
    world = PointMaze.from_map(grid, goal=None, speed=speed)
    positions = np.asarray(rollout(world, start, np.array(actions, np.float32))[0])
    wanted = start.astype(np.float64)
    for position, action in zip(positions[1:], actions, strict=True):
        wanted = np.clip(wanted + speed * np.clip(action, -1, 1), 0, (COLUMNS, ROWS))
        np.testing.assert_allclose(position, wanted, atol=1e-4)


def test_points_do_not_slip_between_cells_that_touch_at_a_corner():
    world = PointMaze.from_map(GridMap.parse(".#\n#."), goal=None, speed=0.9)
    for start in ((0.999, 0.999), (0.5, 0.5), (0.2, 0.2)):
        positions, _ = rollout(world, np.array(start, np.float32), np.ones((9, 2), np.float32))
        assert positions[-1].tolist() == [JUST_BELOW_1, JUST_BELOW_1]


def test_points_slide_along_walls_and_into_doors():
    world = PointMaze.from_map(GridMap.parse("...\n##."), goal=None, speed=0.25)
    down_right = np.ones((11, 2), np.float32)
    positions, _ = rollout(world, np.array([0.0, 0.5], np.float32), down_right)
    np.testing.assert_array_equal(positions[:9, 0], np.arange(9) * 0.25)
    assert (positions[2:8, 1] == JUST_BELOW_1).all(), "held by the wall below"
    assert (positions[8:, 1] > 1.2).all(), "the step that gets past the wall goes down as well"


def test_large_mazes_hold_a_million_random_steps():
    grid = maze(12, 12, seed=3)
    world = PointMaze.from_map(grid, goal=None, speed=0.3)
    keys = jax.random.split(jax.random.key(0), 1000)
    starts = jax.jit(jax.vmap(lambda key: world.reset(key)[0].position))(keys)
    # Constant directions with noise: random walks would seldom press into corners.
    drift = jax.random.uniform(jax.random.key(1), (1000, 1, 2), minval=-1.5, maxval=1.5)
    noise = jax.random.normal(jax.random.key(2), (1000, 1000, 2))
    positions, _ = jax.vmap(functools.partial(rollout, world))(starts, drift + noise)
    row, column = np.moveaxis(cell_of(np.asarray(positions)), -1, 0)
    assert free_cells(grid)[row, column].all()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_observations_are_continuous_bounded_and_tell_the_position(data):
    grid = four_rooms()
    world = PointMaze.from_map(grid, goal=None)
    here, there = data.draw(free_positions(grid)), data.draw(free_positions(grid))
    obs, other = (np.asarray(world.observe(jnp.asarray(place))) for place in (here, there))
    assert obs.shape == (world.spec.obs_dim,) == (26,) and obs.dtype == np.float32
    assert (obs >= 0).all() and (obs <= 1).all()
    assert np.abs(obs - other).max() <= np.abs(here - there).max() + 1e-5
    np.testing.assert_allclose(obs[13:] @ np.arange(13) + 0.5, here[0], atol=1e-5)
    np.testing.assert_allclose(obs[:13] @ np.arange(13) + 0.5, here[1], atol=1e-5)


def test_at_cell_centres_a_point_sees_what_the_grid_world_sees():
    grid = four_rooms()
    world = PointMaze.from_map(grid, goal=None)
    centres = np.array([center_of(*cell) for cell in grid.cells], np.float32)
    obs = jax.vmap(world.observe)(jnp.asarray(centres))
    np.testing.assert_array_equal(obs, GridWorld.from_map(grid).observations)
    np.testing.assert_array_equal(cell_of(centres), grid.cells)
    np.testing.assert_array_equal(cell_of(jnp.asarray(centres)), grid.cells)


def test_many_points_together_move_as_each_alone():
    world = PointMaze.from_map(four_rooms(), goal=center_of(9, 9), speed=0.25, margin=3.0)
    keys = jax.random.split(jax.random.key(0), 4)
    state, obs = jax.jit(jax.vmap(world.reset))(keys)
    action = jax.random.uniform(jax.random.key(1), (4, 2), minval=-1, maxval=1)
    together = jax.jit(jax.vmap(world.step))(state, action)
    for i in range(4):
        alone, first_obs = jax.jit(PointMaze.reset)(world, keys[i])
        np.testing.assert_allclose(first_obs, obs[i], atol=1e-6)
        pairs = (
            jax.jit(PointMaze.step)(world, alone, action[i]),
            jax.tree.map(lambda x, i=i: x[i], together),
        )
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), *pairs)


def test_episodes_start_uniformly_in_free_space():
    grid = four_rooms()
    world = PointMaze.from_map(grid, goal=None)
    state, obs = jax.jit(jax.vmap(world.reset))(jax.random.split(jax.random.key(0), 20_800))
    assert not state.time.any()
    np.testing.assert_allclose(obs, jax.vmap(world.observe)(state.position), atol=1e-6)
    position = np.asarray(state.position)
    cells, counts = np.unique(cell_of(position), axis=0, return_counts=True)
    np.testing.assert_array_equal(cells, grid.cells)
    assert ((counts - 200) ** 2 / 200).sum() < 180, "chi-squared with 103 degrees of freedom"
    np.testing.assert_allclose(np.mean(position % 1, axis=0), 0.5, atol=0.01)


def test_a_start_is_not_rounded_up_into_a_wall(monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, JUST_BELOW_1))
    grid = four_rooms()
    world = PointMaze.from_map(grid, goal=None)
    state, _ = jax.jit(jax.vmap(world.reset))(jax.random.split(jax.random.key(0), 500))
    row, column = cell_of(np.asarray(state.position)).T
    assert free_cells(grid)[row, column].all()


@settings(max_examples=50, deadline=None)
@given(st.data(), maps(), st.sampled_from([0.0, 2.0]), actions)
def test_labels_of_stored_positions_are_the_live_rewards(data, grid, margin, actions):
    start = data.draw(free_positions(grid))
    goal = tuple(data.draw(free_positions(grid)).tolist())
    world = PointMaze.from_map(grid, goal=goal, margin=margin)
    positions, timesteps = rollout(world, start, np.array(actions, np.float32))
    positions = np.asarray(positions, np.float64)[1:]
    distance = np.hypot(positions[:, 0] - goal[0], positions[:, 1] - goal[1])
    decided = abs(distance - 0.5) > 1e-5 if margin == 0 else np.ones(STEPS, bool)
    rewards = label(grid, goal, positions, margin=margin)
    np.testing.assert_allclose(timesteps.reward[decided], rewards[decided], atol=2e-5)
    np.testing.assert_array_equal(
        label(grid, goal, positions.reshape(2, -1, 2), margin=margin).ravel(), rewards
    )
    named = quantities(positions, goal)
    np.testing.assert_allclose(named["distance"], distance)
    np.testing.assert_array_equal(np.stack([named["x"], named["y"]], axis=-1), positions)
    assert set(quantities(positions)) == {"x", "y"}


def test_the_reward_is_1_near_the_goal_and_falls_over_the_margin():
    grid, goal = four_rooms(), center_of(9, 9)
    offsets = np.array([[0, 0], [0.4, 0], [0, -0.5], [0, 1.5], [1.5, 2]])
    positions = goal + offsets
    assert label(grid, goal, positions).tolist() == [1, 1, 1, 0, 0]
    assert label(grid, goal, positions, margin=2.0).tolist() == [1, 1, 1, 0.5, 0]
    assert float(label(grid, goal, positions[0])) == 1.0


def test_episodes_are_cut_by_the_time_limit_and_never_terminate():
    world = PointMaze.from_map(four_rooms(), goal=center_of(9, 9), time_limit=3)
    start = jnp.array(center_of(9, 9), jnp.float32)
    _, timesteps = rollout(world, start, jnp.zeros((3, 2)))
    assert timesteps.last.tolist() == [False, False, True]
    assert timesteps.discount.tolist() == timesteps.reward.tolist() == [1.0, 1.0, 1.0]


def test_without_a_goal_nothing_is_rewarded():
    for margin in (0.0, 3.0):
        world = PointMaze.from_map(four_rooms(), goal=None, margin=margin)
        start = jnp.array(center_of(9, 9), jnp.float32)
        _, timesteps = rollout(world, start, jax.random.normal(jax.random.key(0), (50, 2)))
        assert not timesteps.reward.any()


def test_goals_come_from_the_task_the_map_or_a_default():
    grid = GridMap.parse("..G\n.#G")
    assert find_goal(grid, None) is None
    assert find_goal(grid, "goal") == find_goal(grid, "goal", default=(0, 0)) == (2.5, 0.5)
    assert find_goal(grid, "goal:1,0") == (0.5, 1.5)
    assert find_goal(four_rooms(), "goal", default=(9, 9)) == (9.5, 9.5)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("run", "unknown task 'run' of point-maze"),
        ("goal:1;2", "goal:ROW,COLUMN"),
        ("goal:0,0", "row 0, column 0 is not a free cell"),
        ("goal", "marks no goal"),
    ],
)
def test_an_impossible_task_is_an_error_that_names_it(task, message):
    with pytest.raises(UserError, match=message):
        find_goal(four_rooms(), task)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"goal": (0.5, 3.0)}, "row 3, column 0 is not a free cell"),
        ({"goal": (-0.5, 3.0)}, "row 3, column -1 is not a free cell"),
        ({"goal": (math.nan, 3.0)}, "not finite"),
        ({"goal": None, "speed": 0.0}, "speed is 0.0"),
        ({"goal": None, "speed": math.inf}, "speed is inf"),
        ({"goal": None, "margin": -1.0}, "margin is -1.0"),
        ({"goal": None, "time_limit": 0}, "time_limit is 0"),
    ],
)
def test_an_impossible_world_is_an_error(arguments, message):
    with pytest.raises(UserError, match=message):
        PointMaze.from_map(four_rooms(), **arguments)


def test_damaged_positions_cannot_be_labelled():
    with pytest.raises(UserError, match="last axis must be"):
        label(four_rooms(), center_of(9, 9), np.zeros((4, 3)))
    with pytest.raises(UserError, match="not finite"):
        label(four_rooms(), center_of(9, 9), [1.5, math.nan])
    with pytest.raises(UserError, match="not a free cell"):
        label(four_rooms(), center_of(0, 0), [1.5, 1.5])


@pytest.fixture
def env_id():
    """A registration of the module's entry points, for the length of a test."""
    entry = "laplacian_keyboard.envs.point_maze:make"
    gymnasium.register("test/Point-v0", entry_point=entry, vector_entry_point=f"{entry}_vector")
    yield "test/Point-v0"
    del gymnasium.registry["test/Point-v0"]


@pytest.mark.filterwarnings("ignore:.*A Box observation space")
def test_the_registered_world_passes_gymnasiums_checks(env_id):
    env = gymnasium.make(env_id, goal=(9, 9)).unwrapped
    assert isinstance(env, JaxEnv)
    check_env(env, skip_render_check=True)


def test_make_vec_gives_a_fast_vector_environment_that_resets_in_the_last_step(env_id, tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("G...\n")
    envs = gymnasium.make_vec(env_id, num_envs=3, map_file=file, time_limit=2, margin=1.0)
    assert isinstance(envs.unwrapped, JaxVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert isinstance(envs.unwrapped.world, PointMaze)
    assert envs.unwrapped.world.goal.tolist() == [0.5, 0.5]
    obs, _ = envs.reset(seed=0)
    assert obs in envs.observation_space and obs.shape == (3, 5)
    actions = np.ones((3, 2), np.float32)
    envs.step(actions)
    obs, _, terminated, truncated, infos = envs.step(actions)
    assert truncated.all() and not terminated.any() and infos["_final_obs"].all()
    assert (infos["final_obs"] != obs).any(axis=1).all()
