"""Frozen random features: the basis that learns nothing.

A random network of the observation, scaled to the sphere. What behaviors over it can do is what
needs no learned basis; every other basis should do better.

| symbol | here | meaning |
|---|---|---|
| phi | `phi` | k outputs of an untrained network, scaled to length sqrt(k) |
"""

from dataclasses import dataclass

import equinox as eqx
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from laplacian_keyboard.bases.network import FeatureNet, on_sphere
from laplacian_keyboard.types import Metrics, Pairs, Spec


@dataclass(frozen=True)
class Config:
    """The shape of a random basis. Defaults: controllable_agent's."""

    k: int
    """Number of features."""
    hidden: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers."""


class State(eqx.Module):
    """The network; it never changes."""

    encoder: FeatureNet


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """A random network for the shapes of `spec`."""
    return State(FeatureNet(spec.obs_dim, config.hidden, config.k, key=key))


def encoder(state: State) -> FeatureNet:
    """All that `phi` needs."""
    return state.encoder


def phi(config: Config, encoder: FeatureNet, obs: Float[Array, "*b o"]) -> Float[Array, "*b k"]:
    """The basis: features of length sqrt(k)."""
    return on_sphere(encoder(obs))


def update(
    config: Config, state: State, batch: Pairs, *, key: PRNGKeyArray | None = None
) -> tuple[State, Metrics]:
    """Nothing to learn."""
    return state, {}
