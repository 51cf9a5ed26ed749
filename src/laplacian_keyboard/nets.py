"""Neural networks as pytrees of arrays: plain `jax.jit`, `jax.vmap` and `jax.grad` apply.

Everything acts on one example; the caller maps over batches. A network of the module `MLP` is
its weights, with the activation kept as static metadata, so no filtered transformation is needed.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

LAYER_NORM_EPSILON = 1e-5


class Linear(eqx.Module):
    """An affine map, orthogonally initialised."""

    weight: Float[Array, "i o"]
    bias: Float[Array, "o"]

    def __init__(self, size_in: int, size_out: int, *, gain: float = 1.0, key: PRNGKeyArray):
        self.weight = _orthogonal(size_in, size_out, gain, key)
        self.bias = jnp.zeros(size_out)

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        return x @ self.weight + self.bias


def _orthogonal(size_in: int, size_out: int, gain: float, key: PRNGKeyArray) -> Float[Array, "i o"]:
    """A random matrix with orthonormal rows or columns, times `gain`; under vmap one at a time.

    jaxlib 0.10 factorises a batch of matrices on the threads that run the program, and waits for
    them on one of these: two such calls at once wait for each other forever on a machine of two
    cores. A single matrix is factorised where it is called.
    """
    initializer = jax.nn.initializers.orthogonal(gain)

    @jax.custom_batching.sequential_vmap
    def draw(key: PRNGKeyArray) -> Array:
        return initializer(key, (size_in, size_out), jnp.float32)

    return draw(key)


class MLP(eqx.Module):
    """Linear layers with ReLU between them, optionally normalised before the ReLU."""

    layers: tuple[Linear, ...]
    norm: bool = eqx.field(static=True)

    def __init__(
        self,
        size_in: int,
        hidden: Sequence[int],
        size_out: int,
        *,
        norm: bool = False,
        out_gain: float = 1.0,
        key: PRNGKeyArray,
    ):
        sizes = [size_in, *hidden, size_out]
        gains = [math.sqrt(2.0)] * len(hidden) + [out_gain]
        keys = jax.random.split(key, len(gains))
        self.layers = tuple(
            Linear(i, o, gain=gain, key=k)
            for i, o, gain, k in zip(sizes[:-1], sizes[1:], gains, keys, strict=True)
        )
        self.norm = norm

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        # All axes before the last as one: XLA would transpose the others for every gradient.
        *batch, size = x.shape
        out = self.after_first(self.layers[0](x.reshape(math.prod(batch), size)))
        return out.reshape(*batch, out.shape[-1])

    def after_first(self, x: Float[Array, "*b h"]) -> Float[Array, "*b o"]:
        """The rest of the network, from the outputs of its first layer."""
        for layer in self.layers[1:]:
            x = layer(jax.nn.relu(layer_norm(x) if self.norm else x))
        return x


def of_each(networks: MLP, x: Float[Array, "*b i"]) -> Float[Array, "n *b o"]:
    """What several networks, stacked on a leading axis, make of the same inputs.

    Every network gets inputs of its own: of shared ones XLA makes outputs in which the networks
    come after the batch, and transposes them in the layers that follow.
    """
    own = jnp.broadcast_to(x, (networks.layers[0].bias.shape[0], *x.shape))
    return jax.vmap(lambda network, x: network(x))(networks, own)


class Branch(eqx.Module):
    """Two layers that take in a part of the inputs: Linear, normalisation, tanh; Linear, ReLU."""

    first: Linear
    second: Linear

    def __init__(self, size_in: int, width: int, size_out: int, *, key: PRNGKeyArray):
        key_first, key_second = jax.random.split(key)
        self.first = Linear(size_in, width, key=key_first)
        self.second = Linear(width, size_out, gain=math.sqrt(2.0), key=key_second)

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        return jax.nn.relu(self.second(jnp.tanh(layer_norm(self.first(x)))))


def layer_norm(x: Float[Array, "*b i"]) -> Float[Array, "*b i"]:
    """Zero mean and unit variance over the last axis; no learned scale or shift."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + LAYER_NORM_EPSILON)
