"""The three stages on real data: `pretrain` (basis, behaviors) and `compose` (player)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard import player as playing
from laplacian_keyboard import presets
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.checkpoint import RunFolder, fingerprint, load_arrays, save_arrays
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.data.replay import (
    Experience,
    Replay,
    sample_observations,
    sample_pairs,
    sample_transitions,
)
from laplacian_keyboard.keyboard import (
    Keyboard,
    KeyboardConfig,
    KeyboardParams,
    Player,
    behave,
    empty_params,
)
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import discrete
from laplacian_keyboard.successor.weights import sample_weights
from laplacian_keyboard.train import fit
from laplacian_keyboard.types import Metrics, Transition, UserError, World

MOMENT_BATCH, MOMENT_BATCHES = 8_192, 128
"""A million pairs for the refinement and the report: a few seconds, and its noise is what limits
how well nearly equal eigenvalues are told apart."""


@dataclass(frozen=True)
class BasisUpdate:
    """One step of stage 1 on a dataset."""

    config: laplacian.Config

    def __call__(
        self, state: laplacian.State, data: Experience, key: PRNGKeyArray
    ) -> tuple[laplacian.State, Metrics]:
        return laplacian.update(self.config, state, _pairs(self.config, data, key))


@dataclass(frozen=True)
class SuccessorUpdate:
    """One step of stage 2 on a dataset and a basis."""

    basis: laplacian.Config
    config: discrete.Config

    def __call__(
        self, state: discrete.State, data: tuple[Experience, MLP], key: PRNGKeyArray
    ) -> tuple[discrete.State, Metrics]:
        experience, encoder = data
        key_batch, key_goal, key_w = jax.random.split(key, 3)
        count = self.config.batch_size
        batch = sample_transitions(experience, count, key=key_batch)
        goals = sample_observations(experience, count, key=key_goal)
        both = laplacian.phi(self.basis, encoder, jnp.concatenate([batch.next_obs, goals]))
        next_phi, goal_phi = jnp.split(both, 2)
        w = sample_weights(goal_phi, goal_fraction=self.config.goal_fraction, key=key_w)
        return discrete.update(self.config, state, batch, next_phi, w)


@dataclass(frozen=True)
class OverSeeds:
    """An update mapped over a leading axis of seeds, in the state, the keys and the parts of the
    data that `data_axes` names."""

    update: Any
    data_axes: Any

    def __call__(self, state: Any, data: Any, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        return jax.vmap(self.update, in_axes=(0, self.data_axes, 0))(state, data, key)


def _pairs(config: laplacian.Config, data: Experience, key: PRNGKeyArray, count: int | None = None):
    return sample_pairs(
        data,
        count or config.batch_size,
        discount=config.pair_discount,
        negatives=config.negatives,
        num_negatives=config.num_negatives,
        key=key,
    )


@eqx.filter_jit
def average_moments(
    config: laplacian.Config, encoder: MLP, data: Experience, key: PRNGKeyArray
) -> laplacian.Moments:
    """The moments of the encoder's outputs over a million pairs of the data."""

    def one_batch(total: laplacian.Moments, key: PRNGKeyArray):
        moments = laplacian.moments(encoder, _pairs(config, data, key, MOMENT_BATCH))
        return jax.tree.map(jnp.add, total, moments), None

    width = config.k + 1
    zero = laplacian.Moments(jnp.zeros((width, width)), jnp.zeros((width, width)))
    total, _ = jax.lax.scan(one_batch, zero, jax.random.split(key, MOMENT_BATCHES))
    return jax.tree.map(lambda x: x / MOMENT_BATCHES, total)


