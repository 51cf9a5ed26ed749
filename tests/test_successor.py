"""Stage 2 for discrete actions, and the weights it is trained on."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard import spectral
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.envs.grid import GridMap, GridWorld, grid_observations
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.pretraining import learn_behaviors
from laplacian_keyboard.successor import discrete
from laplacian_keyboard.successor.weights import sample_weights, to_sphere
from laplacian_keyboard.types import Spec, Transition

SPEC = Spec(5, num_actions=3)
CONFIG = discrete.Config(hidden=(16,), gamma=0.8, emphasis=0.0)


def make_batch(count: int = 7) -> Transition:
    keys = jax.random.split(jax.random.key(3), 3)
    return Transition(
        obs=jax.random.normal(keys[0], (count, 5)),
        action=jax.random.randint(keys[1], (count,), 0, 3),
        reward=jnp.zeros(count),
        discount=jnp.arange(count) % 2 * 1.0,
        next_obs=jax.random.normal(keys[2], (count, 5)),
    )


@settings(max_examples=30, deadline=None)
@given(k=st.integers(1, 40), seed=st.integers(0, 2**31 - 1))
def test_weights_have_radius_sqrt_k(k, seed):
    goals = jax.random.normal(jax.random.key(seed), (32, k)) * 7
    w = sample_weights(goals, goal_fraction=0.5, key=jax.random.key(seed + 1))
    np.testing.assert_allclose(np.linalg.norm(w, axis=-1), np.sqrt(k), rtol=1e-4)
    assert not np.any(np.isnan(to_sphere(jnp.zeros(k))))


def test_half_of_the_weights_are_features_of_states():
    goals = jnp.tile(jnp.array([[3.0, 4.0]]), (10_000, 1))
    w = np.asarray(sample_weights(goals, goal_fraction=0.5, key=jax.random.key(0)))
    is_goal = np.isclose(w, np.array([3, 4]) * np.sqrt(2) / 5, atol=1e-5).all(axis=1)
    assert 0.48 < is_goal.mean() < 0.52
    assert np.abs(w[~is_goal].mean(axis=0)).max() < 0.05, "the rest is uniform on the sphere"


def test_target_is_phi_plus_gamma_times_the_target_networks_psi_of_the_online_action():
    online, slow = (
        discrete.init(CONFIG, SPEC, 2, key=jax.random.key(i)).network.params for i in (0, 1)
    )
    batch, w = make_batch(), to_sphere(jax.random.normal(jax.random.key(5), (7, 2)))
    next_phi = jax.random.normal(jax.random.key(6), (7, 2))
    y = discrete.target(CONFIG, online, slow, batch, next_phi, w)
    for i in range(7):
        chosen = int(np.argmax(discrete.psi(online, batch.next_obs[i], w[i]) @ w[i]))
        next_psi = discrete.psi(slow, batch.next_obs[i], w[i])[chosen]
        expected = next_phi[i] + 0.8 * batch.discount[i] * next_psi
        np.testing.assert_allclose(y[i], expected, rtol=1e-4, atol=1e-5)


def test_loss_is_the_vector_error_with_more_weight_along_w():
    network = discrete.init(CONFIG, SPEC, 2, key=jax.random.key(0)).network.params
    batch, w = make_batch(), to_sphere(jax.random.normal(jax.random.key(5), (7, 2)))
    y = jax.random.normal(jax.random.key(7), (7, 2))
    config = discrete.Config(hidden=(16,), gamma=0.8, emphasis=3.0)
    value, _ = discrete.loss(network, config, batch, w, y)
    psi = np.asarray(discrete.psi(network, batch.obs, w))
    error = psi[np.arange(7), np.asarray(batch.action)] - np.asarray(y)
    along = (error * np.asarray(w)).sum(axis=1)
    expected = (error**2).sum(axis=1).mean() / 2 + 3.0 * (along**2).mean() / 2
    np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_gradients_do_not_reach_the_target():
    state = discrete.init(CONFIG, SPEC, 2, key=jax.random.key(0))
    batch, w = make_batch(), to_sphere(jnp.ones((7, 2)))
    after, _ = discrete.update(CONFIG, state, batch, jnp.zeros((7, 2)), w)
    slow, fast, old = (
        jax.tree.leaves(x)[0]
        for x in (after.network.target, after.network.params, state.network.params)
    )
    np.testing.assert_allclose(slow, (1 - CONFIG.tau) * old + CONFIG.tau * fast, rtol=1e-5)


def test_behaviors_of_a_corridor_reach_the_exact_successor_features():
    """A probe with a known answer: k = 1 has two tasks, the two ends of the corridor."""
    grid = GridMap.parse("#" * 9 + "\n#.......#\n" + "#" * 9)
    data = collect_random_walks(
        GridWorld.from_map(grid, goals=[], time_limit=10**6), steps=20_000, length=500, seed=0
    )
    dynamics = grid.next_states()
    exact = spectral.eigenbasis(spectral.laplacian(spectral.transition_matrix(dynamics)), 2)
    # A linear encoder that is the exact eigenvector on these observations (column one-hot 3..).
    obs = grid_observations(grid)
    columns, *_ = np.linalg.lstsq(obs, exact.vectors * np.sqrt(len(obs)), rcond=None)
    encoder = MLP(obs.shape[1], (), 2, key=jax.random.key(0))
    encoder = jax.tree.unflatten(
        jax.tree.structure(encoder),
        [jnp.asarray(columns, jnp.float32), jnp.zeros(2)],
    )
    basis = laplacian.Config(k=1, hidden=())
    config = discrete.Config(
        hidden=(64,), batch_size=128, step_size=3e-3, num_steps=1_500, tau=0.02, gamma=0.8
    )
    network = learn_behaviors(
        basis, config, encoder, data.experience(), num_steps=1_500, key=jax.random.key(0)
    )
    phi = np.asarray(laplacian.phi(basis, encoder, jnp.asarray(obs)), np.float64)
    for sign in (-1.0, 1.0):
        w = jnp.full((len(obs), 1), sign)
        actions = np.asarray(discrete.act(network, jnp.asarray(obs), w))
        value = spectral.policy_value(dynamics, actions, sign * phi[:, 0], 0.8)
        best = spectral.value_iteration(dynamics, sign * phi[:, 0], 0.8)
        np.testing.assert_allclose(value, best, atol=1e-6)
        learned = np.asarray(discrete.psi(network, jnp.asarray(obs), w))
        psi = spectral.successor_features(dynamics, actions, phi, 0.8)
        assert np.abs(learned - psi).max() < 0.4, "psi lies between -7 and 7 here"
