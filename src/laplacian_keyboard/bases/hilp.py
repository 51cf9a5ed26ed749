"""HILP: features whose distances are the times it takes from one state to another.

A value function of reaching goals, restricted to be a distance in feature space, is learned by
regression on the data alone. Directions of that space are then the tasks: the reward `w . phi` asks
to move along w.

    V(s, g) = -|phi(s) - phi(g)|
    loop:
      s, s' ~ consecutive states;  g ~ a later state of the episode, or any state
      r = 0 and stop if s = g, else -1
      y_j = r + gamma V_slow_j(s', g)                                   for both networks j
      x   = r + gamma min_j V_slow_j(s', g) - mean_j V_slow_j(s, g)     is it better than thought?
      loss = sum_j mean c (y_j - V_j(s, g))^2,   c = e if x >= 0 else 1 - e
      mean <- mean + rate * (batch mean of phi_1(s') - mean)
    basis: phi_1(s) - mean

| symbol | here | meaning |
|---|---|---|
| phi_1, phi_2 | networks | two of them, stacked on a leading axis, with slow copies |
| V | `value` | minus the discounted number of steps from s to g, twice |
| e | expectile | 0.5: the average over what was done in the data; towards 1: the best of it |
| mean | mean | running mean of phi_1, so that the features are centred |

The batch is a `Pairs` of one-step neighbours whose negatives are the goals, one batch of them:
`data.goals.sample_goals` draws it.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard.bases.network import FeatureNet
from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.types import Metrics, Pairs, Spec

SAME_STATE = 1e-6
"""States closer than this are one and the same."""
SQUARED_DISTANCE_FLOOR = 1e-6
"""Keeps the slope of the square root finite."""


@dataclass(frozen=True)
class Config:
    """How a HILP basis is learned. Defaults: those of its authors for zero-shot control."""

    k: int
    """Number of features."""
    hidden: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers."""
    batch_size: int = 1024
    """Transitions with a goal in a batch."""
    step_size: float = 5e-4
    """Adam's step size."""
    num_steps: int = 0
    """Anneal the step size to zero over this many updates; 0 keeps it constant."""
    gamma: float = 0.98
    """Discount of the way to a goal (the authors' walker: 0.96)."""
    expectile: float = 0.5
    """Weight of errors that are better than thought; the others have one minus it."""
    tau: float = 0.005
    """Rate of the slow copies."""
    mean_rate: float = 0.005
    """Rate of the running mean of the features."""
    goal_discount: float = 0.99
    """Parameter of the geometric gap between a state and a goal of its own episode."""
    random_goals: float = 0.375
    """Fraction of goals that are any state of the dataset."""


class Encoder(eqx.Module):
    """What is kept of the training."""

    network: FeatureNet
    mean: Float[Array, "k"]


class State(eqx.Module):
    """Everything that changes in training."""

    networks: Learner[FeatureNet]
    mean: Float[Array, "k"]
    step: Int[Array, ""]


def optimiser(config: Config) -> optax.GradientTransformation:
    """The networks' optimiser."""
    return adam(config.step_size, num_steps=config.num_steps)


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """Two fresh networks for the shapes of `spec`."""
    networks = jax.vmap(lambda key: FeatureNet(spec.obs_dim, config.hidden, config.k, key=key))(
        jax.random.split(key)
    )
    learner = Learner.create(networks, optimiser(config))
    return State(learner, jnp.zeros(config.k), jnp.zeros((), jnp.int32))


def encoder(state: State) -> Encoder:
    """What is kept of the training: all that `phi` needs."""
    return Encoder(_first(state.networks.params), state.mean)


def phi(config: Config, encoder: Encoder, obs: Float[Array, "*b o"]) -> Float[Array, "*b k"]:
    """The basis: features centred over the data."""
    return encoder.network(obs) - encoder.mean


def value(
    networks: FeatureNet, obs: Float[Array, "b o"], goals: Float[Array, "b o"]
) -> Float[Array, "2 b"]:
    """`-|phi_j(s) - phi_j(g)|` of both networks."""
    both = jax.vmap(lambda network: network(jnp.stack([obs, goals])))(networks)
    squared = jnp.sum(jnp.square(both[:, 0] - both[:, 1]), axis=-1)
    return -jnp.sqrt(jnp.maximum(squared, SQUARED_DISTANCE_FLOOR))


def loss(
    networks: FeatureNet, slow: FeatureNet, config: Config, batch: Pairs
) -> tuple[Float[Array, ""], Metrics]:
    """Expectile regression of both values on their own targets."""
    (goals,) = batch.negative_obs
    distance = jnp.sqrt(jnp.sum(jnp.square(batch.obs - goals), axis=-1))
    on_the_way = (distance >= SAME_STATE).astype(jnp.float32)
    y = on_the_way * (config.gamma * value(slow, batch.future_obs, goals) - 1.0)
    surprise = jnp.min(y, axis=0) - jnp.mean(value(slow, batch.obs, goals), axis=0)
    weight = jnp.where(surprise >= 0.0, config.expectile, 1.0 - config.expectile)
    predicted = value(networks, batch.obs, goals)
    result = jnp.sum(jnp.mean(weight * jnp.square(y - predicted), axis=-1))
    return result, {
        "hilp/loss": result,
        "hilp/distance": -jnp.mean(predicted),
        "hilp/better_than_thought": jnp.mean(surprise >= 0.0),
    }


def update(
    config: Config, state: State, batch: Pairs, *, key: PRNGKeyArray | None = None
) -> tuple[State, Metrics]:
    """One gradient step on both networks, one step of the running mean."""
    slow = state.networks.target
    gradient, metrics = jax.grad(loss, has_aux=True)(state.networks.params, slow, config, batch)
    networks = state.networks.step(gradient, optimiser(config), config.tau)
    now = jnp.mean(_first(networks.params)(batch.future_obs), axis=0)
    # The first batch counts whole, so that the mean is never pulled towards zero.
    rate = jnp.where(state.step == 0, 1.0, config.mean_rate)
    return State(networks, state.mean + rate * (now - state.mean), state.step + 1), metrics


def _first(networks: FeatureNet) -> FeatureNet:
    return jax.tree.map(lambda x: x[0], networks)
