"""The plain graph-drawing Laplacian: smooth features, spread over a sphere by a fixed penalty.

What controllable_agent calls `lap`. There are no multipliers and no ordering: but for the sphere,
the minimiser is the first k eigenvectors, the constant one included, turned arbitrarily and shrunk
a little. `laplacian.py` finds the eigenvectors themselves.

    loop:
      s, s' ~ consecutive states
      loss = mean (phi(s) - phi(s'))^2                                   entries of all k features
             + mean_{i != j} (phi(s_i) . phi(s_j))^2 - 2 mean |phi(s_i)|^2

| symbol | here | meaning |
|---|---|---|
| phi | `phi` | k outputs scaled to length sqrt(k), so the last term is the constant -2 k |

The penalty is, up to a constant, the squared distance between the mean of `phi phi^T` and the
identity: independent s_i and s_j turn the product of two means into a mean over pairs.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard.bases.network import FeatureNet, on_sphere
from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.types import Metrics, Pairs, Spec


@dataclass(frozen=True)
class Config:
    """How a graph-drawing basis is learned. Defaults: controllable_agent's."""

    k: int
    """Number of features."""
    hidden: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers."""
    batch_size: int = 1024
    """Pairs in a batch."""
    step_size: float = 5e-4
    """Adam's step size."""
    num_steps: int = 0
    """Anneal the step size to zero over this many updates; 0 keeps it constant."""
    pair_discount: float = 0.0
    """Parameter of the geometric gap between a state and its neighbour; 0 is always one step."""

    # How the batch is drawn. The penalty uses the reference states, so the negatives, of which the
    # sampler draws at least one batch, go unread, and a compiled update does not even gather them.
    negatives: ClassVar[Literal["independent"]] = "independent"
    num_negatives: ClassVar[int] = 1


class State(eqx.Module):
    """Everything that changes in training."""

    encoder: Learner[FeatureNet]
    step: Int[Array, ""]


def optimiser(config: Config) -> optax.GradientTransformation:
    """The encoder's optimiser."""
    return adam(config.step_size, num_steps=config.num_steps)


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """A fresh encoder for the shapes of `spec`."""
    network = FeatureNet(spec.obs_dim, config.hidden, config.k, key=key)
    learner = Learner.create(network, optimiser(config), target=False)
    return State(learner, jnp.zeros((), jnp.int32))


def encoder(state: State) -> FeatureNet:
    """What is kept of the training: all that `phi` needs."""
    return state.encoder.params


def phi(config: Config, encoder: FeatureNet, obs: Float[Array, "*b o"]) -> Float[Array, "*b k"]:
    """The basis: features of length sqrt(k)."""
    return on_sphere(encoder(obs))


def orthonormality(features: Float[Array, "b k"]) -> Float[Array, ""]:
    """`mean_{i != j} (phi_i . phi_j)^2 - 2 mean |phi_i|^2`: least where `mean phi phi^T` is the
    identity."""
    count = features.shape[0]
    # The squares of all entries of Phi Phi^T add up to those of Phi^T Phi, which is k by k.
    everything = jnp.sum(jnp.square(features.T @ features))
    lengths = jnp.sum(jnp.square(features), axis=-1)
    off_diagonal = (everything - jnp.sum(jnp.square(lengths))) / (count * (count - 1))
    return off_diagonal - 2.0 * jnp.mean(lengths)


def orthonormality_error(features: Float[Array, "b k"]) -> Float[Array, ""]:
    """Largest deviation of the mean of `phi phi^T` from the identity."""
    count, k = features.shape
    return jnp.max(jnp.abs(features.T @ features / count - jnp.eye(k)))


def loss(encoder: FeatureNet, config: Config, batch: Pairs) -> tuple[Float[Array, ""], Metrics]:
    """Smoothness over neighbours, and the penalty on the reference states."""
    # One pass over all states: two small products would leave the cores idle.
    features = phi(config, encoder, jnp.stack([batch.obs, batch.future_obs]))
    smoothness = jnp.mean(jnp.square(features[0] - features[1]))
    value = smoothness + orthonormality(features[0])
    return value, {
        "lap/loss": value,
        "lap/smoothness": smoothness,
        "lap/orthonormality_error": orthonormality_error(features[0]),
    }


def update(
    config: Config, state: State, batch: Pairs, *, key: PRNGKeyArray | None = None
) -> tuple[State, Metrics]:
    """One gradient step."""
    gradient, metrics = jax.grad(loss, has_aux=True)(state.encoder.params, config, batch)
    return State(state.encoder.step(gradient, optimiser(config)), state.step + 1), metrics
