"""Any Gymnasium environment as a vector environment with plain vectors, and rewards by name.

Observations of a Box space become flat float32 vectors. Actions are in [-1, 1] and mapped to the
Box's own bounds, or are numbers from 0 for a Discrete space. The reward is the environment's own
(task `env`) or a function of the next observation (task `module:function`).
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit
from numpy.typing import ArrayLike, NDArray

from laplacian_keyboard.envs.gym import spaces_of
from laplacian_keyboard.types import Spec, UserError

Reward = Callable[[NDArray[np.float32]], NDArray[np.float64]]
"""Next observations `(..., o)` to rewards `(...)`."""
TIME_LIMIT = 1_000
"""Steps after which an episode is cut where the environment has no limit of its own: without one,
an evaluation or a round of collecting might never end."""


def make_host(env_id: str, num_envs: int = 1, task: str = "env") -> "HostVectorEnv":
    """`num_envs` copies of a Gymnasium environment; `task` is `env` or `module:function`."""
    return HostVectorEnv(env_id, num_envs, task)


def spec_of(env: VectorEnv) -> Spec:
    """The shapes of a vector environment with flat observations."""
    (obs_dim,) = env.single_observation_space.shape or (0,)
    space = env.single_action_space
    if hasattr(space, "n"):
        return Spec(obs_dim, num_actions=int(space.n))  # type: ignore[attr-defined]
    return Spec(obs_dim, action_dim=int(np.prod(space.shape or (0,))))


def as_vector(env: gymnasium.Env | VectorEnv) -> VectorEnv:
    """An environment of the user's own, single or vector, with plain vectors."""
    if isinstance(env, gymnasium.Env):
        vector = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
        return HostVectorEnv(str(env), envs=vector)
    if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise UserError(
            "the environments must reset in the step that ends an episode: make them with "
            "gymnasium.vector.AutoresetMode.SAME_STEP"
        )
    is_plain = isinstance(env.single_observation_space, Box) and env.single_observation_space.shape
    if (is_plain and hasattr(env.unwrapped, "physics_states")) or isinstance(env, HostVectorEnv):
        return env
    return HostVectorEnv(str(env), env.num_envs, envs=env)


