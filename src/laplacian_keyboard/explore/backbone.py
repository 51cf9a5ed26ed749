"""What the learned explorers share: URLB's agent on our TD3 core, and running moments."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from laplacian_keyboard.baselines import td3
from laplacian_keyboard.types import Metrics, Transition

BACKBONE = td3.Config(
    hidden=(1024, 1024),
    layer_norm=True,
    batch_size=1024,
    actor_step_size=1e-4,
    critic_step_size=1e-4,
    tau=0.01,
    policy_delay=1,
    policy_noise=0.2,
    policy_noise_clip=0.3,
    exploration_noise=0.2,
)
"""URLB's settings. Its networks differ in detail: one trunk under both critics, tanh after the
first normalisation, and no slow copy of the actor."""


class RunningMoments(eqx.Module):
    """Mean and variance of everything seen so far."""

    mean: Float[Array, ""]
    variance: Float[Array, ""]
    count: Float[Array, ""]

    @classmethod
    def create(cls) -> "RunningMoments":
        return cls(jnp.zeros(()), jnp.ones(()), jnp.asarray(1e-4))

    def add(self, values: Float[Array, "..."]) -> "RunningMoments":
        """The moments with a batch of values added (parallel variance formula)."""
        count = float(values.size)
        total = self.count + count
        delta = jnp.mean(values) - self.mean
        spread = self.variance * self.count + jnp.var(values) * count
        spread = spread + jnp.square(delta) * self.count * count / total
        return RunningMoments(self.mean + delta * count / total, spread / total, total)

    @property
    def std(self) -> Float[Array, ""]:
        return jnp.sqrt(self.variance)


def learn(
    config: td3.Config,
    agent: td3.State,
    batch: Transition,
    reward: Float[Array, "b"],
    *,
    key: PRNGKeyArray,
) -> tuple[td3.State, Metrics]:
    """One TD3 step on a batch whose reward is the explorer's own."""
    agent, metrics = td3.update(config, agent, dataclasses.replace(batch, reward=reward), key=key)
    return agent, {"explore/value": metrics["td3/value"], "explore/reward": jnp.mean(reward)}


def standardise(obs: Float[Array, "b o"], clip: float = 5.0) -> Float[Array, "b o"]:
    """Observations with the batch's mean and variance taken out, within plus and minus `clip`."""
    scale = jnp.sqrt(jnp.var(obs, axis=0) + 1e-5)
    return jnp.clip((obs - jnp.mean(obs, axis=0)) / scale, -clip, clip)


def unit(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Vectors scaled to length one."""
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-8)


def smallest(values: Float[Array, "b n"], count: int) -> Float[Array, "b c"]:
    """The `count` smallest entries of every row, ascending, equal ones repeated.

    Each pass takes the minimum with all its copies. On the CPU that is far faster than
    `jax.lax.top_k`, which sorts whole rows, and than `argmin`, which is not vectorised.
    """
    minima, copies = [], []
    for _ in range(count):
        minimum = jnp.min(values, axis=-1, keepdims=True)
        is_minimum = values == minimum
        minima.append(minimum[..., 0])
        copies.append(jnp.sum(is_minimum, axis=-1))
        values = jnp.where(is_minimum, jnp.inf, values)
    up_to = jnp.cumsum(jnp.stack(copies, axis=-1), axis=-1)
    # Entry i is the first minimum that, with those before it, covers more than i entries.
    place = jnp.sum(up_to[..., None, :] <= jnp.arange(count)[:, None], axis=-1)
    return jnp.take_along_axis(jnp.stack(minima, axis=-1), place, axis=-1)
