"""Products of layers: exact as a rule, of rounded numbers where JAX's setting asks for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.nets import MLP, product
from laplacian_keyboard.types import UserError

X, WEIGHT, GRADIENT = (
    jax.random.normal(jax.random.key(i), shape)
    for i, shape in enumerate([(3, 5, 7), (7, 4), (3, 5, 4)])
)


def _round(x):
    return np.asarray(x.astype(jnp.bfloat16).astype(jnp.float32), np.float64)


def test_a_product_is_exact_unless_told_otherwise():
    np.testing.assert_array_equal(product(X, WEIGHT), X @ WEIGHT)


def test_rounded_products_and_gradients_are_those_of_rounded_numbers():
    with jax.default_matmul_precision("bfloat16"):
        found, pull_back = jax.vjp(jax.jit(product), X, WEIGHT)
        of_x, of_weight = pull_back(GRADIENT)
    assert found.dtype == of_x.dtype == of_weight.dtype == jnp.float32
    x, weight, gradient = map(_round, (X, WEIGHT, GRADIENT))
    np.testing.assert_allclose(found, x @ weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, gradient @ weight.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        of_weight, np.einsum("abi,abo->io", x, gradient), rtol=1e-5, atol=1e-5
    )


def test_rounded_networks_map_over_heads_and_keep_float32_weights():
    heads = jax.vmap(lambda key: MLP(7, (8,), 2, key=key))(jax.random.split(jax.random.key(0)))
    loss = lambda heads: jnp.sum(jnp.square(jax.vmap(lambda head: head(X))(heads)))  # noqa: E731
    exact = jax.grad(loss)(heads)
    with jax.default_matmul_precision("bfloat16"):
        rounded = jax.grad(loss)(heads)
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(rounded), strict=True):
        assert b.dtype == jnp.float32 and not np.array_equal(a, b)
        np.testing.assert_allclose(a, b, rtol=0.1, atol=0.02 * float(jnp.max(jnp.abs(a))))


def test_a_run_is_not_continued_with_another_precision(tmp_path):
    RunFolder(tmp_path / "run", {"seed": 0})
    with (
        jax.default_matmul_precision("bfloat16"),
        pytest.raises(UserError, match="matmul_precision = None, not bfloat16"),
    ):
        RunFolder(tmp_path / "run", {"seed": 0})
