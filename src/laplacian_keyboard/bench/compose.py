"""The player's loop beside its parts: the same updates alone in a scan, and MuJoCo alone.

The loop also chooses chords, runs the behaviors' network at every step and stores what it sees; a
figure of 1 would mean that all of this costs nothing. XLA has one thread, as in `lk compose`.
"""

from functools import partial
from typing import Any

import jax
import mujoco
import numpy as np

from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.bench.loops import loop_of_players
from laplacian_keyboard.compiling import use_one_thread
from laplacian_keyboard.envs.dmc import load_domain
from laplacian_keyboard.envs.domains import DMC
from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.host_loop import learn

K, STEPS = 10, 3_000


def run() -> dict[str, Any]:
    """For each domain, with one player and with one for each task: environment steps a second of
    the loop and of its parts, and the loop's time over the sum of theirs."""
    use_one_thread()
    domains = {}
    for domain in DMC:
        domains[domain] = {
            "one_player": measure(domain, 1),
            "player_for_each_task": measure(domain, len(tasks_of(domain))),
        }
    described = "time of the loop over time of its updates alone plus MuJoCo steps alone"
    return {"benchmark": "compose", "ratio": described, **machine(), "domains": domains}


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    return [
        f"{domain:<10} {who.replace('_', ' '):<22} {figures['loop_steps_per_second']:>6,}/s, "
        f"{figures['loop_time_over_parts']} times its parts"
        for domain, players in result["domains"].items()
        for who, figures in players.items()
    ]


def measure(domain: str, num_players: int) -> dict[str, float]:
    """Rates are environment steps of all players together a second."""
    players = loop_of_players(domain, tasks_of(domain)[:num_players], K)
    updates_alone = jax.jit(partial(learn, players.table.config, STEPS))

    def loop() -> int:
        players.play(STEPS)
        return STEPS * num_players

    def updates() -> int:
        jax.block_until_ready(updates_alone(players.warm, players.keys))
        return STEPS * num_players

    rates = median_rates(
        {"loop": loop, "updates": updates, "mujoco": mujoco_alone(domain, STEPS * num_players)}
    )
    alone = 1.0 / rates["updates"] + 1.0 / rates["mujoco"]
    return {
        **{f"{name}_steps_per_second": round(rate) for name, rate in rates.items()},
        "loop_time_over_parts": round(1.0 / rates["loop"] / alone, 3),
    }


def mujoco_alone(domain: str, count: int) -> Any:
    """Plain `mj_step` on random controls, as a contender."""
    found = load_domain(domain)
    data = mujoco.MjData(found.model)  # pyright: ignore
    low, high = found.model.actuator_ctrlrange.T
    controls = np.random.default_rng(0).uniform(low, high, (count, found.model.nu))

    def work() -> int:
        mujoco.mj_resetData(found.model, data)  # pyright: ignore
        for control in controls:
            data.ctrl[:] = control
            mujoco.mj_step(found.model, data, found.substeps)  # pyright: ignore
        return count

    return work
