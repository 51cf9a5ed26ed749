"""Continuous behaviors: the equations on small networks, and a probe with a known answer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard.successor import continuous
from laplacian_keyboard.successor.weights import to_sphere
from laplacian_keyboard.types import Spec, Transition

SPEC, K, BATCH = Spec(3, action_dim=2), 4, 6
SMALL = continuous.Config(network="plain", hidden=(16, 16), tau=0.5, max_grad_norm=0.0)
BRANCHED = dataclasses.replace(SMALL, network="two-branch")


def batch_of(seed: int) -> tuple[Transition, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 6)
    normal = jax.random.normal
    batch = Transition(
        obs=normal(keys[0], (BATCH, 3)),
        action=jnp.tanh(normal(keys[1], (BATCH, 2))),
        reward=jnp.zeros(BATCH),
        discount=jnp.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0]),
        next_obs=normal(keys[2], (BATCH, 3)),
    )
    return batch, normal(keys[3], (BATCH, K)), to_sphere(normal(keys[4], (BATCH, K)))


@pytest.mark.parametrize("config", [SMALL, BRANCHED], ids=["plain", "two-branch"])
def test_the_target_takes_the_whole_vector_of_the_head_that_promises_less(config):
    state = continuous.init(config, SPEC, K, key=jax.random.key(0))
    batch, next_phi, w = batch_of(1)
    actor, critic = state.actor.params, state.critic.params
    y = continuous.target(config, actor, critic, batch, next_phi, w, key=jax.random.key(2))
    heads = np.asarray(critic(batch.next_obs, actor(batch.next_obs, w), w))
    for i in range(BATCH):
        less = int(np.argmin(heads[:, i] @ np.asarray(w[i])))
        expected = next_phi[i] + config.gamma * batch.discount[i] * heads[less, i]
        np.testing.assert_allclose(y[i], expected, rtol=1e-5, atol=1e-6)
    assert len({int(np.argmin(heads[:, i] @ np.asarray(w[i]))) for i in range(BATCH)}) == 2


def test_the_loss_is_the_squared_vector_and_its_part_along_w():
    config = dataclasses.replace(SMALL, emphasis=3.0)
    critic = continuous.init(config, SPEC, K, key=jax.random.key(0)).critic.params
    batch, y, w = batch_of(3)
    error = np.asarray(critic(batch.obs, batch.action, w)) - np.asarray(y)
    along = np.sum(error * np.asarray(w), axis=-1)
    expected = np.sum(np.mean(np.sum(error**2, -1) + 3.0 * along**2, axis=-1)) / K
    loss, metrics = continuous.critic_loss(critic, config, batch, w, y)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["successor/value_error"] ** 2, np.mean(along**2), rtol=1e-5)


def test_the_actor_climbs_the_smaller_head_along_w_or_the_first():
    state = continuous.init(SMALL, SPEC, K, key=jax.random.key(0))
    batch, _, w = batch_of(4)
    actor, critic = state.actor.params, state.critic.params
    values = np.sum(np.asarray(critic(batch.obs, actor(batch.obs, w), w) * w), axis=-1)
    for climb, expected in {"first": values[0], "smaller": values.min(axis=0)}.items():
        config = dataclasses.replace(SMALL, climb=climb)
        loss = continuous.actor_loss(actor, critic, config, batch.obs, w)
        np.testing.assert_allclose(loss, -expected.mean(), rtol=1e-5)


def test_an_update_moves_slow_copies_by_tau_and_the_actor_when_due():
    config = dataclasses.replace(SMALL, policy_delay=2)
    state = continuous.init(config, SPEC, K, key=jax.random.key(0))
    batch, next_phi, w = batch_of(5)
    update = jax.jit(
        lambda s: continuous.update(config, s, batch, next_phi, w, key=jax.random.key(1))
    )
    first, _ = update(state)
    second, _ = update(first)

    def moved(one, other):
        weights = (s.actor.params.head.layers[0].weight for s in (one, other))
        return not np.allclose(*weights)

    assert moved(state, first) and not moved(first, second)
    old, new, slow = (
        np.asarray(x.heads.layers[0].weight)
        for x in (state.critic.target, first.critic.params, first.critic.target)
    )
    np.testing.assert_allclose(slow, 0.5 * old + 0.5 * new, rtol=1e-5, atol=1e-7)


def test_branches_are_shared_by_both_heads_and_plain_networks_share_nothing():
    branched = continuous.init(BRANCHED, SPEC, K, key=jax.random.key(0)).critic.params
    plain = continuous.init(SMALL, SPEC, K, key=jax.random.key(0)).critic.params
    assert branched.branches is not None and plain.branches is None
    assert branched.heads.layers[0].weight.shape == (2, 16, 16)
    assert plain.heads.layers[0].weight.shape == (2, 3 + 2 + K, 16)


def test_behaviors_reach_the_optimum_of_a_problem_with_a_known_answer():
    """One step, phi(s') = a: the best action for w is sign(w), and psi(s, a) = a at gamma 0."""
    config = continuous.Config(
        network="plain",
        hidden=(32, 32),
        gamma=0.0,
        actor_step_size=3e-3,
        critic_step_size=3e-3,
        max_grad_norm=0.0,
        tau=0.05,
    )
    spec = Spec(1, action_dim=2)

    def step(state, key):
        key_action, key_w = jax.random.split(key)
        action = jax.random.uniform(key_action, (64, 2), minval=-1.0, maxval=1.0)
        w = to_sphere(jax.random.normal(key_w, (64, 2)))
        zeros = jnp.zeros((64, 1))
        batch = Transition(zeros, action, zeros[:, 0], zeros[:, 0] + 1.0, zeros)
        return continuous.update(config, state, batch, action, w, key=key)[0], None

    state = continuous.init(config, spec, 2, key=jax.random.key(0))
    run = jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(jax.random.key(1), 600))[0])
    behaviors = continuous.behaviors(run(state))
    w = to_sphere(jnp.array([[1.0, -1.0], [-1.0, -1.0], [2.0, 1.0]]))
    action = continuous.act(behaviors, jnp.zeros((3, 1)), w)
    np.testing.assert_allclose(action, np.sign(w), atol=0.15)
    assert behaviors.critic is not None
    psi = behaviors.critic(jnp.zeros((3, 1)), action, w)
    np.testing.assert_allclose(psi, np.stack([action, action]), atol=0.15)
