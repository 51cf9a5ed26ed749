"""Grid worlds: maps, dynamics, episodes, and their Gymnasium interfaces."""

import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import laplacian_keyboard  # noqa: F401  registers the worlds
from laplacian_keyboard import spectral
from laplacian_keyboard.envs.domains import grid_goals, jax_world
from laplacian_keyboard.envs.grid import MOVES, GridMap, GridWorld, four_rooms, maze
from laplacian_keyboard.envs.gym import JaxVectorEnv, world_of
from laplacian_keyboard.types import UserError

UP, RIGHT, DOWN, LEFT = range(4)
FOUR_ROOMS = "laplacian_keyboard/FourRooms-v0"


@st.composite
def maps(draw) -> GridMap:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    line = st.text("#..", min_size=columns, max_size=columns)
    lines = draw(st.lists(line, min_size=rows, max_size=rows))
    assume(any("." in line for line in lines))
    return GridMap(tuple(lines))


def shortest_paths(grid: GridMap) -> np.ndarray:
    """All distances by Floyd and Warshall, -1 where there is no path."""
    cells = grid.cells
    apart = np.abs(cells[:, None] - cells[None]).sum(axis=-1)
    distance = np.where(apart <= 1, apart.astype(float), np.inf)
    for through in range(len(cells)):
        detour = distance[:, through, None] + distance[None, through]
        distance = np.minimum(distance, detour)
    return np.where(np.isinf(distance), -1, distance).astype(int)


def test_four_rooms_has_104_states_in_13_x_13():
    grid = four_rooms()
    assert grid.shape == (13, 13)
    assert grid.num_states == len(grid.cells) == 104
    assert (grid.distances(0) >= 0).all()


@settings(max_examples=50, deadline=None)
@given(maps())
def test_every_move_can_be_undone_so_the_random_walk_is_symmetric(grid):
    table, cells = grid.next_states(), np.arange(grid.num_states)
    for there, back in ((UP, DOWN), (RIGHT, LEFT)):
        moved = table[:, there] != cells
        np.testing.assert_array_equal(table[table[moved, there], back], cells[moved])
    P = spectral.transition_matrix(table)
    np.testing.assert_array_equal(P, P.T)
    np.testing.assert_allclose(P.sum(axis=1), 1.0)


@settings(max_examples=50, deadline=None)
@given(maps())
def test_moves_go_to_the_next_cell_or_stay_at_walls_and_edges(grid):
    free = {tuple(cell): number for number, cell in enumerate(grid.cells.tolist())}
    for number, (row, column) in enumerate(grid.cells.tolist()):
        wanted = [free.get((row + down, column + right), number) for down, right in MOVES]
        assert grid.next_states()[number].tolist() == wanted


@settings(max_examples=50, deadline=None)
@given(maps(), st.data())
def test_distances_are_the_shortest_paths(grid, data):
    goal = data.draw(st.integers(0, grid.num_states - 1))
    np.testing.assert_array_equal(grid.distances(goal), shortest_paths(grid)[goal])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99), st.floats(0, 1))
def test_a_maze_is_connected_and_repeatable(rows, columns, seed, doors):
    grid = maze(rows, columns, seed=seed, doors=doors)
    assert grid.shape == (2 * rows + 1, 2 * columns + 1)
    assert (grid.distances(0) >= 0).all()
    assert grid == maze(rows, columns, seed=seed, doors=doors)


def test_a_maze_without_doors_is_a_tree():
    grid = maze(5, 7, doors=0.0)
    edges = np.sum(grid.next_states() != np.arange(grid.num_states)[:, None]) // 2
    assert edges == grid.num_states - 1


def test_text_becomes_a_map_with_short_lines_filled_by_walls():
    grid = GridMap.parse("\n. G\n.#\n\n")
    assert grid.lines == (". G", ".##")
    assert grid.cells.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
    assert grid.goals.tolist() == [2]
    assert grid.cell_number(1, 0) == 3
    np.testing.assert_array_equal(
        grid.paint(np.arange(4.0)), [[0, 1, 2], [3, np.nan, np.nan]], strict=False
    )


