"""Stage 3 on real worlds: a player learns to play a keyboard.

In a pure-JAX world with discrete actions everything happens inside one scan (`learn_player`). Any
other world is stepped by the host (`host_loop`).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from gymnasium.vector import VectorEnv
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard import player as playing
from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder, fingerprint
from laplacian_keyboard.data.replay import Replay
from laplacian_keyboard.envs.gym import JaxVectorEnv, world_of
from laplacian_keyboard.envs.host import as_vector, spec_of
from laplacian_keyboard.host_loop import Curve, Table, empty_replay, learn_players, place_of
from laplacian_keyboard.keyboard import (
    KEYBOARD_FILE,
    PLAYER_FILE,
    Keyboard,
    Player,
    acting_part,
    behave,
    prepare,
)
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.train import fit
from laplacian_keyboard.types import Metrics, UserError, World

SIDE_BY_SIDE = "from-seed-"
"""Begins the names of folders in which several players learn; the first one's seed follows."""


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
    world = world_of(env)
    env = as_vector(env) if world is None else JaxVectorEnv(world, getattr(env, "num_envs", 1))
    place, spec = place_of(env), spec_of(env)
    if not spec.discrete:
        world = None  # stepping such worlds costs little beside the updates
    if spec != keyboard.config.spec:
        raise UserError(f"the keyboard was trained for {keyboard.config.spec}, not {spec}")
    settings = presets.settings(
        preset, keyboard.k, discrete=spec.discrete, domain=keyboard.config.domain
    )
    config, steps = _asked_for(settings, steps, t_term)
    run = None
    if out is not None:
        described = _described(keyboard, config, place, steps, seed)
        run = RunFolder(out, described, _origin(keyboard, preset, facts))
        if run.is_whole(run.path / PLAYER_FILE, run.path / KEYBOARD_FILE):
            return Player.load(run.path)
    if world is not None:
        player = learn_player(
            config,
            keyboard,
            world,
            steps=steps,
            num_envs=settings.player_envs,
            num_updates=updates_of(settings, config),
            key=jax.random.key(seed),
            run=run,
            evaluate=evaluate,
            quiet=quiet,
        )
        result = evaluate(player) if evaluate else {}
    else:
        (actor,), (curve,) = learn_players(
            Table(config, keyboard.config),
            acting_part(keyboard.params),
            env,
            keys=jax.random.key(seed)[None],
            steps=steps,
            evaluate_in=evaluate_in,
            run=run,
            quiet=quiet,
        )
        player = Player(keyboard, config, actor)
        result = _learned(curve)
    if run is not None:
        player.save(run.path)
        run.finish({"steps": steps, **(facts or {}), **result})
    return player


def compose_side_by_side(
    keyboard: Keyboard,
    env: VectorEnv,
    *,
    task: str,
    seeds: list[int],
    out: str | Path,
    evaluate_in: VectorEnv,
    steps: int | None = None,
    t_term: int | None = None,
    preset: str = "cpu",
    facts: dict[str, Any] | None = None,
) -> None:
    """Players of a task that differ in nothing but their seeds, each in one of `env`'s environments
    and with a share of `evaluate_in`'s. They go to the folders `out/seed-N`, as `compose` would
    leave them; what an interrupted call continues from is beside these."""
    settings = presets.settings(
        preset,
        keyboard.k,
        discrete=keyboard.config.spec.discrete,
        domain=keyboard.config.domain,
    )
    config, steps = _asked_for(settings, steps, t_term)
    world = f"{keyboard.config.domain}, {task}"  # not the environment, which says how many it is
    described = _described(keyboard, config, world, steps, seeds[0])
    together = {**described, "kind": "players side by side", "seeds": seeds}
    origin = _origin(keyboard, preset, {"task": task})
    run = RunFolder(Path(out) / f"{SIDE_BY_SIDE}{seeds[0]}", together, origin)
    if run.is_done:
        return
    actors, curves = learn_players(
        Table(config, keyboard.config),
        acting_part(keyboard.params),
        env,
        keys=jnp.stack([jax.random.key(seed) for seed in seeds]),
        steps=steps,
        evaluate_in=evaluate_in,
        run=run,
    )
    for seed, actor, curve in zip(seeds, actors, curves, strict=True):
        own = RunFolder(Path(out) / f"seed-{seed}", {**described, "seed": seed}, origin)
        Player(keyboard, config, actor).save(own.path)
        own.finish({"steps": steps, "task": task, **(facts or {}), **_learned(curve)})
    run.finish({"seeds": seeds})


def _asked_for(
    settings: presets.Settings, steps: int | None, t_term: int | None
) -> tuple[playing.Config, int]:
    """The player's settings, and the steps it learns for: the preset's, or what was asked for."""
    config = settings.player
    if t_term is not None:
        if t_term < 1:
            raise UserError(f"t_term must be at least 1, not {t_term}")
        config = dataclasses.replace(config, t_term=t_term)
    steps = settings.player_steps if steps is None else steps
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    return config, steps


def updates_of(settings: presets.Settings, config: playing.Config) -> int:
    """Gradient steps for every choice: as many a step as with the preset's own horizon."""
    return max(1, round(settings.player_updates * config.t_term / settings.player.t_term))


def _described(
    keyboard: Keyboard, config: playing.Config, world: str, steps: int, seed: int
) -> dict[str, Any]:
    """What makes a player's run the one it is."""
    return {
        "kind": "player",
        "k": keyboard.k,
        "seed": seed,
        "steps": steps,
        "keyboard": fingerprint(keyboard.params),
        "world": world,
        **dataclasses.asdict(config),
    }


def _origin(keyboard: Keyboard, preset: str, facts: dict[str, Any] | None) -> dict[str, Any]:
    """What names the settings of a player's run."""
    named = {"preset": preset, "domain": keyboard.config.domain, "task": (facts or {}).get("task")}
    return {name: value for name, value in named.items() if value}


def _learned(curve: Curve) -> dict[str, Any]:
    return {"curve": dataclasses.asdict(curve), "area": curve.area}
