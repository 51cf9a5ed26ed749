"""Rewards of stored states, against the rewards the live environment gave."""

import dataclasses

import numpy as np
import pytest

from laplacian_keyboard.data import labels
from laplacian_keyboard.data.dataset import Dataset, load_dataset
from laplacian_keyboard.envs import dmc, tasks
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.gather import gather
from laplacian_keyboard.types import UserError


def short_episodes(domain: str) -> tuple[Dataset, dict[str, np.ndarray]]:
    """A few random steps, and the live rewards of every task after each."""
    env = dmc.DmcVectorEnv(domain, tasks.tasks_of(domain)[0], 3, episode_length=1000)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    names = tasks.tasks_of(domain)
    rows = [(env.observations64(), env.physics_states(), {t: env.rewards(t) for t in names})]
    for _ in range(40):
        env.advance(rng.uniform(-1, 1, env.action_space.shape))
        rows.append(
            (env.observations64(), env.physics_states(), {t: env.rewards(t) for t in names})
        )
    observation = np.stack([row[0] for row in rows], axis=1).astype(np.float32)
    physics = np.stack([row[1] for row in rows], axis=1)
    rewards = {t: np.stack([row[2][t] for row in rows], axis=1).ravel() for t in names}
    action = np.zeros((*observation.shape[:2], env.single_action_space.shape[0]), np.float32)
    data = Dataset.from_arrays(observation, action, physics=physics, description={"domain": domain})
    return data, rewards


@pytest.mark.parametrize("domain", ["cheetah", "walker", "quadruped"])
def test_relabelling_equals_live_rewards_for_every_task(domain):
    data, rewards = short_episodes(domain)
    assert labels.tasks_of(data) == tasks.tasks_of(domain)
    for task, live in rewards.items():
        np.testing.assert_allclose(labels.relabel(data, task), live, atol=1e-6)
    rows = np.array([5, 17, 3])
    np.testing.assert_allclose(labels.relabel(data, task, rows), live[rows], atol=1e-6)


@pytest.mark.parametrize(
    ("domain", "possible"),
    [("cheetah", ()), ("walker", ("stand",)), ("quadruped", ("run", "stand", "walk"))],
)
def test_without_physics_only_observable_tasks_remain(domain, possible):
    data, rewards = short_episodes(domain)
    blind = dataclasses.replace(data, physics=None)
    assert labels.tasks_of(blind) == possible
    for task in possible:
        np.testing.assert_allclose(labels.relabel(blind, task), rewards[task], atol=1e-5)
    impossible = next(task for task in rewards if task not in possible)
    with pytest.raises(UserError, match="no physics") as error:
        labels.relabel(blind, impossible)
    assert all(task in str(error.value) for task in possible)


def test_grid_goals_are_labelled_from_observations(tmp_path):
    gather(
        lambda count: make_vector_env("four-rooms", None, count),
        tmp_path / "data",
        domain="four-rooms",
        explorer="random",
        steps=400,
        num_envs=4,
        quiet=True,
    )
    data = load_dataset(tmp_path / "data")
    rewards = labels.relabel(data, "goal:3,3")
    at_goal = (data.observation[:, 3] == 1) & (data.observation[:, 13 + 3] == 1)
    np.testing.assert_array_equal(rewards, at_goal.astype(np.float32))
    own = labels.relabel(data, "goal")
    assert own.any()
    np.testing.assert_array_equal(labels.relabel(data, "env"), own)
    assert labels.tasks_of(data) == ("goal",)
    with pytest.raises(UserError, match="unknown task"):
        labels.relabel(data, "fly")
