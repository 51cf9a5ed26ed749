"""Stage 3 on real worlds: a player learns to play a keyboard.

In a pure-JAX world with discrete actions everything happens inside one scan (`learn_player`). Any
other world is stepped by the host (`host_loop`).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
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
from laplacian_keyboard.envs.gym import JaxVectorEnv
from laplacian_keyboard.envs.host import as_vector, spec_of
from laplacian_keyboard.host_loop import Table, empty_replay, learn_players
from laplacian_keyboard.keyboard import (
    Keyboard,
    KeyboardConfig,
    KeyboardParams,
    Player,
    behave,
    prepare,
)
from laplacian_keyboard.train import fit
from laplacian_keyboard.types import Metrics, UserError, World


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
    keyboard: KeyboardConfig
    num_updates: int

    def __call__(
        self, state: ComposeState, data: tuple[Any, KeyboardParams], key: PRNGKeyArray
    ) -> tuple[ComposeState, Metrics]:
        world, params = data
        key_act, key_random, key_mix, key_reset, key_learn = jax.random.split(key, 5)
        num_envs, k = state.obs.shape[0], self.keyboard.k
        decision_steps = num_envs * self.config.t_term
        warm = state.decisions * decision_steps >= self.config.warmup
        inputs = prepare(self.keyboard, params, state.obs)
        chosen = playing.act(self.config, state.player.actor.params, inputs, key=key_act)
        random = jax.random.uniform(key_random, (num_envs, k), minval=-1.0, maxval=1.0)
        mixed = jax.random.bernoulli(key_mix, self.config.random_fraction, (num_envs, 1))
        u = jnp.where(warm & ~mixed, chosen, random)

        behavior = lambda obs, w: behave(self.keyboard, params, obs, w)  # noqa: E731
        play = lambda env, obs, u: playing.play(  # noqa: E731
            self.config, world.step, behavior, env, obs, u
        )
        env, stretch, over, reward = jax.vmap(play)(state.env, state.obs, u)
        seen_next = prepare(self.keyboard, params, stretch.next_obs)
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
    key_init, key_reset, key_train = jax.random.split(key, 3)
    env, obs = jax.vmap(world.reset)(jax.random.split(key_reset, num_envs))
    spec = keyboard.config.input_spec
    state = ComposeState(
        player=playing.init(config, spec, keyboard.k, key=key_init),
        replay=empty_replay(config, spec, keyboard.k),
        env=env,
        obs=obs,
        running_return=jnp.zeros(num_envs),
        last_return=jnp.zeros(num_envs),
        decisions=jnp.zeros((), jnp.int32),
    )
    as_player = lambda state: Player(keyboard, config, state.player.actor.params)  # noqa: E731
    state = fit(
        PlayerUpdate(config, keyboard.config, num_updates),
        state,
        (world, keyboard.params),
        num_steps=-(-steps // (num_envs * config.t_term)),
        key=key_train,
        stage="player",
        chunk=chunk,
        run=run,
        evaluate=None if evaluate is None else lambda state: evaluate(as_player(state)),
        quiet=quiet,
    )
    return as_player(state)


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
    settings = presets.settings(preset, keyboard.k, discrete=spec.discrete)
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
        (actor,), (curve,) = learn_players(
            Table(config, keyboard.config),
            keyboard.params,
            env,
            keys=jax.random.key(seed)[None],
            steps=steps,
            evaluate_in=evaluate_in,
            run=run,
            quiet=quiet,
        )
        player = Player(keyboard, config, actor)
        result = {"curve": dataclasses.asdict(curve), "area": curve.area}
    if run is not None:
        player.save(run.path)
        run.finish({"steps": steps, **(facts or {}), **result})
    return player
