"""The option keyboard on given features, with networks: what `baselines/option_keyboard_basis`
leaves to its callables.

One network holds psi of every behavior, and is trained on stored transitions of any policy, like
the Laplacian keyboard's; only that the features are given. A chord z is played on the behaviors
of the basis by generalised policy improvement. Between two behaviors a meta-policy for all linear
tasks is trained: it sees the task w beside the board, and chooses z.

    train(w)     psi learns for the weights of the basis, now with w
    play(w)      the features that the meta-policy of the present basis collects on w
    gain(w)      positive advantage of w's own behavior over the basis, on stored states

    basis = learn_basis(settings, world, collected, dataset, key=key)           OKB
    basis = learn_basis(..., max_behaviors=2)                                   SIP: one a feature
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from laplacian_keyboard import gpi, presets
from laplacian_keyboard import player as playing
from laplacian_keyboard.baselines import option_keyboard_basis as okb
from laplacian_keyboard.composing import PlayerUpdate, learn_actor, returns_of_actor
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.data.replay import Experience, sample_transitions
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import discrete
from laplacian_keyboard.successor.weights import to_sphere
from laplacian_keyboard.train import fit
from laplacian_keyboard.types import Metrics, Spec, TimeStep, Transition, World

Features = Callable[[Any, Any], Any]
"""`(obs, next_obs)` to the given features `(..., d)` of the transition."""

EVALUATE_EPISODES = 256
ADVANTAGE_STATES = 2_000


@dataclass(frozen=True)
class Settings:
    """How an option keyboard is learned."""

    successor: discrete.Config
    successor_steps: int
    """Gradient steps for each behavior of the basis."""
    player: playing.Config
    """The meta-policy, for linear tasks and later for the task itself."""
    linear_steps: int
    """Environment steps of the meta-policy of linear tasks, for each size of the basis."""
    player_envs: int
    player_updates: int
    """Gradient steps for every choice of chords."""
    max_behaviors: int = 5
    """Most behaviors of a basis (Alegre et al. add five)."""
    max_solved: int = 5
    """Most linear tasks tried on a basis."""
    tolerance: float = 0.05
    """Gains up to this are taken for errors of the networks; an item is worth 1."""


def settings_of(preset: str, domain: str) -> Settings:
    """The Laplacian keyboard's settings in the domain, shared out: all behaviors of a full basis
    learn as long as that keyboard's, a meta-policy of linear tasks a quarter as long as its player.
    """
    shared = presets.settings(preset, 2, discrete=True, domain=domain)
    assert isinstance(shared.successor, discrete.Config)
    most = Settings.max_behaviors
    return Settings(
        # Behaviors join while the network learns, so no schedule may end before them.
        successor=dataclasses.replace(shared.successor, num_steps=0, changes=False),
        successor_steps=-(-shared.successor_steps // most),
        player=shared.player,
        linear_steps=-(-shared.player_steps // 4),
        player_envs=shared.player_envs,
        player_updates=shared.player_updates,
    )


class OptionParams(eqx.Module):
    """The arrays of an option keyboard."""

    inputs: Inputs
    network: MLP
    weights: Float[Array, "n d"]
    """The tasks of the behaviors. A basis that is not full repeats some of them, which changes no
    choice and lets one compiled program serve every size."""


@dataclass(frozen=True)
class OptionKeyboard:
    """What a player needs to know of an option keyboard."""

    spec: Spec
    k: int
    """Number of features."""
    sees_task: bool = False
    """Whether observations end with the weights of a linear task."""

    @property
    def input_spec(self) -> Spec:
        return Spec(self.spec.obs_dim + self.sees_task * self.k, self.spec.num_actions)


def prepare(keyboard: OptionKeyboard, params: OptionParams, obs: Any) -> Any:
    """What the player sees."""
    size = keyboard.spec.obs_dim
    return jnp.concatenate([params.inputs(obs[..., :size]), obs[..., size:]], axis=-1)


def behave(keyboard: OptionKeyboard, params: OptionParams, obs: Any, z: Any) -> Any:
    """The action of chord z."""
    inputs = params.inputs(obs[..., : keyboard.spec.obs_dim])
    return gpi.act(params.network, inputs, z, behaviors=to_sphere(params.weights))


def player_of(settings: Settings, keyboard: OptionKeyboard) -> PlayerUpdate:
    """The learner of a meta-policy."""
    updates = settings.player_updates
    return PlayerUpdate(settings.player, keyboard, updates, prepare=prepare, behave=behave)


class LinearTasks(eqx.Module):
    """A world with linear rewards `w . phi`, where w is drawn anew for every episode and shown at
    the end of the observation."""

    world: Any
    weights: Float[Array, "m d"]
    """What w is drawn from; its rows may be mixed where `mix` says so."""
    paid: Float[Array, "d"] | None
    """The weights of the reward; None for w itself."""
    features: Features = eqx.field(static=True)
    mix: bool = eqx.field(static=True)

    @property
    def spec(self) -> Spec:
        spec = self.world.spec
        return Spec(spec.obs_dim + self.weights.shape[-1], spec.num_actions)

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Array]:
        key_world, key_w = jax.random.split(key)
        state, obs = self.world.reset(key_world)
        w = draw_weights(self.weights, 1, mix=self.mix, key=key_w)[0]
        return (state, obs, w), jnp.concatenate([obs, w])

    def step(self, state: Any, action: Array) -> tuple[Any, TimeStep]:
        inner, obs, w = state
        inner, seen = self.world.step(inner, action)
        reward = self.features(obs, seen.obs) @ (w if self.paid is None else self.paid)
        shown = TimeStep(jnp.concatenate([seen.obs, w]), reward, seen.discount, seen.last)
        return (inner, seen.obs, w), shown


def draw_weights(
    weights: Float[Array, "n d"], count: int, *, mix: bool, key: PRNGKeyArray
) -> Float[Array, "m d"]:
    """Tasks drawn from the rows of `weights`; with `mix`, half of them from the whole simplex."""
    key_row, key_simplex, key_mix = jax.random.split(key, 3)
    rows = weights[jax.random.randint(key_row, (count,), 0, len(weights))]
    if not mix:
        return rows
    anywhere = jax.random.dirichlet(key_simplex, jnp.ones(weights.shape[-1]), (count,))
    return jnp.where(jax.random.bernoulli(key_mix, 0.5, (count, 1)), anywhere, rows)


@dataclass(frozen=True)
class FeatureUpdate:
    """One step of psi of given features, on the tasks of the basis and all others: the others are
    what `gain` asks about."""

    config: discrete.Config
    features: Features

    def __call__(
        self,
        state: discrete.State,
        data: tuple[Experience, Inputs, Float[Array, "n d"]],
        key: PRNGKeyArray,
    ) -> tuple[discrete.State, Metrics]:
        experience, inputs, weights = data
        key_batch, key_w = jax.random.split(key)
        count = self.config.batch_size
        batch = sample_transitions(experience, count, key=key_batch)
        phi = self.features(batch.obs, batch.next_obs)
        w = to_sphere(draw_weights(weights, count, mix=True, key=key_w))
        seen = Transition(
            inputs(batch.obs), batch.action, batch.reward, batch.discount, inputs(batch.next_obs)
        )
        return discrete.update(self.config, state, seen, phi, w)


class Learning:
    """The callables of `okb.keyboard_basis`, with the networks they train."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        features: Features,
        dataset: Dataset,
        inputs: Inputs,
        *,
        time_limit: int,
        max_behaviors: int,
        key: PRNGKeyArray,
        quiet: bool = True,
    ):
        self.settings, self.world, self.features = settings, world, features
        self.experience, self.inputs = dataset.experience(), inputs
        self.time_limit, self.max_behaviors, self.quiet = time_limit, max_behaviors, quiet
        self.key_init, self.key_train, self.key_play = jax.random.split(key, 3)
        rows = dataset.sample_next_rows(ADVANTAGE_STATES, seed=0)
        states = jnp.asarray(dataset.next_observations(rows), jnp.float32)
        self.states = inputs(states)
        self.num_features = features(states[:1], states[:1]).shape[-1]
        self.network = discrete.init(
            settings.successor, world.spec, self.num_features, key=self.key_init
        )
        self.weights: list[np.ndarray] = []
        self.meta_policies: dict[int, MLP] = {}

    def params(self, weights: list[np.ndarray]) -> OptionParams:
        """The keyboard of some behaviors."""
        full = [weights[i % len(weights)] for i in range(self.max_behaviors)]
        rows = jnp.asarray(np.stack(full), jnp.float32)
        return OptionParams(self.inputs, discrete.behaviors(self.network), rows)

    def train(self, w: np.ndarray) -> np.ndarray:
        """psi for one task more. The behavior is known by its weights."""
        done = len(self.weights)
        self.weights.append(w)
        self.network = fit(
            FeatureUpdate(self.settings.successor, self.features),
            self.network,
            (self.experience, self.inputs, self.params(self.weights).weights),
            num_steps=self.settings.successor_steps,
            key=jax.random.fold_in(self.key_train, done),
            stage="behaviors",
            chunk=self.settings.successor_steps,
            quiet=self.quiet,
        )
        return w

    def play(self, behaviors: list[np.ndarray], w: np.ndarray) -> np.ndarray:
        """The features that the meta-policy over these behaviors collects on the task w."""
        settings, params, size = self.settings, self.params(behaviors), len(behaviors)
        update = player_of(
            settings, OptionKeyboard(self.world.spec, self.num_features, sees_task=True)
        )
        tasks = lambda weights, paid, mix: LinearTasks(  # noqa: E731
            self.world, jnp.asarray(weights, jnp.float32), paid, self.features, mix
        )
        if size not in self.meta_policies:
            self.meta_policies[size] = learn_actor(
                update,
                params,
                tasks(params.weights, None, True),
                steps=settings.linear_steps,
                num_envs=settings.player_envs,
                key=jax.random.fold_in(self.key_play, size),
                chunk=settings.linear_steps,
                quiet=self.quiet,
            )
        keys = jax.random.split(jax.random.fold_in(self.key_play, 0), EVALUATE_EPISODES)
        collected = [
            returns_of_actor(
                update,
                self.time_limit,
                self.meta_policies[size],
                params,
                tasks(w[None], paid, False),
                keys,
            )
            for paid in jnp.eye(self.num_features)
        ]
        return np.asarray(jnp.stack(collected).mean(axis=1), np.float64)

    def gain(self, behaviors: list[np.ndarray], w: np.ndarray) -> float:
        """How much w's own behavior promises above the best behavior of the keyboard."""
        task = jnp.asarray(w, jnp.float32)
        own, best = _promises(self.params(behaviors), self.states, task)
        return okb.positive_advantage(np.asarray(own), np.asarray(best))


