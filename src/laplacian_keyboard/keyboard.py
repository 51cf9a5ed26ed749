"""The keyboard and the player as objects to use: load, infer, act, save. No trainer is built."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from laplacian_keyboard import player as playing
from laplacian_keyboard import zero_shot
from laplacian_keyboard.baselines import forward_backward, td3
from laplacian_keyboard.bases import laplacian, registry
from laplacian_keyboard.checkpoint import load_arrays, read_arrays, save_arrays
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.data.labels import relabel, states_at
from laplacian_keyboard.files import make_folder
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import continuous, discrete
from laplacian_keyboard.successor.weights import to_sphere
from laplacian_keyboard.types import Spec, UserError

FORMAT = "2"
KEYBOARD_FILE, PLAYER_FILE = "keyboard.safetensors", "player.safetensors"
STATES_FILE = "states.safetensors"
SMALL_STATES = 400_000
"""Bytes of states that a small keyboard keeps."""


@dataclass(frozen=True)
class KeyboardConfig:
    """What a keyboard is made of; with the arrays, all that is needed to use it."""

    spec: Spec
    basis: registry.Config
    successor: discrete.Config | continuous.Config
    domain: str = ""
    """The world it was trained in, if it has a name."""
    angles: tuple[int, ...] = ()
    """Entries of the observation that are angles without bound."""

    @property
    def k(self) -> int:
        return self.basis.k

    @property
    def inference_method(self) -> zero_shot.Method:
        """How a task's weights are found unless the user says otherwise. Forward-backward's
        theory asks for the mean of r * B. The smooth part of a reward is what behaviors of squashed
        eigenvectors, those of the robots, follow well."""
        if isinstance(self.basis, forward_backward.Config):
            return "mean"
        if isinstance(self.basis, laplacian.Config) and self.basis.bound:
            return "smooth"
        return "least-squares"

    @property
    def input_spec(self) -> Spec:
        """The shapes the networks see: an angle counts twice, as sine and cosine."""
        return dataclasses.replace(self.spec, obs_dim=self.spec.obs_dim + len(self.angles))


class KeyboardParams(eqx.Module):
    """The arrays of a keyboard."""

    inputs: Inputs
    basis: registry.Encoder | None
    """None where it only plays."""
    successor: MLP | continuous.Behaviors


def acting_part(params: KeyboardParams) -> KeyboardParams:
    """What it takes to play: neither the basis nor what judges the behaviors. A loop that acts at
    every step pays for each array it hands over."""
    behaviors = params.successor
    if isinstance(behaviors, continuous.Behaviors):
        behaviors = continuous.Behaviors(behaviors.actor, None)
    return KeyboardParams(params.inputs, None, behaviors)


def prepare(config: KeyboardConfig, params: KeyboardParams, obs: Any) -> Any:
    """Observations as the networks see them."""
    return params.inputs(obs, config.angles)


def features(config: KeyboardConfig, params: KeyboardParams, obs: Any) -> Any:
    """phi(obs)."""
    basis = registry.module_of(config.basis)
    return basis.phi(config.basis, params.basis, prepare(config, params, obs))


def behave(config: KeyboardConfig, params: KeyboardParams, obs: Any, w: Any) -> Any:
    """The action of behavior w."""
    inputs = prepare(config, params, obs)
    if isinstance(params.successor, continuous.Behaviors):
        return continuous.act(params.successor, inputs, w)
    return discrete.act(params.successor, inputs, w)


_features = jax.jit(features, static_argnums=0)
_behave = jax.jit(behave, static_argnums=0)
_prepare = jax.jit(prepare, static_argnums=0)


class Keyboard:
    """A basis and its behaviors: one behavior for every weight vector w."""

    def __init__(
        self, config: KeyboardConfig, params: KeyboardParams, states: Dataset | None = None
    ):
        self.config, self.params = config, params
        self.states = states
        """Some states of the data it was trained on, to infer tasks from."""

    @property
    def k(self) -> int:
        """Number of keys: the length of w."""
        return self.config.k

    def phi(self, obs: Any) -> jax.Array:
        """Features of observations `(..., o)`: of a Laplacian basis, e_1 to e_k there."""
        return _features(self.config, self.params, self._observations(obs))

    def psi(self, obs: Any, w: Any, action: Any = None) -> jax.Array:
        """Successor features under behavior w: `(..., a, k)` of every discrete action, or
        `(..., k)` of the continuous `action` (by default the behavior's own)."""
        obs, w = self._pair(obs, w)
        inputs = _prepare(self.config, self.params, obs)
        successor = self.params.successor
        if not isinstance(successor, continuous.Behaviors):
            psi = discrete.psi(successor, inputs, w)
            if self.config.successor.changes:  # type: ignore[union-attr]
                psi = (psi + self.phi(obs)[..., None, :]) / (1.0 - self.config.successor.gamma)
            return psi
        if successor.critic is None:
            raise UserError("this keyboard was saved without psi, to be small")
        action = successor.actor(inputs, w) if action is None else jnp.asarray(action, jnp.float32)
        return successor.critic(inputs, action, w)[0]

    def infer(
        self, next_obs: Any, rewards: Any, method: zero_shot.Method | None = None
    ) -> jax.Array:
        """The weights of a task, from its rewards on some states; by default by the method that
        suits the basis."""
        return self.inference(next_obs, rewards, method).w

    def inference(
        self, next_obs: Any, rewards: Any, method: zero_shot.Method | None = None
    ) -> zero_shot.Inference:
        """The weights of a task, and the fraction of its reward outside the span."""
        rewards = jnp.asarray(rewards, jnp.float32).reshape(-1)
        phi = self.phi(next_obs)
        if phi.shape[:-1] != rewards.shape:
            raise ValueError(f"{len(rewards)} rewards do not fit observations of {phi.shape[:-1]}")
        if not np.all(np.isfinite(rewards)):
            raise UserError("a reward is not a finite number")
        if not np.all(np.isfinite(phi)):
            raise UserError("an observation is not a finite number, or its features are not")
        if np.ptp(np.asarray(rewards)) == 0.0:
            raise UserError(
                "all rewards are equal, so they say nothing about the task; label other states"
            )
        return zero_shot.infer(phi, rewards, method or self.config.inference_method)

    def infer_task(self, task: str, method: zero_shot.Method | None = None) -> zero_shot.Inference:
        """The weights of a named task, from its rewards on the states kept with the keyboard."""
        if self.states is None:
            raise UserError("this keyboard keeps no states to infer a task from; use infer()")
        rewards = relabel(self.states, task)
        try:
            return self.inference(self.states.observation, rewards, method)
        except UserError as error:
            raise UserError(f"task {task}: {error}") from error

    def act(self, obs: Any, w: Any) -> jax.Array:
        """Actions of behavior w at observations `(..., o)`; w is scaled to radius sqrt(k)."""
        return _behave(self.config, self.params, *self._pair(obs, w))

    def _observations(self, obs: Any) -> jax.Array:
        obs = jnp.asarray(obs, jnp.float32)
        if obs.shape[-1:] != (self.config.spec.obs_dim,):
            raise ValueError(
                f"observations have {self.config.spec.obs_dim} entries here, not {obs.shape[-1:]}"
            )
        return obs

    def _pair(self, obs: Any, w: Any) -> tuple[jax.Array, jax.Array]:
        obs, w = self._observations(obs), jnp.asarray(w, jnp.float32)
        if w.shape[-1:] != (self.k,):
            raise ValueError(f"w has {self.k} entries on this keyboard, not {w.shape[-1:]}")
        return obs, jnp.broadcast_to(to_sphere(w), (*obs.shape[:-1], self.k))

    def save(self, folder: str | Path, *, small: bool = False) -> None:
        """Write `keyboard.safetensors` into a folder, and `states.safetensors` if it keeps states.

        `small` is for shipping: half precision, no psi, a few states.
        """
        folder, params, states = Path(folder), self.params, self.states
        header = {**header_of(self.config), "basis": registry.name_of(self.config.basis)}
        if small:
            params = _as_type(_without_psi(params), np.float16)
            header["precision"] = "half"
            states = None if states is None else _few(states)
        make_folder(folder)
        if states is not None:
            kept = {"observation": states.observation, "reward": states.reward}
            if states.physics is not None:
                kept["physics"] = states.physics.astype(np.float32)
            kept = _as_type(kept, np.float16) if small else kept
            save_arrays(folder / STATES_FILE, kept, {"description": json.dumps(states.description)})
        save_arrays(folder / KEYBOARD_FILE, params, header)

    @staticmethod
    def config_of(path: str | Path) -> KeyboardConfig:
        """The config of a keyboard in a folder, or of a shipped one, without its arrays."""
        return read_config(_file(path, KEYBOARD_FILE), KeyboardConfig)

    @classmethod
    def load(cls, path: str | Path) -> "Keyboard":
        """Read a keyboard from its file, the folder it is in, or the name of a shipped one."""
        file = _file(path, KEYBOARD_FILE)
        config = read_config(file, KeyboardConfig)
        arrays, header = read_arrays(file)
        like = jax.eval_shape(lambda: empty_params(config))
        if not any(".critic" in name for name in arrays):
            like = _without_psi(like)
        if header.get("precision") == "half":
            like = _as_type(like, np.float16)
        params, _ = load_arrays(file, like)
        return cls(config, _as_type(params, np.float32), _load_states(file.parent, config))


class Chord:
    """One behavior as an agent: what zero-shot control runs."""

    def __init__(self, keyboard: Keyboard, w: Any):
        self.keyboard, self.w = keyboard, w

    def act(self, obs: Any, first: Any = None) -> jax.Array:
        return self.keyboard.act(obs, self.w)


class Player:
    """A keyboard with a meta-policy that plays it: a new chord every `t_term` steps."""

    def __init__(self, keyboard: Keyboard, config: playing.Config, actor: MLP):
        self.keyboard, self.config, self.actor = keyboard, config, actor
        self.reset()

    def reset(self) -> None:
        """Forget the current chord: the next step begins an episode."""
        self.w = jnp.zeros(self.keyboard.k)
        self._left = np.zeros((), int)

    def choose(self, obs: Any) -> jax.Array:
        """The chord the player picks at observations `(..., o)`."""
        keyboard = self.keyboard
        inputs = _prepare(keyboard.config, keyboard.params, jnp.asarray(obs, jnp.float32))
        return playing.chord(_output(self.config, self.actor, inputs))

    def act(self, obs: Any, first: Any = None) -> jax.Array:
        """Actions at `obs`, one observation or a batch of them. The chord is kept for t_term steps;
        `first` marks environments whose episode has just begun."""
        obs = jnp.asarray(obs, jnp.float32)
        batch = obs.shape[:-1]
        if self._left.shape != batch:
            self.w, self._left = jnp.zeros((*batch, self.keyboard.k)), np.zeros(batch, int)
        choose = self._left == 0
        if first is not None:
            choose = choose | np.asarray(first)
        if choose.any():
            self.w = jnp.where(choose[..., None], self.choose(obs), self.w)
        self._left = np.where(choose, self.config.t_term, self._left) - 1
        return self.keyboard.act(obs, self.w)

    def save(self, folder: str | Path) -> None:
        """Write the player and its keyboard into a folder."""
        self.keyboard.save(folder)
        save_arrays(Path(folder) / PLAYER_FILE, self.actor, header_of(self.config))

    @classmethod
    def load(cls, path: str | Path) -> "Player":
        file = _file(path, PLAYER_FILE)
        keyboard = Keyboard.load(file.parent)
        config = read_config(file, playing.Config)
        like = jax.eval_shape(
            lambda: (
                playing.init(
                    config, keyboard.config.input_spec, keyboard.k, key=jax.random.key(0)
                ).actor.params
            )
        )
        actor, _ = load_arrays(file, like)
        return cls(keyboard, config, actor)


_output = jax.jit(playing.act, static_argnums=0)


def load(path: str | Path) -> Keyboard | Player:
    """The player in a run folder if there is one, else the keyboard."""
    has_player = (Path(path) / PLAYER_FILE).exists() or Path(path).name == PLAYER_FILE
    return Player.load(path) if has_player else Keyboard.load(path)


def empty_params(config: KeyboardConfig) -> KeyboardParams:
    """Untrained parameters: the shapes of a keyboard."""
    key, spec = jax.random.key(0), config.input_spec
    inputs = Inputs.plain(config.spec.obs_dim, config.angles)
    basis = empty_encoder(config.basis, config.successor, spec, key=key)
    return KeyboardParams(inputs, basis, empty_behaviors(config.successor, spec, config.k, key=key))


def empty_encoder(
    config: registry.Config, successor: discrete.Config | continuous.Config, spec: Spec, *, key: Any
) -> registry.Encoder:
    """An untrained basis."""
    if isinstance(config, forward_backward.Config):
        state = forward_backward.init(config, successor, spec, key=key)
        return forward_backward.encoder(state)
    basis = registry.module_of(config)
    return basis.encoder(basis.init(config, spec, key=key))


def empty_behaviors(
    config: discrete.Config | continuous.Config, spec: Spec, k: int, *, key: Any
) -> MLP | continuous.Behaviors:
    """Untrained behaviors, for discrete or continuous actions."""
    if isinstance(config, continuous.Config):
        return continuous.behaviors(continuous.init(config, spec, k, key=key))
    return discrete.init(config, spec, k, key=key).network.params


def shipped() -> list[str]:
    """Names of the keyboards that come with the package."""
    folder = Path(__file__).parent / "keyboards"
    return sorted(path.parent.name for path in folder.glob(f"*/{KEYBOARD_FILE}"))


def _file(path: str | Path, name: str) -> Path:
    given = Path(path)
    if not given.exists() and str(path) in shipped():
        given = Path(__file__).parent / "keyboards" / str(path)
    file = given / name if given.is_dir() else given
    if not file.exists():
        known = ", ".join(shipped())
        raise UserError(
            f"{path} holds no {name}; give the folder of a finished run"
            + (f", or the name of a shipped keyboard: {known}" if known else "")
        )
    return file


def _without_psi(params: KeyboardParams) -> KeyboardParams:
    """Continuous behaviors act without their critic; discrete ones are their psi."""
    if not isinstance(params.successor, continuous.Behaviors):
        return params
    acting = continuous.Behaviors(params.successor.actor, None)
    return KeyboardParams(params.inputs, params.basis, acting)


def _few(states: Dataset) -> Dataset:
    """As many of the states, evenly spaced, as a small keyboard keeps."""
    total, numbers = len(states.observation), states.observation.shape[1] + 1
    numbers += 0 if states.physics is None else states.physics.shape[1]
    count = SMALL_STATES // (2 * numbers)
    return states_at(states, np.arange(0, total, max(1, -(-total // count))))


def _as_type(tree: Any, kind: Any) -> Any:
    """A tree with its real numbers in another precision."""

    def convert(leaf: Any) -> Any:
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, kind)
        return leaf.astype(kind)

    return jax.tree.map(convert, tree)


def _load_states(folder: Path, config: KeyboardConfig) -> Dataset | None:
    path = folder / STATES_FILE
    if not path.exists():
        return None
    arrays, metadata = read_arrays(path)
    arrays = {name.strip("[]'"): values for name, values in arrays.items()}
    obs, physics = arrays["observation"], arrays.get("physics")
    return Dataset(
        path=path,
        description=json.loads(metadata["description"]),
        observation=obs.astype(np.float32) if obs.dtype == np.float16 else obs,
        action=np.zeros((len(obs), config.spec.action_dim), np.float32),
        reward=arrays["reward"].astype(np.float32),
        discount=np.ones(len(obs), np.float32),
        physics=None if physics is None else physics.astype(np.float64),
        lengths=np.zeros(len(obs), int),
        num_actions=config.spec.num_actions,
    )


def header_of(config: Any) -> dict[str, str]:
    """What is written beside arrays, so that they can be used without anything else."""
    return {"format": FORMAT, "config": json.dumps(dataclasses.asdict(config))}


def read_config(file: Path, kind: Any) -> Any:
    """The config beside a file's arrays."""
    _, metadata = read_arrays(file)
    if metadata.get("format") != FORMAT:
        raise UserError(f"{file} has format {metadata.get('format')}; this version reads {FORMAT}")
    basis = registry.basis_module(metadata.get("basis", "laplacian"))
    return _revive(kind, json.loads(metadata["config"]), basis)


def _revive(kind: Any, values: dict[str, Any], basis: ModuleType) -> Any:
    """A frozen dataclass from the JSON of its fields, nested ones included."""
    is_discrete = values.get("spec", {}).get("num_actions", 0) > 0
    nested = {
        "spec": Spec,
        "basis": basis.Config,
        "successor": discrete.Config if is_discrete else continuous.Config,
        "player": playing.Config,
        "td3": td3.Config,
    }
    arguments = {}
    for name, value in values.items():
        if name in nested:
            arguments[name] = _revive(nested[name], value, basis)
        else:
            arguments[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**arguments)
    except TypeError as error:
        raise UserError(f"settings of another version: {error}") from error
