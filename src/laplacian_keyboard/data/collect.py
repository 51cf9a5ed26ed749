"""Gathering reward-free experience in pure-JAX worlds."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray, UInt8

from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.types import World


@partial(jax.jit, static_argnums=1)
def random_walks(
    world: World, length: int, key: PRNGKeyArray
) -> tuple[UInt8[Array, "e t o"], Int[Array, "e t"]]:
    """Observations (the reset first) and actions (a zero first) of uniformly random episodes, one
    for each key."""

    def episode(key: PRNGKeyArray):
        key_reset, key_action = jax.random.split(key)
        state, first_obs = world.reset(key_reset)
        actions = jax.random.randint(key_action, (length,), 0, world.spec.num_actions)

        def step(state, action):
            state, timestep = world.step(state, action)
            return state, timestep.obs

        _, obs = jax.lax.scan(step, state, actions)
        obs = jnp.concatenate([first_obs[None], obs]).astype(jnp.uint8)
        return obs, jnp.concatenate([jnp.zeros(1, actions.dtype), actions])

    return jax.vmap(episode)(key)


def episode_keys(seed: int, start: int, stop: int) -> PRNGKeyArray:
    """The keys of episodes `start` to `stop`: an episode depends on its number alone, so that an
    interrupted collection continues with the same episodes."""
    return jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(start, stop))


def collect_random_walks(world: World, *, steps: int, length: int, seed: int) -> Dataset:
    """At least `steps` steps of a uniformly random policy in memory, in episodes of `length` steps
    that start anywhere. Nothing about a task is read: give a world without goals."""
    episodes = -(-steps // length)
    observation, action = random_walks(world, length, episode_keys(seed, 0, episodes))
    return Dataset.from_arrays(
        np.asarray(observation), np.asarray(action), num_actions=world.spec.num_actions
    )
