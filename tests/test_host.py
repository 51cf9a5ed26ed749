"""Gymnasium's own environments behind plain vectors: scaling, autoreset, rewards, errors."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from gymnasium.vector import AutoresetMode

from laplacian_keyboard.envs.domains import make_vector_env, task_named
from laplacian_keyboard.envs.host import TIME_LIMIT, HostVectorEnv, find_reward, make_host
from laplacian_keyboard.types import Spec, UserError


class Probe(gymnasium.Env):
    """Observes its clock and the last action, flattened; ends after three steps."""

    def __init__(self, observation_space=None, action_space=None):
        self.observation_space = observation_space or Box(-np.inf, np.inf, (3, 2), np.float64)
        low = np.array([[-0.1, 0.0], [-7.0, 2.0]])
        high = np.array([[0.3, 1.0], [-3.0, 9.0]])
        self.action_space = action_space or Box(low, high, dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return np.zeros((3, 2)), {}

    def step(self, action):
        assert action in self.action_space
        self.clock += 1
        obs = np.concatenate([[[self.clock, 0]], np.broadcast_to(action, (2, 2))])
        return obs, float(self.clock), self.clock == 3, False, {"clock": self.clock}


@pytest.fixture
def probe():
    gymnasium.register(
        "test/Probe-v0", entry_point=lambda **spaces: Probe(**spaces), disable_env_checker=True
    )
    yield lambda **spaces: gymnasium.registry["test/Probe-v0"].kwargs.update(spaces)
    del gymnasium.registry["test/Probe-v0"]


def write_task(tmp_path, monkeypatch, text: str) -> str:
    """A module of tasks in the current directory; returns its name."""
    name = f"tasks_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_pendulum_is_the_gymnasium_environment_with_actions_in_minus_1_to_1():
    envs, plain = make_host("Pendulum-v1", 2), gymnasium.make("Pendulum-v1")
    assert envs.spec == Spec(3, action_dim=1)
    assert envs.single_action_space == Box(-1, 1, (1,), np.float32)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, _ = envs.reset(seed=5)
    first, _ = plain.reset(seed=6)
    np.testing.assert_array_equal(obs[1], first)
    for action in (-1.0, 0.25, 1.0, 3.0):
        obs, reward, *_ = envs.step(np.full((2, 1), action, np.float32))
        torque = np.array([2 * min(action, 1.0)], np.float32)
        expected, expected_reward, *_ = plain.step(torque)
        np.testing.assert_array_equal(obs[1], expected)
        assert reward[1] == expected_reward
    assert obs in envs.observation_space
    envs.close()


def test_pendulum_is_cut_after_200_steps_and_shows_its_last_observation():
    envs, plain = make_host("Pendulum-v1", 2), gymnasium.make("Pendulum-v1")
    envs.reset(seed=0)
    plain.reset(seed=1)
    for _ in range(199):
        assert not envs.step(np.zeros((2, 1)))[3].any()
        plain.step(np.zeros(1, np.float32))
    obs, _, terminated, truncated, infos = envs.step(np.zeros((2, 1)))
    last, *_ = plain.step(np.zeros(1, np.float32))
    assert truncated.all() and not terminated.any() and infos["_final_obs"].all()
    np.testing.assert_array_equal(infos["final_obs"][1], last)
    np.testing.assert_array_equal(obs[1], plain.reset()[0])


def test_an_environment_without_a_time_limit_is_given_one():
    class Endless(Probe):
        def step(self, action):
            obs, reward, _, _, info = super().step(action)
            return obs, reward, False, False, info

    gymnasium.register("test/Endless-v0", entry_point=Endless, disable_env_checker=True)
    envs = make_host("test/Endless-v0")
    envs.reset(seed=0)
    ends = [envs.step(np.zeros((1, 4)))[2:4] for _ in range(TIME_LIMIT)]
    del gymnasium.registry["test/Endless-v0"]
    assert not any(terminated or truncated for terminated, truncated in ends[:-1])
    assert ends[-1] == (False, True)


def test_cartpoles_reset_alone_in_the_step_that_ends_them():
    envs = make_host("CartPole-v1", 4)
    assert envs.spec == Spec(4, num_actions=2)
    obs, _ = envs.reset(seed=0)
    num_ended = 0
    for step in range(60):
        actions = np.full(4, step % 3 == 0, np.int64)
        obs, reward, terminated, truncated, infos = envs.step(actions)
        assert (reward == 1.0).all() and not truncated.any()
        assert (np.abs(obs[terminated]) <= 0.05).all(), "a new pole starts upright"
        assert terminated.any() == ("final_obs" in infos)
        if terminated.any():
            final = infos["final_obs"]
            assert final.dtype == np.float32 and final.shape == (4, 4)
            np.testing.assert_array_equal(infos["_final_obs"], terminated)
            assert (np.abs(final[terminated, 2]) > 0.2).all(), "it fell"
            np.testing.assert_array_equal(final[~terminated], obs[~terminated])
            num_ended += terminated.sum()
    assert num_ended >= 4


def test_episodes_repeat_from_a_seed():
    def observations() -> list[np.ndarray]:
        envs = make_host("CartPole-v1", 3)
        first, _ = envs.reset(seed=7)
        return [first, *(envs.step(np.ones(3, int))[0] for _ in range(30))]

    np.testing.assert_array_equal(observations(), observations())


def test_observations_and_actions_of_any_shape_are_flat(probe):
    envs = HostVectorEnv("test/Probe-v0", 2)
    assert envs.spec == Spec(6, action_dim=4)
    envs.reset()
    obs, *_, infos = envs.step([[-1, -1, -1, -1], [1, 1, 1, 1]])
    ends = np.array([[1, 0, -0.1, 0, -7, 2], [1, 0, 0.3, 1, -3, 9]], np.float32)
    np.testing.assert_array_equal(obs, ends)
    np.testing.assert_array_equal(infos["clock"], [1, 1])
    obs, *_ = envs.step([[0, 0.5, -0.5, 0], [-9, 9, 0, 0]])
    np.testing.assert_allclose(obs[0], [2, 0, 0.1, 0.75, -6, 5.5], rtol=1e-6)
    np.testing.assert_allclose(obs[1], [2, 0, -0.1, 1, -5, 5.5], rtol=1e-6)


def test_discrete_actions_count_from_0(probe):
    probe(action_space=Discrete(3, start=5))
    envs = HostVectorEnv("test/Probe-v0", 2)
    assert envs.spec == Spec(6, num_actions=3)
    envs.reset()
    np.testing.assert_array_equal(envs.step([0, 2])[0][:, 2], [5, 7])


def test_a_task_from_a_module_rewards_the_true_next_observation(probe, tmp_path, monkeypatch):
    text = "def clock(obs):\n    obs[:, 0] *= 10\n    return obs[:, 0]\n"
    name = write_task(tmp_path, monkeypatch, text)
    path = list(sys.path)
    envs = make_host("test/Probe-v0", 2, f"{name}:clock")
    assert sys.path == path
    envs.reset()
    seen = [envs.step(np.zeros((2, 4))) for _ in range(4)]
    assert [step[1].tolist() for step in seen] == [[10, 10], [20, 20], [30, 30], [10, 10]]
    assert [step[0][0, 0] for step in seen] == [1, 2, 0, 1], "observations are left alone"
    stored = np.arange(12.0, dtype=np.float32).reshape(2, 1, 6)
    np.testing.assert_array_equal(find_reward(f"{name}:clock")(stored), [[0], [60]])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return obs", r"rewards of shape \(2, 6\) for observations of shape \(2, 6\)"),
        ("return 1.0", r"rewards of shape \(\) .* return \(2,\)"),
        ("return obs[:, 0] / 0 - obs[:, 0]", "rewards that are not finite"),
        ("return ['high', 'low']", "rewards that are not numbers"),
        ("raise KeyError('speed')", "ERROR 2 rows: KeyError: 'speed'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in divide")
def test_odd_rewards_are_errors_that_name_the_task(probe, tmp_path, monkeypatch, body, message):
    name = write_task(tmp_path, monkeypatch, f"def odd(obs):\n    {body}\n")
    envs = make_host("test/Probe-v0", 2, f"{name}:odd")
    envs.reset()
    message = message.replace("ERROR", "failed on") if "ERROR" in message else f"gave {message}"
    with pytest.raises(UserError, match=rf"task '{name}:odd' {message}"):
        envs.step(np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("domain", "own"),
    [("cheetah", "run"), ("four-rooms", "goal"), ("point-maze", "goal")],
)
def test_every_domain_takes_a_reward_of_the_users_own(tmp_path, monkeypatch, domain, own):
    name = write_task(tmp_path, monkeypatch, "def third(obs):\n    return 2 * obs[:, 2]\n")
    envs = make_vector_env(domain, f"{name}:third", 2)
    seen, _ = envs.reset(seed=0)
    for _ in range(60):  # past the end of an episode of Four-Rooms
        envs.action_space.seed(0)
        obs, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
        seen = infos["final_obs"] if (terminated | truncated).any() else obs
        np.testing.assert_allclose(reward, 2 * seen[:, 2], rtol=1e-6)
    assert task_named(domain, "env") == own and task_named(domain, f"{name}:third") != own
    assert f"{name}:third" in repr(envs), "a run folder tells tasks apart by it"
    assert repr(make_vector_env(domain, "env", 2)) == repr(make_vector_env(domain, own, 2))


@pytest.mark.parametrize(
    ("text", "task", "message"),
    [
        ("", "run", "unknown task 'run'; use env or MODULE:FUNCTION"),
        ("", "nowhere_at_all:f", "cannot import nowhere_at_all: ModuleNotFoundError"),
        ("", "NAME:far", "NAME has no function 'far'"),
        ("far = 3", "NAME:far", "NAME has no function 'far'"),
        ("far far", "NAME:far", "cannot import NAME: SyntaxError"),
        ("import nowhere_at_all", "NAME:far", "NAME: .* No module named 'nowhere_at_all'"),
        ("", ":far", "unknown task ':far'"),
        ("", "NAME:", "unknown task 'NAME:'"),
    ],
)
def test_a_missing_task_is_an_error_that_says_what_is_missing(
    tmp_path, monkeypatch, text, task, message
):
    name = write_task(tmp_path, monkeypatch, text)
    with pytest.raises(UserError, match=message.replace("NAME", name)) as error:
        make_host("CartPole-v1", 1, task.replace("NAME", name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pendulu-v1", "'Pendulu-v1': .*Did you mean: `Pendulum`"),
        ("CartPole-v9", "'CartPole-v9': .*version"),
        ("nowhere/Thing-v0", "Namespace nowhere not found"),
        ("nowhere_at_all:Thing-v0", "nowhere_at_all"),
        ("", "cannot make"),
    ],
)
def test_an_unknown_environment_is_an_error_that_names_a_close_one(env_id, message):
    with pytest.raises(UserError, match=message) as error:
        make_host(env_id)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"observation_space": Discrete(5)}, r"observations of Discrete\(5\).*FlattenObservation"),
        ({"observation_space": Dict(a=Box(0, 1))}, r"observations of Dict\('a': Box"),
        ({"action_space": MultiBinary(2)}, r"actions of MultiBinary\(2\)"),
        ({"action_space": Box(0, 9, (2,), np.uint8)}, r"actions of Box\(0, 9, \(2,\), uint8\)"),
        ({"action_space": Box(0, np.inf)}, r"unbounded actions, Box\(0\.0, inf"),
    ],
)
def test_spaces_without_a_vector_form_are_errors_that_name_them(probe, spaces, message):
    probe(**spaces)
    with pytest.raises(UserError, match=f"test/Probe-v0 has {message}"):
        make_host("test/Probe-v0")


def test_tables_of_states_are_refused_with_a_remedy():
    with pytest.raises(UserError, match=r"Taxi-v\d has observations of Discrete.*wrapped in"):
        make_host(next(name for name in sorted(gymnasium.registry) if name.startswith("Taxi")))


@pytest.mark.parametrize(
    ("env_id", "actions", "message"),
    [
        ("Pendulum-v1", np.zeros(2), r"shape \(2,\), not \(2, 1\)"),
        ("Pendulum-v1", [[0.0], [np.nan]], "not finite"),
        ("CartPole-v1", np.zeros((2, 1), int), r"shape \(2, 1\), not \(2,\)"),
        ("CartPole-v1", [0, 2], "whole numbers from 0 to 1"),
        ("CartPole-v1", [0, -1], "whole numbers from 0 to 1"),
        ("CartPole-v1", [0.0, 0.5], "whole numbers from 0 to 1"),
    ],
)
def test_impossible_actions_are_errors(env_id, actions, message):
    envs = make_host(env_id, 2)
    envs.reset()
    with pytest.raises(UserError, match=message):
        envs.step(actions)


def test_at_least_one_copy_is_needed():
    with pytest.raises(UserError, match="num_envs is 0"):
        make_host("CartPole-v1", 0)


def test_it_prints_and_wraps_like_other_vector_environments():
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(make_host("CartPole-v1", 2))
    assert "HostVectorEnv(CartPole-v1, num_envs=2)" in repr(envs)
    envs.reset(seed=0)
    infos = [envs.step(np.ones(2, int))[4] for _ in range(20)]
    assert [info["episode"]["l"].max() for info in infos if "episode" in info]
