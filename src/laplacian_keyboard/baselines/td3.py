"""TD3: twin critics, a delayed deterministic actor, slow copies of both.

    y = r + d min_i Q_i'(s', a'),   a' = clip(mu'(s') + clip(noise))
    Q_i <- y  under the squared error;   every `policy_delay` updates: mu <- ascend Q_1(s, mu(s))

Here d is the discount of the whole transition: gamma for a single step, gamma^l for an option of l
steps, 0 after a termination. So the same core learns a flat agent and, over chords, the player.

| symbol | here | meaning |
|---|---|---|
| Q_1, Q_2 | critic | two networks, stacked on a leading axis |
| mu | actor | observation to action in [-1, 1]^m |
| tau | tau | rate of the slow copies |
"""

import math
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.nets import MLP, of_each
from laplacian_keyboard.types import Metrics, Spec, Transition


@dataclass(frozen=True)
class Config:
    """TD3's settings. Defaults are CleanRL's, except where the paper's tables name one."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    layer_norm: bool = False
    """Normalise every hidden layer before its ReLU."""
    batch_size: int = 256
    """Transitions in a batch."""
    actor_step_size: float = 3e-4
    """Adam's step size for the actor."""
    critic_step_size: float = 3e-4
    """Adam's step size for the critics."""
    tau: float = 0.005
    """Rate of the slow copies."""
    policy_delay: int = 2
    """Critic updates for each actor update."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on target actions."""
    policy_noise_clip: float = 0.5
    """That noise stays within plus and minus this."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions while exploring."""
    critic_sees: Literal["direction"] | None = None
    """What the critics see of an action: all of it (None), or its direction, for actions whose
    length means nothing, such as chords. Ours: critics of the whole action let every entry whose
    effect is lost in noise drift to plus or minus 1, where it takes its share of the chord."""


class State(eqx.Module):
    """Everything that changes in training."""

    actor: Learner[MLP]
    critic: Learner[MLP]
    step: Int[Array, ""]


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """Fresh networks and optimisers for the shapes of `spec`."""
    key_actor, key_critic = jax.random.split(key)
    # A small head keeps the first actions near zero, away from the flat ends of tanh.
    actor = MLP(
        spec.obs_dim,
        config.hidden,
        spec.action_dim,
        norm=config.layer_norm,
        out_gain=0.1,
        key=key_actor,
    )
    critic = jax.vmap(
        lambda k: MLP(
            spec.obs_dim + spec.action_dim, config.hidden, 1, norm=config.layer_norm, key=k
        )
    )(jax.random.split(key_critic))
    return State(
        actor=Learner.create(actor, adam(config.actor_step_size)),
        critic=Learner.create(critic, adam(config.critic_step_size)),
        step=jnp.zeros((), jnp.int32),
    )


def act(
    config: Config, actor: MLP, obs: Float[Array, "*b o"], *, key: PRNGKeyArray | None = None
) -> Float[Array, "*b m"]:
    """The actor's action; with a key, plus exploration noise."""
    action = jnp.tanh(actor(obs))
    if key is None:
        return action
    noise = config.exploration_noise * jax.random.normal(key, action.shape)
    return jnp.clip(action + noise, -1.0, 1.0)


def q_values(
    config: Config, critic: MLP, obs: Float[Array, "*b o"], action: Float[Array, "*b m"]
) -> Float[Array, "2 *b"]:
    """Both critics' values."""
    if config.critic_sees == "direction":
        length = jnp.sqrt(jnp.sum(jnp.square(action), axis=-1, keepdims=True) + 1e-12)
        action = action * (math.sqrt(action.shape[-1]) / length)
    inputs = jnp.concatenate([obs, action], axis=-1)
    return of_each(critic, inputs)[..., 0]


def target(
    config: Config, actor: MLP, critic: MLP, batch: Transition, *, key: PRNGKeyArray
) -> Float[Array, "b"]:
    """`r + d min_i Q_i(s', clip(mu(s') + noise))`, with the slow copies."""
    action = act(config, actor, batch.next_obs)
    noise = config.policy_noise * jax.random.normal(key, action.shape)
    noise = jnp.clip(noise, -config.policy_noise_clip, config.policy_noise_clip)
    action = jnp.clip(action + noise, -1.0, 1.0)
    values = q_values(config, critic, batch.next_obs, action)
    return batch.reward + batch.discount * jnp.min(values, axis=0)


def critic_loss(
    critic: MLP, config: Config, batch: Transition, y: Float[Array, "b"]
) -> tuple[Float[Array, ""], Metrics]:
    """Squared error of both critics against y."""
    values = q_values(config, critic, batch.obs, batch.action)
    loss = jnp.sum(jnp.mean(jnp.square(values - y), axis=-1))
    return loss, {"td3/critic_loss": loss, "td3/value": jnp.mean(values)}


def actor_loss(
    actor: MLP, critic: MLP, config: Config, obs: Float[Array, "b o"]
) -> tuple[Float[Array, ""], Metrics]:
    """`-mean Q_1(s, mu(s))`."""
    first = jax.tree.map(lambda x: x[:1], critic)
    value = jnp.mean(q_values(config, first, obs, act(config, actor, obs)))
    return -value, {"td3/actor_value": value}


def update(
    config: Config, state: State, batch: Transition, *, key: PRNGKeyArray
) -> tuple[State, Metrics]:
    """One critic step, and an actor step when it is due."""
    y = target(config, state.actor.target, state.critic.target, batch, key=key)  # type: ignore[arg-type]
    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic.params, config, batch, y)
    critic = state.critic.step(gradient, adam(config.critic_step_size), config.tau)

    def improve(actor: Learner[MLP]) -> Learner[MLP]:
        gradient, _ = jax.grad(actor_loss, has_aux=True)(
            actor.params, critic.params, config, batch.obs
        )
        return actor.step(gradient, adam(config.actor_step_size), config.tau)

    is_due = state.step % config.policy_delay == 0
    actor = jax.lax.cond(is_due, improve, lambda actor: actor, state.actor)
    return State(actor, critic, state.step + 1), metrics
