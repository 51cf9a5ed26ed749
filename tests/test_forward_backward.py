"""Forward-backward representations: every equation against the exact successor measure."""

from functools import cache, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard import spectral, zero_shot
from laplacian_keyboard.baselines import forward_backward as fb
from laplacian_keyboard.bases.network import FeatureNet
from laplacian_keyboard.learner import Learner
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import continuous, discrete
from laplacian_keyboard.successor.weights import sample_weights, to_sphere
from laplacian_keyboard.types import Spec, Transition

S, A, GAMMA = 5, 2, 0.8
DISCRETE = discrete.Config(hidden=(), gamma=GAMMA)
CONTINUOUS = continuous.Config(hidden=(16, 16), tau=0.25, policy_noise=0.2, policy_delay=2)
SPEC = Spec(3, action_dim=2)

# Every state is reached equally often and B is orthonormal; or neither.
EVEN = np.array([[1, 2], [2, 0], [3, 4], [4, 1], [0, 3]])
UNEVEN = np.array([[1, 1], [2, 0], [3, 1], [4, 1], [0, 3]])
WORLDS = pytest.mark.parametrize("dynamics", [EVEN, UNEVEN], ids=["even", "uneven"])


class Exact(NamedTuple):
    """A small world in which FB is solved: k = S features on one-hot states."""

    rows: Transition
    """Every state and action once."""
    rho: np.ndarray
    """How often each state is reached."""
    reward: np.ndarray
    """A task whose weights are at radius sqrt(k)."""
    policy: np.ndarray
    measure: np.ndarray
    """Of the task's best policy, `(s, a, s)`."""
    backward: np.ndarray
    forward: np.ndarray
    w: np.ndarray


def solve(dynamics: np.ndarray) -> Exact:
    rng = np.random.default_rng(0)
    reached = dynamics.ravel()
    rho = np.bincount(reached, minlength=S) / len(reached)
    q, _ = np.linalg.qr(rng.normal(size=(S, S)))
    backward = q if dynamics is EVEN else q + 0.3 * rng.normal(size=(S, S))
    backward *= np.sqrt(S) / np.linalg.norm(backward, axis=1, keepdims=True)
    reward = rng.normal(size=S)
    reward *= np.sqrt(S) / np.linalg.norm((rho * reward) @ backward)
    value = spectral.value_iteration(dynamics, reward, GAMMA)
    policy = spectral.greedy_policy(dynamics, reward, value, GAMMA)
    measure = spectral.successor_features(dynamics, policy, np.eye(S), GAMMA) / rho
    eye = jnp.eye(S)
    rows = Transition(
        obs=eye[np.repeat(np.arange(S), A)],
        action=jnp.tile(jnp.arange(A), S),
        reward=jnp.zeros(S * A),
        discount=jnp.ones(S * A),
        next_obs=eye[reached],
    )
    forward = measure @ np.linalg.inv(backward.T)
    return Exact(rows, rho, reward, policy, measure, backward, forward, (rho * reward) @ backward)


def tabular(exact: Exact, scale: float = 1.0) -> fb.State:
    """Networks without hidden layers whose outputs are the exact F (times `scale`) and B."""
    encoder = FeatureNet(S, (), S, key=jax.random.key(0))
    encoder = eqx.tree_at(
        lambda n: n.rest.layers[0].weight, encoder, jnp.asarray(exact.backward, jnp.float32)
    )
    network = MLP(2 * S, (), A * S, key=jax.random.key(0))
    weight = np.concatenate([scale * exact.forward.reshape(S, A * S), np.zeros((S, A * S))])
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, jnp.asarray(weight, jnp.float32))
    return fb.State(
        Learner.create(encoder, fb.optimiser(fb.Config(S))),
        discrete.State(
            Learner.create(network, discrete.optimiser(DISCRETE)), jnp.zeros((), jnp.int32)
        ),
    )


@partial(jax.jit, static_argnums=0)
@partial(jax.vmap, in_axes=(None, None, None, 0, None, None))
def gradient(
    config: fb.Config,
    state: fb.State,
    fast: fb.State,
    batch: Transition,
    w: jax.Array,
    emphasis: float,
):
    """Of the loss at the networks of `fast`, with the slow ones of `state`."""
    slow = (
        config.target_rule,
        fb.next_forward(DISCRETE, state.successor, batch, w),
        fb.phi(config, fb.encoder(state), batch.next_obs),
        GAMMA * batch.discount,
    )
    y, q = fb.target_measure(*slow), fb.target_value(*slow, w)
    networks = (fast.successor.network.params, fast.encoder.params)
    return jax.grad(fb.loss, has_aux=True)(networks, config, batch, w, y, q, emphasis)[0]


