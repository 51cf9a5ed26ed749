"""Explorers, and the collections they make."""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard import gather as gathering
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.envs import dmc
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.explore import aps, babble, proto, rnd
from laplacian_keyboard.explore.backbone import RunningMoments, smallest
from laplacian_keyboard.gather import EXPLORERS, gather
from laplacian_keyboard.types import Spec, Transition, UserError

TINY = gathering.effort("smoke").agent


def cheetahs(count: int, episode_length: int = 120) -> dmc.DmcVectorEnv:
    return dmc.DmcVectorEnv("cheetah", "run", count, episode_length=episode_length)


def make_batch(count: int, obs_dim: int) -> Transition:
    keys = jax.random.split(jax.random.key(0), 3)
    return Transition(
        jax.random.normal(keys[0], (count, obs_dim)),
        jax.random.uniform(keys[1], (count, 2), minval=-1, maxval=1),
        jnp.zeros(count),
        jnp.full(count, 0.97),
        jax.random.normal(keys[2], (count, obs_dim)),
    )


def test_running_moments_equal_those_of_everything_seen():
    values = np.random.default_rng(0).gamma(2.0, size=(7, 50))
    moments = RunningMoments.create()
    for row in values:
        moments = moments.add(jnp.asarray(row))
    np.testing.assert_allclose(moments.mean, values.mean(), rtol=1e-3)
    np.testing.assert_allclose(moments.std, values.std(), rtol=1e-3)


def test_smallest_entries_of_rows_with_ties():
    values = np.random.default_rng(0).integers(0, 6, (50, 20)).astype(np.float32)
    np.testing.assert_array_equal(smallest(jnp.asarray(values), 7), np.sort(values, axis=1)[:, :7])


def test_rnd_error_is_that_of_normalised_clipped_inputs():
    spec = Spec(3, action_dim=2)
    config = rnd.Config(td3=TINY, hidden=(8,), output=4)
    state = rnd.init(config, spec, key=jax.random.key(0))
    obs = make_batch(64, 3).obs * 10 + 5
    error = rnd.prediction_error(state.predictor.params, state.target, obs, 1.5)
    x = np.asarray(obs)
    x = np.clip((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), -1.5, 1.5)
    expected = np.square(state.target(jnp.asarray(x)) - state.predictor.params(jnp.asarray(x)))
    np.testing.assert_allclose(error, np.asarray(expected).mean(axis=1), rtol=1e-3)


def test_rnd_is_less_surprised_by_what_it_has_seen():
    small = gathering.effort("smoke").config("rnd")
    state = rnd.init(small, Spec(3, action_dim=2), key=jax.random.key(0))
    batch = make_batch(64, 3)
    step = jax.jit(lambda state, key: rnd.update(small, state, batch, key=key))
    errors = []
    for key in jax.random.split(jax.random.key(1), 200):
        state, metrics = step(state, key)
        errors.append(float(metrics["explore/prediction_error"]))
    assert errors[-1] < 0.8 * errors[0]


def test_sinkhorn_assigns_rows_fully_and_columns_equally():
    scores = jax.random.normal(jax.random.key(0), (32, 8)) * 3
    assignment = proto.sinkhorn(scores, 200)
    np.testing.assert_allclose(assignment.sum(axis=1), 1.0, rtol=1e-4)
    np.testing.assert_allclose(assignment.sum(axis=0), 32 / 8, rtol=1e-2)


def test_proto_reward_is_the_distance_to_the_third_nearest_of_the_queue():
    config = proto.Config(td3=TINY, embedding=4, projection=8, num_prototypes=5, queue=20)
    state = proto.init(config, Spec(3, action_dim=2), key=jax.random.key(0))
    obs = make_batch(16, 3).obs
    reward, after = proto.novelty(config, state, obs, key=jax.random.key(1))
    embedding = np.asarray(proto.unit(state.networks.params.predictor(proto.standardise(obs))))
    distance = np.linalg.norm(embedding[:, None] - np.asarray(after.queue)[None], axis=-1)
    np.testing.assert_allclose(reward, np.sort(distance, axis=1)[:, 2], atol=1e-3)
    assert int(after.head) == 5
    assert (np.linalg.norm(after.queue[:5], axis=1) > 0.99).all() and not after.queue[5:].any()


def test_aps_entropy_is_the_log_of_the_mean_scaled_distance():
    phi = jax.random.normal(jax.random.key(0), (30, 4))
    entropy, moments = aps.particle_entropy(phi, RunningMoments.create(), 12)
    x = np.asarray(phi)
    distance = np.sort(np.linalg.norm(x[:, None] - x[None], axis=-1), axis=1)[:, :12]
    np.testing.assert_allclose(moments.mean, distance.mean(), rtol=1e-2)
    expected = np.log1p(np.maximum(distance / distance.mean() - 1e-4, 0).mean(axis=1))
    np.testing.assert_allclose(entropy, expected, rtol=1e-2)


def test_babble_stays_in_bounds_and_moves_smoothly():
    config = babble.Config(sigma=0.0, hold_fraction=0.0)
    state = babble.init(config, 4, key=jax.random.key(0))
    actions = []
    for key in jax.random.split(jax.random.key(1), 200):
        state, action = babble.act(config, state, key=key)
        actions.append(np.asarray(action))
    actions = np.array(actions)
    assert np.abs(actions).max() <= 1.0
    fastest = config.amplitude * 2 * np.pi / config.period[0]
    assert np.abs(np.diff(actions, axis=0)).max() <= fastest + 1e-5


