"""Babbling: open-loop movement, nothing learned.

For each episode at random: sines of one common period (some actuators at a multiple of it) with
random amplitudes, phases and offsets, or levels held for random times; plus correlated
(Ornstein-Uhlenbeck) noise. Coordinated movement reaches states that independent noise averages
away.

    a_t = clip(wave_t + n_t, -1, 1),   n_t = (1 - theta) n_{t-1} + sigma eps_t
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray


@dataclass(frozen=True)
class Config:
    """The kinds of movement; periods and times in environment steps."""

    period: tuple[float, float] = (10.0, 80.0)
    """Shortest and longest common period, drawn on a log scale."""
    multiples: tuple[float, ...] = (1.0, 1.0, 1.0, 2.0)
    """Periods of single actuators, in common periods, equally likely."""
    amplitude: float = 2.0
    """Largest amplitude; beyond 1 the sine is clipped towards a square wave."""
    offset: float = 0.5
    """Largest offset."""
    hold_fraction: float = 0.2
    """Fraction of episodes that hold levels instead of swinging."""
    hold: float = 12.0
    """Mean time a level is held."""
    theta: float = 0.1
    """Rate at which the noise forgets."""
    sigma: float = 0.1
    """Standard deviation of the noise's steps."""


class State(eqx.Module):
    """One episode's movement."""

    period: Float[Array, "a"]
    amplitude: Float[Array, "a"]
    phase: Float[Array, "a"]
    offset: Float[Array, "a"]
    holds: Float[Array, ""]
    level: Float[Array, "a"]
    noise: Float[Array, "a"]
    time: Float[Array, ""]


def init(config: Config, action_dim: int, *, key: PRNGKeyArray) -> State:
    """A new episode's movement."""
    keys = jax.random.split(key, 7)
    uniform = lambda key, low, high: jax.random.uniform(  # noqa: E731
        key, (action_dim,), minval=low, maxval=high
    )
    shortest, longest = jnp.log(jnp.array(config.period))
    common = jnp.exp(jax.random.uniform(keys[0], minval=shortest, maxval=longest))
    multiples = jnp.array(config.multiples)
    return State(
        period=common * jax.random.choice(keys[6], multiples, (action_dim,)),
        amplitude=uniform(keys[1], 0.0, config.amplitude),
        phase=uniform(keys[2], 0.0, 2 * jnp.pi),
        offset=uniform(keys[3], -config.offset, config.offset),
        holds=jax.random.bernoulli(keys[4], config.hold_fraction).astype(jnp.float32),
        level=uniform(keys[5], -1.0, 1.0),
        noise=jnp.zeros(action_dim),
        time=jnp.zeros(()),
    )


def act(config: Config, state: State, *, key: PRNGKeyArray) -> tuple[State, Float[Array, "a"]]:
    """The next action of the movement."""
    key_switch, key_level, key_noise = jax.random.split(key, 3)
    shape = state.level.shape
    switch = jax.random.bernoulli(key_switch, 1.0 / config.hold, shape)
    fresh = jax.random.uniform(key_level, shape, minval=-1.0, maxval=1.0)
    level = jnp.where(switch, fresh, state.level)
    sine = state.offset + state.amplitude * jnp.sin(
        2 * jnp.pi * state.time / state.period + state.phase
    )
    noise = (1 - config.theta) * state.noise + config.sigma * jax.random.normal(key_noise, shape)
    wave = state.holds * level + (1 - state.holds) * sine
    state = eqx.tree_at(lambda s: (s.level, s.noise, s.time), state, (level, noise, state.time + 1))
    return state, jnp.clip(wave + noise, -1.0, 1.0)
