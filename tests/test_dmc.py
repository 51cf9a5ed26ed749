"""The MuJoCo domains against dm_control: models, resets, steps, observations, rewards."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from laplacian_keyboard.envs import dmc, registration, tasks
from laplacian_keyboard.types import UserError

SUITE_TASKS = [
    ("cheetah", "run"),
    ("walker", "stand"),
    ("walker", "walk"),
    ("walker", "run"),
    ("quadruped", "walk"),
    ("quadruped", "run"),
]
ALL_TASKS = [(domain, task) for domain in tasks.DOMAINS for task in tasks.tasks_of(domain)]
PARITY = 1e-9


@pytest.fixture(scope="module")
def load_suite() -> Iterator[Callable[..., Any]]:
    """dm_control's suite.load; both warn about missing displays and old XML attributes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dm_control import suite

        def load(domain: str, task: str, random: Any) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return suite.load(domain, task, task_kwargs={"random": random})

        yield load


class _FromGenerator(np.random.RandomState):
    """Lets dm_control's resets draw their numbers from a Generator, as ours do."""

    def __init__(self, seed: int) -> None:
        super().__init__(0)
        self._generator = np.random.default_rng(seed)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return self._generator.uniform(low, high, size)

    def randn(self, *shape: int) -> Any:
        return self._generator.standard_normal(shape)


def _flat(observation: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in observation.values()])


def _control(env: dmc.DmcVectorEnv, action: np.ndarray) -> np.ndarray:
    low, high = dmc.load_domain(env.domain).model.actuator_ctrlrange.T
    return (high + low) / 2 + (high - low) / 2 * action


@pytest.mark.parametrize(("domain", "task"), SUITE_TASKS)
def test_steps_equal_dm_control(domain: str, task: str, load_suite: Callable[..., Any]) -> None:
    theirs, ours = load_suite(domain, task, 0), dmc.DmcVectorEnv(domain, task, 1)
    rng = np.random.default_rng(1)
    for _ in range(4):
        theirs.reset()
        state = theirs.physics.get_state()
        # Setting the state on both sides also clears the solver's memory of earlier steps.
        with theirs.physics.reset_context():
            theirs.physics.set_state(state)
        ours.set_physics_states(state[None])
        for _ in range(250):
            action = rng.uniform(-1, 1, ours.action_space.shape)
            step = theirs.step(_control(ours, action[0]))
            ours.advance(action)
            assert np.abs(theirs.physics.get_state() - ours.physics_states()[0]).max() <= PARITY
            assert np.abs(_flat(step.observation) - ours.observations64()[0]).max() <= PARITY
            assert abs(step.reward - ours.rewards()[0]) <= PARITY


def test_acceleration_sensors_are_alive() -> None:
    """A robot at rest, whichever way up it fell, feels gravity and the floor.

    The steps above compare these entries with dm_control's; zeros would agree as well.
    """
    env = dmc.DmcVectorEnv("quadruped", "walk", 1)
    env.reset(seed=0)
    for _ in range(100):
        env.advance(np.zeros((1, 12)))
    obs = env.observations64()[0]
    assert np.linalg.norm(obs[48:51]) == pytest.approx(9.81, rel=0.1)
    assert np.abs(obs[54:66]).max() > 1.0
    assert np.abs(obs[66:78]).max() > 0.0


@pytest.mark.parametrize("domain", tasks.DOMAINS)
def test_model_equals_dm_control(domain: str, load_suite: Callable[..., Any]) -> None:
    """All arrays of the model but those about sensors, which we add; quadruped run's floor."""
    ours = dmc.load_domain(domain).model
    task = "run" if domain == "cheetah" else "walk"
    theirs = load_suite(domain, task, 0).physics.model.ptr
    names = [n for n in dir(ours) if isinstance(getattr(ours, n), np.ndarray)]
    ignored = ("sensor", "name", "_")
    compared = [n for n in names if not n.startswith(ignored)]
    assert len(compared) > 200
    for name in compared:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    for name in ("timestep", "integrator", "solver", "iterations", "tolerance", "disableflags"):
        assert getattr(ours.opt, name) == getattr(theirs.opt, name)


@pytest.mark.parametrize("domain", tasks.DOMAINS)
def test_reset_procedure_equals_dm_control(domain: str, load_suite: Callable[..., Any]) -> None:
    """The same random numbers give the same first state and observation."""
    ours = dmc.DmcVectorEnv(domain, "run", 3)
    # Ten seeds: the quadruped's first three are lifted by an even number of centimetres.
    for seed in range(10):
        theirs = load_suite(domain, "run", _FromGenerator(seed))
        observation = theirs.reset().observation
        ours.restart(np.array([1]), [np.random.default_rng(seed)])
        assert np.abs(theirs.physics.get_state() - ours.physics_states()[1]).max() <= PARITY
        assert np.abs(_flat(observation) - ours.observations64()[1]).max() <= PARITY


