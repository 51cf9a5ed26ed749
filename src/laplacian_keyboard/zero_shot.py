"""Zero-shot control: a task, seen as rewards on a few states, becomes the weights w.

The paper takes `w = 1/N sum r(s') phi(s')`, which is the least-squares solution when the features
are orthonormal on the data. `least-squares` does not need that; both leave the constant to e_0,
which the basis drops: a constant reward changes no behavior.

`smooth` is ours: the least-squares weight of e_i over i^0.75, for features that are ordered from
slow to fast. With squashed features it helped on most keyboards that were tried, and hurt on some;
docs/continuous-control.md has all of them. Why is not known: behaviors may follow slow features
better than the fast ones that regression leans on.
"""

from typing import Literal, NamedTuple, TypeAlias, get_args

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from laplacian_keyboard.successor.weights import to_sphere
from laplacian_keyboard.types import UserError

Method: TypeAlias = Literal["mean", "least-squares", "smooth"]
SMOOTHING = 0.75
"""Power of i that `smooth` divides the weight of e_i by."""


class Inference(NamedTuple):
    """A task's weights, and how much of the task they leave out."""

    w: Float[Array, "k"]
    """The chord to play, at the radius the behaviors were trained on."""
    raw: Float[Array, "k"]
    """The regression's weights: `raw . phi` approximates the reward."""
    residual: Float[Array, ""]
    """Fraction of the reward's variance outside the span of the basis: 0 inside, 1 orthogonal."""


def infer(
    phi: Float[Array, "n k"], rewards: Float[Array, "n"], method: Method = "least-squares"
) -> Inference:
    """Weights of the task whose rewards on n states with features `phi` are `rewards`."""
    if method not in get_args(Method):
        raise UserError(f"unknown method {method!r}; known methods: {', '.join(get_args(Method))}")
    raw = phi.T @ rewards / rewards.shape[0] if method == "mean" else regress(phi, rewards)
    order = jnp.arange(1, phi.shape[1] + 1)
    w = raw / order**SMOOTHING if method == "smooth" else raw
    return Inference(to_sphere(w), raw, residual(phi, rewards))


def regress(phi: Float[Array, "n k"], rewards: Float[Array, "n"]) -> Float[Array, "k"]:
    """Least squares with a free constant."""
    centred = phi - jnp.mean(phi, axis=0)
    solution, *_ = jnp.linalg.lstsq(centred, rewards - jnp.mean(rewards))
    return solution


def residual(phi: Float[Array, "n k"], rewards: Float[Array, "n"]) -> Float[Array, ""]:
    """The part of the rewards' variance that no weights explain, in [0, 1]."""
    centred = rewards - jnp.mean(rewards)
    explained = (phi - jnp.mean(phi, axis=0)) @ regress(phi, rewards)
    variance = jnp.mean(jnp.square(centred))
    left = jnp.mean(jnp.square(centred - explained))
    return jnp.where(variance > 0, jnp.clip(left / jnp.maximum(variance, 1e-30), 0.0, 1.0), 0.0)