def expected_gradient(
    exact: Exact, config: fb.Config, *, scale: float = 1.0, emphasis: float = 0.0
) -> float:
    """Largest entry of the expected gradient over independent rows: the mean over all batches of
    two of them. `scale` takes the fast F away from the solution; the slow one stays."""
    count = S * A
    pairs = np.stack(np.meshgrid(np.arange(count), np.arange(count)), axis=-1).reshape(-1, 2)
    batches = jax.tree.map(lambda x: x[pairs], exact.rows)
    w = jnp.tile(jnp.asarray(exact.w, jnp.float32), (2, 1))
    each = gradient(config, tabular(exact), tabular(exact, scale), batches, w, emphasis)
    return max(float(np.abs(np.mean(leaf, axis=0)).max()) for leaf in jax.tree.leaves(each))


@WORLDS
def test_f_times_b_is_the_successor_measure(dynamics):
    exact = solve(dynamics)
    state = tabular(exact)
    w = jnp.tile(jnp.asarray(exact.w, jnp.float32), (S * A, 1))
    forward = fb.forward(state.successor.network.params, exact.rows, w)
    backward = fb.phi(fb.Config(S), fb.encoder(state), jnp.eye(S))
    found = np.asarray(fb.measures(forward, backward))[0].reshape(S, A, S)
    np.testing.assert_allclose(found, exact.measure, rtol=1e-3, atol=1e-3)
    # A measure in the literal sense: all of the discounted future is somewhere.
    np.testing.assert_allclose(found @ exact.rho, 1 / (1 - GAMMA), rtol=1e-3)


@WORLDS
def test_nothing_pulls_at_the_exact_solution(dynamics):
    exact, config = solve(dynamics), fb.Config(S, hidden=(), orthonormality=0.0)
    assert expected_gradient(exact, config) < 1e-4
    assert expected_gradient(exact, config, scale=1.1) > 1e-2


def test_an_orthonormal_b_is_not_pulled_either():
    config = fb.Config(S, hidden=(), orthonormality=1.0)
    assert expected_gradient(solve(EVEN), config, emphasis=3.0) < 1e-4
    assert expected_gradient(solve(UNEVEN), config) > 1e-2


@WORLDS
def test_f_times_w_is_the_optimal_value_and_greedy_is_optimal(dynamics):
    exact = solve(dynamics)
    network = tabular(exact).successor.network.params
    w = jnp.tile(jnp.asarray(exact.w, jnp.float32), (S, 1))
    value = spectral.value_iteration(dynamics, exact.reward, GAMMA)
    expected = spectral.q_values(dynamics, exact.reward, value, GAMMA)
    np.testing.assert_allclose(discrete.q_values(network, jnp.eye(S), w), expected, atol=1e-3)
    np.testing.assert_array_equal(discrete.act(network, jnp.eye(S), w), exact.policy)


@WORLDS
def test_the_next_action_is_greedy(dynamics):
    exact = solve(dynamics)
    w = jnp.tile(jnp.asarray(exact.w, jnp.float32), (S * A, 1))
    found = fb.next_forward(DISCRETE, tabular(exact).successor, exact.rows, w)
    reached = dynamics.ravel()
    expected = exact.forward[reached, exact.policy[reached]]
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-3)


def test_with_an_orthonormal_b_f_is_the_successor_feature_of_b():
    exact = solve(EVEN)
    psi = spectral.successor_features(EVEN, exact.policy, exact.backward, GAMMA)
    np.testing.assert_allclose(psi, exact.forward, atol=1e-9)


@WORLDS
def test_a_task_is_the_mean_of_reward_times_b(dynamics):
    exact = solve(dynamics)
    features = fb.phi(fb.Config(S), fb.encoder(tabular(exact)), exact.rows.next_obs)
    rewards = jnp.asarray(exact.reward[dynamics.ravel()], jnp.float32)
    found = zero_shot.infer(features, rewards, "mean")
    np.testing.assert_allclose(found.w, exact.w, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(found.w), np.sqrt(S), rtol=1e-5)