def _clip01(x: float) -> float:
    return min(1.0, max(0.0, x))


def _custom_reward(domain: str, task: str, physics: Any) -> float:
    """The closed forms of the custom tasks, from dm_control's physics object."""
    if domain == "cheetah":
        full = {"run_backward": -10, "walk": 2, "walk_backward": -2}[task]
        return _clip01(physics.named.data.sensordata["torso_subtreelinvel"][0] / full)
    zz = physics.named.data.xmat["torso", "zz"]
    if domain == "walker":
        height = physics.named.data.xpos["torso", "z"]
        tall = 1.0 if height >= 1.2 else 0.1 ** (((1.2 - height) / 0.6) ** 2)
        momentum = physics.named.data.subtree_angmom["torso"][1]
        return (3 * tall + (1 + zz) / 2) / 4 * (5 * _clip01(momentum / 5) + 1) / 6
    com_height = physics.named.data.subtree_com["torso"][2]
    rise = _clip01(0.5 + 0.5 * com_height) if task == "jump" else 1.0
    return (1 + zz) / 2 * rise


@pytest.mark.parametrize(("domain", "task"), sorted(set(ALL_TASKS) - set(SUITE_TASKS)))
def test_custom_rewards(domain: str, task: str, load_suite: Callable[..., Any]) -> None:
    theirs = load_suite(domain, "run", 0)
    ours = dmc.DmcVectorEnv(domain, task, 8)
    ours.reset(seed=3)
    rng = np.random.default_rng(4)
    seen = []
    for _ in range(30):
        _, rewards, *_ = ours.step(rng.uniform(-1, 1, ours.action_space.shape))
        for state, reward in zip(ours.physics_states(), rewards, strict=True):
            with theirs.physics.reset_context():
                theirs.physics.set_state(state)
            assert abs(_custom_reward(domain, task, theirs.physics) - reward) <= PARITY
        seen.extend(rewards)
    assert np.ptp(seen) > 0.01


@pytest.mark.parametrize(("domain", "task"), ALL_TASKS)
def test_labels_equal_live_rewards(domain: str, task: str) -> None:
    env = dmc.DmcVectorEnv(domain, task, 4, episode_length=60)
    env.reset(seed=7)
    rng = np.random.default_rng(8)
    physics, rewards = [], []
    for _ in range(150):
        _, reward, _, truncated, infos = env.step(rng.uniform(-1, 1, env.action_space.shape))
        # At the end of an episode the current state is already the next episode's.
        physics.append(infos["final_physics"] if truncated.any() else env.physics_states())
        rewards.append(reward)
    labels = dmc.label(domain, task, np.stack(physics))
    assert labels.shape == (150, 4)
    np.testing.assert_allclose(labels, np.stack(rewards), atol=1e-6, rtol=0)


def test_labels_across_chunks_and_threads() -> None:
    env = dmc.DmcVectorEnv("walker", "walk", 5)
    env.reset(seed=0)
    states = np.tile(env.physics_states(), (2000, 1))
    labels = dmc.label("walker", "walk", states, num_threads=2)
    np.testing.assert_array_equal(labels, np.tile(env.rewards(), 2000))
    np.testing.assert_array_equal(labels, dmc.label("walker", "walk", states, num_threads=1))
    assert dmc.label("walker", "walk", np.empty((0, 18))).shape == (0,)
    assert dmc.label("walker", "walk", states[0]).shape == ()