def test_what_an_explorer_learns_from_stays_within_an_episode():
    """Two environments, observation t in the first; it ends after step 4, the other is cut after
    step 6. A transition spans three steps."""
    steps = np.arange(10.0)
    column = lambda *envs: np.stack(envs, axis=1)[..., None].astype(np.float32)  # noqa: E731
    ended, cut = steps == 4, steps == 6
    stretch = gathering.Stretch(
        obs=column(steps, 100 + steps),
        action=column(-steps, -steps),
        next_obs=column(steps + 1, 101 + steps),
        terminated=np.stack([ended, np.zeros(10, bool)], axis=1),
        over=np.stack([ended, cut], axis=1),
    )
    stored, kept = gathering.backups(stretch, context_dim=0)
    first = {int(obs): i for i, obs in enumerate(np.asarray(stored.obs[:, 0])) if kept[i]}
    assert sorted(first) == [0, 1, 2, 5, 6, 7, 100, 101, 102, 103, 104, 107]
    for start, i in first.items():
        assert stored.next_obs[i, 0] == start + 3 and stored.action[i, 0] == -(start % 100)
        expected = 0.0 if start == 2 else gathering.GAMMA**gathering.BACKUP
        np.testing.assert_allclose(stored.discount[i], expected, rtol=1e-6)


@pytest.mark.parametrize("explorer", [*EXPLORERS, "babble+rnd"])
def test_every_explorer_collects_whole_episodes(explorer, tmp_path):
    result = gather(
        cheetahs,
        tmp_path / "data",
        domain="cheetah",
        explorer=explorer,
        steps=900,
        preset="smoke",
        num_envs=4,
        quiet=True,
    )
    data = load_dataset(tmp_path / "data")
    assert result["steps"] == data.num_transitions == 960 and data.num_episodes == 8
    assert (data.lengths == 120).all() and data.physics.shape == (968, 18)
    assert np.abs(data.action).max() <= 1.0
    # Row t + 1 is what the simulator makes of row t and its action: nothing was reset in between.
    env = dmc.DmcVectorEnv("cheetah", "run", 1)
    env.reset(seed=0)
    env.set_physics_states(data.physics[50][None])
    env.advance(data.action[51][None])
    np.testing.assert_allclose(env.physics_states()[0], data.physics[51], atol=1e-2)
    assert not list((tmp_path / "data").glob(".explorer*")), "no state is left behind"


def test_collections_repeat_and_depend_on_the_seed(tmp_path):
    rows = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        gather(
            cheetahs,
            tmp_path / name,
            domain="cheetah",
            explorer="rnd",
            steps=480,
            seed=seed,
            preset="smoke",
            num_envs=4,
            quiet=True,
        )
        rows.append(np.array(load_dataset(tmp_path / name).observation))
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


COLLECT = """
import sys
from laplacian_keyboard.gather import gather
from laplacian_keyboard.envs import dmc
make = lambda count: dmc.DmcVectorEnv("cheetah", "run", count, episode_length=120)
gather(make, sys.argv[1], domain="cheetah", explorer=sys.argv[2], steps=2400, preset="smoke",
       num_envs=4, quiet=True)
"""


@pytest.mark.parametrize("explorer", ["babble", "babble+rnd"])
def test_a_killed_collection_continues_with_the_same_episodes(explorer, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-c", COLLECT, str(killed), explorer])
    deadline = time.monotonic() + 120
    while len(list(killed.glob("buffer/*.npz"))) < 6 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for folder in (killed, whole):
        subprocess.run([sys.executable, "-c", COLLECT, str(folder), explorer], check=True)
    names = sorted(path.name for path in whole.glob("buffer/*"))
    assert sorted(path.name for path in killed.glob("buffer/*")) == names and len(names) == 20
    for name in names:
        assert (killed / "buffer" / name).read_bytes() == (whole / "buffer" / name).read_bytes()


def test_mistakes_are_named(tmp_path):
    arguments = {"domain": "cheetah", "steps": 100, "quiet": True}
    with pytest.raises(UserError, match="unknown explorer 'fly'"):
        gather(cheetahs, tmp_path / "a", explorer="fly", **arguments)
    with pytest.raises(UserError, match="unknown preset"):
        gather(cheetahs, tmp_path / "b", explorer="rnd", preset="huge", **arguments)
    gather(cheetahs, tmp_path / "d", explorer="random", num_envs=2, **arguments)
    for name, other in (("num_envs", 3), ("preset", "paper"), ("seed", 1)):
        with pytest.raises(UserError, match=f"{name} is .*, but this collection has {other!r}"):
            options = {"num_envs": 2, name: other, **arguments}
            gather(cheetahs, tmp_path / "d", explorer="random", **options)
    with pytest.raises(UserError, match="discrete actions"):
        gather(
            lambda count: make_vector_env("four-rooms", None, count),
            tmp_path / "c",
            domain="four-rooms",
            explorer="rnd",
            steps=100,
            quiet=True,
        )
