"""Gymnasium's interfaces over pure-JAX worlds."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from laplacian_keyboard.envs.grid import GridMap, GridWorld, four_rooms
from laplacian_keyboard.types import Spec, UserError, World


def world_of(env: Any) -> World | None:
    """The pure-JAX world that an environment of this module steps, unless a wrapper of the user's
    may have changed it; those that `gymnasium.make` adds change nothing."""
    while isinstance(env, OrderEnforcing | PassiveEnvChecker):
        env = env.env
    return env.world if isinstance(env, JaxEnv | JaxVectorEnv) else None


def spaces_of(spec: Spec) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Observation and action space of a world."""
    observation = gymnasium.spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float32)
    if spec.discrete:
        return observation, gymnasium.spaces.Discrete(spec.num_actions)
    return observation, gymnasium.spaces.Box(-1.0, 1.0, (spec.action_dim,), np.float32)


class JaxVectorEnv(VectorEnv):
    """Many copies of a pure-JAX world. A finished episode is reset in the same step; its last
    observation is in `infos["final_obs"]`."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, world: World, num_envs: int):
        self.world = world
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces_of(world.spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._key: Any = None
        self._state: Any = None

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None):
        """Start new episodes. Environment i is seeded with `seed + i`, or with `seed[i]`; without
        a seed every environment goes on with its own random numbers."""
        if seed is None and self._key is None:
            seed = int(self.np_random.integers(2**30))
        if seed is not None:
            seeds = np.asarray(seed)
            seeds = seeds + np.arange(self.num_envs) if seeds.ndim == 0 else seeds
            if len(seeds) != self.num_envs:
                raise UserError(f"{len(seeds)} seeds for {self.num_envs} environments")
            self._key = jax.vmap(jax.random.key)(seeds.astype(np.uint32))
        self._key, keys = _split(self._key)
        self._state, obs = _reset(self.world, keys)
        return np.asarray(obs), {}

    def step(self, actions: Any):
        self._key, keys = _split(self._key)
        self._state, stepped, timestep, obs = _step(
            self.world, self._state, jnp.asarray(actions), keys
        )
        last, ended = np.asarray(timestep.last), np.asarray(timestep.discount) == 0.0
        infos: dict[str, Any] = {}
        if last.any():
            infos = {"final_obs": np.asarray(timestep.obs), "_final_obs": last}
            if hasattr(stepped, "position"):
                infos |= {"final_physics": np.asarray(stepped.position), "_final_physics": last}
        return np.asarray(obs), np.asarray(timestep.reward), ended, last & ~ended, infos

    def physics_states(self) -> np.ndarray | None:
        """The physical states (num_envs, p) of worlds that have one: enough to label any task."""
        position = getattr(self._state, "position", None)
        return None if position is None else np.asarray(position, np.float64)


@jax.jit
def _split(keys: Any):
    return tuple(jax.vmap(jax.random.split, out_axes=1)(keys))


@jax.jit
def _reset(world: World, keys: Any):
    return jax.vmap(world.reset)(keys)


@jax.jit
def _step(world: World, state: Any, action: Any, keys: Any):
    """A step: the state and observation to go on from (a reset's where the episode ended), and
    the state that was reached."""
    stepped, timestep = jax.vmap(world.step)(state, action)
    fresh_state, fresh_obs = jax.vmap(world.reset)(keys)
    choose = lambda new, old: jnp.where(  # noqa: E731
        timestep.last.reshape(-1, *[1] * (new.ndim - 1)), new, old
    )
    return (
        jax.tree.map(choose, fresh_state, stepped),
        stepped,
        timestep,
        choose(fresh_obs, timestep.obs),
    )


class JaxEnv(gymnasium.Env):
    """One copy of a pure-JAX world."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, world: World):
        self.world = world
        self.observation_space, self.action_space = spaces_of(world.spec)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        key = jax.random.key(int(self.np_random.integers(2**31)))
        self._state, obs = _reset_one(self.world, key)
        return np.asarray(obs), {}

    def step(self, action: Any):
        self._state, timestep = _step_one(self.world, self._state, jnp.asarray(action))
        ended = float(timestep.discount) == 0.0
        truncated = bool(timestep.last) and not ended
        return np.asarray(timestep.obs), float(timestep.reward), ended, truncated, {}


@jax.jit
def _reset_one(world: World, key: Any):
    return world.reset(key)


@jax.jit
def _step_one(world: World, state: Any, action: Any):
    return world.step(state, action)


def make_grid(
    map_file: str | None = None, goal: tuple[int, int] | None = None, time_limit: int = 50
) -> JaxEnv:
    """A grid world: Four-Rooms, or a map file. `goal` is (row, column); None uses the map's own."""
    return JaxEnv(_grid_world(map_file, goal, time_limit))


def make_grid_vector(
    num_envs: int = 1,
    map_file: str | None = None,
    goal: tuple[int, int] | None = None,
    time_limit: int = 50,
) -> JaxVectorEnv:
    """Many copies of the same."""
    return JaxVectorEnv(_grid_world(map_file, goal, time_limit), num_envs)


def _grid_world(map_file: str | None, goal: tuple[int, int] | None, time_limit: int) -> GridWorld:
    grid = four_rooms() if map_file is None else GridMap.load(map_file)
    goals = None if goal is None else [grid.cell_number(*goal)]
    return GridWorld.from_map(grid, goals=goals, time_limit=time_limit)
