"""The same TD3 work by this package, by Stable-Baselines3 and by SBX, in turns in one run.

Flat TD3 on cheetah run: networks of 256 and 256, one update for every environment step, the actor
every second one, and our environment for all. Each trains for a while before it is timed.

Ours makes its updates in rounds, beside the steps of the next (`host_loop`); the others make one
after every step, as they do by default, and, under `in_rounds`, as many at once as ours.
"""

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import Any

from laplacian_keyboard import player as playing
from laplacian_keyboard.baselines import td3
from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.bench.loops import Loop
from laplacian_keyboard.envs.dmc import DmcVectorEnv
from laplacian_keyboard.envs.host import spec_of
from laplacian_keyboard.flat import FlatConfig, table_of
from laplacian_keyboard.host_loop import ROUND
from laplacian_keyboard.types import UserError

DOMAIN, TASK = "cheetah", "run"
BATCHES = (256, 16)
STEPS, WARMUP, REPEATS = 500, 300, 5
SETTINGS = td3.Config()


def run() -> dict[str, Any]:
    """Environment steps a second of each library, updates included, and ours over theirs."""
    try:
        stable_baselines3, sbx = map(import_module, ("stable_baselines3", "sbx"))
    except ImportError as error:
        raise UserError(
            f"lk bench peers compares with libraries that are not here ({error.name}); "
            "pip install 'laplacian-keyboard[bench]'"
        ) from error
    figures = {}
    for batch in BATCHES:
        others = {
            "stable_baselines3": theirs(stable_baselines3.TD3, batch),
            "sbx": theirs(sbx.TD3, batch),
            "stable_baselines3_in_rounds": theirs(stable_baselines3.TD3, batch, ROUND),
            "sbx_in_rounds": theirs(sbx.TD3, batch, ROUND),
        }
        rates = median_rates({"laplacian_keyboard": ours(batch), **others}, repeats=REPEATS)
        mine = rates["laplacian_keyboard"]
        figures[f"batch_{batch}"] = {
            **{f"{name}_steps_per_second": round(rate, 1) for name, rate in rates.items()},
            **{f"over_{name}": round(mine / rates[name], 2) for name in others},
        }
    described = "environment steps a second, updates included, over those of the other library"
    libraries = {"stable_baselines3": stable_baselines3.__version__, "sbx": sbx.__version__}
    return {"benchmark": "peers", "ratio": described, **machine(), "others": libraries, **figures}


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    return [
        f"batch {batch}: {figures['laplacian_keyboard_steps_per_second']}/s, "
        f"{figures['over_stable_baselines3']} times Stable-Baselines3, "
        f"{figures['over_sbx']} times SBX; with updates in rounds "
        f"{figures['over_stable_baselines3_in_rounds']} and {figures['over_sbx_in_rounds']} times"
        for batch in BATCHES
        for figures in [result[f"batch_{batch}"]]
    ]


def ours(batch: int) -> Callable[[], int]:
    """Flat TD3 of this package, as a contender."""
    env = DmcVectorEnv(DOMAIN, [TASK], 1)
    learner = dataclasses.replace(SETTINGS, batch_size=batch)
    config = playing.Config(t_term=1, gamma=0.99, warmup=WARMUP, td3=learner)
    table = table_of(FlatConfig(spec_of(env), config, DOMAIN))
    agent = Loop(table, None, env)

    def work() -> int:
        agent.play(STEPS)
        return STEPS

    return work


def theirs(algorithm: Any, batch: int, every: int = 1) -> Callable[[], int]:
    """TD3 of a library with the interface of Stable-Baselines3, as a contender that makes `every`
    updates after as many steps."""
    import gymnasium

    model = algorithm(
        "MlpPolicy",
        gymnasium.make(f"laplacian_keyboard/{DOMAIN.title()}-v0", task=TASK),
        learning_rate=SETTINGS.critic_step_size,
        learning_starts=WARMUP,
        batch_size=batch,
        tau=SETTINGS.tau,
        gamma=0.99,
        train_freq=every,
        gradient_steps=every,
        policy_delay=SETTINGS.policy_delay,
        policy_kwargs={"net_arch": list(SETTINGS.hidden)},
        seed=0,
    )
    model.learn(2 * WARMUP)

    def work() -> int:
        model.learn(STEPS, reset_num_timesteps=False)
        return STEPS

    return work
