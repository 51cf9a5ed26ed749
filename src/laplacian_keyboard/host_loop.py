"""Learning by TD3 in environments that the host steps: players of a keyboard, and flat agents.

Several of them, for several tasks or seeds, learn side by side:

    for each round of some 50 steps, in all environments:
      at every step:  choose chords where behaviors have ended, act, step     a call each for all
      wait for the updates of the round before
      store the stretches that ended                                              one call for all
      begin as many updates as steps were made                                      one call for all
    every 10,000 steps: evaluate, log, checkpoint, begin new episodes

So there is one update for every step, as in the paper. The updates run in a thread of their own
while the environments take the steps of the next round, so a chord is chosen with what was learned
up to the round before; when each happens is fixed, and so are the bits. Episodes begin anew at
every checkpoint, so that a run which is interrupted and resumed ends bitwise equal to one that is
not, whatever the world is. A flat agent is a player whose stretches are one step long and whose
chords are the actions.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv
from jax import Array
from jaxtyping import PRNGKeyArray

from laplacian_keyboard import player as playing
from laplacian_keyboard.checkpoint import RunFolder, fingerprint, save_arrays
from laplacian_keyboard.data.replay import Replay
from laplacian_keyboard.envs.gym import world_of
from laplacian_keyboard.evaluate import episode_returns
from laplacian_keyboard.keyboard import behave, prepare
from laplacian_keyboard.log import progress
from laplacian_keyboard.train import require_finite
from laplacian_keyboard.types import Metrics, Spec, Transition, UserError

EVALUATE_EVERY, EVALUATE_EPISODES = 10_000, 10
"""The paper's protocol: steps between evaluations, and episodes of each."""
EVALUATION_SEED = 1_000_000
"""Evaluations start where learning does not."""
ROUND = 50
"""Steps of every environment between two visits to the learner, in whole stretches. A call into
compiled code with all that a learner is made of takes as long as several of its updates."""
CHORDS_FILE = "chords.safetensors"
CHOOSING = 2**31 - 1
"""Folded into the key of a step for the choices made in it; its updates split the key itself."""


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
    """What players sit at: the settings they share, and what they play."""

    config: playing.Config
    keyboard: Any
    """Its `k` and `input_spec`: a KeyboardConfig, or what stands in for it."""
    prepare: Callable[[Any, Any, Any], Any] = prepare
    """`(keyboard, params, obs)` to what the player sees."""
    chord: Callable[[Any], Any] = playing.chord
    """A player's output to the chord it stands for."""
    behave: Callable[[Any, Any, Any, Any], Any] = behave
    """`(keyboard, params, obs, w)` to the action that plays the chord w."""


@partial(jax.jit, static_argnums=0)
def start_learning(table: Table, keys: PRNGKeyArray) -> Learning:
    """Untrained players with empty replays, one a key."""
    spec, k = table.keyboard.input_spec, table.keyboard.k

    def one(key: PRNGKeyArray) -> Learning:
        player = playing.init(table.config, spec, k, key=key)
        return Learning(player, empty_replay(table.config, spec, k))

    return jax.vmap(one, out_axes=ONE_A_PLAYER)(keys)


@dataclass(frozen=True)
class Choice:
    """What exploring players see, their outputs and chords, and the first actions of these,
    `(players * envs, ...)` each."""

    inputs: Any
    u: Any
    w: Any
    action: Any


jax.tree_util.register_dataclass(Choice)


class Exploration(NamedTuple):
    """What chance has in the choices of a step, `(players * envs, ...)`, or of the steps of one or
    many rounds. Drawn ahead: loops of random numbers would wait for the thread that learns."""

    noise: Any
    """Added to outputs."""
    random: Any
    """Outputs that are not the player's at all."""
    is_random: Any
    """Where these are taken: in the warm-up, and in the fraction of choices the config names."""