@pytest.mark.filterwarnings("ignore:.*infinity")
@pytest.mark.parametrize("domain", tasks.DOMAINS)
def test_registered_environments(domain: str) -> None:
    registration.register()
    registration.register()
    name = f"laplacian_keyboard/{domain.capitalize()}-v0"
    other = tasks.tasks_of(domain)[-1]
    check_env(gymnasium.make(name, task=other).unwrapped, skip_render_check=True)
    envs = gymnasium.make_vec(
        name, num_envs=2, vectorization_mode="vector_entry_point", task=other
    ).unwrapped
    assert isinstance(envs, dmc.DmcVectorEnv)
    assert (envs.task, envs.num_envs) == (other, 2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, _ = envs.reset(seed=0)
    assert obs.dtype == np.float32
    assert obs in envs.observation_space


def _trajectory(domain: str, num_envs: int, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
    env = dmc.DmcVectorEnv(domain, "run", num_envs, num_threads=num_threads, episode_length=25)
    obs = [env.reset(seed=11)[0]]
    size = (60, 5, dmc.load_domain(domain).model.nu)
    actions = np.random.default_rng(12).uniform(-1, 1, size)
    rewards = []
    for action in actions[:, :num_envs]:
        step = env.step(action)
        obs.append(step[0])
        rewards.append(step[1])
    return np.stack(obs), np.stack(rewards)


@pytest.mark.parametrize("domain", tasks.DOMAINS)
def test_trajectories_do_not_depend_on_threads_or_company(domain: str) -> None:
    obs, rewards = _trajectory(domain, 5, 1)
    for num_envs, num_threads in ((5, 3), (5, 1), (2, 2)):
        again_obs, again_rewards = _trajectory(domain, num_envs, num_threads)
        np.testing.assert_array_equal(again_obs, obs[:, :num_envs])
        np.testing.assert_array_equal(again_rewards, rewards[:, :num_envs])


def test_single_environment_is_the_first_of_many() -> None:
    one, many = dmc.DmcEnv("quadruped", "jump"), dmc.DmcVectorEnv("quadruped", "jump", 2)
    np.testing.assert_array_equal(one.reset(seed=5)[0], many.reset(seed=5)[0][0])
    action = np.full(12, 0.3)
    obs, reward, terminated, truncated, _ = one.step(action)
    many_obs, many_rewards, *_ = many.step(np.stack([action, action]))
    np.testing.assert_array_equal(obs, many_obs[0])
    assert reward == many_rewards[0]
    assert not (terminated or truncated)
    assert one.quantities()["height"] == many.quantities()["height"][0]


def test_reset_seeds_and_mask() -> None:
    env = dmc.DmcVectorEnv("walker", "walk", 3)
    first, _ = env.reset(seed=1)
    second, _ = env.reset()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)
    np.testing.assert_array_equal(env.reset(seed=[3, 2, 1])[0][2], first[0])
    env.reset(seed=1)
    masked, _ = env.reset(options={"reset_mask": np.array([False, True, False])})
    np.testing.assert_array_equal(masked[[0, 2]], first[[0, 2]])
    np.testing.assert_array_equal(masked[1], second[1])


def test_physics_state_restores_a_trajectory() -> None:
    env = dmc.DmcEnv("quadruped", "run")
    env.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 12))
    for action in actions[:20]:
        env.step(action)
    state = env.physics_state()
    ends = []
    for _ in range(2):
        env.set_physics_state(state)
        np.testing.assert_array_equal(env.physics_state(), state)
        for action in actions[20:]:
            env.step(action)
        ends.append(env.physics_state())
    np.testing.assert_array_equal(*ends)


def test_truncation_keeps_the_final_observation() -> None:
    env = dmc.DmcVectorEnv("cheetah", "run", 2, episode_length=5)
    env.reset(seed=0)
    env.step(np.zeros((2, 6)))
    env.reset(options={"reset_mask": np.array([False, True])})
    for _ in range(3):
        *_, truncated, infos = env.step(np.ones((2, 6)))
        assert not truncated.any()
        assert infos == {}
    before = env.physics_states()
    obs, rewards, terminated, truncated, infos = env.step(np.ones((2, 6)))
    assert truncated.tolist() == infos["_final_obs"].tolist() == [True, False]
    assert not terminated.any()
    assert not np.array_equal(obs[0], infos["final_obs"][0])
    np.testing.assert_array_equal(obs[1], infos["final_obs"][1])
    np.testing.assert_allclose(dmc.label("cheetah", "run", infos["final_physics"]), rewards)
    np.testing.assert_allclose(infos["final_obs"], infos["final_physics"][:, 1:], rtol=1e-6)
    assert np.abs(infos["final_physics"] - before).max() < 5  # one step on, not a reset


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match=r"unknown domain 'cat'.*cheetah, walker, quadruped"):
        tasks.tasks_of("cat")
    with pytest.raises(UserError, match=r"walker has no task 'jump': choose one of flip, run"):
        dmc.DmcVectorEnv("walker", "jump", 2)
    with pytest.raises(UserError, match="unknown domain"):
        dmc.DmcEnv("cat", "run")
    with pytest.raises(UserError, match="num_envs"):
        dmc.DmcVectorEnv("walker", "run", 0)
    with pytest.raises(UserError, match="num_threads"):
        dmc.DmcVectorEnv("walker", "run", 1, num_threads=0)
    with pytest.raises(UserError, match="a walker state is 18 long"):
        dmc.label("walker", "run", np.zeros((4, 17)))
    with pytest.raises(UserError, match="not finite"):
        dmc.label("walker", "run", np.full((4, 18), np.nan))
    with pytest.raises(UserError, match="render_mode"):
        dmc.DmcEnv("walker", render_mode="human")
    env = dmc.DmcVectorEnv("walker", "run", 2)
    with pytest.raises(UserError, match=r"shape \(2,\), not \(2, 6\)"):
        env.step(np.zeros(2))
    with pytest.raises(UserError, match="actions are not finite"):
        env.step(np.full((2, 6), np.nan))
    with pytest.raises(UserError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([1, 0])})
    with pytest.raises(UserError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([False, False])})
    with pytest.raises(UserError, match="1 seeds for 2"):
        env.reset(seed=[1])


