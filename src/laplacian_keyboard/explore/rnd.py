"""Random network distillation: go where a network has not yet learned to imitate a random one.

    target f fixed, predictor g trained:  e(s) = mean (f(s~) - g(s~))^2,  s~ = s normalised, clipped
    reward(s) = e(s) / running std of e,   followed by TD3

Definitions of URLB: the reward is that of the current state, inputs are normalised by the batch.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from laplacian_keyboard.baselines import td3 as core
from laplacian_keyboard.explore.backbone import BACKBONE, RunningMoments, learn, standardise
from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.types import Metrics, Spec, Transition


@dataclass(frozen=True)
class Config:
    """RND's settings; defaults are URLB's."""

    td3: core.Config = BACKBONE
    hidden: tuple[int, ...] = (1024, 1024)
    """Widths of predictor and target."""
    output: int = 512
    """Length of their outputs."""
    step_size: float = 1e-4
    """Adam's step size for the predictor."""
    clip: float = 5.0
    """Normalised inputs stay within plus and minus this."""
    context_dim: int = 0
    context_steps: int = 0


class State(eqx.Module):
    """Everything that changes in training, and the fixed target."""

    agent: core.State
    predictor: Learner[MLP]
    target: MLP
    moments: RunningMoments


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """Fresh networks for the shapes of `spec`."""
    key_agent, key_predictor, key_target = jax.random.split(key, 3)
    network = lambda key: MLP(spec.obs_dim, config.hidden, config.output, key=key)  # noqa: E731
    return State(
        agent=core.init(config.td3, spec, key=key_agent),
        predictor=Learner.create(network(key_predictor), adam(config.step_size), target=False),
        target=network(key_target),
        moments=RunningMoments.create(),
    )


def prediction_error(
    predictor: MLP, target: MLP, obs: Float[Array, "b o"], clip: float
) -> Float[Array, "b"]:
    """How badly the target is predicted at every observation of a batch."""
    normalised = standardise(obs, clip)
    fixed = jax.lax.stop_gradient(target(normalised))
    return jnp.mean(jnp.square(fixed - predictor(normalised)), axis=-1)


def update(
    config: Config, state: State, batch: Transition, *, key: PRNGKeyArray
) -> tuple[State, Metrics]:
    """One step of the predictor, then one of the agent on the reward before that step."""

    def loss(predictor: MLP) -> tuple[Float[Array, ""], Float[Array, "b"]]:
        error = prediction_error(predictor, state.target, batch.obs, config.clip)
        return jnp.mean(error), error

    gradient, error = jax.grad(loss, has_aux=True)(state.predictor.params)
    predictor = state.predictor.step(gradient, adam(config.step_size))
    moments = state.moments.add(error)
    reward = error / (moments.std + 1e-8)
    agent, metrics = learn(config.td3, state.agent, batch, reward, key=key)
    return State(agent, predictor, state.target, moments), {
        **metrics,
        "explore/prediction_error": jnp.mean(error),
    }