def _draw(table: Table, share: int, length: int, keys: PRNGKeyArray, step: Any) -> Exploration:
    """For a round of `length` steps that begins at `step`."""

    def one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        key = jax.random.fold_in(jax.random.fold_in(key, step), CHOOSING)
        key_noise, key_random, key_mix = jax.random.split(key, 3)
        shape = (length, share, table.keyboard.k)
        noise = table.config.td3.exploration_noise * jax.random.normal(key_noise, shape)
        random = jax.random.uniform(key_random, shape, minval=-1.0, maxval=1.0)
        mixed = jax.random.bernoulli(key_mix, table.config.random_fraction, (*shape[:2], 1))
        return noise, random, mixed

    drawn = jax.vmap(one, out_axes=1)(keys)
    noise, random, mixed = (x.reshape(length, -1, x.shape[-1]) for x in drawn)
    is_warmup = step + share * jnp.arange(length) < table.config.warmup
    return Exploration(noise, random, mixed | is_warmup[:, None, None])


def _choose(table: Table, actors: Any, params: Any, obs: Any, explore: Exploration) -> Choice:
    inputs = table.prepare(table.keyboard, params, obs)
    num_players = jax.tree.leaves(actors)[0].shape[0]
    grouped = inputs.reshape(num_players, -1, inputs.shape[-1])
    chosen = jax.vmap(partial(playing.act, table.config))(actors, grouped)
    chosen = jnp.clip(chosen.reshape(explore.noise.shape) + explore.noise, -1.0, 1.0)
    u = jnp.where(explore.is_random, explore.random, chosen)
    w = table.chord(u)
    return Choice(inputs, u, w, table.behave(table.keyboard, params, obs, w))


def _store(table: Table, replays: Replay, params: Any, ended: Transition, kept: Any) -> Replay:
    """Keep the stretches that ended, `(players, n)` of which `kept` are real."""
    seen = table.prepare(table.keyboard, params, ended.next_obs)
    return jax.vmap(Replay.add)(replays, dataclasses.replace(ended, next_obs=seen), kept)


def learn(
    config: playing.Config, num_updates: int, learning: Learning, keys: PRNGKeyArray
) -> tuple[playing.State, Metrics]:
    """Updates of every player on its own replay, and their mean metrics."""

    def one(learning: Learning, key: PRNGKeyArray) -> tuple[playing.State, Metrics]:
        def one_update(player: playing.State, key: PRNGKeyArray):
            key_batch, key_update = jax.random.split(key)
            batch = learning.replays.sample(config.td3.batch_size, key=key_batch)
            return playing.update(config, player, batch, key=key_update)

        keys = jax.random.split(key, num_updates)
        player, metrics = jax.lax.scan(one_update, learning.players, keys)
        return player, jax.tree.map(jnp.mean, metrics)

    axes, out_axes = (ONE_A_PLAYER, 0), (ONE_A_PLAYER.players, 0)
    if len(keys) > 1:
        return jax.vmap(one, axes, out_axes=out_axes)(learning, keys)
    # Mapped over one player, the products of its small batches take half as long again.
    player, metrics = one(*_map_axes(lambda x: x[0], axes, (learning, keys)))
    return _map_axes(lambda x: x[None], out_axes, (player, metrics))


def _map_axes(function: Callable[[Array], Array], axes: Any, tree: Any) -> Any:
    """`function` of the arrays that have an entry a player, as `vmap`'s axes name them."""
    is_none = lambda x: x is None  # noqa: E731
    apply = lambda axis, part: part if axis is None else jax.tree.map(function, part)  # noqa: E731
    return jax.tree.map(apply, axes, tree, is_leaf=is_none)


