"""Recordings, outlines, pictures, strips and videos, with real MuJoCo and no OpenGL."""

import sys

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.spaces import Box
from PIL import Image

from laplacian_keyboard import film, scenes
from laplacian_keyboard.envs.dmc import DmcVectorEnv, load_domain
from laplacian_keyboard.envs.domains import point_maze_map
from laplacian_keyboard.envs.point_maze import SPEED, TIME_LIMIT
from laplacian_keyboard.types import UserError


class Wave:
    """Sines at the joints; remembers what it was told about beginnings."""

    def __init__(self, num_actions: int = 6):
        self.num_actions, self.firsts = num_actions, []

    def act(self, obs, first=None):
        self.firsts.append(first.tolist())
        phases = len(self.firsts) / 4 + np.arange(self.num_actions)
        return np.broadcast_to(np.sin(phases), (len(obs), self.num_actions)).astype(np.float32)


class Clock(gymnasium.Env):
    """Renders its clock as a brightness; ends after four steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space, action_space = Box(-1, 1, (2,)), Box(-1, 1, (6,))

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(2, np.float32), 0.0, self.time == 4, False, {}

    def render(self):
        return np.full((33, 48, 3), 50 * self.time, np.uint8)


class Dark(Clock):
    """Renders nothing."""

    metadata = {"render_modes": []}  # noqa: RUF012


@pytest.fixture(scope="module", autouse=True)
def worlds():
    for name, kind in (("Clock", Clock), ("Dark", Dark)):
        gymnasium.register(f"test/{name}-v0", entry_point=kind, disable_env_checker=True)
    yield
    for name in ("Clock", "Dark"):
        del gymnasium.registry[f"test/{name}-v0"]


@pytest.fixture(scope="module")
def cheetah() -> np.ndarray:
    return film.record("cheetah", Wave(), steps=100, seed=0)


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


def shows_a_body(image: Image.Image) -> bool:
    """Whether there is a place that is clearly warmer than the grey of floor and shadow."""
    colours = pixels(image)
    return bool((colours[..., 0] - colours[..., 2] > 60).sum() > 200)


def test_a_recording_is_what_the_environment_did(cheetah):
    env, agent = DmcVectorEnv("cheetah", "run", 1), Wave()
    obs, _ = env.reset(seed=0)
    expected = [env.physics_states()[0]]
    for _ in range(100):
        obs, *_ = env.step(agent.act(obs, np.zeros(1, bool)))
        expected.append(env.physics_states()[0])
    np.testing.assert_array_equal(cheetah, expected)


def test_a_recording_stops_with_the_episode_and_marks_its_beginning():
    agent = Wave(2)
    path = film.record("point-maze", agent, steps=10_000, seed=3)
    assert path.shape == (TIME_LIMIT + 1, 2)
    assert np.abs(np.diff(path, axis=0)).max() <= SPEED + 1e-6  # the last is not a reset
    assert agent.firsts == [[True]] + [[False]] * (TIME_LIMIT - 1)


def test_many_recordings_are_single_ones_side_by_side(cheetah):
    both = film.record_many("cheetah", Wave(), steps=20, seeds=[0, 5])
    assert both.shape == (2, 21, 18)
    np.testing.assert_array_equal(both[0], cheetah[:21])
    np.testing.assert_array_equal(
        both[1], film.record("cheetah", Wave(), steps=20, seed=5, task="walk")
    )


def test_a_grid_is_recorded_as_places_until_the_goal():
    class Down:
        def act(self, obs, first=None):
            return np.full(len(obs), 2)

    path = film.record("four-rooms", Down(), steps=8, seed=0)
    assert path.shape == (9, 2)
    assert (path[:, 0] == path[0, 0]).all() and (np.diff(path[:, 1]) >= 0).all()
    assert shows_a_body(scenes.scene_of("four-rooms", path, "goal").picture(8))


SHAPES = """<mujoco><worldbody><body euler="25 40 70" pos="0.3 -0.2 1">
  <geom type="sphere" size="0.2"/>
  <geom type="capsule" size="0.1 0.3"/>
  <geom type="ellipsoid" size="0.3 0.2 0.1"/>
  <geom type="cylinder" size="0.2 0.1"/>
  <geom type="box" size="0.3 0.2 0.1"/>
