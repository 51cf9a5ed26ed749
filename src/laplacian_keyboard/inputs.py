"""What networks see of an observation: angles as sine and cosine, everything on one scale.

An angle that turns without bound, such as the cheetah's pitch, is a different number after every
turn of the same pose. The rest is shifted and scaled by the dataset's mean and deviation.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

LIMIT = 10.0
"""Scaled entries stay within plus and minus this: rare spikes (contact forces) are far above."""
SMALLEST_SCALE = 1e-3
CHUNK_ROWS = 1 << 18


class Inputs(eqx.Module):
    """How observations become inputs; stored with the keyboard."""

    mean: Float[Array, "i"]
    scale: Float[Array, "i"]
    limit: Float[Array, ""]

    @classmethod
    def plain(cls, obs_dim: int, angles: tuple[int, ...] = ()) -> "Inputs":
        """Observations as they are, angles apart."""
        size = obs_dim + len(angles)
        return cls(jnp.zeros(size), jnp.ones(size), jnp.asarray(jnp.inf))

    @classmethod
    def of_data(cls, obs: np.ndarray, angles: tuple[int, ...] = ()) -> "Inputs":
        """Scaled by the mean and deviation of observations `(n, o)`; sines and cosines are not."""
        total, squares = np.zeros(obs.shape[-1] + len(angles)), 0.0
        for start in range(0, len(obs), CHUNK_ROWS):
            rows = unwind(np.asarray(obs[start : start + CHUNK_ROWS], np.float64), angles, np)
            total, squares = total + rows.sum(axis=0), squares + np.square(rows).sum(axis=0)
        mean = total / len(obs)
        scale = np.sqrt(np.maximum(squares / len(obs) - np.square(mean), 0.0))
        # An entry that never changes carries nothing; it must not blow up where it does.
        scale = np.where(scale < SMALLEST_SCALE, 1.0, scale)
        turns = slice(obs.shape[-1] - len(angles), None)
        mean[turns], scale[turns] = 0.0, 1.0
        return cls(*(jnp.asarray(x, jnp.float32) for x in (mean, scale, LIMIT)))

    def __call__(
        self, obs: Float[Array, "*b o"], angles: tuple[int, ...] = ()
    ) -> Float[Array, "*b i"]:
        scaled = (unwind(obs, angles, jnp) - self.mean) / self.scale
        return jnp.clip(scaled, -self.limit, self.limit)

    def of_rows(self, obs: np.ndarray, angles: tuple[int, ...] = ()) -> np.ndarray:
        """The same for the rows of a dataset, a chunk at a time."""
        prepared = np.empty((len(obs), len(self.mean)), np.float32)
        for start in range(0, len(obs), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            prepared[rows] = self(jnp.asarray(obs[rows], jnp.float32), angles)
        return prepared


def unwind(obs, angles: tuple[int, ...], xp):
    """Observations with the entries `angles` moved to the end as sines, then cosines."""
    if not angles:
        return obs
    index = list(angles)
    turning = obs[..., index]
    rest = xp.delete(obs, np.array(index), axis=-1)
    return xp.concatenate([rest, xp.sin(turning), xp.cos(turning)], axis=-1)