class Calls:
    """The compiled calls of a table. They take and give modules as flat lists of arrays and keys as
    their numbers: walking a module in Python at every step costs more than the step."""

    def __init__(
        self,
        table: Table,
        num_updates: int,
        params_tree: Any,
        actors_tree: Any,
        players_tree: Any,
        replays_tree: Any,
    ):
        unflatten = jax.tree.unflatten

        def draw(share, length, keys, steps):
            keys = jax.random.wrap_key_data(keys)
            return jax.lax.map(partial(_draw, table, share, length, keys), steps)

        def choose(actors, params, obs, explore):
            actors, params = unflatten(actors_tree, actors), unflatten(params_tree, params)
            return _choose(table, actors, params, obs, explore)

        def behave(params, obs, w):
            return table.behave(table.keyboard, unflatten(params_tree, params), obs, w)

        def store(replays, params, ended, kept):
            replays, params = unflatten(replays_tree, replays), unflatten(params_tree, params)
            return jax.tree.leaves(_store(table, replays, params, Transition(*ended), kept))

        def learn_round(players, replays, keys, step):
            learning = Learning(unflatten(players_tree, players), unflatten(replays_tree, replays))
            keys = _fold(jax.random.wrap_key_data(keys), step)
            players, metrics = learn(table.config, num_updates, learning, keys)
            return jax.tree.leaves(players), metrics

        self.draw = jax.jit(draw, static_argnums=(0, 1))
        """What chance has in the choices of the rounds that begin at some steps."""
        self.choose = jax.jit(choose)
        """Chords for players who have just sat down, or whose behaviors have ended."""
        self.behave = jax.jit(behave)
        """Actions of the chords under way."""
        self.store = jax.jit(store, donate_argnums=0)
        """Keep what ended. Apart from the updates: in one call with them XLA repeats the write
        inside their reads, and copies the whole buffer to keep both."""
        self.learn = jax.jit(learn_round)
        """Learn from what is kept."""


calls_of = functools.cache(Calls)


class Beside:
    """One computation at a time in a thread of its own, while this one steps environments."""

    def __enter__(self) -> "Beside":
        self.thread, self.under_way = ThreadPoolExecutor(1), None
        return self

    def __exit__(self, *_: Any) -> None:
        self.thread.shutdown()

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Compute `function(*arguments)`."""
        wait = lambda: jax.block_until_ready(function(*arguments))  # noqa: E731
        self.under_way: Future[Any] | None = self.thread.submit(wait)

    def result(self) -> Any:
        """What was begun, once; None if nothing was."""
        under_way, self.under_way = self.under_way, None
        return under_way and under_way.result()


class Stretches:
    """The behaviors under way in some environments: which chord, since when, with what reward."""

    def __init__(self, config: playing.Config, num_envs: int):
        self.config = config
        self.left = np.zeros(num_envs, int)
        """Steps each behavior has left; 0 where a chord must be chosen."""
        self.some_ended = True
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
        discount, ended = np.where(terminated, 0.0, self.scale), self.left == 0
        self.some_ended = np.count_nonzero(ended) > 0  # quicker than `any`
        self.ended.append((ended, self.start, self.u, self.reward, discount, seen))

    def collect(self, num_players: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The fields of a Transition for the stretches of all steps since the last call,
        `(players, steps * envs)`, and which of these had ended: the others are of no use."""

        def by_player(column: Sequence[np.ndarray]) -> np.ndarray:
            split = [each.reshape(num_players, -1, *each.shape[1:]) for each in column]
            return np.concatenate(split, axis=1)

        kept, start, u, reward, discount, seen = map(by_player, zip(*self.ended, strict=True))
        self.ended = []
        rewards = reward.astype(np.float32), discount.astype(np.float32)
        return (start, u, *rewards, seen), kept


