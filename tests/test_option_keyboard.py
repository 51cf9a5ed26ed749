"""The option keyboard with networks, at its smallest: its callables, its tasks, its basis."""

import jax
import jax.numpy as jnp
import numpy as np

from laplacian_keyboard import option_keyboard
from laplacian_keyboard.composing import start_composing
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.envs.item_collector import ItemCollector, collected
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.option_keyboard import LinearTasks, draw_weights

WORLD = ItemCollector.for_task(size=3, num_items=2, time_limit=10)


def test_linear_tasks_pay_the_weighted_features_and_show_the_weights():
    weights = jnp.array([[0.25, 0.75]])
    for paid, of_items in [(None, weights[0]), (jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0]))]:
        tasks = LinearTasks(WORLD, weights, paid, collected, mix=False)
        state, obs = tasks.reset(jax.random.key(3))
        assert obs.shape == (tasks.spec.obs_dim,)
        for action in (0, 1, 2, 3, 1, 2):
            state, step = tasks.step(state, jnp.int32(action))
            np.testing.assert_allclose(step.obs[-2:], weights[0])
            np.testing.assert_allclose(step.reward, collected(obs[:-2], step.obs[:-2]) @ of_items)
            obs = step.obs


def test_tasks_are_drawn_from_the_basis_and_half_from_the_simplex():
    weights = jnp.eye(2)
    rows = np.asarray(draw_weights(weights, 500, mix=False, key=jax.random.key(0)))
    assert set(map(tuple, rows.tolist())) == {(1.0, 0.0), (0.0, 1.0)}
    mixed = np.asarray(draw_weights(weights, 500, mix=True, key=jax.random.key(0)))
    np.testing.assert_allclose(mixed.sum(axis=1), 1.0, atol=1e-6)
    assert 0.4 < (mixed.min(axis=1) > 0).mean() < 0.6


def test_a_basis_begins_with_one_behavior_a_feature_and_plays(monkeypatch):
    """The meta-policy is traced and not compiled: the player's own tests run it."""
    monkeypatch.setattr(option_keyboard, "learn_actor", traced)
    monkeypatch.setattr(option_keyboard, "returns_of_actor", lambda *_: jnp.ones(3))
    data = collect_random_walks(WORLD, steps=500, length=10, seed=0)
    params, basis = option_keyboard.learn_basis(
        option_keyboard.settings_of("smoke", "item-collector"),
        WORLD,
        collected,
        data,
        Inputs.of_data(data.observation),
        time_limit=10,
        max_behaviors=3,
        key=jax.random.key(0),
    )
    np.testing.assert_array_equal(basis.weights[:2], np.eye(2))
    np.testing.assert_array_equal(params.weights[:2], np.eye(2))
    np.testing.assert_array_equal(basis.values, [[1.0, 1.0]])
    keyboard = option_keyboard.OptionKeyboard(WORLD.spec, 2)
    obs = jnp.asarray(data.observation[:7], jnp.float32)
    action = option_keyboard.behave(keyboard, params, obs, jnp.ones((7, 2)))
    assert action.shape == (7,)


def traced(update, params, world, *, num_envs, key, **_):
    """`learn_actor` up to the first step: shapes and types fit."""
    state = start_composing(update, world, num_envs, key=key)
    after, metrics = jax.eval_shape(update, state, (world, params), key)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert "player/return" in metrics
    return state.player.actor.params
