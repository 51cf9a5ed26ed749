"""The words every other module uses: errors, specs, batches, metrics."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import equinox as eqx
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

Metrics: TypeAlias = dict[str, Array]
"""Scalars named `stage/name`, e.g. `laplacian/smoothness`."""


class UserError(Exception):
    """A mistake the user can mend. The message is one line and says what to change."""


@dataclass(frozen=True)
class Spec:
    """The shapes a learner needs to know about a world."""

    obs_dim: int
    """Length of the observation vector."""
    num_actions: int = 0
    """Number of discrete actions; 0 for continuous actions."""
    action_dim: int = 0
    """Length of the continuous action vector in [-1, 1]; 0 for discrete actions."""

    @property
    def discrete(self) -> bool:
        return self.num_actions > 0


class Transition(eqx.Module):
    """One step, or a batch of steps. `discount` is 0 after a true termination, else 1."""

    obs: Float[Array, "*b o"]
    action: Shaped[Array, "..."]
    reward: Float[Array, "*b"]
    discount: Float[Array, "*b"]
    next_obs: Float[Array, "*b o"]


class Pairs(eqx.Module):
    """A batch for a Laplacian objective: neighbours in time, and states to spread apart."""

    obs: Float[Array, "b o"]
    """Reference states s."""
    future_obs: Float[Array, "b o"]
    """States a geometric number of steps after s, inside its episode."""
    negative_obs: Float[Array, "2 b o"]
    """Two batches of other states, for two estimates of the inner products."""


class World(Protocol):
    """A pure-JAX environment: a pytree whose methods act on one state, mapped by the caller."""

    @property
    def spec(self) -> Spec: ...

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Float[Array, "o"]]:
        """A fresh state and its observation."""
        ...

    def step(self, state: Any, action: Any) -> tuple[Any, "TimeStep"]:
        """The next state and what is seen of it."""
        ...


class TimeStep(eqx.Module):
    """What a pure-JAX environment returns from one step."""

    obs: Float[Array, "*b o"]
    """The observation reached by the action, at the episode's end too: never that of a reset."""
    reward: Float[Array, "*b"]
    discount: Float[Array, "*b"]
    """0 where the episode terminated, else 1."""
    last: Bool[Array, "*b"]
    """True at the end of the episode, by termination or by the time limit."""
