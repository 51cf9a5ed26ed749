"""ProtoRL: prototypes that cover the visited states, and a reward for being far from the crowd.

    z(s) = unit vector of Linear(s);  p(s) = softmax of projector(z(s)) . c / T over prototypes c
    train: cross-entropy of p(s) against a balanced (Sinkhorn) assignment of the slow copy at s'
    reward(s') = distance of z(s') to its 3rd nearest in a queue of embeddings chosen by prototypes

Definitions of URLB for states: identity encoder, Sinkhorn with three iterations.
"""

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

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
from laplacian_keyboard.nets import MLP, Linear
from laplacian_keyboard.types import Metrics, Spec, Transition


@dataclass(frozen=True)
class Config:
    """ProtoRL's settings; defaults are URLB's."""

    td3: core.Config = BACKBONE
    embedding: int = 128
    """Length of an embedding."""
    projection: int = 512
    """Width of the projector's hidden layer."""
    num_prototypes: int = 512
    """Number of prototypes."""
    temperature: float = 0.1
    """Temperature of the assignments."""
    queue: int = 2048
    """Embeddings the reward compares with."""
    neighbour: int = 3
    """Which nearest neighbour's distance is the reward."""
    target_rate: float = 0.05
    """Rate of the slow copy."""
    step_size: float = 1e-4
    """Adam's step size for embedding and prototypes."""
    sinkhorn_iterations: int = 3
    context_dim: int = 0
    context_steps: int = 0


class Networks(eqx.Module):
    """What is trained by the assignments."""

    predictor: Linear
    projector: MLP
    prototypes: Float[Array, "p e"]


class State(eqx.Module):
    """Everything that changes in training."""

    agent: core.State
    networks: Learner[Networks]
    queue: Float[Array, "q e"]
    head: Int[Array, ""]
    """Where the next embeddings go in the queue."""
    moments: RunningMoments
    """Of the distances."""


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """Fresh networks and an empty queue for the shapes of `spec`."""
    keys = jax.random.split(key, 5)
    predictor = Linear(spec.obs_dim, config.embedding, key=keys[1])
    # With no bias, unit length would keep only the direction of an observation and forget how far
    # from the ordinary it is: standing still in two ways would differ more than standing and
    # running. With a bias longer than most observations, distances are those of observations.
    far = 2.0 * math.sqrt(spec.obs_dim) * unit(jax.random.normal(keys[4], (config.embedding,)))
    networks = Networks(
        eqx.tree_at(lambda p: p.bias, predictor, far),
        MLP(config.embedding, (config.projection,), config.embedding, key=keys[2]),
        unit(jax.random.normal(keys[3], (config.num_prototypes, config.embedding))),
    )
    return State(
        agent=core.init(config.td3, spec, key=keys[0]),
        networks=Learner.create(networks, adam(config.step_size)),
        queue=jnp.zeros((config.queue, config.embedding)),
        head=jnp.zeros((), jnp.int32),
        moments=RunningMoments.create(),
    )


def sinkhorn(scores: Float[Array, "b p"], iterations: int) -> Float[Array, "b p"]:
    """Assignments whose rows are distributions and whose columns share the batch equally."""
    assignment = jnp.exp(scores - jnp.max(scores))
    assignment = assignment / jnp.sum(assignment)
    batch, prototypes = scores.shape
    for _ in range(iterations):
        assignment = assignment / (jnp.sum(assignment, axis=0, keepdims=True) * prototypes + 1e-12)
        assignment = assignment / (jnp.sum(assignment, axis=1, keepdims=True) * batch + 1e-12)
    return assignment / jnp.sum(assignment, axis=1, keepdims=True)


def assignment_loss(
    networks: Networks, slow: Networks, batch: Transition, config: Config
) -> Float[Array, ""]:
    """Cross-entropy between the slow copy's balanced assignment at s' and the prediction at s."""
    prototypes = unit(networks.prototypes)
    online = unit(networks.projector(networks.predictor(standardise(batch.obs))))
    log_p = jax.nn.log_softmax(online @ prototypes.T / config.temperature, axis=-1)
    scores = unit(slow.predictor(standardise(batch.next_obs))) @ prototypes.T / config.temperature
    assigned = jax.lax.stop_gradient(sinkhorn(scores, config.sinkhorn_iterations))
    return -jnp.mean(jnp.sum(assigned * log_p, axis=-1))


def novelty(
    config: Config, state: State, obs: Float[Array, "b o"], *, key: PRNGKeyArray
) -> tuple[Float[Array, "b"], State]:
    """Distances to the queue, after every prototype has put one embedding of the batch into it."""
    networks = state.networks.params
    embedding = unit(networks.predictor(standardise(obs)))
    scores = unit(networks.prototypes) @ embedding.T
    chosen = jax.random.categorical(key, scores, axis=-1)
    slots = (state.head + jnp.arange(config.num_prototypes)) % config.queue
    queue = state.queue.at[slots].set(embedding[chosen])
    # |a - b|^2 of unit vectors from one product; zero rows of an unfilled queue are a unit away.
    squared = 1.0 + jnp.sum(jnp.square(queue), axis=-1) - 2.0 * embedding @ queue.T
    nearest = smallest(squared, config.neighbour)[:, -1]
    distance = jnp.sqrt(jnp.maximum(nearest, 0.0))
    head = (state.head + config.num_prototypes) % config.queue
    return distance, State(state.agent, state.networks, queue, head, state.moments.add(distance))


def update(
    config: Config, state: State, batch: Transition, *, key: PRNGKeyArray
) -> tuple[State, Metrics]:
    """One step of the agent on the novelty, one of the prototypes."""
    key_reward, key_agent = jax.random.split(key)
    distance, state = novelty(config, state, batch.next_obs, key=key_reward)
    # Distances differ by little from state to state: without the common part, which changes no
    # behavior in episodes that never terminate, the critic need not learn it first.
    reward = (distance - state.moments.mean) / (state.moments.std + 1e-8)
    agent, metrics = learn(config.td3, state.agent, batch, reward, key=key_agent)
    loss, gradient = jax.value_and_grad(assignment_loss)(
        state.networks.params, state.networks.target, batch, config
    )
    networks = state.networks.step(gradient, adam(config.step_size), config.target_rate)
    return State(agent, networks, state.queue, state.head, state.moments), {
        **metrics,
        "explore/assignment_loss": loss,
    }
