"""Networks: how their weights are drawn, and what they make of batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard.nets import MLP, Linear, of_each

SIZES = 5, (8, 16), 3


def draw(key):
    return MLP(*SIZES, key=key)


@pytest.mark.parametrize(("size_in", "size_out"), [(4, 9), (9, 4), (6, 6)])
def test_weights_are_orthonormal_times_the_gain(size_in, size_out):
    weight = Linear(size_in, size_out, gain=1.5, key=jax.random.key(0)).weight
    short = weight if size_in <= size_out else weight.T
    np.testing.assert_allclose(short @ short.T, 1.5**2 * np.eye(len(short)), atol=1e-5)


def test_networks_drawn_together_are_those_drawn_alone():
    keys = jax.random.split(jax.random.key(1), 2)
    together = jax.jit(jax.vmap(draw))(keys)
    for i, key in enumerate(keys):
        this = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        jax.tree.map(np.testing.assert_array_equal, jax.jit(draw)(key), this)


def test_no_batch_of_matrices_is_factorised():
    """Two of these at once never end on two cores (jaxlib 0.10)."""
    keys = jax.random.split(jax.random.key(2), (3, 2))
    program = jax.jit(jax.vmap(jax.vmap(draw))).lower(keys).as_text()
    calls = [line for line in program.splitlines() if "geqrf" in line and "custom_call" in line]
    assert calls
    for call in calls:
        operand = call.split("(tensor<")[1].split(">")[0]
        assert operand.count("x") == 2, call
    assert jnp.isfinite(jax.tree.leaves(jax.vmap(jax.vmap(draw))(keys))[0]).all()


@pytest.mark.parametrize("shape", [(), (4,), (2, 4), (2, 0)])
def test_a_batch_of_any_shape_is_its_examples(shape):
    network, x = draw(jax.random.key(3)), jax.random.normal(jax.random.key(4), (*shape, 5))
    found = network(x)
    assert found.shape == (*shape, 3)
    for row, of_row in zip(x.reshape(-1, 5), found.reshape(-1, 3), strict=True):
        np.testing.assert_allclose(network(row), of_row, rtol=1e-5, atol=1e-6)


def test_stacked_networks_see_the_same_inputs():
    networks = jax.vmap(draw)(jax.random.split(jax.random.key(5), 3))
    x = jax.random.normal(jax.random.key(6), (2, 4, 5))
    found = of_each(networks, x)
    for i in range(3):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], networks)
        np.testing.assert_allclose(found[i], one(x), rtol=1e-5, atol=1e-6)
