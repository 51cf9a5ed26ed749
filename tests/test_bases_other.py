"""The other bases: graph drawing, random features, HILP; one numeric check for each equation."""

from functools import cache
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from laplacian_keyboard.bases import hilp, lap, random_features
from laplacian_keyboard.bases.network import FeatureNet, on_sphere
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.data.goals import sample_goals
from laplacian_keyboard.data.replay import Experience, sample_pairs
from laplacian_keyboard.envs.grid import GridMap, GridWorld, grid_observations
from laplacian_keyboard.types import Pairs, Spec

K, STATES = 3, 6
BASES: list[tuple[ModuleType, Any]] = [
    (lap, lap.Config(K, hidden=(16, 16))),
    (random_features, random_features.Config(K, hidden=(16, 16))),
    (hilp, hilp.Config(K, hidden=(16, 16), tau=0.25, mean_rate=0.1)),
]
BASIS = pytest.mark.parametrize(("module", "config"), BASES, ids=["lap", "random", "hilp"])
SPEC = Spec(STATES, num_actions=2)
CORRIDOR = GridMap.parse("#" * 12 + "\n#..........#\n" + "#" * 12)

# Compiled once for the whole file: on small shapes compiling is all that takes time.
UPDATE = {module: jax.jit(module.update, static_argnums=0) for module, _ in BASES}
HILP_LOSS = jax.jit(hilp.loss, static_argnums=2)
HILP_VALUE = jax.jit(hilp.value)
HILP_GRADIENT = jax.jit(jax.grad(hilp.loss, has_aux=True), static_argnums=2)


@cache
def fresh(module: ModuleType, config: Any) -> Any:
    return jax.jit(lambda key: module.init(config, SPEC, key=key))(jax.random.key(0))


def random_batch(seed: int = 0, count: int = 20) -> Pairs:
    index = np.random.default_rng(seed).integers(STATES, size=(3, count))
    rows = jnp.eye(STATES)[index]
    return Pairs(rows[0], rows[1], rows[2:])


def tabular(features: np.ndarray) -> FeatureNet:
    """A network whose outputs on one-hot observations are `features`."""
    network = FeatureNet(len(features), (), features.shape[1], key=jax.random.key(0))
    weight = jnp.asarray(features, jnp.float32)
    return eqx.tree_at(lambda n: n.rest.layers[0].weight, network, weight)


def twice(features: np.ndarray) -> FeatureNet:
    """Two equal tabular networks on a leading axis."""
    return jax.tree.map(lambda x: jnp.stack([x, x]), tabular(features))


@pytest.fixture(scope="module")
def corridor() -> Experience:
    world = GridWorld.from_map(CORRIDOR, goals=[], time_limit=10**6)
    return collect_random_walks(world, steps=20_000, length=500, seed=0).experience()


@BASIS
def test_a_basis_has_the_one_signature(module, config):
    state = fresh(module, config)
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(state))
    after, metrics = UPDATE[module](config, state, random_batch())
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(name.count("/") == 1 for name in metrics)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert eqx.tree_equal(after, UPDATE[module](config, state, random_batch())[0]), "bitwise"
    encoder, obs = module.encoder(after), random_batch(1).obs
    batched = module.phi(config, encoder, obs)
    assert batched.shape == (20, K)
    np.testing.assert_allclose(module.phi(config, encoder, obs[3]), batched[3], atol=1e-5)


@BASIS
def test_updates_map_over_seeds(module, config):
    def train(key):
        state = module.init(config, SPEC, key=key)
        return module.encoder(module.update(config, state, random_batch())[0])

    single = jax.eval_shape(train, jax.random.key(0))
    many = jax.eval_shape(jax.vmap(train), jax.random.split(jax.random.key(0), 5))
    for one, five in zip(jax.tree.leaves(single), jax.tree.leaves(many), strict=True):
        assert five.shape == (5, *one.shape)


@pytest.mark.parametrize("index", [0, 1])
def test_features_have_length_sqrt_k(index):
    module, config = BASES[index]
    obs = 10 * jax.random.normal(jax.random.key(1), (50, STATES))
    features = module.phi(config, module.encoder(fresh(module, config)), obs)
    np.testing.assert_allclose(np.linalg.norm(features, axis=-1), np.sqrt(K), rtol=1e-3)


def test_a_zero_output_still_has_a_gradient():
    gradient = jax.grad(lambda x: jnp.sum(on_sphere(x)))(jnp.zeros(K))
    assert np.all(np.isfinite(gradient)) and np.all(np.asarray(gradient) > 0)


def test_random_features_never_change():
    module, config = BASES[1]
    state = fresh(module, config)
    after, metrics = module.update(config, state, random_batch())
    assert eqx.tree_equal(state, after) and metrics == {}