def learn_basis(
    config: laplacian.Config,
    experience: Experience,
    *,
    num_steps: int,
    key: PRNGKeyArray,
    run: RunFolder | None = None,
    quiet: bool = True,
) -> tuple[MLP, laplacian.Report]:
    """Stage 1: the encoder, refined if the config says so, and how good it is.

    `key` may be an array of keys, one a seed; the results then have a leading seed axis.
    """
    key_init, key_train, key_moments = _split(key, 3)
    update = BasisUpdate(config)
    state = fit(
        update if key.ndim == 0 else OverSeeds(update, None),
        _map(lambda key: laplacian.init(config, experience.spec, key=key), key_init),
        experience,
        num_steps=num_steps,
        key=key_train,
        stage="basis",
        run=run,
        quiet=quiet,
    )

    def finish(encoder: MLP, key: PRNGKeyArray) -> tuple[MLP, laplacian.Report]:
        moments = average_moments(config, encoder, experience, key)
        if config.refine:
            encoder = laplacian.refine(encoder, moments)
            moments = average_moments(config, encoder, experience, key)
        return encoder, laplacian.report(moments)

    if key.ndim == 0:
        return finish(state.encoder.params, key_moments)
    each = [finish(seed_of(state.encoder.params, i), k) for i, k in enumerate(key_moments)]
    return stack_seeds(each)


def learn_behaviors(
    basis: laplacian.Config,
    config: discrete.Config,
    encoder: MLP,
    experience: Experience,
    *,
    num_steps: int,
    key: PRNGKeyArray,
    run: RunFolder | None = None,
    quiet: bool = True,
) -> MLP:
    """Stage 2: the network of the behaviors over a basis (its slow average).

    With an array of keys, `encoder` and the result have a leading seed axis.
    """
    key_init, key_train = _split(key, 2)
    update = SuccessorUpdate(basis, config)
    state = fit(
        update if key.ndim == 0 else OverSeeds(update, (None, 0)),
        _map(lambda key: discrete.init(config, experience.spec, basis.k, key=key), key_init),
        (experience, encoder),
        num_steps=num_steps,
        key=key_train,
        stage="behaviors",
        run=run,
        quiet=quiet,
    )
    assert state.network.target is not None
    return state.network.target


def _map(function: Any, key: PRNGKeyArray) -> Any:
    return function(key) if key.ndim == 0 else jax.vmap(function)(key)


def _split(key: PRNGKeyArray, count: int) -> tuple[PRNGKeyArray, ...]:
    """`count` keys, or `count` arrays of keys from an array of keys."""
    if key.ndim == 0:
        return tuple(jax.random.split(key, count))
    return tuple(jax.vmap(lambda k: jax.random.split(k, count), out_axes=1)(key))


def seed_of(tree: Any, index: int) -> Any:
    """One seed of a tree with a leading seed axis."""
    return jax.tree.map(lambda x: x[index], tree)


def stack_seeds(trees: list[Any]) -> Any:
    """Trees of single seeds as one tree with a leading seed axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pretrain(
    dataset: Dataset,
    *,
    k: int,
    preset: str = "cpu",
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = True,
) -> Keyboard:
    """Stages 1 and 2: a keyboard of k keys from reward-free data.

    With a folder `out`, an interrupted call continues there and a finished one loads.
    """
    return pretrain_seeds(dataset, k=k, preset=preset, seeds=[seed], out=out, quiet=quiet)[0]


def pretrain_seeds(
    dataset: Dataset,
    *,
    k: int,
    seeds: list[int],
    preset: str = "cpu",
    out: str | Path | None = None,
    quiet: bool = True,
) -> list[Keyboard]:
    """The same for several seeds at once, trained together on one device. Their keyboards go to
    the folders `out/seed-N`; a single seed's goes to `out` itself."""
    settings = presets.settings(preset, k)
    _require_enough_states(dataset, k)
    config = KeyboardConfig(dataset.spec, settings.basis, settings.successor, dataset.domain or "")
    run = None
    if out is not None:
        described = {
            "kind": "keyboard",
            "seeds": seeds,
            "preset": preset,
            "dataset_steps": dataset.num_transitions,
            "basis_steps": settings.basis_steps,
            "successor_steps": settings.successor_steps,
            **dataclasses.asdict(config),
        }
        run = RunFolder(out, described)
        if run.is_done:
            return [Keyboard.load(folder) for folder in _seed_folders(run.path, seeds)]
    many = len(seeds) > 1
    keys = jnp.stack([jax.random.key(seed) for seed in seeds]) if many else jax.random.key(seeds[0])
    key_basis, key_behaviors = _split(keys, 2)
    experience = dataset.experience()

    def stage_1() -> tuple[MLP, laplacian.Report]:
        steps = settings.basis_steps
        return learn_basis(
            config.basis, experience, num_steps=steps, key=key_basis, run=run, quiet=quiet
        )

    empty = empty_params(config).basis, laplacian.empty_report(k)
    like = stack_seeds([empty] * len(seeds)) if many else empty
    encoder, report = kept(run, "basis.safetensors", like, stage_1)
    network = learn_behaviors(
        config.basis,
        config.successor,
        encoder,
        experience,
        num_steps=settings.successor_steps,
        key=key_behaviors,
        run=run,
        quiet=quiet,
    )
    params = KeyboardParams(encoder, network)
    each = [seed_of(params, i) for i in range(len(seeds))] if many else [params]
    keyboards = [Keyboard(config, one) for one in each]
    if run is not None:
        for keyboard, folder in zip(keyboards, _seed_folders(run.path, seeds), strict=True):
            keyboard.save(folder)
        run.finish({name: value.tolist() for name, value in vars(report).items()})
    return keyboards