def play_and_learn(
    table: Table,
    params: Any,
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
    round_steps = config.t_term * max(1, ROUND // config.t_term)
    keyboard, keyboard_tree = jax.tree.flatten(params)
    players, players_tree = jax.tree.flatten(learning.players)
    places = jax.tree.unflatten(players_tree, range(len(players)))
    places_of_actors, actors_tree = jax.tree.flatten(places.actor.params)
    actors = [players[i] for i in places_of_actors]
    replays, replays_tree = jax.tree.flatten(learning.replays)
    trees = keyboard_tree, actors_tree, players_tree, replays_tree
    calls, key_data = calls_of(table, round_steps * share, *trees), jax.random.key_data(keys)
    with Beside() as beside:

        def take_what_was_learned() -> None:
            nonlocal players, actors
            if (result := beside.result()) is not None:
                players, metrics = result
                actors = [players[i] for i in places_of_actors]
                totals.append(metrics)

        rounds = np.arange(start, end, round_steps * share, dtype=np.int32)
        drawn = calls.draw(share, round_steps, key_data, rounds)
        for explored in map(Exploration, *map(np.asarray, drawn)):
            for explore in map(Exploration, *explored):
                action = None
                if stretches.some_ended:
                    choice = calls.choose(actors, keyboard, obs, explore)
                    inputs, u, w, first_action = map(np.asarray, vars(choice).values())
                    require_finite({"player/chord": w}, "player", start, step, run)
                    if (stretches.left == 0).all():
                        action = first_action
                    stretches.begin(inputs, u, w)
                if action is None:
                    action = np.asarray(calls.behave(keyboard, obs, stretches.w))
                obs, reward, terminated, truncated, infos = env.step(action)
                over, seen = terminated | truncated, obs
                running = running + reward
                if np.count_nonzero(over):
                    seen = np.where(over[:, None], final_observations(infos, obs), obs)
                    for i in np.flatnonzero(over):
                        finished[i // share].append(running[i])
                        running[i] = 0.0
                stretches.add(reward, terminated, over, seen)
                step += share
            ended = stretches.collect(num_players)
            take_what_was_learned()
            replays = calls.store(replays, keyboard, *ended)
            if step >= config.warmup:
                beside.begin(calls.learn, players, replays, key_data, np.int32(step))
        take_what_was_learned()
    unflatten = jax.tree.unflatten
    learning = Learning(unflatten(players_tree, players), unflatten(replays_tree, replays))
    averaged = {
        name: np.mean([np.asarray(one[name]) for one in totals], axis=0)
        for name in (totals[-1] if totals else {})
    }
    if all(finished):
        averaged["player/return"] = np.array([np.mean(returns) for returns in finished])
    return learning, averaged


_fold = jax.jit(jax.vmap(jax.random.fold_in, (0, None)))


def place_of(env: Any) -> str:
    """What tells an environment from another in the settings of a run."""
    world = world_of(env)
    return str(env) if world is None else fingerprint(world)


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

    def __init__(self, table: Table, params: Any, actors: Any):
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
    inputs = table.prepare(table.keyboard, params, obs)
    grouped = inputs.reshape(jax.tree.leaves(actors)[0].shape[0], -1, inputs.shape[-1])
    u = jax.vmap(partial(playing.act, table.config))(actors, grouped)
    chosen = table.chord(u).reshape(w.shape)
    is_new = (left == 0) | first
    w = jnp.where(is_new[:, None], chosen, w)
    left = jnp.where(is_new, table.config.t_term, left) - 1
    return table.behave(table.keyboard, params, obs, w), w, left


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
    table: Table,
    params: Any,
    env: VectorEnv,
    *,
    keys: PRNGKeyArray,
    steps: int,
    evaluate_in: VectorEnv | None = None,
    run: RunFolder | None = None,
    every: int = EVALUATE_EVERY,
    stage: str = "player",
    quiet: bool = True,
) -> tuple[list[Any], list[Curve]]:
    """The actors of one player a key, and how their returns grew; `steps` counts those of one.

    Player i learns in the i-th share of `env`'s environments and is evaluated in the i-th share of
    `evaluate_in`'s, before its first step and every `every` steps, which are rounded up to whole
    rounds.
    """
    num_players = len(keys)
    if env.num_envs % num_players:
        raise UserError(f"{num_players} players cannot share {env.num_envs} environments equally")
    learning, step = start_learning(table, _fold(keys, 0)), 0
    keys, evaluated = _fold(keys, 1), []
    if run is not None:
        if (found := run.load_state(stage, learning)) is not None:
            learning, step = found
        run.forget_after(stage, step)
        evaluated = list(zip(*run.logged(stage, "player/evaluation"), strict=True))

    def evaluate(metrics: dict[str, np.ndarray]) -> None:
        if evaluate_in is not None:
            agent = Players(table, params, learning.players.actor.params)
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
            learning, metrics = play_and_learn(table, params, env, learning, keys, step, end, run)
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
    return each, curves
