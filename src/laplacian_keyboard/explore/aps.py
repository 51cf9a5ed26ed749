"""Active pre-training with successor features: follow a random task vector, and spread out.

    task z on the unit sphere, a new one every few steps, appended to the observation
    phi(s) a unit vector, trained so that phi(s') points along the z that led there
    reward = log(1 + mean of the 12 nearest distances between phi in the batch) + z . phi(s')

Definitions of URLB. There the critic is z . psi, trained on that product only; so here it is a
plain critic that sees z.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from laplacian_keyboard.baselines import td3 as core
from laplacian_keyboard.explore.backbone import (
    BACKBONE,
    RunningMoments,
    learn,
    smallest,
    standardise,
    unit,
)
from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.types import Metrics, Spec, Transition


@dataclass(frozen=True)
class Config:
    """APS's settings; defaults are URLB's."""

    td3: core.Config = BACKBONE
    hidden: tuple[int, ...] = (1024, 1024)
    """Widths of phi's hidden layers."""
    context_dim: int = 10
    """Length of the task vector and of phi."""
    context_steps: int = 5
    """Steps a task vector is kept."""
    neighbours: int = 12
    """Nearest neighbours in the entropy estimate, the state itself among them."""
    step_size: float = 1e-4
    """Adam's step size for phi."""


class State(eqx.Module):
    """Everything that changes in training."""

    agent: core.State
    features: Learner[MLP]
    moments: RunningMoments


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """Fresh networks for the shapes of `spec`."""
    key_agent, key_features = jax.random.split(key)
    extended = Spec(spec.obs_dim + config.context_dim, action_dim=spec.action_dim)
    features = MLP(spec.obs_dim, config.hidden, config.context_dim, key=key_features)
    return State(
        agent=core.init(config.td3, extended, key=key_agent),
        features=Learner.create(features, adam(config.step_size), target=False),
        moments=RunningMoments.create(),
    )


def particle_entropy(
    phi: Float[Array, "b z"], moments: RunningMoments, neighbours: int
) -> tuple[Float[Array, "b"], RunningMoments]:
    """`log(1 + mean distance)` to the nearest in the batch, in units of the running mean."""
    squares = jnp.sum(jnp.square(phi), axis=-1)
    squared = squares[:, None] + squares[None] - 2.0 * phi @ phi.T
    distance = jnp.sqrt(jnp.maximum(smallest(squared, neighbours), 0.0))
    moments = moments.add(distance)
    scaled = jnp.maximum(distance / jnp.maximum(moments.mean, 1e-8) - 1e-4, 0.0)
    return jnp.log1p(jnp.mean(scaled, axis=-1)), moments


def update(
    config: Config, state: State, batch: Transition, *, key: PRNGKeyArray
) -> tuple[State, Metrics]:
    """One step of phi, then one of the agent. Observations end in the task vector."""
    next_obs = standardise(batch.next_obs[..., : -config.context_dim])
    task = batch.next_obs[..., -config.context_dim :]

    def alignment_loss(features: MLP) -> Float[Array, ""]:
        return -jnp.mean(jnp.sum(task * unit(features(next_obs)), axis=-1))

    loss, gradient = jax.value_and_grad(alignment_loss)(state.features.params)
    features = state.features.step(gradient, adam(config.step_size))
    phi = features.params(next_obs)
    entropy, moments = particle_entropy(phi, state.moments, config.neighbours)
    reward = entropy + jnp.sum(task * unit(phi), axis=-1)
    agent, metrics = learn(config.td3, state.agent, batch, reward, key=key)
    return State(agent, features, moments), {**metrics, "explore/alignment_loss": loss}