def _seed_folders(path: Path, seeds: list[int]) -> list[Path]:
    return [path] if len(seeds) == 1 else [path / f"seed-{seed}" for seed in seeds]


def kept(run: RunFolder | None, name: str, like: Any, make: Callable[[], Any]) -> Any:
    """What `make` returns, from the run folder's file if an earlier call left it there."""
    if run is None:
        return make()
    path = run.path / name
    if not path.exists():
        save_arrays(path, make())
    return load_arrays(path, like)[0]


def _require_enough_states(dataset: Dataset, k: int) -> None:
    """k eigenvectors besides the constant one need more than k different states."""
    if k < 1:
        raise UserError(f"k must be at least 1, not {k}")
    rows = dataset.observation[: 64 * (k + 1)]
    if len(np.unique(rows, axis=0)) > k:
        return
    states = len(np.unique(dataset.observation, axis=0))
    if states <= k:
        raise UserError(
            f"k = {k} is too large: the dataset has {states} different observations, so k can be "
            f"at most {states - 1}"
        )


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
        chosen = playing.act(self.config, state.player.actor.params, state.obs, key=key_act)
        random = jax.random.uniform(key_random, (num_envs, k), minval=-1.0, maxval=1.0)
        mixed = jax.random.bernoulli(key_mix, self.config.random_fraction, (num_envs, 1))
        u = jnp.where(warm & ~mixed, chosen, random)

        behavior = lambda obs, w: behave(self.keyboard, params, obs, w)  # noqa: E731
        play = lambda env, obs, u: playing.play(  # noqa: E731
            self.config, world.step, behavior, env, obs, u
        )
        env, stretch, over, reward = jax.vmap(play)(state.env, state.obs, u)
        replay = state.replay.add(stretch)
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
    example = Transition(obs[0], jnp.zeros(keyboard.k), jnp.zeros(()), jnp.zeros(()), obs[0])
    state = ComposeState(
        player=playing.init(config, keyboard.config.spec, keyboard.k, key=key_init),
        replay=Replay.create(example, config.capacity),
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
) -> Player:
    """Stage 3: a player for the task of `env`, learned online.

    `evaluate(player)` is called as learning goes on; its figures are logged. With a folder `out`,
    an interrupted call continues and a finished one loads.
    """
    world = getattr(env.unwrapped, "world", None)
    if world is None:
        raise UserError(
            "composing needs one of this package's pure-JAX worlds; "
            f"{type(env.unwrapped).__name__} is not one"
        )
    if world.spec != keyboard.config.spec:
        raise UserError(f"the keyboard was trained for {keyboard.config.spec}, not {world.spec}")
    settings = presets.settings(preset, keyboard.k)
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
            "world": fingerprint(world),
            **dataclasses.asdict(config),
        }
        run = RunFolder(out, described)
        if run.is_done:
            return Player.load(run.path)
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
    if run is not None:
        player.save(run.path)
        run.finish({"steps": steps, **(evaluate(player) if evaluate else {})})
    return player
