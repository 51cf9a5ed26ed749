"""Stage 1: the ALLO objective, its pairs, and the refinement."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard import spectral
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.data.replay import Experience, sample_pairs, truncated_geometric
from laplacian_keyboard.envs.grid import GridMap, GridWorld, grid_observations
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.pretraining import average_moments, learn_basis
from laplacian_keyboard.types import Pairs, Spec

CORRIDOR = GridMap.parse("#" * 12 + "\n#..........#\n" + "#" * 12)


def linear_encoder(matrix: np.ndarray) -> MLP:
    """An encoder without hidden layers whose outputs on one-hot observations are `matrix`."""
    encoder = MLP(matrix.shape[0], (), matrix.shape[1], key=jax.random.key(0))
    return eqx.tree_at(lambda e: e.layers[0].weight, encoder, jnp.asarray(matrix, jnp.float32))


def random_batch(key: jax.Array, states: int, count: int, negatives: int) -> Pairs:
    index = jax.random.randint(key, (2 + negatives, count), 0, states)
    rows = jnp.eye(states)[index]
    return Pairs(rows[0], rows[1], rows[2:])


def test_loss_is_smoothness_plus_dual_plus_barrier_terms():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(6, 3)).astype(np.float32)
    dual = np.tril(rng.normal(size=(3, 3))).astype(np.float32)
    batch = random_batch(jax.random.key(1), 6, 5, 2)
    value, (_, linear, quadratic) = laplacian.loss(
        linear_encoder(matrix), jnp.asarray(dual), jnp.asarray(0.7), batch
    )
    u, v, n1, n2 = (
        np.asarray(x) @ matrix for x in (batch.obs, batch.future_obs, *batch.negative_obs)
    )
    e1, e2 = (np.tril(n.T @ n / 5 - np.eye(3)) for n in (n1, n2))
    expected = ((u - v) ** 2).mean(0).sum() + (dual * (e1 + e2) / 2).sum() + 0.7 * (e1 * e2).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(linear, (e1 + e2) / 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(quadratic, e1 * e2, rtol=1e-4, atol=1e-6)


def test_one_batch_of_negatives_gives_the_papers_squared_error():
    matrix = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    batch = random_batch(jax.random.key(1), 6, 5, 1)
    zero = jnp.zeros((3, 3))
    _, (_, linear, quadratic) = laplacian.loss(linear_encoder(matrix), zero, jnp.ones(()), batch)
    np.testing.assert_allclose(quadratic, np.square(linear), rtol=1e-6)
    assert laplacian.Config(k=2, quadratic="square").num_negatives == 1


def test_an_output_is_never_pushed_by_those_after_it():
    outputs = jax.random.normal(jax.random.key(0), (20, 4))
    for j in range(4):
        for i in range(j + 1):
            gradient = jax.grad(lambda x, j=j, i=i: laplacian.constraint_error(x)[j, i])(outputs)
            moved = np.flatnonzero(np.abs(np.asarray(gradient)).max(axis=0) > 0)
            assert moved.tolist() == [j], "only the later output of a pair has a gradient"
    assert np.all(np.triu(laplacian.constraint_error(outputs), 1) == 0)


def test_smoothness_of_an_exact_eigenvector_is_twice_its_eigenvalue():
    dynamics = CORRIDOR.next_states()
    P = spectral.transition_matrix(dynamics)
    basis = spectral.eigenbasis(spectral.laplacian(P))
    scaled = basis.vectors * np.sqrt(len(P))  # unit mean square over the states
    # Every (state, action) once: the exact distribution of one-step pairs.
    now = np.repeat(np.arange(len(P)), dynamics.shape[1])
    smoothness = laplacian.smoothness(
        jnp.asarray(scaled[now]), jnp.asarray(scaled[dynamics.ravel()])
    )
    np.testing.assert_allclose(smoothness, 2 * basis.eigenvalues, atol=1e-5)


def test_pair_eigenvalue_is_that_of_the_geometric_mixture_of_powers():
    P = spectral.transition_matrix(CORRIDOR.next_states())
    basis = spectral.eigenbasis(spectral.laplacian(P))
    g = 0.6
    mixture = (1 - g) * P @ np.linalg.inv(np.eye(len(P)) - g * P)
    for value, vector in zip(basis.eigenvalues, basis.vectors.T, strict=True):
        expected = 1 - vector @ mixture @ vector
        np.testing.assert_allclose(laplacian.pair_eigenvalue(value, g), expected, atol=1e-9)


def test_multipliers_climb_and_the_barrier_only_grows():
    config = laplacian.Config(k=2, hidden=(8,), batch_size=16, dual_rate=0.1, barrier_rate=0.5)
    state = laplacian.init(config, Spec(6, num_actions=2), key=jax.random.key(0))
    batch = random_batch(jax.random.key(1), 6, 16, 2)
    _, (_, linear, quadratic) = laplacian.loss(
        state.encoder.params, state.dual, state.barrier, batch
    )
    after, metrics = laplacian.update(config, state, batch)
    np.testing.assert_allclose(after.dual, 0.1 * linear, rtol=1e-5)
    growth = np.maximum(quadratic, 0).mean()
    np.testing.assert_allclose(after.barrier, 0.5 + 0.5 * growth, rtol=1e-5)
    assert int(after.step) == 1 and np.isfinite(metrics["laplacian/loss"])


def test_a_truncated_basis_is_the_first_columns():
    config = laplacian.Config(k=5, hidden=(16, 16))
    encoder = laplacian.init(config, Spec(obs_dim=3), key=jax.random.key(0)).encoder.params
    obs = jax.random.normal(jax.random.key(1), (7, 3))
    first = laplacian.Config(k=2, hidden=(16, 16))
    np.testing.assert_allclose(
        laplacian.phi(first, laplacian.truncate(encoder, 2), obs),
        laplacian.phi(config, encoder, obs)[:, :2],
        rtol=1e-6,
    )


def test_refinement_recovers_eigenvectors_from_any_mixture_of_them():
    dynamics = CORRIDOR.next_states()
    P = spectral.transition_matrix(dynamics)
    exact = spectral.eigenbasis(spectral.laplacian(P), 4)
    mixing = np.random.default_rng(0).normal(size=(4, 4))
    encoder = linear_encoder(exact.vectors @ mixing * np.sqrt(len(P)))
    now = jnp.eye(len(P))[np.repeat(np.arange(len(P)), 4)]
    later = jnp.eye(len(P))[dynamics.ravel()]
    batch = Pairs(now, later, now[None])
    refined = laplacian.refine(encoder, laplacian.moments(encoder, batch))
    outputs = np.asarray(refined(jnp.eye(len(P))))
    np.testing.assert_allclose(spectral.eigenvector_cosines(outputs, exact), 1.0, atol=1e-4)
    report = laplacian.report(laplacian.moments(refined, batch))
    np.testing.assert_allclose(report.eigenvalues, exact.eigenvalues[1:], atol=1e-4)
    assert report.orthonormality_error < 1e-3
    truncated = laplacian.truncate(refined, 2)
    np.testing.assert_array_equal(truncated(now), refined(now)[:, :3])


@pytest.mark.parametrize("discount", [0.0, 0.3, 0.9, 1.0])
def test_gaps_are_truncated_geometric(discount: float):
    longest = 7
    gaps = np.asarray(
        truncated_geometric(discount, jnp.full(200_000, longest), key=jax.random.key(0))
    )
    weights = discount ** np.arange(longest) if discount else np.eye(longest)[0]
    counts = np.bincount(gaps, minlength=longest + 1)[1:] / len(gaps)
    np.testing.assert_allclose(counts, weights / weights.sum(), atol=0.005)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    discount=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    negatives=st.sampled_from(["independent", "same-episode"]),
    seed=st.integers(0, 2**31 - 1),
)
def test_pairs_stay_in_their_episode(lengths, discount, negatives, seed):
    episode = np.repeat(np.arange(len(lengths)), np.array(lengths) + 1)
    row = np.concatenate([np.arange(n + 1) for n in lengths])
    obs = np.stack([episode, row], axis=1).astype(np.float32)
    data = Experience.from_rows(obs, np.zeros((len(obs), 1)), np.ones(len(obs)), np.array(lengths))
    pairs = sample_pairs(
        data,
        64,
        discount=discount,
        negatives=negatives,
        num_negatives=2,
        key=jax.random.key(seed),
    )
    now, later, others = (np.asarray(x) for x in (pairs.obs, pairs.future_obs, pairs.negative_obs))
    assert (now[:, 0] == later[:, 0]).all(), "a pair crossed an episode"
    assert (later[:, 1] > now[:, 1]).all(), "the future is not after the present"
    if negatives == "same-episode":
        assert (others[..., 0] == now[:, 0]).all()


@pytest.mark.parametrize("negatives", ["independent", "same-episode"])
@pytest.mark.parametrize("quadratic", ["product", "square"])
def test_eigenvectors_of_a_corridor_are_learned(negatives, quadratic):
    """A probe with a known answer: cosines of the position, for both choices of both options."""
    data = collect_random_walks(
        GridWorld.from_map(CORRIDOR, goals=[], time_limit=10**6), steps=50_000, length=500, seed=0
    )
    config = laplacian.Config(
        k=3,
        hidden=(32,),
        batch_size=128,
        step_size=5e-3,
        num_steps=1_500,
        pair_discount=0.8,
        barrier=2.0,
        negatives=negatives,
        quadratic=quadratic,
    )
    encoder, report = learn_basis(config, data.experience(), num_steps=1_500, key=jax.random.key(0))
    exact = spectral.eigenbasis(
        spectral.laplacian(spectral.transition_matrix(CORRIDOR.next_states())), 4
    )
    outputs = encoder(jnp.asarray(grid_observations(CORRIDOR)))
    assert spectral.eigenvector_cosines(outputs, exact).min() > 0.98
    np.testing.assert_allclose(
        report.eigenvalues, laplacian.pair_eigenvalue(exact.eigenvalues[1:], 0.8), rtol=0.1
    )
    moments = average_moments(config, encoder, data.experience(), jax.random.key(5))
    assert np.abs(np.asarray(moments.gram) - np.eye(4)).max() < 0.02
