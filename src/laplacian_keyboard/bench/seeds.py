"""Several seeds at once: players side by side in one loop, and keyboards in one mapped update
(`together`) or in processes with a core each (`apart`, see `seeds`).

A figure of N would mean that nothing is gained over one after the other, 1 that all but one are
free. What it takes to start processes and to compile is left out of all of them.
"""

import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from laplacian_keyboard import presets
from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.bench.loops import loop_of_players
from laplacian_keyboard.parallel import in_processes, own_cores
from laplacian_keyboard.successor import continuous
from laplacian_keyboard.types import Spec, Transition

DOMAIN, TASK, K = "cheetah", "run", 10
COUNTS = (1, 2, 4, 8)
STEPS, UPDATES, REPEATS = 500, 20, 3
SECONDS_APART = 6.0
"""How long processes measure beside each other."""


def run() -> dict[str, Any]:
    """Time of N seeds together over the time of one."""
    players = median_rates({str(count): player(count) for count in COUNTS}, repeats=REPEATS)
    learners = median_rates({str(count): successor(count) for count in COUNTS}, repeats=REPEATS)
    cores = len(own_cores())
    alone = statistics.mean(in_processes(rate_of_one, [()] * cores))
    apart = {count: alone / math.ceil(int(count) / cores) for count in learners}
    return {
        "benchmark": "seeds",
        "ratio": "time of N seeds together over the time of one, the same work for each",
        **machine(),
        "player": _figures(players, players["1"]),
        "successor": _figures(learners, learners["1"]),
        "successor_apart": _figures(apart, learners["1"]),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    return [
        f"{name:<16} {count:>2} seeds take {ratio:.2f} times as long as one"
        for name in ("player", "successor", "successor_apart")
        for count, ratio in result[name]["time_over_one"].items()
    ]


def _figures(rates: dict[str, float], one: float) -> dict[str, Any]:
    """Rates count the steps of one seed; `one` is that of a seed by itself on all cores."""
    return {
        "steps_per_second": {count: round(rate, 1) for count, rate in rates.items()},
        "time_over_one": {count: round(one / rate, 2) for count, rate in rates.items()},
    }


def player(count: int) -> Any:
    """Players of one task and as many seeds, with the `cpu` preset, as a contender."""
    players = loop_of_players(DOMAIN, [TASK] * count, K)

    def work() -> int:
        players.play(STEPS)
        return STEPS

    return work


def rate_of_one() -> float:
    """Updates a second of one keyboard, while as many other processes do the same."""
    work, done = successor(1), 0
    work()
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS_APART:
        done += work()
    return done / (time.perf_counter() - began)


def successor(count: int) -> Any:
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
