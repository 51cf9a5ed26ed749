"""The weights w that behaviors are trained on, and the sphere they live on.

A behavior depends only on the direction of w, so every w is kept at radius sqrt(k): the length a
feature vector has on average when its k components have unit mean square.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray


def to_sphere(w: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """`w` scaled to length sqrt(k). Zero stays zero."""
    k = w.shape[-1]
    length = jnp.sqrt(jnp.sum(jnp.square(w), axis=-1, keepdims=True))
    return w * (jnp.sqrt(float(k)) / jnp.maximum(length, 1e-12))


def sample_weights(
    goal_phi: Float[Array, "b k"], *, goal_fraction: float, key: PRNGKeyArray
) -> Float[Array, "b k"]:
    """Uniform on the sphere, or, with probability `goal_fraction`, the features of a random state
    of the data: the reward for going there."""
    key_direction, key_choice = jax.random.split(key)
    uniform = jax.random.normal(key_direction, goal_phi.shape)
    use_goal = jax.random.bernoulli(key_choice, goal_fraction, (goal_phi.shape[0], 1))
    return to_sphere(jnp.where(use_goal, goal_phi, uniform))
