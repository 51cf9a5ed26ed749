"""Weights from labelled states."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard import zero_shot


def orthonormal_features(rng: np.random.Generator, states: int, k: int) -> np.ndarray:
    """Columns with zero mean, unit mean square and no correlation."""
    raw = rng.normal(size=(states, k + 1))
    raw[:, 0] = 1.0
    q, _ = np.linalg.qr(raw)
    return q[:, 1:] * np.sqrt(states)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 8))
def test_inside_the_span_both_methods_find_the_weights(seed, k):
    rng = np.random.default_rng(seed)
    phi = orthonormal_features(rng, 60, k)
    raw = rng.normal(size=k)
    for method in ("mean", "least-squares"):
        found = zero_shot.infer(jnp.asarray(phi), jnp.asarray(phi @ raw), method)
        np.testing.assert_allclose(found.raw, raw, atol=1e-3)
        np.testing.assert_allclose(np.linalg.norm(found.w), np.sqrt(k), rtol=1e-4)
        assert found.residual < 1e-4


def test_mean_is_the_papers_average_of_reward_times_feature():
    phi = jnp.array([[1.0, 2.0], [3.0, -1.0]])
    found = zero_shot.infer(phi, jnp.array([2.0, 4.0]), "mean")
    np.testing.assert_allclose(found.raw, [(2 + 12) / 2, (4 - 4) / 2])


def test_least_squares_ignores_a_constant_and_correlations():
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 3)) + 5.0
    raw = np.array([1.0, -2.0, 0.5])
    found = zero_shot.infer(jnp.asarray(phi), jnp.asarray(phi @ raw + 100.0))
    np.testing.assert_allclose(found.raw, raw, atol=2e-3)


def test_smooth_divides_the_weight_of_every_eigenvector_by_a_power_of_its_number():
    phi = orthonormal_features(np.random.default_rng(0), 80, 3)
    raw = np.array([1.0, -2.0, 3.0])
    found = zero_shot.infer(jnp.asarray(phi), jnp.asarray(phi @ raw), "smooth")
    np.testing.assert_allclose(found.raw, raw, atol=1e-3)
    expected = np.array([1.0, -2.0 / 2**0.75, 3.0 / 3**0.75])
    np.testing.assert_allclose(found.w, expected * np.sqrt(3) / np.linalg.norm(expected), atol=1e-3)


def test_residual_is_the_variance_outside_the_span():
    rng = np.random.default_rng(0)
    basis = orthonormal_features(rng, 80, 4)
    inside, outside = basis[:, :2], basis[:, 3]
    rewards = 3.0 * basis[:, 0] + 4.0 * outside
    found = zero_shot.residual(jnp.asarray(inside), jnp.asarray(rewards))
    np.testing.assert_allclose(found, 16 / 25, atol=1e-4)
    assert zero_shot.residual(jnp.asarray(inside), jnp.ones(80)) == 0.0
