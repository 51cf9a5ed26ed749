"""Stage 3: the player, a meta-policy that picks a new chord w every few steps.

The player sees the state and answers with a chord; the behavior of that chord acts for `t_term`
steps; then the player chooses again. For the player such a stretch is one action of a semi-Markov
process, and TD3 learns it online from the task's reward.

    loop:
      w = chord(mu(s) + noise)
      follow pi_w for t_term steps:  R = sum_i gamma^i r_i,  l = steps taken
      store (s, w, R, gamma^l, s')    discount 0 instead of gamma^l if the episode terminated
      TD3 updates on stored stretches

| symbol | here | meaning |
|---|---|---|
| pi_LK, mu | actor | state to u in [-1, 1]^k |
| w | `chord(u)` | u scaled to the radius sqrt(k) the behaviors were trained on |
| t_term | t_term | steps a behavior runs |

The critics see u, or only its direction (`td3.critic_sees`), which is all that the behavior sees of
it. At k = 1 they must see u: the chord is only its sign, and u keeps a slope to climb.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray, Shaped

from laplacian_keyboard.baselines import td3 as core
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor.weights import to_sphere
from laplacian_keyboard.types import Metrics, Spec, TimeStep, Transition

State = core.State


@dataclass(frozen=True)
class Config:
    """The player's settings. Defaults: the paper's Table 3."""

    t_term: int = 5
    """Steps a behavior runs before the player chooses again (paper)."""
    gamma: float = 0.98
    """Discount of a single environment step (paper)."""
    warmup: int = 1_000
    """Environment steps with uniformly random chords before learning starts."""
    random_fraction: float = 0.0
    """Fraction of choices made uniformly at random while learning. The paper has none; where
    rewards are rare it keeps the player from settling on the first chords that worked."""
    capacity: int = 200_000
    """Stretches the replay buffer keeps."""
    td3: core.Config = core.Config(  # noqa: RUF009  frozen, so sharing one instance is safe
        batch_size=16,
        actor_step_size=1e-4,
        critic_step_size=1e-3,
        tau=0.01,
        policy_delay=5,
        policy_noise=0.0,
        exploration_noise=0.01,
    )
    """The learner underneath (paper)."""


def init(config: Config, spec: Spec, k: int, *, key: PRNGKeyArray) -> State:
    """A fresh player of k keys for the observations of `spec`."""
    return core.init(config.td3, Spec(spec.obs_dim, action_dim=k), key=key)


def chord(u: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """The weights a player's output stands for."""
    return to_sphere(u)


def act(
    config: Config, actor: MLP, obs: Float[Array, "*b o"], *, key: PRNGKeyArray | None = None
) -> Float[Array, "*b k"]:
    """The player's output u; with a key, plus exploration noise. `chord(u)` is the weights."""
    return core.act(config.td3, actor, obs, key=key)


def play(
    config: Config,
    step: Callable[[Any, Array], tuple[Any, TimeStep]],
    behavior: Callable[[Array, Array], Array],
    env_state: Any,
    obs: Float[Array, "o"],
    u: Float[Array, "k"],
) -> tuple[Any, Transition, Shaped[Array, ""], Shaped[Array, ""]]:
    """Follow one chord for t_term steps, or to the end of the episode, whichever is first.

    `step(env_state, action)` is the world, `behavior(obs, w)` the keyboard. Returns the world's
    state, the stretch as one transition of the player, whether the episode ended, and the
    undiscounted reward of the stretch.
    """
    w = chord(u)

    def one_step(carry, _):
        env_state, obs, scale, reward, total, discount, over = carry
        stepped, timestep = step(env_state, behavior(obs, w))
        running = 1.0 - over.astype(jnp.float32)
        hold = lambda old, new: jnp.where(over, old, new)  # noqa: E731
        return (
            jax.tree.map(hold, env_state, stepped),
            hold(obs, timestep.obs),
            hold(scale, scale * config.gamma),
            reward + running * scale * timestep.reward,
            total + running * timestep.reward,
            hold(discount, timestep.discount),
            over | timestep.last,
        ), None

    zero, one = jnp.zeros(()), jnp.ones(())
    start = (env_state, obs, one, zero, zero, one, jnp.zeros((), bool))
    final, _ = jax.lax.scan(one_step, start, length=config.t_term)
    env_state, next_obs, scale, reward, total, discount, over = final
    stretch = Transition(obs, u, reward, scale * discount, next_obs)
    return env_state, stretch, over, total


def update(
    config: Config, state: State, batch: Transition, *, key: PRNGKeyArray
) -> tuple[State, Metrics]:
    """One TD3 step on stored stretches."""
    state, metrics = core.update(config.td3, state, batch, key=key)
    return state, {name.replace("td3/", "player/"): value for name, value in metrics.items()}
