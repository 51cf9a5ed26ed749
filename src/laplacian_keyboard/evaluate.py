"""Running an agent in a world and counting its reward."""

from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from laplacian_keyboard.log import Bar, silent
from laplacian_keyboard.stats import mean_interval
from laplacian_keyboard.types import UserError


class Agent(Protocol):
    """Something that acts in many environments at once."""

    def act(self, obs: np.ndarray, first: np.ndarray | None = None) -> Any:
        """Actions for observations `(n, o)`; `first` marks the first step of an episode."""
        ...


def episode_returns(
    env: VectorEnv, agent: Agent, episodes: int, *, seed: int, bar: Bar = silent
) -> tuple[np.ndarray, np.ndarray]:
    """Undiscounted returns and lengths of `episodes` episodes, at least that many.

    Every environment contributes the same number of its first episodes: taking whichever finish
    first would favour short ones.
    """
    if episodes < 1:
        raise UserError(f"episodes must be at least 1, not {episodes}")
    quota = -(-episodes // env.num_envs)
    obs, _ = env.reset(seed=seed)
    first = np.ones(env.num_envs, bool)
    running, length = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
    returns: list[list[float]] = [[] for _ in range(env.num_envs)]
    lengths: list[list[int]] = [[] for _ in range(env.num_envs)]
    while min(len(done) for done in returns) < quota:
        obs, reward, terminated, truncated, _ = env.step(np.asarray(agent.act(obs, first)))
        running, length = running + reward, length + 1
        first = np.asarray(terminated) | np.asarray(truncated)
        for i in np.flatnonzero(first):
            if len(returns[i]) < quota:
                returns[i].append(float(running[i]))
                lengths[i].append(int(length[i]))
            running[i], length[i] = 0.0, 0
        if first.any():
            bar(min(sum(map(len, returns)), episodes))
    return np.array(returns).ravel(), np.array(lengths).ravel()


def summary(task: str, returns: np.ndarray, seconds: float) -> dict[str, Any]:
    """The figures every evaluation reports."""
    mean, interval = mean_interval(returns, rng=np.random.default_rng(0))
    return {
        "task": task,
        "return_mean": mean,
        "return_ci95": list(interval),
        "episodes": len(returns),
        "seconds": round(seconds, 2),
    }