def test_divergence_is_an_error_until_the_reset(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warning to a file in the current folder
    env = dmc.DmcVectorEnv("walker", "run", 2)
    env.reset(seed=0)
    states = env.physics_states()
    states[1, -1] = 1e12
    env.set_physics_states(states)
    with pytest.raises(RuntimeError, match=r"failed in environments \[1\]"):
        env.step(np.zeros((2, 6)))
    env.reset()
    env.step(np.zeros((2, 6)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_render_gives_a_picture_or_names_the_setting() -> None:
    env = dmc.DmcEnv("cheetah", "run", render_mode="rgb_array", width=64, height=48)
    env.reset(seed=0)
    try:
        frame = env.render()
    except UserError as error:
        assert "MUJOCO_GL=egl" in str(error)
    else:
        assert frame is not None
        assert (frame.shape, frame.dtype) == ((48, 64, 3), np.uint8)
        assert np.ptp(frame) > 0
    env.close()
    assert dmc.DmcEnv("cheetah").render() is None


def test_quantities_match_their_description() -> None:
    for domain in tasks.DOMAINS:
        assert set(dmc.load_domain(domain).quantities) == set(tasks.quantities_of(domain))
    env = dmc.DmcVectorEnv("quadruped", "walk", 3)
    env.reset(seed=2)
    env.step(np.zeros((3, 12)))
    obs, quantities = env.observations64(), env.quantities()
    np.testing.assert_array_equal(quantities["speed"], obs[:, 44])
    np.testing.assert_array_equal(quantities["sideways_speed"], obs[:, 45])
    np.testing.assert_array_equal(quantities["upright"], obs[:, 47])
    np.testing.assert_array_equal(quantities["turning_speed"], obs[:, 53])
    np.testing.assert_array_equal(quantities["height"], env.physics_states()[:, 2])


finite = st.floats(-1e6, 1e6)


@st.composite
def domain_quantities(draw: st.DrawFn) -> tuple[str, dict[str, np.ndarray]]:
    domain = draw(st.sampled_from(tasks.DOMAINS))
    count = draw(st.integers(1, 4))
    values = {
        name: np.array(draw(st.lists(finite, min_size=count, max_size=count)))
        for name in tasks.quantities_of(domain)
    }
    values["upright"] = np.clip(values["upright"], -1, 1)
    return domain, values


@given(domain_quantities())
def test_rewards_are_batched_and_in_range(sample: tuple[str, dict[str, np.ndarray]]) -> None:
    domain, quantities = sample
    for name in tasks.tasks_of(domain):
        reward = tasks.find_task(domain, name).reward
        batched = reward(quantities)
        assert batched.shape == quantities["speed"].shape
        assert ((batched >= 0) & (batched <= 1)).all()
        single = [reward({k: v[i] for k, v in quantities.items()}) for i in range(len(batched))]
        np.testing.assert_array_equal(batched, single)
        square = reward({k: np.tile(v, (2, 3, 1)) for k, v in quantities.items()})
        np.testing.assert_array_equal(square, np.tile(batched, (2, 3, 1)))


@given(domain_quantities(), st.floats(0, 100))
def test_rewards_are_monotone_in_speed(
    sample: tuple[str, dict[str, np.ndarray]], gain: float
) -> None:
    domain, quantities = sample
    faster = {**quantities, "speed": quantities["speed"] + gain}
    for name in tasks.tasks_of(domain):
        reward = tasks.find_task(domain, name).reward
        change = reward(faster) - reward(quantities)
        assert (change <= 0).all() if name.endswith("backward") else (change >= 0).all()
