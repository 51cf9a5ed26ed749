"""Gathering reward-free experience: an explorer in a world, episode by episode into a dataset.

Work goes in rounds: one episode in each of n environments, seeded by the number of the round. What
is learned is kept after every round, so a collection that is killed and started again repeats the
unfinished round and ends with the same files. No reward of a task is ever read.

    for each round:   reset n environments
      for each stretch of steps:   act, step;   store 3-step transitions;   update the explorer
      write n episodes, keep the explorer's state
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv
from jax import Array
from jaxtyping import Bool, PRNGKeyArray

from laplacian_keyboard.baselines import td3
from laplacian_keyboard.checkpoint import load_arrays, save_arrays
from laplacian_keyboard.data.collect import episode_keys, random_walks
from laplacian_keyboard.data.exorl import EpisodeWriter
from laplacian_keyboard.data.replay import Replay
from laplacian_keyboard.envs.host import spec_of
from laplacian_keyboard.explore import aps, babble, proto, rnd
from laplacian_keyboard.log import progress
from laplacian_keyboard.types import Spec, Transition, UserError, World

EXPLORERS = ("random", "babble", "rnd", "proto", "aps")
LEARNED: dict[str, ModuleType] = {"rnd": rnd, "proto": proto, "aps": aps}

EPISODES_AT_ONCE = 64
"""Random walks written between two looks at the progress bar."""
MEMORY_FILE = ".explorer.safetensors"
STRETCH = 50
"""Steps between two visits to the learner."""
TURN = 5 * STRETCH
"""Steps of a turn, where explorers take turns: a quarter of a robot's episode."""
BACKUP = 3
"""Steps a transition spans (URLB)."""
GAMMA = 0.99


@dataclass(frozen=True)
class Effort:
    """How much a learned explorer learns."""

    updates_per_step: float
    """Gradient steps for each environment step."""
    warmup: int
    """Environment steps of uniformly random actions before learning starts."""
    agent: td3.Config
    networks: dict[str, dict[str, Any]]
    """Settings of each explorer that differ from URLB's."""
    capacity: int = 500_000
    """Transitions kept; the oldest make room."""

    def config(self, explorer: str) -> Any:
        module = LEARNED[explorer]
        return module.Config(td3=self.agent, **self.networks.get(explorer, {}))


def effort(preset: str) -> Effort:
    """`paper`: URLB's sizes. `cpu`: small networks and fewer updates, minutes on two cores."""
    urlb = rnd.Config().td3
    small = dataclasses.replace(
        urlb,
        hidden=(256, 256),
        batch_size=256,
        actor_step_size=3e-4,
        critic_step_size=3e-4,
    )
    tiny = dataclasses.replace(small, hidden=(32, 32), batch_size=32)
    efforts = {
        "paper": Effort(0.5, 4_000, urlb, {}, capacity=1_000_000),
        "cpu": Effort(
            0.1,
            16_000,
            small,
            {
                "rnd": {"hidden": (256, 256), "output": 64, "step_size": 3e-4},
                "proto": {"embedding": 32, "projection": 128, "num_prototypes": 128},
                "aps": {"hidden": (256, 256), "step_size": 3e-4},
            },
        ),
        "smoke": Effort(
            0.02,
            100,
            tiny,
            {
                "rnd": {"hidden": (32,), "output": 8},
                "proto": {"embedding": 8, "projection": 16, "num_prototypes": 16, "queue": 64},
                "aps": {"hidden": (32,), "context_dim": 4},
            },
        ),
    }
    if preset not in efforts:
        raise UserError(f"unknown preset {preset!r}; known presets: {', '.join(efforts)}")
    return efforts[preset]


