"""Stage 3 on real worlds: a player learns to play a keyboard.

In a pure-JAX world everything happens inside one scan (`learn_player`). Any other world is stepped
by the host, and several players, for several tasks or seeds, learn side by side (`learn_players`):

    for each stretch of t_term steps, in all environments:
      where a behavior has ended, its player chooses a new chord      one call for all players
      act, step                                                       one call for all environments
      store what ended; as many updates as steps were made            one call for all players
    every 10,000 steps: evaluate, log, checkpoint, begin new episodes

What the players know changes only when behaviors end, so updating once for a whole stretch is the
paper's one update for every step. Episodes begin anew at every checkpoint, so that a run which is
interrupted and resumed ends bitwise equal to one that is not, whatever the world is.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard import player as playing
from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder, fingerprint, save_arrays
from laplacian_keyboard.data.replay import Replay
from laplacian_keyboard.envs.gym import JaxVectorEnv
from laplacian_keyboard.envs.host import as_vector, spec_of
from laplacian_keyboard.evaluate import episode_returns
from laplacian_keyboard.keyboard import (
    Keyboard,
    KeyboardConfig,
    KeyboardParams,
    Player,
    behave,
    prepare,
)
from laplacian_keyboard.log import progress
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.train import fit, require_finite
from laplacian_keyboard.types import Metrics, Spec, Transition, UserError, World

EVALUATE_EVERY, EVALUATE_EPISODES = 10_000, 10
"""The paper's protocol: steps between evaluations, and episodes of each."""
EVALUATION_SEED = 1_000_000
"""Evaluations start where learning does not."""
CHORDS_FILE = "chords.safetensors"


class ComposeState(eqx.Module):
    """Everything that changes while a player learns in a pure-JAX world."""

    player: playing.State
    replay: Replay
    env: Any
    obs: Float[Array, "n o"]
    running_return: Float[Array, "n"]
    """Reward of each episode so far."""
    last_return: Float[Array, "n"]
    """Return of each environment's last finished episode."""
    decisions: Int[Array, ""]


@dataclass(frozen=True)
class PlayerUpdate:
    """One decision in every environment, then gradient steps on the stored stretches."""

    config: playing.Config
    keyboard: Any
    """What is played: its `k` and `input_spec`, as a KeyboardConfig has them."""
    num_updates: int
    prepare: Callable[[Any, Any, Any], Any] = prepare
    """`(keyboard, params, obs)` to what the player sees."""
    behave: Callable[[Any, Any, Any, Any], Any] = behave
    """`(keyboard, params, obs, w)` to the action that plays the chord w."""

    def __call__(
        self, state: ComposeState, data: tuple[Any, Any], key: PRNGKeyArray
    ) -> tuple[ComposeState, Metrics]:
        world, params = data
        key_act, key_random, key_mix, key_reset, key_learn = jax.random.split(key, 5)
        num_envs, k = state.obs.shape[0], self.keyboard.k
        decision_steps = num_envs * self.config.t_term
        warm = state.decisions * decision_steps >= self.config.warmup
        inputs = self.prepare(self.keyboard, params, state.obs)
        chosen = playing.act(self.config, state.player.actor.params, inputs, key=key_act)
        random = jax.random.uniform(key_random, (num_envs, k), minval=-1.0, maxval=1.0)
        mixed = jax.random.bernoulli(key_mix, self.config.random_fraction, (num_envs, 1))
        u = jnp.where(warm & ~mixed, chosen, random)

        env, stretch, over, reward = self.play(world, params, state.env, state.obs, u)
        seen_next = self.prepare(self.keyboard, params, stretch.next_obs)
        replay = state.replay.add(dataclasses.replace(stretch, obs=inputs, next_obs=seen_next))
        running = state.running_return + reward
        fresh_env, fresh_obs = jax.vmap(world.reset)(jax.random.split(key_reset, num_envs))
        select = lambda new, old: jnp.where(  # noqa: E731
            over.reshape(-1, *[1] * (new.ndim - 1)), new, old
        )
        player, metrics = jax.lax.cond(
            warm,
            lambda: self._learn(state.player, replay, key_learn),
            lambda: (state.player, _zeros(self._learn, state.player, replay, key_learn)),
        )
        new_state = ComposeState(
            player=player,
            replay=replay,
            env=jax.tree.map(select, fresh_env, env),
            obs=select(fresh_obs, stretch.next_obs),
            running_return=select(jnp.zeros_like(running), running),
            last_return=select(running, state.last_return),
            decisions=state.decisions + 1,
        )
        return new_state, {"player/return": jnp.mean(new_state.last_return), **metrics}

    def play(self, world: Any, params: Any, env: Any, obs: Any, u: Any) -> Any:
        """`player.play` in many environments."""
        behavior = lambda obs, w: self.behave(self.keyboard, params, obs, w)  # noqa: E731
        one = lambda *start: playing.play(self.config, world.step, behavior, *start)  # noqa: E731
        return jax.vmap(one)(env, obs, u)

    def _learn(
        self, player: playing.State, replay: Replay, key: PRNGKeyArray
    ) -> tuple[playing.State, Metrics]:
        def one_update(player: playing.State, key: PRNGKeyArray):
            key_batch, key_update = jax.random.split(key)
            batch = replay.sample(self.config.td3.batch_size, key=key_batch)
            return playing.update(self.config, player, batch, key=key_update)

        player, metrics = jax.lax.scan(one_update, player, jax.random.split(key, self.num_updates))
        return player, jax.tree.map(jnp.mean, metrics)