@pytest.mark.parametrize("rule", ["min", "mean"])
def test_the_target_is_the_smaller_measure_or_the_mean(rule):
    rng = np.random.default_rng(0)
    forward, backward = rng.normal(size=(2, 4, 3)), rng.normal(size=(6, 3))
    discount = np.array([0.9, 0.0, 0.9, 0.9])
    found = fb.target_measure(
        rule, *(jnp.asarray(x, jnp.float32) for x in (forward, backward, discount))
    )
    for i in range(4):
        for j in range(6):
            heads = [forward[h, i] @ backward[j] for h in range(2)]
            expected = discount[i] * (min(heads) if rule == "min" else sum(heads) / 2)
            np.testing.assert_allclose(found[i, j], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ["min", "mean"])
def test_the_target_along_w_is_the_reward_and_the_value_that_follows(rule):
    rng = np.random.default_rng(0)
    forward, backward, w = rng.normal(size=(2, 4, 3)), *rng.normal(size=(2, 4, 3))
    discount = np.array([0.9, 0.0, 0.9, 0.9])
    found = fb.target_value(
        rule, *(jnp.asarray(x, jnp.float32) for x in (forward, backward, discount, w))
    )
    for i in range(4):
        heads = [forward[h, i] @ w[i] for h in range(2)]
        follows = min(heads) if rule == "min" else sum(heads) / 2
        expected = backward[i] @ w[i] + discount[i] * follows
        np.testing.assert_allclose(found[i], expected, rtol=1e-4, atol=1e-6)