def test_lap_loss_is_smoothness_plus_the_penalty_over_all_pairs():
    config, batch = lap.Config(K, hidden=()), random_batch()
    encoder = tabular(np.random.default_rng(0).normal(size=(STATES, K)))
    now, later = (
        np.asarray(lap.phi(config, encoder, x), np.float64) for x in (batch.obs, batch.future_obs)
    )
    gram = now @ now.T
    off_diagonal = gram[~np.eye(len(gram), dtype=bool)]
    expected = ((now - later) ** 2).mean() + (off_diagonal**2).mean() - 2 * np.diag(gram).mean()
    value, metrics = jax.jit(lap.loss, static_argnums=1)(encoder, config, batch)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    error = np.abs(now.T @ now / len(now) - np.eye(K)).max()
    np.testing.assert_allclose(metrics["lap/orthonormality_error"], error, rtol=1e-4)


def test_the_expected_penalty_is_the_distance_to_orthonormality():
    """Over all batches of two independent states: |E phi phi^T - I|^2 - k."""
    features = np.random.default_rng(0).normal(size=(STATES, K)).astype(np.float32)
    pairs = np.stack(np.meshgrid(np.arange(STATES), np.arange(STATES)), axis=-1).reshape(-1, 2)
    expected = np.sum((features.T @ features / STATES - np.eye(K)) ** 2) - K
    found = jax.vmap(lap.orthonormality)(jnp.asarray(features[pairs]))
    np.testing.assert_allclose(np.mean(found), expected, rtol=1e-4)


def test_lap_unrolls_a_corridor(corridor):
    """A probe with a known answer: at k = 2 the features are angles on a circle, and the best ten
    angles are found by minimising the exact loss."""
    config = lap.Config(2, hidden=(32, 32), batch_size=64, step_size=3e-3, num_steps=1_500)
    moves = CORRIDOR.next_states()

    def exact_loss(angles: np.ndarray) -> float:
        phi = np.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        smoothness = np.mean((phi[:, None] - phi[moves]) ** 2)
        return smoothness + np.sum((phi.T @ phi / len(phi) - np.eye(2)) ** 2)

    def step(state, key):
        batch = sample_pairs(
            corridor,
            config.batch_size,
            discount=config.pair_discount,
            negatives=config.negatives,
            num_negatives=config.num_negatives,
            key=key,
        )
        return lap.update(config, state, batch)

    state = lap.init(config, corridor.spec, key=jax.random.key(0))
    state, _ = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), config.num_steps))
    obs = jnp.asarray(grid_observations(CORRIDOR), jnp.float32)
    x, y = np.asarray(lap.phi(config, lap.encoder(state), obs)).T
    turn = np.abs(np.diff(np.unwrap(np.arctan2(y, x))))
    best = scipy.optimize.minimize(exact_loss, np.linspace(0.0, np.pi, len(moves))).x
    np.testing.assert_allclose(turn, np.diff(best), atol=0.1)


def test_hilp_value_is_minus_the_distance_of_features():
    features = np.random.default_rng(0).normal(size=(STATES, K))
    batch = random_batch()
    found = HILP_VALUE(twice(features), batch.obs, batch.negative_obs[0])
    s, g = (np.argmax(x, axis=1) for x in (batch.obs, batch.negative_obs[0]))
    expected = -np.maximum(np.linalg.norm(features[s] - features[g], axis=1), 1e-3)
    np.testing.assert_allclose(found, np.stack([expected, expected]), rtol=1e-4)


def test_hilp_loss_is_expectile_regression_of_each_network_on_its_own_target():
    config = hilp.Config(K, gamma=0.9, expectile=0.8)
    rng, batch = np.random.default_rng(0), random_batch()
    networks = fresh(*BASES[2]).networks.params
    slow = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), networks)
    (goals,) = batch.negative_obs
    predicted, slow_now, slow_next = (
        np.asarray(HILP_VALUE(*arguments, goals), np.float64)
        for arguments in ((networks, batch.obs), (slow, batch.obs), (slow, batch.future_obs))
    )
    expected = 0.0
    for i in range(len(goals)):
        arrived = np.array_equal(batch.obs[i], goals[i])
        reward, going = (0.0, 0.0) if arrived else (-1.0, 1.0)
        better = reward + 0.9 * going * slow_next[:, i].min() >= slow_now[:, i].mean()
        weight = 0.8 if better else 0.2
        for j in range(2):
            y = reward + 0.9 * going * slow_next[j, i]
            expected += weight * (y - predicted[j, i]) ** 2 / len(goals)
    value, metrics = HILP_LOSS(networks, slow, config, batch)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["hilp/distance"], -predicted.mean(), rtol=1e-4)
    assert any(np.array_equal(s, g) for s, g in zip(batch.obs, goals, strict=True))


