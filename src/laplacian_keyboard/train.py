"""The one training loop: jitted scans of updates, with the host in between.

    for each chunk:  state, metrics = scan(update, state, keys of these steps)   on the device
                     check, log, show, checkpoint                               on the host

The key of step t is `fold_in(key, t)`, so a run that is interrupted and resumed sees the same
random numbers and ends bitwise equal to one that is not. Data larger than memory are a `Stream`,
whose window in a chunk depends on the chunk's number alone.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.compiling import keep_threads_apart
from laplacian_keyboard.data.stream import Stream
from laplacian_keyboard.devices import everywhere, line_of, split
from laplacian_keyboard.log import progress
from laplacian_keyboard.types import Metrics, UserError

State = TypeVar("State")
Update = Callable[[State, Any, PRNGKeyArray], tuple[State, Metrics]]
"""`(state, data, key) -> (state, metrics)`: one step, pure. Hashable with equality by content (a
frozen dataclass with `__call__`), so that equal updates share one compilation."""

SECONDS_BETWEEN_CHECKPOINTS = 15.0


def fit(
    update: Update[State],
    state: State,
    data: Any,
    *,
    num_steps: int,
    key: PRNGKeyArray,
    stage: str,
    chunk: int = 500,
    run: RunFolder | None = None,
    evaluate: Callable[[State], dict[str, Any]] | None = None,
    evaluate_every: int = 1,
    quiet: bool = True,
) -> State:
    """`state` after `num_steps` updates on `data`, which may be or contain a `Stream`.

    With a run folder: starts from its checkpoint of this stage if there is one, logs the mean
    metrics of every chunk, and checkpoints at chunk ends. `evaluate(state)` adds its figures to
    what is logged for a chunk, for every chunk that ends at a multiple of `evaluate_every`.

    `key` may be an array of keys, one a seed; then `update` is mapped over seeds by the caller and
    metrics have a leading seed axis. Seeds are split over the devices that the data lie on.
    """
    keep_threads_apart()
    step = 0
    if run is not None and (found := run.load_state(stage, state)) is not None:
        state, step = found
    if run is not None:
        run.forget_after(stage, step)
    saved = time.monotonic()
    with progress(stage, num_steps, quiet=quiet) as bar:
        bar(step)
        while step < num_steps:
            length = min(chunk, num_steps - step)
            resident = _resident(data, step // chunk)
            if line := line_of(resident):
                place = split(line) if key.ndim else everywhere(line)
                state, key = jax.device_put((state, key), place)
            before = state
            state, metrics = run_chunk(update, length, state, resident, jnp.int32(step), key)
            metrics = {name: np.asarray(value) for name, value in metrics.items()}
            try:
                require_finite(metrics, stage, step, step + length, run)
            except UserError:
                if run is not None:
                    run.save_state(stage, step, before)
                raise
            step += length
            if evaluate is not None and step % evaluate_every == 0:
                figures = {name: np.asarray(value) for name, value in evaluate(state).items()}
                metrics = {**figures, **metrics}
            bar(step, {name: float(np.mean(value)) for name, value in metrics.items()})
            if run is not None:
                run.log(stage, step, {name: value.tolist() for name, value in metrics.items()})
                if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS or step == num_steps:
                    run.save_state(stage, step, state)
                    saved = time.monotonic()
    return state


@partial(jax.jit, static_argnums=(0, 1))
def run_chunk(
    update: Update[State], length: int, state: State, data: Any, step: Any, key: PRNGKeyArray
) -> tuple[State, Metrics]:
    """`length` updates from step number `step` on, and the mean of their metrics."""

    def one_step(state: State, index: Any) -> tuple[State, Metrics]:
        return update(state, data, step_key(key, step + index))

    state, metrics = jax.lax.scan(one_step, state, jnp.arange(length, dtype=jnp.int32))
    return state, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)


def _resident(data: Any, chunk: int) -> Any:
    """The data of a chunk: each stream is replaced by its window."""
    is_stream = lambda x: isinstance(x, Stream)  # noqa: E731
    return jax.tree.map(lambda x: x.at(chunk) if is_stream(x) else x, data, is_leaf=is_stream)


def step_key(key: PRNGKeyArray, step: Any) -> PRNGKeyArray:
    """The key of one step, for one seed or an array of seeds."""
    fold = jax.random.fold_in
    return fold(key, step) if key.ndim == 0 else jax.vmap(fold, in_axes=(0, None))(key, step)


def require_finite(
    metrics: dict[str, np.ndarray], stage: str, start: int, end: int, run: RunFolder | None
) -> None:
    """Stop where training has diverged, naming the first quantity that is not finite."""
    for name, value in metrics.items():
        if not np.all(np.isfinite(value)):
            kept = f"; the last good state, step {start}, is kept in {run.path}" if run else ""
            raise UserError(
                f"training diverged: {name} is {_first_bad(value)} in stage {stage} between steps "
                f"{start} and {end}{kept}. Try a smaller step size"
            )


def _first_bad(value: np.ndarray) -> float:
    flat = np.ravel(value)
    return next(float(x) for x in flat if not math.isfinite(x))