class Coverage:
    """Counts visited cells of a coarse grid over a few fixed directions of the observation."""

    def __init__(self, obs_dim: int):
        directions = np.random.default_rng(0).standard_normal((obs_dim, min(obs_dim, 4)))
        self.directions = directions / np.linalg.norm(directions, axis=0)
        self.width: np.ndarray | None = None
        self.cells: set[bytes] = set()

    def add(self, obs: np.ndarray) -> int:
        """Add observations `(..., o)`; returns the number of cells visited so far."""
        projected = obs.reshape(-1, obs.shape[-1]) @ self.directions
        if self.width is None:
            self.width = np.std(projected, axis=0) / 2 + 1e-6
        cells = np.unique(np.floor(projected / self.width).astype(np.int16), axis=0)
        self.cells.update(cell.tobytes() for cell in cells)
        return len(self.cells)


def gather(
    make_env: Callable[[int], VectorEnv],
    folder: str | Path,
    *,
    domain: str,
    explorer: str,
    steps: int,
    seed: int = 0,
    preset: str = "cpu",
    num_envs: int = 16,
    quiet: bool = False,
) -> dict[str, Any]:
    """At least `steps` steps of `explorer` (names joined by `+` take turns within every episode) in
    the environments `make_env(num_envs)`, as a dataset in `folder`."""
    names = explorer.split("+")
    for name in names:
        if name not in EXPLORERS:
            raise UserError(f"unknown explorer {name!r}; known explorers: {', '.join(EXPLORERS)}")
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    if num_envs < 1:
        raise UserError(f"num_envs is {num_envs}: it must be at least 1")
    env = make_env(num_envs)
    spec = spec_of(env)
    if spec.discrete and names != ["random"]:
        raise UserError(f"{domain} has discrete actions, which only the explorer random can take")
    description = {
        "domain": domain,
        "explorer": explorer,
        "seed": seed,
        "preset": preset,
        "num_envs": num_envs,
        "num_actions": spec.num_actions,
        "mujoco": _mujoco_version(env),
    }
    with EpisodeWriter(folder, description) as writer:
        agents = [_Agent.create(name, spec, preset, seed, num_envs) for name in names]
        agent = agents[0] if len(agents) == 1 else _Turns(agents)
        coverage, number = Coverage(spec.obs_dim), writer.episodes // num_envs
        kept = Path(folder) / MEMORY_FILE
        if kept.exists():
            agent.memory, metadata = load_arrays(kept, agent.memory)
            number = min(number, int(metadata["next_round"]))
        elif agent.learns:
            number = 0
        with progress(f"collect {explorer}", steps, quiet=quiet) as bar:
            bar(writer.steps)
            while writer.steps < steps:
                episodes = agent.play_round(env, number)
                for episode in episodes[max(0, writer.episodes - number * num_envs) :]:
                    writer.add(**episode)
                number += 1
                if agent.learns:
                    save_arrays(kept, agent.memory, {"next_round": str(number)})
                visited = coverage.add(np.concatenate([e["observation"] for e in episodes]))
                bar(writer.steps, {"collect/cells_visited": visited})
        kept.unlink(missing_ok=True)
        return {
            "domain": domain,
            "explorer": explorer,
            "episodes": writer.episodes,
            "steps": writer.steps,
            "cells_visited": len(coverage.cells),
        }