</body></worldbody></mujoco>"""


def surface(kind: int, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Many points of a geom, its extremes among them, in its own frame."""
    ball = rng.standard_normal((20_000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    ends = rng.choice([-1.0, 1.0], (20_000, 3))
    disc = ball[:, :2] / np.linalg.norm(ball[:, :2], axis=1, keepdims=True)
    return {
        mujoco.mjtGeom.mjGEOM_SPHERE: ball * size[0],
        mujoco.mjtGeom.mjGEOM_CAPSULE: ball * size[0] + ends * (0, 0, size[1]),
        mujoco.mjtGeom.mjGEOM_ELLIPSOID: ball * size,
        mujoco.mjtGeom.mjGEOM_CYLINDER: np.c_[disc * size[0], ends[:, 2] * size[1]],
        mujoco.mjtGeom.mjGEOM_BOX: ends * size,
    }[mujoco.mjtGeom(kind)]


def test_outlines_are_those_of_the_projected_geoms():
    model = mujoco.MjModel.from_xml_string(SHAPES)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    frames = data.geom_xmat.reshape(-1, 3, 3)
    axes = [scenes.half_axes(model, geom) for geom in range(model.ngeom)]
    straight, rounded = (frames * np.array(each)[:, None] for each in zip(*axes, strict=True))
    project = scenes.VIEWS["quadruped"].axes[:2]
    shapes = scenes.outlines(data.geom_xpos, straight, rounded, project)
    rng = np.random.default_rng(0)
    for geom, shape in enumerate(shapes):
        points = surface(model.geom_type[geom], model.geom_size[geom], rng)
        points = (points @ frames[geom].T + data.geom_xpos[geom]) @ project.T
        reached = (points @ scenes.NORMALS.T).max(axis=0)
        drawn = (shape * scenes.NORMALS).sum(axis=1)
        assert (reached <= drawn + 1e-9).all()
        np.testing.assert_allclose(reached, drawn, atol=2e-3)


@pytest.mark.parametrize("domain", ["cheetah", "walker", "quadruped"])
def test_the_camera_follows_over_a_floor_that_stays(domain):
    world = load_domain(domain)
    state = film.record(domain, Wave(world.model.nu), steps=5, seed=1)[-1:]
    x = {"cheetah": 0, "walker": 1, "quadruped": 0}[domain]
    moved = np.repeat(state, 3, axis=0)
    moved[1, x] += 2 * scenes.TILE_SIZE  # the pattern of the tiles repeats
    moved[2, x] += scenes.TILE_SIZE
    scene = scenes.scene_of(domain, moved)
    here, there, between = (pixels(scene.picture(i)) for i in range(3))
    assert here.shape == (*np.multiply(scene.view.size[::-1], scene.view.scale).round(), 3)
    assert (np.abs(here - there).max(axis=-1) > 40).mean() < 1e-3
    assert (here != between).any(axis=-1).mean() > 0.02
    assert scene.caption(1).strip("(").startswith("+1.0")
    assert shows_a_body(scene.picture(0))


def test_a_jump_out_of_the_picture_takes_the_camera_along(cheetah):
    high = cheetah[:1].copy()
    high[0, 1] += 10.0
    picture = scenes.scene_of("cheetah", high).picture(0)
    assert shows_a_body(picture)
    assert (pixels(picture)[-1] == 255).all()  # air below


def test_states_that_cannot_be_drawn_are_named(cheetah):
    for domain, states, message in (
        ("walker", cheetah[:, :-1], "18 long"),
        ("cheetah", cheetah[:0], "18 long"),
        ("cheetah", np.full((2, 18), np.nan), "not finite"),
        ("point-maze", cheetah, r"\(x, y\)"),
        ("gym:test/Clock-v0", cheetah, "RGB"),
        ("nonsense", cheetah, "cannot draw 'nonsense'"),
    ):
        with pytest.raises(UserError, match=message):
            scenes.scene_of(domain, states)
    with pytest.raises(UserError, match="unknown domain"):
        film.record("nonsense", Wave(), steps=1, seed=0)


def test_a_film_strip_has_a_row_for_each_behavior(cheetah):
    figure = film.film_strip("cheetah", {"$+e_1$": cheetah, "$-e_1$": cheetah[:50]}, 4)
    assert len(figure.axes) == 8
    labels = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    assert labels == ["$+e_1$", "$-e_1$"]
    assert [axes.get_title() for axes in figure.axes[:4]] == ["0.0 s", "0.3 s", "0.7 s", "1.0 s"]
    assert figure.axes[0].get_xlabel() == "+0.0 m"
    with pytest.raises(UserError, match="at least one"):
        film.film_strip("cheetah", {})


def test_a_film_strip_of_a_maze_has_a_panel_for_each_behavior():
    paths = film.record_many("point-maze", Wave(2), steps=30, seeds=[0, 1, 2])
    figure = film.film_strip("point-maze", {"a": paths, "b": paths[0]}, task="goal")
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    rows, columns = point_maze_map("point-maze").shape
    size = scenes.CELL_PIXELS * rows, scenes.CELL_PIXELS * columns, 3
    assert figure.axes[0].get_images()[0].get_size() == size[:2]


def test_a_gif_plays_in_real_time(cheetah, tmp_path):
    path = film.save_video(tmp_path / "run.gif", "cheetah", cheetah[:100])
    assert [file.name for file in tmp_path.iterdir()] == ["run.gif"]
    with Image.open(path) as video:
        assert (video.n_frames, video.info["duration"], video.info["loop"]) == (25, 40, 0)
        first = pixels(video.convert("RGB"))
        video.seek(24)
        assert (pixels(video.convert("RGB")) != first).any()
        assert shows_a_body(video.convert("RGB"))
    film.save_video(path, "cheetah", cheetah[:100], fps=10)
    with Image.open(path) as video:
        assert (video.n_frames, video.info["duration"]) == (10, 100)


def test_an_mp4_is_written_by_ffmpeg(cheetah, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    path = film.save_video(tmp_path / "run.mp4", "cheetah", cheetah)
    assert path.read_bytes()[4:8] == b"ftyp"
    assert [file.name for file in tmp_path.iterdir()] == ["run.mp4"]


def test_videos_that_cannot_be_written_are_refused_at_once(cheetah, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    for name, message in (
        ("run.avi", ".gif or .mp4"),
        ("run.mp4", r"pip install 'laplacian-keyboard\[video\]'"),
        ("no/run.gif", "no folder"),
    ):
        with pytest.raises(UserError, match=message) as raised:
            film.check_video(tmp_path / name)
        assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="fps"):
        film.save_video(tmp_path / "run.gif", "cheetah", cheetah, fps=0)
    assert list(tmp_path.iterdir()) == []


def test_gym_environments_are_filmed_if_they_render(tmp_path):
    pictures = film.record("gym:test/Clock-v0", Wave(), steps=10, seed=0)
    np.testing.assert_array_equal(pictures[:, 0, 0, 0], [0, 50, 100, 150])
    path = film.save_video(tmp_path / "clock.gif", "gym:test/Clock-v0", pictures)
    with Image.open(path) as video:
        assert (video.size, video.n_frames) == ((48, 32), 4)
    assert len(film.film_strip("gym:test/Clock-v0", {"clock": pictures}, 3).axes) == 3
    for name in ("test/Dark-v0", "test/Missing-v0"):
        with pytest.raises(UserError, match=f"{name} cannot be filmed") as raised:
            film.record(f"gym:{name}", Wave(), steps=1, seed=0)
        assert "\n" not in str(raised.value)
