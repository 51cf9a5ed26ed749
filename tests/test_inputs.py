"""What networks see: scales, angles, and the same numbers for rows and for single observations."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard.inputs import LIMIT, Inputs, unwind

OBS = np.random.default_rng(0).normal(3.0, [1.0, 20.0, 0.1], (500, 3)).astype(np.float32)


def test_inputs_have_zero_mean_and_unit_deviation_over_the_data():
    seen = np.asarray(Inputs.of_data(OBS)(jnp.asarray(OBS)))
    np.testing.assert_allclose(seen.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(seen.std(axis=0), 1.0, atol=1e-3)


@settings(max_examples=25, deadline=None)
@given(turns=st.integers(-20, 20), angle=st.floats(-3.0, 3.0))
def test_a_whole_turn_changes_nothing(turns, angle):
    inputs = Inputs.of_data(OBS, (1,))
    one = inputs(jnp.array([1.0, angle, 3.0]), (1,))
    other = inputs(jnp.array([1.0, angle + 2 * np.pi * turns, 3.0]), (1,))
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_angles_become_sine_and_cosine_at_the_end_unscaled():
    inputs = Inputs.of_data(OBS, (1,))
    seen = np.asarray(inputs(jnp.asarray(OBS), (1,)))
    np.testing.assert_allclose(
        seen[:, 2:], np.stack([np.sin(OBS[:, 1]), np.cos(OBS[:, 1])], 1), atol=1e-4
    )
    assert unwind(OBS, (0, 2), np).shape == (500, 5)


def test_constant_entries_and_spikes_stay_harmless():
    constant = np.concatenate([OBS, np.full((500, 1), 7.0, np.float32)], axis=1)
    inputs = Inputs.of_data(constant)
    seen = np.asarray(inputs(jnp.array([3.0, 3.0, 3.0, 8.0])))
    assert np.isfinite(seen).all() and abs(seen[3] - 1.0) < 1e-5
    assert np.asarray(inputs(jnp.array([1e9, 0.0, 0.0, 0.0])))[0] == LIMIT


def test_rows_are_prepared_as_single_observations_are(monkeypatch):
    monkeypatch.setattr("laplacian_keyboard.inputs.CHUNK_ROWS", 64)
    inputs = Inputs.of_data(OBS, (1,))
    rows = inputs.of_rows(OBS, (1,))
    np.testing.assert_allclose(rows[137], inputs(jnp.asarray(OBS[137]), (1,)), rtol=1e-6)


def test_plain_inputs_change_nothing():
    np.testing.assert_array_equal(Inputs.plain(3)(jnp.asarray(OBS)), OBS)
