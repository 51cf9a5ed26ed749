"""Experience on the device, and sampling from it: pure functions, jitted by the caller.

Rows follow the ExORL layout: an episode of T steps has T + 1 rows, row 0 being the reset; row t
holds the observation after step t, the action that led to it and the discount there. A transition
is named by the row it starts from. The rows never say where an episode ends; the index arrays do,
and every sampler goes through them, so no sample crosses an episode.
"""

from typing import Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from laplacian_keyboard.types import Pairs, Spec, Transition, UserError

Negatives: TypeAlias = Literal["independent", "same-episode"]


class Experience(eqx.Module):
    """Episodes as arrays, ready for jitted sampling. Observations keep the type they came in
    (one-hot observations fit in uint8) and become float32 when sampled."""

    obs: Shaped[Array, "rows o"]
    action: Shaped[Array, "rows ..."]
    discount: Float[Array, "rows"]
    start: Int[Array, "n"]
    """The row each transition starts from."""
    last: Int[Array, "n"]
    """The last row of that transition's episode."""
    first: Int[Array, "n"]
    """The first row of that transition's episode."""
    phi: Float[Array, "rows k"] | None = None
    """Features of every row, where a basis that no longer changes has been tabulated."""
    num_actions: int = eqx.field(static=True, default=0)
    """Number of discrete actions; 0 for continuous actions."""
    batch: NamedSharding | None = eqx.field(static=True, default=None)
    """How samples are laid over several devices, if they are."""

    @classmethod
    def from_episodes(
        cls, obs: np.ndarray, action: np.ndarray, discount: np.ndarray, *, num_actions: int = 0
    ) -> "Experience":
        """From equally long episodes: `obs (e, T+1, o)`, `action (e, T+1, ...)`,
        `discount (e, T+1)`."""
        lengths = np.full(obs.shape[0], obs.shape[1] - 1)
        flatten = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        return cls.from_rows(
            flatten(obs), flatten(action), flatten(discount), lengths, num_actions=num_actions
        )

    @classmethod
    def from_rows(
        cls,
        obs: np.ndarray,
        action: np.ndarray,
        discount: np.ndarray,
        lengths: np.ndarray,
        *,
        num_actions: int = 0,
    ) -> "Experience":
        """From rows of episodes laid end to end; `lengths` counts the steps of each episode."""
        lengths = np.asarray(lengths, np.int64)
        if not len(lengths) or lengths.min() < 1:
            raise UserError("experience needs at least one episode, each of at least one step")
        if len(obs) != np.sum(lengths + 1):
            raise UserError(
                f"{len(obs)} rows do not fit episodes of {np.sum(lengths)} steps in total: an "
                "episode of T steps has T + 1 rows"
            )
        start, last, first = index_transitions(lengths)
        return cls(
            obs=jnp.asarray(obs),
            action=jnp.asarray(action),
            discount=jnp.asarray(discount, jnp.float32),
            start=jnp.asarray(start),
            last=jnp.asarray(last),
            first=jnp.asarray(first),
            num_actions=num_actions,
        )

    @property
    def num_transitions(self) -> int:
        return self.start.shape[0]

    @property
    def spec(self) -> Spec:
        action_dim = 0 if self.num_actions else self.action.shape[-1]
        return Spec(self.obs.shape[-1], self.num_actions, action_dim)


