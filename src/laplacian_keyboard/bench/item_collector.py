"""Item-Collector: environment steps a second under a random policy, and of the player's loop.

Every observation is summed up into the result: a step whose observation nobody reads would be
compiled without it, and the figure would be of another world.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from laplacian_keyboard import presets
from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.composing import PlayerUpdate, start_composing
from laplacian_keyboard.envs.item_collector import ItemCollector
from laplacian_keyboard.keyboard import KeyboardConfig, empty_params
from laplacian_keyboard.train import run_chunk

WORLDS, STEPS = 4_096, 500
K, DECISIONS = 20, 50


def run() -> dict[str, Any]:
    """Steps a second of many worlds under random actions, and of the loop of a player of the `cpu`
    preset that learns: choosing chords, acting, storing, updating."""
    world = ItemCollector.for_task()
    rates = median_rates({"random_policy": random_policy(world), "player_loop": player_loop(world)})
    return {
        "benchmark": "item-collector",
        "worlds": WORLDS,
        "k": K,
        **machine(),
        **{f"{name}_steps_per_second": round(rate) for name, rate in rates.items()},
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    return [
        f"{name.replace('_', ' '):<14} {result[f'{name}_steps_per_second']:>10,}/s"
        for name in ("random_policy", "player_loop")
    ]


def random_policy(world: ItemCollector) -> Any:
    """Random actions in many worlds, reset when their episodes end, as a contender."""
    keys = jax.random.split(jax.random.key(0), WORLDS)

    def work() -> int:
        jax.block_until_ready(_walk(world, keys))
        return WORLDS * STEPS

    return work


@jax.jit
def _walk(world: ItemCollector, keys: Any) -> Any:
    def episode(total: Any, number: Any) -> Any:
        fresh = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
        state, _ = jax.vmap(lambda key: world.reset(key))(fresh)
        shape = (world.time_limit, WORLDS)
        actions = jax.random.randint(fresh[0], shape, 0, world.spec.num_actions)

        def step(carry: Any, action: Any) -> Any:
            state, total = carry
            state, seen = jax.vmap(lambda s, a: world.step(s, a))(state, action)
            return (state, total + seen.reward + seen.obs.sum(axis=-1)), None

        return jax.lax.scan(step, (state, total), actions)[0][1], None

    episodes = jnp.arange(STEPS // world.time_limit)
    return jax.lax.scan(episode, jnp.zeros(WORLDS), episodes)[0]


def player_loop(world: ItemCollector) -> Any:
    """A chunk of the player's loop, past its warm-up, as a contender."""
    settings = presets.settings("cpu", K, discrete=True, domain="item-collector")
    config = KeyboardConfig(world.spec, settings.basis, settings.successor)  # untrained
    update = PlayerUpdate(settings.player, config, settings.player_updates)
    data = (world, jax.jit(partial(empty_params, config))())
    key = jax.random.key(0)
    state = start_composing(update, world, settings.player_envs, key=key)
    per_decision = settings.player_envs * settings.player.t_term
    decisions = jnp.int32(-(-settings.player.warmup // per_decision))
    state = dataclasses.replace(state, decisions=decisions)

    def work() -> int:
        jax.block_until_ready(run_chunk(update, DECISIONS, state, data, jnp.int32(0), key))
        return DECISIONS * per_decision

    return work
