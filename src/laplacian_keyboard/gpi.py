"""Generalised policy evaluation and improvement: a chord played on finitely many behaviors.

A keyboard of universal successor features has a behavior for every chord. Here a chord w is played
with n of them only: each is evaluated on the task w, and the action is the best that any promises.

    psi_i(s, a) = psi(s, a, z_i)        the behaviors z_1 to z_n, in one pass of the network
    q_i(s, a)   = psi_i(s, a) . w       evaluation (GPE)
    a           = argmax_a max_i q_i    improvement (GPI)

With exact psi the result earns at least as much on w as every one of the behaviors, from every
state (Barreto et al. 2017, theorem 1).

| symbol | here | meaning |
|---|---|---|
| z_i | behaviors | chords of the behaviors; the paper takes the 2k keys +-e_i (`signed_keys`) |
| w | w | the task, or the player's chord; only its direction matters |

`act` has the signature of a behavior, so the player plays through it unchanged.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor.weights import to_sphere


def signed_keys(k: int) -> Float[Array, "n k"]:
    """The 2k chords e_1 to e_k and -e_1 to -e_k, at the radius the behaviors were trained on."""
    return to_sphere(jnp.concatenate([jnp.eye(k), -jnp.eye(k)]))


def successor_features(
    network: MLP, obs: Float[Array, "*b o"], behaviors: Float[Array, "n k"]
) -> Float[Array, "*b n a k"]:
    """psi of every action under each of the behaviors, all in one batch."""
    first, size = network.layers[0], obs.shape[-1]
    # The first layer is linear: what it makes of an observation serves all behaviors.
    of_obs, of_behaviors = obs @ first.weight[:size], behaviors @ first.weight[size:]
    outputs = network.after_first(of_obs[..., None, :] + of_behaviors + first.bias)
    return outputs.reshape(*outputs.shape[:-1], -1, behaviors.shape[-1])


def evaluate(psi: Float[Array, "*b n a k"], w: Float[Array, "*b k"]) -> Float[Array, "*b n a"]:
    """What each behavior would earn on the task w after each action (GPE)."""
    return jnp.einsum("...nak,...k->...na", psi, w)


def improve(q: Float[Array, "*b n a"]) -> Int[Array, "*b"]:
    """The action that promises most under any of the behaviors (GPI)."""
    return jnp.argmax(jnp.max(q, axis=-2), axis=-1)


def act(
    network: MLP,
    obs: Float[Array, "*b o"],
    w: Float[Array, "*b k"],
    *,
    behaviors: Float[Array, "n k"] | None = None,
    key: PRNGKeyArray | None = None,
) -> Int[Array, "*b"]:
    """The action for chord w on the given behaviors; None is the signed keys.

    The choice is deterministic; `key` is not used.
    """
    behaviors = signed_keys(w.shape[-1]) if behaviors is None else behaviors
    return improve(evaluate(successor_features(network, obs, behaviors), w))
