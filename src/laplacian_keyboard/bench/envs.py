"""Steps a second of the MuJoCo domains, beside dm_control's own loop on the same actions."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.envs import dmc

SUITE_TASKS = {"cheetah": "run", "walker": "walk", "quadruped": "walk"}
NUM_STEPS = {"cheetah": 2_000, "walker": 500, "quadruped": 500}
"""Control steps of a repeat for a single environment."""


def run() -> dict[str, Any]:
    """Rates and ratios for each domain: ours with 1 and 16 environments over dm_control's."""
    domains = {}
    for domain, task in SUITE_TASKS.items():
        count = NUM_STEPS[domain]
        rates = median_rates(
            {
                "dm_control": dm_control_loop(domain, task, count),
                "n1": our_loop(domain, task, 1, count),
                "n16": our_loop(domain, task, 16, max(count // 8, 1)),
            }
        )
        domains[domain] = {
            "steps_per_second": {name: round(rate) for name, rate in rates.items()},
            "ratio_to_dm_control": {
                name: round(rates[name] / rates["dm_control"], 2) for name in ("n1", "n16")
            },
        }
    return {"benchmark": "envs", **machine(), "domains": domains}


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    found = []
    for domain, figures in result["domains"].items():
        rates, ratios = figures["steps_per_second"], figures["ratio_to_dm_control"]
        found.append(
            f"{domain:<10} dm_control {rates['dm_control']:>7,}/s   "
            f"1: {rates['n1']:>7,}/s ({ratios['n1']}x)   "
            f"16: {rates['n16']:>7,}/s ({ratios['n16']}x)"
        )
    return found


def our_loop(domain: str, task: str, num_envs: int, count: int) -> Callable[[], int]:
    """Steps of our environments, as a contender."""
    env = dmc.DmcVectorEnv(domain, task, num_envs)
    shape = env.action_space.shape or ()
    actions = np.random.default_rng(0).uniform(-1, 1, (count, *shape))
    env.reset(seed=0)

    def work() -> int:
        for action in actions:
            env.step(action)
        return count * num_envs

    return work


def dm_control_loop(domain: str, task: str, count: int) -> Callable[[], int]:
    """Steps of dm_control's own loop, as a contender."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dm_control import suite
        from dm_control.suite.wrappers import action_scale

    env = action_scale.Wrapper(suite.load(domain, task), minimum=-1.0, maximum=1.0)
    shape = env.action_spec().shape
    actions = np.random.default_rng(0).uniform(-1, 1, (count, *shape))
    env.reset()

    def work() -> int:
        for action in actions:
            if env.step(action).last():
                env.reset()
        return count

    return work
