"""Steps with a goal: a state, the next one, and a state to get to."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from laplacian_keyboard.data.replay import (
    Experience,
    draw_transitions,
    sample_observations,
    truncated_geometric,
)
from laplacian_keyboard.types import Pairs


def sample_goals(
    data: Experience,
    count: int,
    *,
    future_discount: float,
    random_fraction: float,
    key: PRNGKeyArray,
) -> Pairs:
    """Random transitions as pairs (`obs`, and the next state as `future_obs`); the one batch of
    `negative_obs` holds the goals: with probability `random_fraction` the state any transition
    reached, else one of the same episode, a geometric number of steps after `obs`."""
    key_start, key_gap, key_random, key_choice = jax.random.split(key, 4)
    index = draw_transitions(data, count, key=key_start)
    start, last = data.start[index], data.last[index]
    gap = truncated_geometric(future_discount, last - start, key=key_gap)
    obs, next_obs, later = data.obs[jnp.stack([start, start + 1, start + gap])].astype(jnp.float32)
    anywhere = sample_observations(data, count, key=key_random)
    use_random = jax.random.bernoulli(key_choice, random_fraction, (count, 1))
    return Pairs(obs, next_obs, jnp.where(use_random, anywhere, later)[None])