def gather_random_walks(
    world: World,
    folder: str | Path,
    *,
    domain: str,
    steps: int,
    length: int,
    seed: int,
    physics_of: Callable[[np.ndarray], np.ndarray] | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Uniformly random episodes in a discrete pure-JAX world, many at once on the device.
    `physics_of(observation)` is what to store of an episode so that its rows can be labelled."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    episodes = -(-steps // length)
    spec = world.spec
    description = {"domain": domain, "explorer": "random", "seed": seed, "length": length}
    description["num_actions"] = spec.num_actions
    zeros, ones = np.zeros((length + 1, 1), np.float32), np.ones((length + 1, 1), np.float32)
    with (
        EpisodeWriter(folder, description) as writer,
        progress("collect", episodes * length, quiet=quiet) as bar,
    ):
        while writer.episodes < episodes:
            start = writer.episodes
            stop = min(start + EPISODES_AT_ONCE, episodes)
            walks = random_walks(world, length, episode_keys(seed, start, stop))
            for observation, action in zip(*map(np.asarray, walks), strict=True):
                physics = None if physics_of is None else physics_of(observation)
                writer.add(
                    observation=observation,
                    action=action,
                    reward=zeros,
                    discount=ones,
                    physics=physics,
                )
            bar(writer.steps)
        return {"domain": domain, "episodes": writer.episodes, "steps": writer.steps}


def _mujoco_version(env: VectorEnv) -> str | None:
    return importlib.metadata.version("mujoco") if hasattr(env, "set_physics_states") else None


class Step(NamedTuple):
    """What a step of every environment did, `(envs, ...)` each."""

    action: Any
    next_obs: Any
    """Reached by the step, also where a reset followed."""
    terminated: Any
    over: Any
    """Terminated or cut."""


class Stretch(NamedTuple):
    """Observations and the steps taken there, `(steps, envs, ...)` each; see `Step`."""

    obs: Any
    action: Any
    next_obs: Any
    terminated: Any
    over: Any


class _Agent:
    """An explorer with its memory."""

    memory: Any = ()
    """What it has learned, if it `learns`: arrays, kept after every round."""

    @property
    def learns(self) -> bool:
        return bool(jax.tree.leaves(self.memory))

    def __init__(self, name: str, spec: Spec, seed: int, num_envs: int):
        self.name, self.spec, self.num_envs = name, spec, num_envs
        self.key = jax.random.key(seed)

    @staticmethod
    def create(name: str, spec: Spec, preset: str, seed: int, num_envs: int) -> "_Agent":
        kinds = {"random": _Agent, "babble": _Babbler}
        if name in kinds:
            return kinds[name](name, spec, seed, num_envs)
        return _Learner(name, spec, seed, num_envs, effort(preset))

    def play_round(self, env: VectorEnv, number: int) -> list[dict[str, np.ndarray]]:
        """One episode in every environment."""
        key = jax.random.fold_in(self.key, number)
        obs, _ = env.reset(seed=int(jax.random.randint(key, (), 0, 2**31 - 1)))
        recorder = _Recorder(env, obs)
        self.begin(key)
        step = 0
        while not recorder.finished:
            step_key = jax.random.fold_in(key, step + 1)
            action = np.asarray(self.act(obs, step_key))
            obs, reward, terminated, truncated, infos = env.step(action)
            # Stored as ExORL does; no explorer sees it.
            final = recorder.add(action, obs, reward, terminated, truncated, infos)
            self.observe(Step(action, final, terminated, terminated | truncated), step_key)
            step += 1
        return recorder.episodes()

    def begin(self, key: PRNGKeyArray) -> None:
        """Called before the first step of a round."""

    def act(self, obs: np.ndarray, key: PRNGKeyArray) -> Any:
        """Uniformly random actions."""
        if self.spec.discrete:
            return _random_choice(self.num_envs, self.spec.num_actions, key)
        return _random_action(self.num_envs, self.spec.action_dim, key)

    def observe(self, step: Step, key: PRNGKeyArray) -> None:
        """Called after every step."""


@partial(jax.jit, static_argnums=(0, 1))
def _random_action(count: int, dim: int, key: PRNGKeyArray):
    return jax.random.uniform(key, (count, dim), minval=-1.0, maxval=1.0)


@partial(jax.jit, static_argnums=(0, 1))
def _random_choice(count: int, choices: int, key: PRNGKeyArray):
    return jax.random.randint(key, (count,), 0, choices)


class _Babbler(_Agent):
    config = babble.Config()

    def begin(self, key: PRNGKeyArray) -> None:
        self.state = _babble_init(self.config, self.spec.action_dim, self.num_envs, key)

    def act(self, obs: np.ndarray, key: PRNGKeyArray) -> Any:
        self.state, action = _babble(self.config, self.state, jax.random.split(key, self.num_envs))
        return action


@partial(jax.jit, static_argnums=(0, 1, 2))
def _babble_init(config: babble.Config, action_dim: int, count: int, key: PRNGKeyArray):
    keys = jax.random.split(key, count)
    return jax.vmap(lambda key: babble.init(config, action_dim, key=key))(keys)


@partial(jax.jit, static_argnums=0)
def _babble(config: babble.Config, state: babble.State, key: PRNGKeyArray):
    return jax.vmap(lambda state, key: babble.act(config, state, key=key))(state, key)


class _Learner(_Agent):
    """A learned explorer: acts with its actor, learns after every stretch."""

    def __init__(self, name: str, spec: Spec, seed: int, num_envs: int, effort: Effort):
        super().__init__(name, spec, seed, num_envs)
        self.config, self.effort = effort.config(name), effort
        key_init = jax.random.fold_in(self.key, 2**31 - 1)
        width = spec.obs_dim + self.config.context_dim
        row, scalar = jnp.zeros(width), jnp.zeros(())
        example = Transition(row, jnp.zeros(spec.action_dim), scalar, scalar, row)
        self.memory = (
            LEARNED[name].init(self.config, spec, key=key_init),
            Replay.create(example, effort.capacity),
            jnp.zeros((), jnp.int32),
        )
        self.stretch: list[tuple[np.ndarray, ...]] = []

    def begin(self, key: PRNGKeyArray) -> None:
        self.steps = 0
        self.context = np.zeros((self.num_envs, self.config.context_dim), np.float32)
        self.stretch = []

    def act(self, obs: np.ndarray, key: PRNGKeyArray) -> Any:
        if self.config.context_dim and self.steps % self.config.context_steps == 0:
            self.context = np.asarray(_directions(*self.context.shape, key))
        self.extended = np.concatenate([obs, self.context], axis=1)
        if int(self.memory[2]) < self.effort.warmup:
            return super().act(obs, key)
        return _act(self.config.td3, self.memory[0].agent.actor.params, self.extended, key)

    def observe(self, step: Step, key: PRNGKeyArray) -> None:
        next_extended = np.concatenate([step.next_obs, self.context], axis=1)
        self.stretch.append((self.extended, *step._replace(next_obs=next_extended)))
        self.steps += 1
        if len(self.stretch) == STRETCH:
            stretch = Stretch(*map(np.stack, zip(*self.stretch, strict=True)))
            updates = round(self.effort.updates_per_step * STRETCH * self.num_envs)
            self.memory = _learn(
                self.name,
                self.config,
                updates,
                self.effort.warmup,
                self.memory,
                stretch,
                key,
            )
            self.stretch = []


class _Turns(_Agent):
    """Explorers that take turns within every episode: each begins where another has left off, and
    nothing stays as it is for a whole episode but what none of them can change."""

    def __init__(self, agents: list[_Agent]):
        self.agents, self.key = agents, agents[0].key

    def begin(self, key: PRNGKeyArray) -> None:
        for i, agent in enumerate(self.agents):
            agent.begin(jax.random.fold_in(key, i))
        self.first = int(jax.random.randint(key, (), 0, len(self.agents)))
        self.steps = 0

    @property
    def whose_turn(self) -> _Agent:
        return self.agents[(self.first + self.steps // TURN) % len(self.agents)]

    def act(self, obs: np.ndarray, key: PRNGKeyArray) -> Any:
        return self.whose_turn.act(obs, key)

    def observe(self, step: Step, key: PRNGKeyArray) -> None:
        self.whose_turn.observe(step, key)
        self.steps += 1

    @property
    def memory(self) -> Any:
        return [agent.memory for agent in self.agents]

    @memory.setter
    def memory(self, memories: Any) -> None:
        for agent, memory in zip(self.agents, memories, strict=True):
            agent.memory = memory


@partial(jax.jit, static_argnums=(0, 1))
def _directions(count: int, dim: int, key: PRNGKeyArray):
    return aps.unit(jax.random.normal(key, (count, dim)))


@partial(jax.jit, static_argnums=0)
def _act(config: td3.Config, actor: Any, obs: Any, key: PRNGKeyArray):
    return td3.act(config, actor, obs, key=key)


def backups(stretch: Stretch, context_dim: int) -> tuple[Transition, Bool[Array, "b"]]:
    """Transitions over `BACKUP` steps, the explorer's reward left open, and which of them lie
    within one episode."""
    span = BACKUP - 1
    starts = len(stretch.over) - span
    # The context of a transition is that of its first step, on both sides.
    width = stretch.obs.shape[-1] - context_dim
    context = stretch.obs[:-span, :, width:]
    later = jnp.concatenate([stretch.next_obs[span:, :, :width], context], axis=-1)
    ends_inside = jnp.any(jnp.stack([stretch.over[i : i + starts] for i in range(span)]), axis=0)
    discount = jnp.where(stretch.terminated[span:], 0.0, GAMMA**BACKUP)
    flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    obs, action = flat(stretch.obs[:-span]), flat(stretch.action[:-span])
    stored = Transition(obs, action, jnp.zeros(len(obs)), flat(discount), flat(later))
    return stored, ~flat(ends_inside)


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=4)
def _learn(
    name: str,
    config: Any,
    num_updates: int,
    warmup: int,
    memory: Any,
    stretch: Stretch,
    key: PRNGKeyArray,
):
    """Store a stretch's transitions, and update the explorer."""
    state, replay, steps = memory
    replay = replay.add(*backups(stretch, config.context_dim))
    steps = steps + stretch.over.size

    def one_update(state: Any, key: PRNGKeyArray):
        key_batch, key_update = jax.random.split(key)
        batch = replay.sample(config.td3.batch_size, key=key_batch)
        return LEARNED[name].update(config, state, batch, key=key_update)[0], None

    state = jax.lax.cond(
        steps >= warmup,
        lambda: jax.lax.scan(one_update, state, jax.random.split(key, num_updates))[0],
        lambda: state,
    )
    return state, replay, steps


class _Recorder:
    """Rows of one episode in every environment; environments that are through are ignored."""

    def __init__(self, env: VectorEnv, obs: np.ndarray):
        self.env = env
        self.rows: list[dict[str, np.ndarray]] = []
        self.length = np.zeros(env.num_envs, int)
        zero = np.zeros_like(np.asarray(env.action_space.sample()))
        nothing = np.zeros(env.num_envs, np.float32)
        self._append(obs, zero, nothing, nothing + 1, self._physics({}))

    @property
    def finished(self) -> bool:
        return bool((self.length > 0).all())

    def add(
        self,
        action: np.ndarray,
        obs: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: dict[str, Any],
    ) -> np.ndarray:
        """Record a step; returns the true next observations, also where a reset followed."""
        over = np.asarray(terminated) | np.asarray(truncated)
        final = np.where(over[:, None], infos["final_obs"], obs) if over.any() else obs
        discount = 1.0 - np.asarray(terminated, np.float32)
        self._append(final, action, reward, discount, self._physics(infos))
        self.length = np.where((self.length == 0) & over, len(self.rows) - 1, self.length)
        return final

    def _append(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        discount: np.ndarray,
        physics: Any,
    ) -> None:
        row = {"observation": obs, "action": action, "reward": reward, "discount": discount}
        self.rows.append(row if physics is None else {**row, "physics": physics})

    def _physics(self, infos: dict[str, Any]) -> np.ndarray | None:
        if "final_physics" in infos:
            return infos["final_physics"]
        states = getattr(self.env, "physics_states", None)
        return None if states is None else states()

    def episodes(self) -> list[dict[str, np.ndarray]]:
        stacked = {
            name: np.stack([row[name] for row in self.rows], axis=1) for name in self.rows[0]
        }
        episodes = []
        for i, length in enumerate(self.length):
            episode = {name: values[i, : length + 1] for name, values in stacked.items()}
            if episode["action"].dtype.kind in "iu":
                episode["action"] = episode["action"].astype(np.int32)
            episodes.append(episode)
        return episodes