def index_transitions(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where transitions lie in the rows of episodes of these lengths: the row each starts from,
    and the last and the first row of its episode."""
    first = np.cumsum(lengths + 1) - lengths - 1
    step = np.arange(np.sum(lengths)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    start = np.repeat(first, lengths) + step
    last = np.repeat(first + lengths, lengths)
    return start.astype(np.int32), last.astype(np.int32), np.repeat(first, lengths).astype(np.int32)


def draw_transitions(data: Experience, count: int, *, key: PRNGKeyArray) -> Int[Array, "b"]:
    """Numbers of random transitions; devices that share a batch share them."""
    index = jax.random.randint(key, (count,), 0, data.num_transitions)
    if data.batch is None or count % data.batch.mesh.size:
        return index
    return jax.lax.with_sharding_constraint(index, data.batch)


def sample_observations(data: Experience, count: int, *, key: PRNGKeyArray) -> Float[Array, "b o"]:
    """States reached by random transitions."""
    return rows_of(data, draw_starts(data, count, key=key) + 1)


def draw_starts(data: Experience, count: int, *, key: PRNGKeyArray) -> Int[Array, "b"]:
    """The rows that random transitions start from."""
    return data.start[draw_transitions(data, count, key=key)]


def transitions_at(data: Experience, start: Int[Array, "b"]) -> Transition:
    """The transitions that start from these rows; the dataset is reward-free, so their reward is
    0."""
    return Transition(
        obs=rows_of(data, start),
        action=data.action[start + 1],
        reward=jnp.zeros(start.shape),
        discount=data.discount[start + 1],
        next_obs=rows_of(data, start + 1),
    )


def sample_transitions(data: Experience, count: int, *, key: PRNGKeyArray) -> Transition:
    """Random transitions."""
    return transitions_at(data, draw_starts(data, count, key=key))


def sample_pairs(
    data: Experience,
    count: int,
    *,
    discount: float,
    negatives: Negatives,
    num_negatives: int,
    key: PRNGKeyArray,
) -> Pairs:
    """States, states shortly after them, and `num_negatives` batches of other states.

    The gap is geometric with parameter `discount`, truncated and renormalised to what is left of
    the episode. Negatives are drawn from the whole dataset, or, as in the paper, from the episode
    of the reference state.
    """
    key_start, key_gap, key_negative = jax.random.split(key, 3)
    index = draw_transitions(data, count, key=key_start)
    start, last, first = data.start[index], data.last[index], data.first[index]
    gap = truncated_geometric(discount, last - start, key=key_gap)
    if negatives == "same-episode":
        fraction = jax.random.uniform(key_negative, (num_negatives, count))
        rows = first + jnp.floor(fraction * (last - first + 1)).astype(jnp.int32)
        negative = rows_of(data, jnp.minimum(rows, last))
    else:
        flat = sample_observations(data, num_negatives * count, key=key_negative)
        negative = flat.reshape(num_negatives, count, -1)
    return Pairs(rows_of(data, start), rows_of(data, start + gap), negative)


def truncated_geometric(
    discount: float, longest: Int[Array, "b"], *, key: PRNGKeyArray
) -> Int[Array, "b"]:
    """Gaps 1, 2, ..., `longest` with probability proportional to `discount ** gap`."""
    if discount == 0.0:
        return jnp.ones_like(longest)
    uniform = jax.random.uniform(key, longest.shape)
    if discount == 1.0:
        extra = jnp.floor(uniform * longest)
    else:
        within = 1.0 - discount ** longest.astype(jnp.float32)
        extra = jnp.floor(jnp.log1p(-within * uniform) / jnp.log(discount))
    return 1 + jnp.clip(extra.astype(jnp.int32), 0, longest - 1)


def rows_of(data: Experience, rows: Int[Array, "*b"]) -> Float[Array, "*b o"]:
    """Observations in these rows."""
    return data.obs[rows].astype(jnp.float32)


class Replay(eqx.Module):
    """A ring buffer of transitions on the device."""

    storage: Transition
    size: Int[Array, ""]
    """Transitions stored so far, at most the capacity."""
    head: Int[Array, ""]
    """Where the next one goes."""

    @classmethod
    def create(cls, example: Transition, capacity: int) -> "Replay":
        """An empty buffer for transitions shaped like `example` (one transition)."""
        zeros = lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.result_type(x))  # noqa: E731
        return cls(jax.tree.map(zeros, example), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def capacity(self) -> int:
        return self.storage.reward.shape[0]

    def add(self, batch: Transition, kept: Bool[Array, "b"] | None = None) -> "Replay":
        """The buffer with a batch added, or its entries that are `kept`, the oldest overwritten."""
        if kept is None:
            count = batch.reward.shape[0]
            slots = (self.head + jnp.arange(count)) % self.capacity
        else:
            count = jnp.sum(kept)
            slots = (self.head + jnp.cumsum(kept) - 1) % self.capacity
            slots = jnp.where(kept, slots, self.capacity)  # past the end: not written
        write = lambda old, new: old.at[slots].set(new, mode="drop")  # noqa: E731
        storage = jax.tree.map(write, self.storage, batch)
        return Replay(
            storage,
            jnp.minimum(self.size + count, self.capacity),
            (self.head + count) % self.capacity,
        )

    def sample(self, count: int, *, key: PRNGKeyArray) -> Transition:
        index = jax.random.randint(key, (count,), 0, jnp.maximum(self.size, 1))
        return jax.tree.map(lambda x: x[index], self.storage)