def test_shortest_ways_are_hilps_fixed_point():
    """Three states in a row fit in the plane with their discounted distances 1, 1 and 1 + gamma:
    with all weight on what was better than thought, nothing pulls at them."""
    gamma = 0.9
    height = np.sqrt(1 - ((1 + gamma) / 2) ** 2)
    features = np.array([[-(1 + gamma) / 2, 0.0], [0.0, height], [(1 + gamma) / 2, 0.0]])
    s, move, g = np.stack(np.meshgrid([0, 1, 2], [-1, 1], [0, 1, 2]), axis=-1).reshape(-1, 3).T
    eye = jnp.eye(3)
    batch = Pairs(eye[s], eye[np.clip(s + move, 0, 2)], eye[g][None])

    def gradient_at(features, expectile):
        config = hilp.Config(2, gamma=gamma, expectile=expectile)
        networks = twice(features)
        gradient, _ = HILP_GRADIENT(networks, networks, config, batch)
        return max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient))

    assert gradient_at(features, 1.0) < 1e-3, "the floor of the distance is 1e-3"
    assert gradient_at(features, 0.5) > 0.05, "the average way is longer"
    assert gradient_at(1.2 * features, 1.0) > 0.05


def test_hilp_features_are_centred_by_a_running_mean():
    config = BASES[2][1]
    state = fresh(hilp, config)
    means = []
    for seed in range(2):
        batch = random_batch(seed)
        state, _ = UPDATE[hilp](config, state, batch)
        first = jax.tree.map(lambda x: x[0], state.networks.params)
        means.append(np.asarray(first(batch.future_obs)).mean(axis=0))
    np.testing.assert_allclose(state.mean, 0.9 * means[0] + 0.1 * means[1], rtol=1e-4)
    obs = random_batch().obs
    encoder = hilp.encoder(state)
    np.testing.assert_allclose(
        hilp.phi(config, encoder, obs), encoder.network(obs) - state.mean, rtol=1e-5
    )


def test_hilp_slow_copies_follow():
    config = BASES[2][1]
    state = fresh(hilp, config)
    after, _ = UPDATE[hilp](config, state, random_batch())
    old, fast, slow = (
        jax.tree.leaves(x)[0]
        for x in (state.networks.params, after.networks.params, after.networks.target)
    )
    np.testing.assert_allclose(slow, 0.75 * old + 0.25 * fast, rtol=1e-5)


def test_hilp_learns_the_distances_of_a_corridor(corridor):
    """A probe with a known answer: the discounted number of steps between two cells."""
    config = hilp.Config(
        4, hidden=(32, 32), batch_size=64, step_size=3e-3, gamma=0.9, expectile=0.95, tau=0.03
    )
    state = hilp.init(config, corridor.spec, key=jax.random.key(0))

    def step(state, key):
        batch = sample_goals(
            corridor,
            config.batch_size,
            future_discount=config.goal_discount,
            random_fraction=config.random_goals,
            key=key,
        )
        return hilp.update(config, state, batch)

    state, _ = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 1_500))
    obs = jnp.asarray(grid_observations(CORRIDOR), jnp.float32)
    phi = np.asarray(hilp.phi(config, hilp.encoder(state), obs))
    learned = np.linalg.norm(phi[:, None] - phi[None, :], axis=-1)
    cells = np.arange(len(obs))
    exact = (1 - 0.9 ** np.abs(cells[:, None] - cells[None, :])) / (1 - 0.9)
    assert np.corrcoef(learned.ravel(), exact.ravel())[0, 1] > 0.98
    assert np.abs(learned - exact).max() < 1.5, "the longest distance is 6.1"


def test_goals_are_later_in_the_episode_or_anywhere():
    lengths = np.array([9, 4, 30])
    episode = np.repeat(np.arange(3), lengths + 1)
    row = np.concatenate([np.arange(n + 1) for n in lengths])
    obs = np.stack([episode, row], axis=1).astype(np.float32)
    data = Experience.from_rows(obs, np.zeros((len(obs), 1)), np.ones(len(obs)), lengths)
    draw = lambda **options: sample_goals(data, 4_000, key=jax.random.key(0), **options)  # noqa: E731
    batch = draw(future_discount=0.8, random_fraction=0.0)
    s, following, g = (np.asarray(x) for x in (batch.obs, batch.future_obs, batch.negative_obs[0]))
    np.testing.assert_array_equal(following, s + np.array([0, 1]))
    assert (g[:, 0] == s[:, 0]).all() and (g[:, 1] > s[:, 1]).all()
    far_from_end = (s[:, 0] == 2) & (s[:, 1] < 10)
    gap = (g - s)[far_from_end, 1]
    np.testing.assert_allclose(gap.mean(), 1 / (1 - 0.8), rtol=0.15)

    anywhere = np.asarray(draw(future_discount=0.8, random_fraction=1.0).negative_obs[0])
    np.testing.assert_allclose((anywhere[:, 0] == 2).mean(), 30 / 43, atol=0.03)
    mixed = np.asarray(draw(future_discount=0.8, random_fraction=0.375).negative_obs[0])
    is_random = (mixed == anywhere).all(axis=1)
    np.testing.assert_allclose(is_random.mean(), 0.375, atol=0.06)
