"""Several seeds at once: players side by side in one loop, or a share of them on every core
(`player_shares`, as `lk compose --seeds` has it); keyboards in one mapped update, or in processes
with a core each (`successor_apart`), see `seeds`.

A figure of N would mean that nothing is gained over one after the other, 1 that all but one are
free. What it takes to start processes and to compile is left out of all of them.
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from laplacian_keyboard import presets
from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.bench.loops import loop_of_players
from laplacian_keyboard.compiling import THREADS, run_where_called
from laplacian_keyboard.parallel import environment, in_processes, own_cores
from laplacian_keyboard.successor import continuous
from laplacian_keyboard.types import Spec, Transition

DOMAIN, TASK, K = "cheetah", "run", 10
COUNTS = (1, 2, 4, 8)
STEPS, UPDATES, REPEATS = 1_000, 20, 3
SECONDS_APART = 6.0
"""How long processes measure beside each other."""


def run() -> dict[str, Any]:
    """Time of N seeds together over the time of one."""
    # As in `lk compose`, which leaves the other cores to the environments.
    context = multiprocessing.get_context("spawn")
    with environment({THREADS: "1"}), ProcessPoolExecutor(1, context) as pool:
        players = pool.submit(rates_of_players).result()
    learners = median_rates({str(count): successor(count) for count in COUNTS}, repeats=REPEATS)
    cores = len(own_cores())
    shared = {
        str(count): statistics.mean(in_processes(rate, [(player, count // cores)] * cores))
        for count in COUNTS
        if count % cores == 0
    }
    alone = statistics.mean(in_processes(rate, [(successor, 1)] * cores))
    apart = {count: alone / math.ceil(int(count) / cores) for count in learners}
    return {
        "benchmark": "seeds",
        "ratio": "time of N seeds together over the time of one, the same work for each",
        **machine(),
        "player": _figures(players, players["1"]),
        "player_shares": _figures(shared, players["1"]),
        "successor": _figures(learners, learners["1"]),
        "successor_apart": _figures(apart, learners["1"]),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    return [
        f"{name:<16} {count:>2} seeds take {ratio:.2f} times as long as one"
        for name in ("player", "player_shares", "successor", "successor_apart")
        for count, ratio in result[name]["time_over_one"].items()
    ]


def _figures(rates: dict[str, float], one: float) -> dict[str, Any]:
    """Rates count the steps of one seed; `one` is that of a seed by itself on all cores."""
    return {
        "steps_per_second": {count: round(rate, 1) for count, rate in rates.items()},
        "time_over_one": {count: round(one / rate, 2) for count, rate in rates.items()},
    }


def player(count: int) -> Callable[[], int]:
    """Players of one task and as many seeds, with the `cpu` preset, as a contender."""
    players = loop_of_players(DOMAIN, [TASK] * count, K)

    def work() -> int:
        players.play(STEPS)
        return STEPS

    return work


def rates_of_players() -> dict[str, float]:
    """Steps a second of each of several players side by side."""
    run_where_called()
    return median_rates({str(count): player(count) for count in COUNTS}, repeats=REPEATS)


def rate(contender: Callable[[int], Callable[[], int]], count: int) -> float:
    """Work a second of `count` seeds on one core, while other processes do the same on theirs."""
    work, done = contender(count), 0
    work()
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS_APART:
        done += work()
    return done / (time.perf_counter() - began)


def successor(count: int) -> Callable[[], int]:
    """Updates of the behaviors of as many keyboards, with the `cpu` preset, as a contender."""
    spec, config = Spec(17, action_dim=6), presets.settings("cpu", K, discrete=False).successor
    assert isinstance(config, continuous.Config)
    rows = jax.random.normal(jax.random.key(0), (count, 2, config.batch_size, spec.obs_dim))
    w = jax.random.normal(jax.random.key(1), (count, config.batch_size, K))
    ones, move = jnp.ones((count, config.batch_size)), jnp.tanh(rows[:, 0, :, :6])
    batches = Transition(rows[:, 0], move, ones, ones, rows[:, 1])
    keys = jax.random.split(jax.random.key(2), count)
    states = jax.vmap(lambda key: continuous.init(config, spec, K, key=key))(keys)

    def one(state: Any, batch: Transition, w: Any, key: Any) -> Any:
        return continuous.update(config, state, batch, w, w, key=key)[0]

    @jax.jit
    def updates(states: Any) -> Any:
        together = lambda states, _: (jax.vmap(one)(states, batches, w, keys), None)  # noqa: E731
        return jax.lax.scan(together, states, length=UPDATES)[0]

    def work() -> int:
        jax.block_until_ready(updates(states))
        return UPDATES

    return work