def test_measure_loss_is_a_bellman_error_off_the_diagonal_and_a_reward_on_it():
    rng = np.random.default_rng(0)
    forward, backward = rng.normal(size=(2, 4, 3)), rng.normal(size=(4, 3))
    target = rng.normal(size=(4, 4))
    expected = 0.0
    for head in forward:
        measure = head @ backward.T
        off = ~np.eye(4, dtype=bool)
        expected += 0.5 * ((measure - target)[off] ** 2).mean() - np.diag(measure).mean()
    found = fb.measure_loss(*(jnp.asarray(x, jnp.float32) for x in (forward, backward, target)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@cache
def fresh() -> tuple[fb.Config, fb.State]:
    config = fb.Config(4, hidden=(16, 16))
    init = jax.jit(lambda key: fb.init(config, CONTINUOUS, SPEC, key=key))
    return config, init(jax.random.key(0))


def make_batch(count: int = 12) -> tuple[Transition, jax.Array]:
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    batch = Transition(
        obs=normal(count, 3),
        action=jnp.tanh(normal(count, 2)),
        reward=jnp.zeros(count),
        discount=jnp.asarray(rng.integers(2, size=count), jnp.float32),
        next_obs=normal(count, 3),
    )
    return batch, to_sphere(normal(count, 4))


UPDATE = jax.jit(fb.update, static_argnums=(0, 1))


def test_the_loss_adds_the_pull_to_orthonormality_and_the_error_along_w():
    config, state = fresh()
    batch, w = make_batch()
    networks = (state.successor.critic.params, state.encoder.params)
    y, q = jnp.zeros((12, 12)), jnp.arange(12.0)
    loss = jax.jit(fb.loss, static_argnums=1)
    value, metrics = loss(networks, config, batch, w, y, q, 0.0)
    more, _ = loss(networks, config, batch, w, y, q, 3.0)
    backward = np.asarray(fb.phi(config, networks[1], batch.next_obs), np.float64)
    gram = backward @ backward.T
    off = ~np.eye(12, dtype=bool)
    pull = (gram[off] ** 2).mean() - 2 * np.diag(gram).mean()
    np.testing.assert_allclose(value - metrics["fb/measure_loss"], pull, rtol=1e-3)
    np.testing.assert_allclose(np.diag(gram), 4.0, rtol=1e-4, err_msg="|B|^2 = k")
    along_w = np.sum(networks[0](batch.obs, batch.action, w) * w, axis=-1) - np.asarray(q)
    expected = 3.0 * np.sum(np.mean(along_w**2, axis=1)) / 4
    np.testing.assert_allclose(more - value, expected, rtol=1e-3)


def test_the_actor_climbs_the_smaller_head():
    _, state = fresh()
    batch, w = make_batch()
    actor, critic = state.successor.actor.params, state.successor.critic.params
    values = np.sum(critic(batch.obs, actor(batch.obs, w), w) * w, axis=-1)
    found = continuous.actor_loss(actor, critic, CONTINUOUS, batch.obs, w)
    np.testing.assert_allclose(found, -np.minimum(*values).mean(), rtol=1e-4)
    assert (values[0] < values[1]).any() and (values[0] > values[1]).any()


def test_target_actions_are_the_slow_actors_with_clipped_noise():
    _, state = fresh()
    batch, w = make_batch()
    plain = continuous.Config(hidden=(16, 16))
    found = fb.next_forward(plain, state.successor, batch, w)
    slow = fb.behaviors(state)
    expected = slow.critic(batch.next_obs, slow.actor(batch.next_obs, w), w)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    noisy = fb.next_forward(CONTINUOUS, state.successor, batch, w, key=jax.random.key(0))
    assert not np.allclose(noisy, expected)


def test_an_update_moves_all_networks_and_their_slow_copies():
    config, state = fresh()
    batch, w = make_batch()
    after, metrics = UPDATE(config, CONTINUOUS, state, batch, w, key=jax.random.key(1))
    again, _ = UPDATE(config, CONTINUOUS, state, batch, w, key=jax.random.key(1))
    assert eqx.tree_equal(after, again), "bitwise"
    assert all(np.isfinite(value) for value in metrics.values())
    assert int(after.successor.step) == 1
    pairs = [
        (state.encoder, after.encoder),
        (state.successor.actor, after.successor.actor),
        (state.successor.critic, after.successor.critic),
    ]
    for old, new in pairs:
        before, fast, slow = (jax.tree.leaves(x)[0] for x in (old.params, new.params, new.target))
        assert not np.allclose(before, fast, atol=1e-6)
        np.testing.assert_allclose(slow, 0.75 * before + 0.25 * fast, rtol=1e-4, atol=1e-6)


def test_a_delayed_actor_waits():
    config, state = fresh()
    batch, w = make_batch()
    key = jax.random.key(1)
    first, _ = UPDATE(config, CONTINUOUS, state, batch, w, key=key)
    second, _ = UPDATE(config, CONTINUOUS, first, batch, w, key=key)
    assert not eqx.tree_equal(first.successor.actor, state.successor.actor)
    assert eqx.tree_equal(first.successor.actor, second.successor.actor)


def test_what_is_learned_is_a_keyboard():
    config, state = fresh()
    batch, w = make_batch()
    behaviors = fb.behaviors(state)
    assert isinstance(behaviors, continuous.Behaviors)
    action = continuous.act(behaviors, batch.obs, w)
    assert action.shape == (12, 2) and np.abs(action).max() <= 1
    assert fb.phi(config, fb.encoder(state), batch.obs).shape == (12, 4)
    like = jax.eval_shape(
        lambda: continuous.behaviors(continuous.init(CONTINUOUS, SPEC, 4, key=jax.random.key(0)))
    )
    assert jax.tree.map(jnp.shape, behaviors) == jax.tree.map(jnp.shape, like)


def test_behaviors_of_a_ring_are_learned():
    """A probe with a known answer: the best way to every state, from transitions alone."""
    states = 6
    dynamics = np.stack([(np.arange(states) + 1) % states, (np.arange(states) - 1) % states], 1)
    config = fb.Config(states, hidden=(), step_size=3e-3)
    successor = discrete.Config(hidden=(64,), gamma=GAMMA, step_size=3e-3, tau=0.02)
    eye, table = jnp.eye(states), jnp.asarray(dynamics)

    def step(state: fb.State, key):
        keys = jax.random.split(key, 4)
        s = jax.random.randint(keys[0], (64,), 0, states)
        a = jax.random.randint(keys[1], (64,), 0, 2)
        batch = Transition(eye[s], a, jnp.zeros(64), jnp.ones(64), eye[table[s, a]])
        goals = fb.phi(config, state.encoder.params, jax.random.permutation(keys[2], batch.obs))
        w = sample_weights(goals, goal_fraction=0.5, key=keys[3])
        return fb.update(config, successor, state, batch, w)

    state = fb.init(config, successor, Spec(states, num_actions=2), key=jax.random.key(0))
    state, _ = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 2_000))
    features = fb.phi(config, fb.encoder(state), eye)
    gram = np.asarray(features.T @ features) / states
    np.testing.assert_allclose(gram, np.eye(states), atol=0.1)
    for goal in range(states):
        reward = np.eye(states)[goal]
        w = zero_shot.infer(features, jnp.asarray(reward, jnp.float32), "mean").w
        policy = np.asarray(discrete.act(fb.behaviors(state), eye, jnp.tile(w, (states, 1))))
        best = spectral.value_iteration(dynamics, reward, GAMMA)
        found = spectral.policy_value(dynamics, policy, reward, GAMMA)
        np.testing.assert_allclose(found, best, atol=1e-6)
