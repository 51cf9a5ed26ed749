"""The network of the features that other methods learn (Touati et al.): a normalised first layer.

x -> tanh(norm(Linear x)) -> ReLU layers -> Linear,   and then, for most, onto the sphere
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from laplacian_keyboard.nets import MLP, Linear, layer_norm

SQUARED_LENGTH_FLOOR = 1e-8


class FeatureNet(eqx.Module):
    """Observation to k numbers. Without hidden layers it is an affine map."""

    first: Linear | None
    rest: MLP

    def __init__(self, size_in: int, hidden: Sequence[int], size_out: int, *, key: PRNGKeyArray):
        key_first, key_rest = jax.random.split(key)
        self.first = Linear(size_in, hidden[0], key=key_first) if hidden else None
        self.rest = MLP(hidden[0] if hidden else size_in, hidden[1:], size_out, key=key_rest)

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        if self.first is not None:
            x = jnp.tanh(layer_norm(self.first(x)))
        return self.rest(x)


def on_sphere(x: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """`x` scaled to length sqrt(k), with a gradient at zero too: a fresh network maps an
    observation of zeros to zero."""
    squared = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * jnp.sqrt(float(x.shape[-1])) * jax.lax.rsqrt(squared + SQUARED_LENGTH_FLOOR)
