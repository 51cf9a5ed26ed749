"""Agents that have begun to learn in host environments, for the benchmarks of their loop."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium.vector import VectorEnv

from laplacian_keyboard import presets
from laplacian_keyboard.envs.dmc import DmcVectorEnv
from laplacian_keyboard.envs.domains import ANGLES
from laplacian_keyboard.envs.host import spec_of
from laplacian_keyboard.host_loop import Table, play_and_learn, start_learning
from laplacian_keyboard.keyboard import KeyboardConfig, acting_part, empty_params


class Loop:
    """Agents past their warm-up, one an environment; every call of `play` goes on from there."""

    def __init__(self, table: Table, params: Any, env: VectorEnv):
        self.table, self.params, self.env = table, params, env
        self.keys = jax.random.split(jax.random.key(0), env.num_envs)
        self.warm = self._play(start_learning(table, self.keys), 0, 2 * table.config.warmup)

    def play(self, steps: int) -> None:
        """So many steps of each agent, updates included."""
        begin = self.table.config.warmup
        learning = self._play(jax.tree.map(jnp.copy, self.warm), begin, begin + steps)
        jax.block_until_ready(learning)

    def _play(self, learning: Any, start: int, end: int) -> Any:
        return play_and_learn(
            self.table, self.params, self.env, learning, self.keys, start, end, None
        )[0]


def loop_of_players(domain: str, tasks: Sequence[str], k: int) -> Loop:
    """Players of an untrained keyboard with the `cpu` preset, one a task."""
    env = DmcVectorEnv(domain, tasks, len(tasks))
    settings = presets.settings("cpu", k, discrete=False)
    config = KeyboardConfig(
        spec_of(env), settings.basis, settings.successor, domain, ANGLES.get(domain, ())
    )
    params = jax.jit(lambda: empty_params(config))()
    return Loop(Table(settings.player, config), acting_part(params), env)
