"""The same TD3 work by this package, by Stable-Baselines3 and by SBX, in turns in one run.

Flat TD3 on cheetah run: networks of 256 and 256, one update for every environment step, the actor
every second one, and our environment for all. Each trains for a while before it is timed.
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
        rates = median_rates(
            {
                "laplacian_keyboard": ours(batch),
                "stable_baselines3": theirs(stable_baselines3.TD3, batch),
                "sbx": theirs(sbx.TD3, batch),
            },
            repeats=REPEATS,
        )
        mine = rates["laplacian_keyboard"]
        figures[f"batch_{batch}"] = {
            **{f"{name}_steps_per_second": round(rate, 1) for name, rate in rates.items()},
            "over_stable_baselines3": round(mine / rates["stable_baselines3"], 2),
            "over_sbx": round(mine / rates["sbx"], 2),
        }
    described = "environment steps a second, updates included, over those of the other library"
    others = {"stable_baselines3": stable_baselines3.__version__, "sbx": sbx.__version__}
    return {"benchmark": "peers", "ratio": described, **machine(), "others": others, **figures}


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    return [
        f"batch {batch}: {figures['laplacian_keyboard_steps_per_second']}/s, "
        f"{figures['over_stable_baselines3']} times Stable-Baselines3, "
        f"{figures['over_sbx']} times SBX"
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


def theirs(algorithm: Any, batch: int) -> Callable[[], int]:
    """TD3 of a library with the interface of Stable-Baselines3, as a contender."""
    import gymnasium

    model = algorithm(
        "MlpPolicy",
        gymnasium.make(f"laplacian_keyboard/{DOMAIN.title()}-v0", task=TASK),
        learning_rate=SETTINGS.critic_step_size,
        learning_starts=WARMUP,
        batch_size=batch,
        tau=SETTINGS.tau,
        gamma=0.99,
        train_freq=1,
        gradient_steps=1,
        policy_delay=SETTINGS.policy_delay,
        policy_kwargs={"net_arch": list(SETTINGS.hidden)},
        seed=0,
    )
    model.learn(2 * WARMUP)

    def work() -> int:
        model.learn(STEPS, reset_num_timesteps=False)
        return STEPS

    return work
