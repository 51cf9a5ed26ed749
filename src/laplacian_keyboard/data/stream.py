"""Experience larger than memory: a window of it on the device, which moves on with every chunk.

    the row     every pass over the episodes in an order of its own, laid end to end without end
    block j     transitions j n to (j + 1) n of that row, gathered by a thread while others train
    window i    blocks i to i + slots - 1; block j lies in slot j modulo slots

So window i depends on i alone, the next one differs in one block, every pass shows every transition
once, and all windows have one shape. Where a block ends inside an episode, its two parts count as
two episodes; episodes of one length are not cut, unless they are longer than a block may be.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.data.replay import Experience, index_transitions
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.types import Spec, UserError

DRAWN_A_CHUNK = 1 << 17
"""Transitions of a block, at most: about what 500 updates with batches of 256 draw, so that each
transition is drawn about once while it is in the window, whatever the window's size."""
FEWEST_BLOCKS = 10
"""Blocks that memory holds at least: all but those in hand make up the window."""
BLOCKS_IN_HAND = 3
"""The block that goes into the window, and the next one as it is read and as it is prepared."""
INDEX_BYTES = 12
"""Start, first and last row of a transition."""
SHARE_OF_MEMORY = 0.25


@dataclass(frozen=True)
class Layout:
    """The shape of a window."""

    block: int
    """Transitions of a block."""
    rows: int
    """Rows kept for a block: some are unused where others would have more episodes."""
    slots: int
    """Blocks of a window."""