@jax.jit
def _promises(params: OptionParams, states: Array, w: Array) -> tuple[Array, Array]:
    """Values on the task w: of its own behavior `(n, a)`, and of the best in the basis `(n,)`."""
    z = to_sphere(w)
    psi = discrete.psi(params.network, states, jnp.broadcast_to(z, (len(states), len(z))))
    behaviors = to_sphere(params.weights)
    every = gpi.evaluate(
        gpi.successor_features(params.network, states, behaviors),
        jnp.broadcast_to(w, (len(states), len(w))),
    )
    return psi @ w, jnp.max(every, axis=(-2, -1))


def learn_basis(
    settings: Settings,
    world: World,
    features: Features,
    dataset: Dataset,
    inputs: Inputs,
    *,
    time_limit: int,
    max_behaviors: int | None = None,
    key: PRNGKeyArray,
    quiet: bool = True,
) -> tuple[OptionParams, okb.Basis]:
    """OKB: the behaviors that linear support chooses, trained on a dataset. With as many behaviors
    as features it is SIP. The meta-policy of the task itself is learned on top, by `player_of` and
    `composing.learn_actor`."""
    max_behaviors = max_behaviors or settings.max_behaviors
    learning = Learning(
        settings,
        world,
        features,
        dataset,
        inputs,
        time_limit=time_limit,
        max_behaviors=max_behaviors,
        key=key,
        quiet=quiet,
    )
    basis = okb.keyboard_basis(
        learning.train,
        learning.play,
        learning.gain,
        learning.num_features,
        tolerance=settings.tolerance,
        max_behaviors=max_behaviors,
        max_solved=settings.max_solved,
    )
    return learning.params(basis.behaviors), basis


def empty_params(
    settings: Settings, spec: Spec, num_features: int, max_behaviors: int | None = None
) -> OptionParams:
    """The shapes of a basis."""
    state = discrete.init(settings.successor, spec, num_features, key=jax.random.key(0))
    count = max_behaviors or settings.max_behaviors
    weights = jnp.zeros((count, num_features))
    return OptionParams(Inputs.plain(spec.obs_dim), state.network.params, weights)
