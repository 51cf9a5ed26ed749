"""Generalised policy evaluation and improvement, with exact and with learned successor features."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard import gpi, player, spectral
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import discrete
from laplacian_keyboard.types import Spec, TimeStep

GAMMA = 0.9


def random_mdp(rng, num_states, num_actions, k, *, deterministic):
    """Dynamics in one of the oracle's two forms, and features of the states."""
    phi = rng.standard_normal((num_states, k))
    if deterministic:
        return rng.integers(num_states, size=(num_states, num_actions)), phi
    sparse = rng.random((num_actions, num_states, num_states)) ** 4
    return sparse / sparse.sum(axis=-1, keepdims=True), phi


def improved_policy(psi, w):
    """The policy (s,) of GPE and GPI for exact psi of n policies, each `(s, a, k)`."""
    stacked = jnp.asarray(np.stack(psi, axis=1), jnp.float32)
    w = jnp.broadcast_to(jnp.asarray(w, jnp.float32), (len(stacked), len(w)))
    return np.asarray(gpi.improve(gpi.evaluate(stacked, w)))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.sampled_from([(2, 2, 1, 1), (3, 2, 2, 2), (5, 3, 2, 4), (8, 4, 4, 3), (6, 2, 3, 6)]),
    deterministic=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_the_improved_policy_is_never_worse_than_its_best_part(sizes, deterministic, seed):
    num_states, num_actions, k, n = sizes
    rng = np.random.default_rng(seed)
    dynamics, phi = random_mdp(rng, num_states, num_actions, k, deterministic=deterministic)
    parts = rng.integers(num_actions, size=(n, num_states))
    psi = [spectral.successor_features(dynamics, policy, phi, GAMMA) for policy in parts]
    w = rng.standard_normal(k)
    improved = spectral.policy_value(dynamics, improved_policy(psi, w), phi @ w, GAMMA)
    values = [spectral.policy_value(dynamics, policy, phi @ w, GAMMA) for policy in parts]
    # Actions are compared in float32, so a tie may be broken the wrong way by this much.
    assert (improved >= np.max(values, axis=0) - 1e-4).all()


@settings(max_examples=10, deadline=None)
@given(k=st.sampled_from([1, 3]), seed=st.integers(0, 2**31 - 1))
def test_on_a_key_the_keys_own_behavior_is_played(k, seed):
    """With the optimal behaviors of all signed keys, each key's task is solved."""
    rng = np.random.default_rng(seed)
    dynamics, phi = random_mdp(rng, 6, 3, k, deterministic=False)
    keys = np.asarray(gpi.signed_keys(k), np.float64)
    best = [spectral.value_iteration(dynamics, phi @ w, GAMMA) for w in keys]
    policies = [
        spectral.greedy_policy(dynamics, phi @ w, v, GAMMA) for w, v in zip(keys, best, strict=True)
    ]
    psi = [spectral.successor_features(dynamics, policy, phi, GAMMA) for policy in policies]
    for w, v in zip(keys, best, strict=True):
        value = spectral.policy_value(dynamics, improved_policy(psi, w), phi @ w, GAMMA)
        np.testing.assert_allclose(value, v, atol=1e-3)


def test_the_improved_policy_can_be_better_than_all_its_parts():
    """Three cells in a row; one part fetches at the left end, one at the right, w wants both."""
    dynamics = np.array([[0, 1], [0, 2], [1, 2]])
    phi = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    go_left, go_right = np.zeros(3, int), np.ones(3, int)
    psi = [spectral.successor_features(dynamics, p, phi, 0.5) for p in (go_left, go_right)]
    w = np.array([1.0, 1.0])
    policy = improved_policy(psi, w)
    assert policy[0] == 0 and policy[2] == 1
    value = spectral.policy_value(dynamics, policy, phi @ w, 0.5)
    parts = [spectral.policy_value(dynamics, p, phi @ w, 0.5) for p in (go_left, go_right)]
    assert value[0] > parts[1][0] and value[2] > parts[0][2]
    assert value.sum() > max(part.sum() for part in parts)


@pytest.mark.parametrize("k", [1, 3])
def test_signed_keys_are_the_unit_vectors_and_their_negatives_at_radius_sqrt_k(k):
    keys = np.asarray(gpi.signed_keys(k))
    assert keys.shape == (2 * k, k)
    np.testing.assert_allclose(keys[:k], np.sqrt(k) * np.eye(k), rtol=1e-6)
    np.testing.assert_array_equal(keys[k:], -keys[:k])


@functools.cache
def make_network(k: int = 3) -> MLP:
    config = discrete.Config(hidden=(16,))
    return discrete.init(config, Spec(5, num_actions=4), k, key=jax.random.key(0)).network.params


def test_the_action_is_the_best_over_behaviors_one_at_a_time():
    network, keys = make_network(), gpi.signed_keys(3)
    obs = jax.random.normal(jax.random.key(1), (2, 2, 5))
    w = jax.random.normal(jax.random.key(2), (2, 2, 3))
    actions = jax.jit(gpi.act)(network, obs, w)
    assert actions.shape == (2, 2)
    psi = gpi.successor_features(network, obs, keys)
    assert psi.shape == (2, 2, 6, 4, 3)
    for place in np.ndindex(2, 2):
        each = np.stack([discrete.psi(network, obs[place], key) for key in keys])
        np.testing.assert_allclose(psi[place], each, rtol=1e-4, atol=1e-5)
        assert int(actions[place]) == np.argmax((each @ np.asarray(w[place])).max(axis=0))
    np.testing.assert_array_equal(actions, gpi.act(network, obs, 100 * w), "a direction, no length")


def test_one_behavior_is_that_behavior():
    network, obs = make_network(), jax.random.normal(jax.random.key(1), (9, 5))
    w = jnp.tile(jnp.array([1.0, -1.0, 1.0]), (9, 1))
    actions = gpi.act(network, obs, w, behaviors=w[:1])
    np.testing.assert_array_equal(actions, discrete.act(network, obs, w))


def test_the_player_plays_through_it():
    network, seen = make_network(), []

    def step(state, action):
        seen.append(action)
        last = jnp.zeros((), bool)
        return state + 1, TimeStep(jnp.ones(5) * state, jnp.float32(1.0), jnp.ones(()), last)

    config = player.Config(t_term=4, gamma=0.5)
    u = jnp.array([0.1, -0.7, 0.4])
    state, stretch, over, total = player.play(
        config, step, functools.partial(gpi.act, network), jnp.zeros(()), jnp.zeros(5), u
    )
    assert (float(state), float(total), bool(over)) == (4.0, 4.0, False)
    assert float(stretch.reward) == 1.875
    assert len(seen) == 1 and seen[0].shape == ()