def test_a_map_error_names_file_and_line(tmp_path):
    file = tmp_path / "odd.txt"
    file.write_text("...\n.x.\n")
    with pytest.raises(UserError, match=r"odd\.txt, line 2: unknown character 'x'"):
        GridMap.load(file)
    file.write_text("###\n")
    with pytest.raises(UserError, match=r"odd\.txt has no free cells"):
        GridMap.load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"cannot read the map .*odd\.txt"):
        GridMap.load(file)
    with pytest.raises(UserError, match=r"cannot read the map .*none\.txt"):
        GridMap.load(tmp_path / "none.txt")


def test_a_goal_in_a_wall_is_an_error_that_names_it():
    with pytest.raises(UserError, match="four-rooms: row 0, column 0 is not a free cell"):
        grid_goals("four-rooms", "goal:0,0")
    with pytest.raises(UserError, match="goal:ROW,COLUMN"):
        grid_goals("four-rooms", "goal:1;2")
    with pytest.raises(UserError, match="unknown task 'run' of four-rooms"):
        grid_goals("four-rooms", "run")


def test_goals_come_from_the_task_or_the_map(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("..G\n")
    assert grid_goals(f"grid:{file}", "goal") == [2]
    assert grid_goals(f"grid:{file}", "goal:0,1") == [1]
    assert grid_goals(f"grid:{file}", None) == []
    file.write_text("...\n")
    with pytest.raises(UserError, match="marks no goal"):
        grid_goals(f"grid:{file}", "goal")


def line_world(time_limit: int = 3) -> GridWorld:
    """Four cells in a row, the last one a goal."""
    return GridWorld.from_map(GridMap.parse("...G"), time_limit=time_limit)


def test_entering_a_goal_rewards_and_terminates():
    world = line_world()
    state, _ = world.start_at(jnp.int32(2))
    state, step = world.step(state, jnp.int32(RIGHT))
    assert (int(state.cell), float(step.reward)) == (3, 1.0)
    assert (float(step.discount), bool(step.last)) == (0.0, True)
    np.testing.assert_array_equal(step.obs, world.observations[3])


def test_the_time_limit_ends_an_episode_without_terminating_it():
    world = line_world(time_limit=3)
    state, _ = world.start_at(jnp.int32(0))
    seen = []
    for _ in range(3):
        state, step = world.step(state, jnp.int32(LEFT))
        seen.append((float(step.reward), float(step.discount), bool(step.last)))
    assert seen == [(0.0, 1.0, False), (0.0, 1.0, False), (0.0, 1.0, True)]


def test_episodes_start_in_every_cell_but_goals():
    keys = jax.random.split(jax.random.key(0), 200)
    state, obs = jax.jit(jax.vmap(line_world().reset))(keys)
    assert set(state.cell.tolist()) == {0, 1, 2}
    assert not state.time.any()
    np.testing.assert_array_equal(obs, line_world().observations[state.cell])


def test_without_a_task_nothing_rewards_or_terminates():
    world = jax_world("four-rooms", None)
    assert not world.reward.any() and not world.terminal.any()
    assert len(world.starts) == 104


def test_observations_are_one_hot_rows_and_columns():
    grid = four_rooms()
    obs = np.asarray(GridWorld.from_map(grid).observations)
    assert obs.shape == (104, 26)
    np.testing.assert_array_equal(obs[:, :13].argmax(axis=1), grid.cells[:, 0])
    np.testing.assert_array_equal(obs[:, 13:].argmax(axis=1), grid.cells[:, 1])
    np.testing.assert_array_equal(obs.sum(axis=1), 2.0)


def test_vector_environments_reset_in_the_step_that_reaches_a_goal():
    world = line_world()
    env = JaxVectorEnv(world, 8)
    obs, _ = env.reset(seed=0)
    for _ in range(3):
        cell = obs[:, 1:].argmax(axis=1)
        obs, reward, terminated, truncated, infos = env.step(np.full(8, RIGHT))
        np.testing.assert_array_equal(terminated, cell == 2)
        np.testing.assert_array_equal(reward, terminated)
        assert terminated.any(), "choose a seed with episodes of every length"
        assert not truncated.any()
        np.testing.assert_array_equal(infos["_final_obs"], terminated)
        np.testing.assert_array_equal(infos["final_obs"], np.asarray(world.observations)[cell + 1])
        arrived = obs[:, 1:].argmax(axis=1)
        np.testing.assert_array_equal(arrived[~terminated], cell[~terminated] + 1)
        assert (arrived[terminated] < 3).all(), "a new episode starts beside the goal"


def test_vector_environments_truncate_at_the_time_limit():
    env = JaxVectorEnv(line_world(time_limit=3), 8)
    env.reset(seed=0)
    for cut in (False, False, True, False):
        _, _, terminated, truncated, infos = env.step(np.full(8, UP))
        assert not terminated.any()
        np.testing.assert_array_equal(truncated, cut)
        assert (infos.keys() >= {"final_obs", "_final_obs"}) == cut


def test_vector_environments_are_repeatable_from_a_seed():
    def observations() -> list[np.ndarray]:
        env = JaxVectorEnv(jax_world("four-rooms", "goal", time_limit=3), 8)
        return [env.reset(seed=7)[0], *(env.step(np.full(8, RIGHT))[0] for _ in range(5))]

    np.testing.assert_array_equal(observations(), observations())


def test_a_reset_without_seed_continues_the_seeded_sequence():
    def second_episodes() -> np.ndarray:
        env = JaxVectorEnv(jax_world("four-rooms", "goal", time_limit=3), 8)
        env.reset(seed=7)
        return env.reset()[0]

    np.testing.assert_array_equal(second_episodes(), second_episodes())


def test_every_seed_of_a_list_is_used():
    env = JaxVectorEnv(jax_world("four-rooms", "goal", time_limit=3), 8)
    together, _ = env.reset(seed=[0] * 8)
    apart, _ = env.reset(seed=list(range(8)))
    assert (together == together[0]).all()
    assert (apart != apart[0]).any()


@pytest.mark.filterwarnings("ignore:.*A Box observation space")
@pytest.mark.parametrize("name", ["FourRooms-v0", "Grid-v0"])
def test_registered_worlds_pass_gymnasiums_checks(name):
    check_env(gymnasium.make(f"laplacian_keyboard/{name}").unwrapped, skip_render_check=True)


def test_registered_grid_takes_a_map_a_goal_and_a_time_limit(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("...\n")
    env = gymnasium.make("laplacian_keyboard/Grid-v0", map_file=file, goal=(0, 2), time_limit=2)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4,)
    ended = [env.step(RIGHT)[2:4] for _ in range(2 - int(obs[1:].argmax()))]
    assert ended[-1] == (True, False)


def test_make_vec_gives_the_fast_vector_environment():
    envs = gymnasium.make_vec(FOUR_ROOMS, num_envs=3)
    assert isinstance(envs.unwrapped, JaxVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, _ = envs.reset(seed=0)
    assert obs in envs.observation_space
    goal = four_rooms().cell_number(9, 9)
    assert np.flatnonzero(envs.unwrapped.world.terminal).tolist() == [goal]


@pytest.mark.parametrize(
    "imports",
    [
        "import laplacian_keyboard, gymnasium",
        "import gymnasium, laplacian_keyboard",
        "import laplacian_keyboard; from gymnasium.vector import VectorEnv; import gymnasium",
    ],
)
def test_worlds_are_registered_in_either_order_of_imports(imports):
    code = f"{imports}\nprint([name for name in gymnasium.registry if 'laplacian' in name])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert FOUR_ROOMS in done.stdout and "laplacian_keyboard/Grid-v0" in done.stdout


def test_a_wrapped_world_is_stepped_as_the_wrapper_says():
    """Players learn on the world itself, many at once, unless the user has changed it."""
    made = gymnasium.make("laplacian_keyboard/FourRooms-v0")
    assert world_of(made) is made.unwrapped.world
    assert world_of(gymnasium.wrappers.TransformReward(made, lambda reward: -reward)) is None
    many = JaxVectorEnv(made.unwrapped.world, 2)
    assert world_of(many) is many.world
    assert world_of(gymnasium.wrappers.vector.TransformReward(many, lambda reward: -reward)) is None