class HostVectorEnv(VectorEnv):
    """Copies of a Gymnasium environment, stepped one after the other, with the reward of a task:
    `env`, their own, or `module:function`.

    The step that ends an episode also resets it: it returns the new episode's first observation,
    while `infos["final_obs"]` holds the true next observation of every copy and the mask
    `infos["_final_obs"]` marks those that ended. `reset(seed=s)` seeds copy i with s + i.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        task: str = "env",
        *,
        envs: VectorEnv | None = None,
    ):
        if num_envs < 1:
            raise UserError(f"num_envs is {num_envs}: it must be at least 1")
        self.env_id, self.num_envs, self.task = env_id, num_envs, task
        self._reward = None if task == "env" else find_reward(task)
        self._envs = _make_copies(env_id, num_envs) if envs is None else envs
        try:
            self._spec = _spec_of(self._envs, env_id)
        except UserError:
            self._envs.close()
            raise
        self.single_observation_space, self.single_action_space = spaces_of(self._spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    @property
    def spec(self) -> Spec:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The shapes a learner needs, as for every other world here; not Gymnasium's EnvSpec."""
        return self._spec

    def __repr__(self) -> str:  # Gymnasium's own reads an EnvSpec
        task = "" if self.task == "env" else f", {self.task}"
        return f"HostVectorEnv({self.env_id}{task}, num_envs={self.num_envs})"

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        obs, infos = self._envs.reset(seed=seed, options=options)  # type: ignore[arg-type]
        return _flat(obs, self.num_envs), infos

    def step(
        self, actions: ArrayLike
    ) -> tuple[
        NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict
    ]:
        obs, rewards, terminated, truncated, infos = self._envs.step(self._to_host(actions))
        obs = next_obs = _flat(obs, self.num_envs)
        ended = terminated | truncated
        if ended.any():
            next_obs = obs.copy()
            next_obs[ended] = _flat(np.stack(infos["final_obs"][ended]), ended.sum())
            infos["final_obs"] = next_obs
        if self._reward is not None:
            rewards = self._reward(next_obs)
        return obs, rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        self._envs.close(**kwargs)

    def _to_host(self, actions: ArrayLike) -> NDArray:
        """Actions as the environment itself expects them."""
        actions, expected = np.asarray(actions), self.action_space.shape
        if actions.shape != expected:
            raise UserError(f"actions have shape {actions.shape}, not {expected}")
        space = self._envs.single_action_space
        if isinstance(space, Discrete):
            if actions.dtype.kind not in "iu" or (actions < 0).any() or (actions >= space.n).any():
                raise UserError(f"actions must be whole numbers from 0 to {space.n - 1}")
            return actions + space.start
        assert isinstance(space, Box)
        if not np.isfinite(actions).all():
            raise UserError("actions are not finite: check the policy that made them")
        share = (np.clip(actions.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0
        share = share.reshape(self.num_envs, *space.shape)
        # Exact at both ends, unlike low + share * (high - low).
        return ((1.0 - share) * space.low + share * space.high).astype(space.dtype)


def _make(env_id: str) -> gymnasium.Env:
    env = gymnasium.make(env_id)
    limited = env.spec is not None and env.spec.max_episode_steps is not None
    return env if limited else TimeLimit(env, TIME_LIMIT)


def _make_copies(env_id: str, num_envs: int) -> SyncVectorEnv:
    try:
        with _current_directory_importable():  # Gymnasium imports MODULE of `MODULE:ENV_ID`
            return SyncVectorEnv(
                [partial(_make, env_id)] * num_envs,
                autoreset_mode=AutoresetMode.SAME_STEP,
            )
    except (gymnasium.error.Error, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot make the Gymnasium environment {env_id!r}: {reason}") from error


def _spec_of(envs: VectorEnv, env_id: str) -> Spec:
    """The shapes of flat observations and actions, if the spaces allow that."""
    observation, action = envs.single_observation_space, envs.single_action_space
    if not isinstance(observation, Box):
        raise UserError(
            f"{env_id} has observations of {observation}, not a Box: register a version of it "
            "wrapped in gymnasium.wrappers.FlattenObservation or a wrapper of your own"
        )
    obs_dim = int(np.prod(observation.shape))
    if isinstance(action, Discrete):
        return Spec(obs_dim, num_actions=int(action.n))
    if not isinstance(action, Box) or not np.issubdtype(action.dtype, np.floating):
        raise UserError(f"{env_id} has actions of {action}: only float Box and Discrete will do")
    if not action.is_bounded():
        raise UserError(
            f"{env_id} has unbounded actions, {action}: register a version of it whose action "
            "space has finite bounds"
        )
    return Spec(obs_dim, action_dim=int(np.prod(action.shape)))


def _flat(obs: Any, count: int) -> NDArray[np.float32]:
    return np.asarray(obs, np.float32).reshape(count, -1)


def find_reward(task: str) -> Reward:
    """The function named by `module:function`, with its results checked.

    The module may lie in the current directory. The function takes next observations `(n, o)` and
    returns rewards `(n,)`; here it may also be given more leading axes.
    """
    module_name, separator, name = task.partition(":")
    if not (module_name and separator and name):
        raise UserError(f"unknown task {task!r}; use env or MODULE:FUNCTION")
    try:
        with _current_directory_importable():
            module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"task {task!r}: cannot import {module_name}: {reason}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"task {task!r}: {module_name} has no function {name!r}")

    def reward(next_obs: NDArray[np.float32]) -> NDArray[np.float64]:
        # A copy, since the function may change its argument.
        rows = next_obs.reshape(-1, next_obs.shape[-1]).copy()
        try:
            result = function(rows)
        except Exception as error:  # whatever the user's function raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"task {task!r} failed on {len(rows)} rows: {reason}") from error
        try:
            rewards = np.asarray(result, np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"task {task!r} gave rewards that are not numbers: {error}") from error
        if rewards.shape != rows.shape[:1]:
            raise UserError(
                f"task {task!r} gave rewards of shape {rewards.shape} for observations of shape "
                f"{rows.shape}; return {rows.shape[:1]}"
            )
        if not np.isfinite(rewards).all():
            raise UserError(f"task {task!r} gave rewards that are not finite")
        return rewards.reshape(next_obs.shape[:-1])

    return reward


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """As with `python -m`; a console script leaves the current directory out of the path."""
    path = str(Path.cwd())
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)