def _zeros(learn: Any, *arguments: Any) -> Metrics:
    _, shapes = jax.eval_shape(learn, *arguments)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def learn_player(
    config: playing.Config,
    keyboard: Keyboard,
    world: World,
    *,
    steps: int,
    num_envs: int,
    num_updates: int,
    key: PRNGKeyArray,
    run: RunFolder | None = None,
    evaluate: Any = None,
    chunk: int = 50,
    quiet: bool = True,
) -> Player:
    """Stage 3 in a pure-JAX world."""
    as_player = lambda actor: Player(keyboard, config, actor)  # noqa: E731
    actor = learn_actor(
        PlayerUpdate(config, keyboard.config, num_updates),
        keyboard.params,
        world,
        steps=steps,
        num_envs=num_envs,
        key=key,
        run=run,
        evaluate=None if evaluate is None else lambda actor: evaluate(as_player(actor)),
        chunk=chunk,
        quiet=quiet,
    )
    return as_player(actor)


def learn_actor(
    update: PlayerUpdate,
    params: Any,
    world: World,
    *,
    steps: int,
    num_envs: int,
    key: PRNGKeyArray,
    run: RunFolder | None = None,
    stage: str = "player",
    evaluate: Callable[[MLP], dict[str, Any]] | None = None,
    evaluate_every: int = 1,
    chunk: int = 50,
    quiet: bool = True,
) -> MLP:
    """The actor of a player of anything that has chords, learned in a pure-JAX world. It is
    evaluated at the ends of chunks whose number of decisions is a multiple of `evaluate_every`."""
    state = fit(
        update,
        start_composing(update, world, num_envs, key=key),
        (world, params),
        num_steps=-(-steps // (num_envs * update.config.t_term)),
        key=jax.random.split(key, 3)[2],
        stage=stage,
        chunk=chunk,
        run=run,
        evaluate=None if evaluate is None else lambda state: evaluate(state.player.actor.params),
        evaluate_every=evaluate_every,
        quiet=quiet,
    )
    return state.player.actor.params


def start_composing(
    update: PlayerUpdate, world: World, num_envs: int, *, key: PRNGKeyArray
) -> ComposeState:
    """An untrained player at the beginning of episodes."""
    spec, k = update.keyboard.input_spec, update.keyboard.k
    key_init, key_reset, _ = jax.random.split(key, 3)
    env, obs = jax.vmap(world.reset)(jax.random.split(key_reset, num_envs))
    return ComposeState(
        player=playing.init(update.config, spec, k, key=key_init),
        replay=empty_replay(update.config, spec, k),
        env=env,
        obs=obs,
        running_return=jnp.zeros(num_envs),
        last_return=jnp.zeros(num_envs),
        decisions=jnp.zeros((), jnp.int32),
    )


@partial(jax.jit, static_argnums=(0, 1))
def returns_of_actor(
    update: PlayerUpdate, time_limit: int, actor: MLP, params: Any, world: Any, keys: PRNGKeyArray
) -> Float[Array, "n"]:
    """Undiscounted returns of a player without exploration in a pure-JAX world, one episode of at
    most `time_limit` steps for each key."""
    env, obs = jax.vmap(world.reset)(keys)

    def decide(carry: Any, _: Any) -> tuple[Any, None]:
        env, obs, total, over = carry
        u = playing.act(update.config, actor, update.prepare(update.keyboard, params, obs))
        env, stretch, ended, reward = update.play(world, params, env, obs, u)
        return (env, stretch.next_obs, total + jnp.where(over, 0.0, reward), over | ended), None

    start = env, obs, jnp.zeros(len(keys)), jnp.zeros(len(keys), bool)
    decisions = -(-time_limit // update.config.t_term)
    return jax.lax.scan(decide, start, length=decisions)[0][2]


def empty_replay(config: playing.Config, spec: Spec, k: int) -> Replay:
    """Room for the stretches of one player."""
    row, scalar = jnp.zeros(spec.obs_dim), jnp.zeros(())
    return Replay.create(Transition(row, jnp.zeros(k), scalar, scalar, row), config.capacity)


class Learning(eqx.Module):
    """Everything that changes while players learn in host environments, one entry a player."""

    players: playing.State
    replays: Replay


ONE_A_PLAYER: Any = Learning(playing.State(0, 0, None), 0)  # type: ignore[arg-type]
"""Which parts have an entry a player. The step they count together: a step of each player's own
would turn the delayed actor update into one that is computed always and mostly thrown away."""


@dataclass(frozen=True)
class Table:
    """What players sit at: the settings they share."""

    config: playing.Config
    keyboard: KeyboardConfig
    num_updates: int = 0
    """Gradient steps of each player for every stretch of t_term steps."""


@partial(jax.jit, static_argnums=0)
def start_learning(table: Table, keys: PRNGKeyArray) -> Learning:
    """Untrained players with empty replays, one a key."""
    spec, k = table.keyboard.input_spec, table.keyboard.k

    def one(key: PRNGKeyArray) -> Learning:
        player = playing.init(table.config, spec, k, key=key)
        return Learning(player, empty_replay(table.config, spec, k))

    return jax.vmap(one, out_axes=ONE_A_PLAYER)(keys)


@partial(jax.jit, static_argnums=(0, 1))
def _choose(
    table: Table,
    at_random: bool,
    actors: Any,
    params: KeyboardParams,
    obs: Any,
    keys: PRNGKeyArray,
    step: Any,
) -> tuple[Array, Array, Array]:
    """What exploring players see, their outputs and chords, `(players * envs, ...)` each."""
    inputs = prepare(table.keyboard, params, obs)

    def one(actor: Any, inputs: Array, key: PRNGKeyArray) -> Array:
        key_act, key_random, key_mix = jax.random.split(jax.random.fold_in(key, step), 3)
        shape = (inputs.shape[0], table.keyboard.k)
        random = jax.random.uniform(key_random, shape, minval=-1.0, maxval=1.0)
        if at_random:
            return random
        chosen = playing.act(table.config, actor, inputs, key=key_act)
        mixed = jax.random.bernoulli(key_mix, table.config.random_fraction, (shape[0], 1))
        return jnp.where(mixed, random, chosen)

    grouped = inputs.reshape(len(keys), -1, inputs.shape[-1])
    u = jax.vmap(one)(actors, grouped, keys).reshape(len(inputs), -1)
    return inputs, u, playing.chord(u)


_behave = jax.jit(behave, static_argnums=0)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _learn(
    table: Table,
    is_warm: bool,
    learning: Learning,
    params: KeyboardParams,
    ended: Transition,
    kept: Any,
    keys: PRNGKeyArray,
    step: Any,
) -> tuple[Learning, Metrics]:
    """Store the stretches that ended, `(players, n)` of which `kept` are real, and update."""
    config = table.config
    ended = dataclasses.replace(ended, next_obs=prepare(table.keyboard, params, ended.next_obs))

    def one(learning: Learning, ended: Transition, kept: Array, key: PRNGKeyArray):
        replay = learning.replays.add(ended, kept)
        if not is_warm:
            return Learning(learning.players, replay), {}

        def one_update(player: playing.State, key: PRNGKeyArray):
            key_batch, key_update = jax.random.split(key)
            batch = replay.sample(config.td3.batch_size, key=key_batch)
            return playing.update(config, player, batch, key=key_update)

        update_keys = jax.random.split(jax.random.fold_in(key, step), table.num_updates)
        player, metrics = jax.lax.scan(one_update, learning.players, update_keys)
        return Learning(player, replay), jax.tree.map(jnp.mean, metrics)

    axes = (ONE_A_PLAYER, 0, 0, 0)
    return jax.vmap(one, axes, out_axes=(ONE_A_PLAYER, 0))(learning, ended, kept, keys)


class Stretches:
    """The behaviors under way in some environments: which chord, since when, with what reward."""

    def __init__(self, config: playing.Config, num_envs: int):
        self.config = config
        self.left = np.zeros(num_envs, int)
        """Steps each behavior has left; 0 where a chord must be chosen."""
        self.u = self.w = self.start = np.zeros((num_envs, 1), np.float32)
        self.reward, self.scale = np.zeros(num_envs), np.ones(num_envs)
        self.ended: list[tuple[np.ndarray, ...]] = []

    def begin(self, inputs: np.ndarray, u: np.ndarray, w: np.ndarray) -> None:
        """New chords wherever a behavior has ended."""
        where = self.left == 0
        if where.all():
            self.start, self.u, self.w = inputs, u, w
        else:
            pick = lambda new, old: np.where(where[:, None], new, old)  # noqa: E731
            self.start, self.u, self.w = map(pick, (inputs, u, w), (self.start, self.u, self.w))
        self.reward = np.where(where, 0.0, self.reward)
        self.scale = np.where(where, 1.0, self.scale)
        self.left = np.where(where, self.config.t_term, self.left)

    def add(
        self, reward: np.ndarray, terminated: np.ndarray, over: np.ndarray, seen: np.ndarray
    ) -> None:
        """One step of every environment, which ended episodes where `over`, and what was `seen`."""
        self.reward = self.reward + self.scale * reward
        self.scale = self.scale * self.config.gamma
        self.left = np.where(over, 0, self.left - 1)
        discount = np.where(terminated, 0.0, self.scale)
        self.ended.append((self.left == 0, self.start, self.u, self.reward, discount, seen))

    def collect(self, num_players: int) -> tuple[Transition, np.ndarray]:
        """The stretches of all steps since the last call, `(players, steps * envs)`, and which of
        these entries had ended: the others are of no use."""

        def by_player(column: Sequence[np.ndarray]) -> np.ndarray:
            stacked = np.stack(column)
            split = stacked.reshape(len(stacked), num_players, -1, *stacked.shape[2:])
            return np.moveaxis(split, 1, 0).reshape(num_players, -1, *stacked.shape[2:])

        kept, start, u, reward, discount, seen = map(by_player, zip(*self.ended, strict=True))
        self.ended = []
        rewards = reward.astype(np.float32), discount.astype(np.float32)
        return Transition(start, u, *rewards, seen), kept  # type: ignore[arg-type]


def play_and_learn(
    table: Table,
    params: KeyboardParams,
    env: VectorEnv,
    learning: Learning,
    keys: PRNGKeyArray,
    start: int,
    end: int,
    run: RunFolder | None,
) -> tuple[Learning, dict[str, np.ndarray]]:
    """Steps `start` to `end` of every player, from the beginning of new episodes on."""
    num_players, config, step = len(keys), table.config, start
    obs, _ = env.reset(seed=int(jax.random.randint(_fold(keys[:1], start)[0], (), 0, 2**30)))
    stretches = Stretches(config, env.num_envs)
    running, finished = np.zeros(env.num_envs), [[] for _ in range(num_players)]
    share, totals = env.num_envs // num_players, []
    while step < end:
        is_warm = step >= config.warmup
        for _ in range(config.t_term):
            if (stretches.left == 0).any():
                chosen = _choose(
                    table,
                    not is_warm,
                    learning.players.actor.params,
                    params,
                    obs,
                    keys,
                    jnp.int32(step),
                )
                inputs, u, w = map(np.asarray, chosen)
                require_finite({"player/chord": w}, "player", start, step, run)
                stretches.begin(inputs, u, w)
            action = _behave(table.keyboard, params, obs, stretches.w)
            obs, reward, terminated, truncated, infos = env.step(np.asarray(action))
            over = terminated | truncated
            seen = obs
            if over.any():
                seen = np.where(over[:, None], final_observations(infos, obs), obs)
            stretches.add(reward, terminated, over, seen)
            running = running + reward
            for i in np.flatnonzero(over):
                finished[i // share].append(running[i])
                running[i] = 0.0
            step += share
        ended, kept = stretches.collect(num_players)
        learning, metrics = _learn(
            table, is_warm, learning, params, ended, kept, keys, jnp.int32(step)
        )
        totals.append(metrics)
    averaged = {
        name: np.mean([np.asarray(one[name]) for one in totals if one], axis=0)
        for name in (totals[-1] if totals else {})
    }
    if all(finished):
        averaged["player/return"] = np.array([np.mean(returns) for returns in finished])
    return learning, averaged


_fold = jax.jit(jax.vmap(jax.random.fold_in, (0, None)))


def final_observations(infos: dict[str, Any], obs: np.ndarray) -> np.ndarray:
    """What was seen last of the episodes that ended in a step, in rows like those of `obs`."""
    if "final_obs" not in infos:
        raise UserError(
            "the environments must reset in the step that ends an episode: make them with "
            "gymnasium's AutoresetMode.SAME_STEP"
        )
    final = infos["final_obs"]
    if final.dtype != object:
        return final
    rows = obs.copy()
    for i, row in enumerate(final):
        if row is not None:
            rows[i] = row
    return rows


class Players:
    """Several players of one keyboard as one agent: player i has the i-th share of the
    environments. Remembers the chords of every player's first environment."""

    def __init__(self, table: Table, params: KeyboardParams, actors: Any):
        self.table, self.params, self.actors = table, params, actors
        self.num_players = jax.tree.leaves(actors)[0].shape[0]
        self.chords: list[Array] = []
        self._playing: Any = None

    def act(self, obs: np.ndarray, first: np.ndarray | None = None) -> np.ndarray:
        """Actions at observations `(n, o)`; `first` marks environments that have just begun."""
        if self._playing is None:
            w = jnp.zeros((len(obs), self.table.keyboard.k))
            self._playing = w, jnp.zeros(len(obs), jnp.int32)
        first = np.zeros(len(obs), bool) if first is None else first
        action, *self._playing = _play(
            self.table, self.actors, self.params, obs, *self._playing, first
        )
        self.chords.append(self._playing[0])
        return np.asarray(action)

    def chords_of_firsts(self) -> np.ndarray:
        """Chords `(decisions, players, k)` chosen in every player's first environment."""
        kept = np.stack(self.chords[:: self.table.config.t_term])
        return kept[:, :: kept.shape[1] // self.num_players]


@partial(jax.jit, static_argnums=0)
def _play(table: Table, actors: Any, params: Any, obs: Any, w: Any, left: Any, first: Any):
    inputs = prepare(table.keyboard, params, obs)
    grouped = inputs.reshape(jax.tree.leaves(actors)[0].shape[0], -1, inputs.shape[-1])
    u = jax.vmap(partial(playing.act, table.config))(actors, grouped)
    chosen = playing.chord(u).reshape(w.shape)
    is_new = (left == 0) | first
    w = jnp.where(is_new[:, None], chosen, w)
    left = jnp.where(is_new, table.config.t_term, left) - 1
    return behave(table.keyboard, params, obs, w), w, left


@dataclass(frozen=True)
class Curve:
    """How one player's return grew: `returns[i]` are the episodes evaluated after `steps[i]`."""

    steps: list[int]
    returns: list[list[float]]

    @property
    def area(self) -> float:
        """Mean return over the steps learned for (area under the curve over its length)."""
        means = [float(np.mean(episodes)) for episodes in self.returns]
        if len(means) < 2:
            return means[0] if means else float("nan")
        return float(np.trapezoid(means, self.steps) / (self.steps[-1] - self.steps[0]))


def learn_players(
    config: playing.Config,
    keyboard: Keyboard,
    env: VectorEnv,
    *,
    keys: PRNGKeyArray,
    steps: int,
    evaluate_in: VectorEnv | None = None,
    run: RunFolder | None = None,
    every: int = EVALUATE_EVERY,
    quiet: bool = True,
) -> tuple[list[Player], list[Curve]]:
    """Stage 3 in host environments, for one player a key; `steps` counts those of one player.

    Player i learns in the i-th share of `env`'s environments and is evaluated in the i-th share of
    `evaluate_in`'s, before its first step and every `every` steps.
    """
    stage, num_players = "player", len(keys)
    if env.num_envs % num_players:
        raise UserError(f"{num_players} players cannot share {env.num_envs} environments equally")
    table = Table(config, keyboard.config, config.t_term * env.num_envs // num_players)
    learning, step = start_learning(table, _fold(keys, 0)), 0
    keys, evaluated = _fold(keys, 1), []
    if run is not None:
        if (found := run.load_state(stage, learning)) is not None:
            learning, step = found
        run.forget_after(stage, step)
        evaluated = list(zip(*run.logged(stage, "player/evaluation"), strict=True))

    def evaluate(metrics: dict[str, np.ndarray]) -> None:
        if evaluate_in is not None:
            agent = Players(table, keyboard.params, learning.players.actor.params)
            episodes = EVALUATE_EPISODES * num_players
            returns, _ = episode_returns(evaluate_in, agent, episodes, seed=EVALUATION_SEED + step)
            metrics = {"player/evaluation": returns.reshape(num_players, -1), **metrics}
            evaluated.append((step, metrics["player/evaluation"].tolist()))
            if run is not None:
                save_arrays(run.path / CHORDS_FILE, {"chords": agent.chords_of_firsts()})
        if run is not None:
            run.log(stage, step, {name: value.tolist() for name, value in metrics.items()})
        bar(step, {name: float(np.mean(value)) for name, value in metrics.items()})

    with progress(stage, steps, quiet=quiet) as bar:
        if not evaluated:
            evaluate({})
        while step < steps:
            length = min(every, steps - step)
            if run is not None and step == 0:
                run.save_state(stage, step, learning)
            end = step + length
            learning, metrics = play_and_learn(
                table, keyboard.params, env, learning, keys, step, end, run
            )
            require_finite(metrics, stage, step, end, run)
            step = end
            evaluate(metrics)
            if run is not None:
                run.save_state(stage, step, learning)
    actors = learning.players.actor.params
    each = [jax.tree.map(lambda x, i=i: x[i], actors) for i in range(num_players)]
    curves = [
        Curve([at for at, _ in evaluated], [returns[i] for _, returns in evaluated])
        for i in range(num_players)
    ]
    return [Player(keyboard, config, actor) for actor in each], curves


def compose(
    keyboard: Keyboard,
    env: Any,
    *,
    steps: int | None = None,
    t_term: int | None = None,
    preset: str = "cpu",
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = True,
    evaluate: Callable[[Player], dict[str, float]] | None = None,
    evaluate_in: VectorEnv | None = None,
    facts: dict[str, Any] | None = None,
) -> Player:
    """Stage 3: a player for the task of `env`, learned online.

    In this package's grid worlds, `evaluate(player)` is called as learning goes on and its figures
    are logged; in any other environment, single or vector, the player is evaluated in
    `evaluate_in`. `facts` join the run's result. With a folder `out`, an interrupted call continues
    and a finished one loads.
    """
    world = getattr(env.unwrapped, "world", None)
    env = as_vector(env) if world is None else JaxVectorEnv(world, getattr(env, "num_envs", 1))
    spec = spec_of(env)
    if not spec.discrete:
        world = None  # stepping such worlds costs little beside the updates
    if spec != keyboard.config.spec:
        raise UserError(f"the keyboard was trained for {keyboard.config.spec}, not {spec}")
    settings = presets.settings(
        preset, keyboard.k, discrete=spec.discrete, domain=keyboard.config.domain
    )
    config = settings.player
    if t_term is not None:
        config = dataclasses.replace(config, t_term=t_term)
    steps = settings.player_steps if steps is None else steps
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    run = None
    if out is not None:
        described = {
            "kind": "player",
            "k": keyboard.k,
            "seed": seed,
            "steps": steps,
            "keyboard": fingerprint(keyboard.params),
            "world": str(env) if world is None else fingerprint(world),
            **dataclasses.asdict(config),
        }
        run = RunFolder(out, described)
        if run.is_done:
            return Player.load(run.path)
    if world is not None:
        player = learn_player(
            config,
            keyboard,
            world,
            steps=steps,
            num_envs=settings.player_envs,
            num_updates=settings.player_updates,
            key=jax.random.key(seed),
            run=run,
            evaluate=evaluate,
            quiet=quiet,
        )
        result = evaluate(player) if evaluate else {}
    else:
        (player,), (curve,) = learn_players(
            config,
            keyboard,
            env,
            keys=jax.random.key(seed)[None],
            steps=steps,
            evaluate_in=evaluate_in,
            run=run,
            quiet=quiet,
        )
        result = {"curve": dataclasses.asdict(curve), "area": curve.area}
    if run is not None:
        player.save(run.path)
        run.finish({"steps": steps, **(facts or {}), **result})
    return player