def default_memory() -> float:
    """Bytes for training data if the user does not say: a quarter of what the machine has, or its
    accelerator if that has less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if statistics := jax.devices()[0].memory_stats():
        found.append(statistics["bytes_limit"])
    return SHARE_OF_MEMORY * min(found)


def layout_of(dataset: Dataset, *, obs_bytes: int, memory: float | None = None) -> Layout | None:
    """How a window of the dataset fits into `memory` bytes; None if the whole dataset does.
    `obs_bytes` is the size of a prepared observation with its features."""
    memory = default_memory() if memory is None else memory
    row_bytes = obs_bytes + dataset.action.dtype.itemsize * int(np.prod(dataset.action.shape[1:]))
    row_bytes += 4  # the discount
    lengths, total = np.asarray(dataset.lengths, np.int64), dataset.num_transitions
    if row_bytes * (total + len(lengths)) + INDEX_BYTES * total <= memory:
        return None
    # A whole number of episodes where they are equally long.
    unit = int(np.gcd.reduce(lengths))
    most = int(min(DRAWN_A_CHUNK, memory / (row_bytes + INDEX_BYTES) / FEWEST_BLOCKS))
    block = most // unit * unit or most
    rows = block + _most_pieces(lengths, block)
    slots = int(memory // (rows * row_bytes + block * INDEX_BYTES)) - BLOCKS_IN_HAND
    if not block or slots < 2:
        raise UserError(f"a memory of {memory / 1e9:.3g} GB is too little to learn in; give more")
    return Layout(block, rows, slots)


def _most_pieces(lengths: np.ndarray, block: int) -> int:
    """Parts of episodes in a block at most: the shortest of two passes, and a part at each end."""
    shortest = np.cumsum(np.repeat(np.sort(lengths), 2))
    return int(np.searchsorted(shortest, block, side="right")) + 2


def _order(lengths: np.ndarray, seed: int, turn: int) -> tuple[np.ndarray, np.ndarray]:
    """The episodes in the order of a pass, and where each ends in it."""
    episodes = np.random.default_rng([seed, turn]).permutation(len(lengths))
    return episodes, np.cumsum(lengths[episodes])


class Stream:
    """A dataset as a sequence of windows."""

    def __init__(
        self,
        dataset: Dataset,
        layout: Layout,
        inputs: Inputs | None = None,
        angles: tuple[int, ...] = (),
        *,
        seed: int = 0,
        everywhere: NamedSharding | None = None,
        batch: NamedSharding | None = None,
    ):
        self.dataset, self.layout = dataset, layout
        self._inputs, self._angles = inputs, angles
        self._everywhere, self._batch = everywhere, batch
        self._first = dataset.ends - dataset.lengths - 1
        self._order = lru_cache(maxsize=2)(partial(_order, dataset.lengths, seed))
        self._reader = ThreadPoolExecutor(1, "stream")
        self._coming: tuple[int, Future[Experience]] | None = None
        self._number = -1
        self._window: Experience | None = None
        self._phi: np.ndarray | None = None

    def tabulate(self, phi: Callable[[np.ndarray], np.ndarray], k: int) -> None:
        """Windows from now on hold `phi` of their rows, computed here for the whole dataset and
        kept in a file without a name, beside the dataset where one can be written."""
        count = len(self.dataset.observation)
        with _scratch_file(self.dataset.path) as file:  # the memory map keeps it
            table = np.memmap(file, np.float32, "w+", shape=(count, k))
        for begin in range(0, count, self.layout.rows):
            part = slice(begin, min(begin + self.layout.rows, count))
            table[part] = phi(self._prepare(self.dataset.observation[part]))
        self._coming = self._window = None
        self._phi = table

    @property
    def spec(self) -> Spec:
        """Of prepared observations, as `Experience.spec`."""
        width = self._prepare(self.dataset.observation[:1]).shape[1]
        return Spec(width, self.dataset.spec.num_actions, self.dataset.spec.action_dim)

    def at(self, number: int) -> Experience:
        """Window `number`. It is made from the window before, which is then gone."""
        slots, missing = self.layout.slots, [number + self.layout.slots - 1]
        if self._window is None or number not in (self._number, self._number + 1):
            self._window, missing = None, list(range(number, number + slots))
        elif number == self._number:
            missing = []
        for block in missing:
            read = self._take(block)
            window = self._empty(read) if self._window is None else self._window
            self._window = _put(window, read, jnp.int32(block % slots))
        self._number = number
        assert self._window is not None
        return self._window

    def pieces(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """The parts of episodes that a block holds: the row of the dataset each starts from, and
        its steps."""
        rows, steps = [], []
        begin, end = block * self.layout.block, (block + 1) * self.layout.block
        total = self.dataset.num_transitions
        for turn in range(begin // total, (end - 1) // total + 1):
            episodes, ends = self._order(turn)
            starts = ends - self.dataset.lengths[episodes]
            low, high = np.clip([begin - turn * total, end - turn * total], 0, total)
            here = slice(np.searchsorted(ends, low, "right"), np.searchsorted(starts, high))
            skipped = np.maximum(low - starts[here], 0)
            rows.append(self._first[episodes[here]] + skipped)
            steps.append(np.minimum(ends[here], high) - starts[here] - skipped)
        return np.concatenate(rows), np.concatenate(steps)

    def _take(self, block: int) -> Experience:
        """A block, gathered beforehand if it is the one after the last; then the next is begun."""
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == block:
            found = coming[1].result()
        else:
            found = self._reader.submit(self._read, block).result()
        self._coming = block + 1, self._reader.submit(self._read, block + 1)
        return found

    def _read(self, block: int) -> Experience:
        """A block by itself, its rows filled up with the dataset's first."""
        first, steps = self.pieces(block)
        rows = np.zeros(self.layout.rows, np.int64)
        used = int(np.sum(steps + 1))
        place = np.cumsum(steps + 1) - steps - 1
        rows[:used] = np.arange(used) + np.repeat(first - place, steps + 1)
        start, last, first = index_transitions(steps)
        data = self.dataset
        return Experience(
            obs=jnp.asarray(self._prepare(data.observation[rows])),
            action=jnp.asarray(data.action[rows]),
            discount=jnp.asarray(data.discount[rows], jnp.float32),
            start=jnp.asarray(start),
            last=jnp.asarray(last),
            first=jnp.asarray(first),
            phi=None if self._phi is None else jnp.asarray(self._phi[rows]),
            num_actions=data.num_actions,
            batch=self._batch,
        )

    def _prepare(self, rows: np.ndarray) -> np.ndarray:
        return rows if self._inputs is None else self._inputs.of_rows(rows, self._angles)

    def _empty(self, block: Experience) -> Experience:
        """A window of such blocks, to be filled."""

        def zeros(x: jax.Array) -> jax.Array:
            shape = (self.layout.slots * x.shape[0], *x.shape[1:])
            return jnp.zeros(shape, x.dtype, device=self._everywhere)

        return jax.tree.map(zeros, block)


def _scratch_file(folder: Path | None) -> Any:
    """Temporary folders may lie in memory, which this is to spare."""
    try:
        return TemporaryFile(dir=folder)
    except OSError:
        return TemporaryFile()


@partial(jax.jit, donate_argnums=0)
def _put(window: Experience, block: Experience, slot: jax.Array) -> Experience:
    """The window with a block in one of its slots, in the same memory."""
    shift = slot * block.obs.shape[0]
    index = lambda e: (e.start, e.last, e.first)  # noqa: E731
    block = eqx.tree_at(index, block, replace_fn=lambda rows: rows + shift)

    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new, slot * new.shape[0], axis=0)

    return jax.tree.map(write, window, block)
