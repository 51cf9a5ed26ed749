"""The keyboard and the player as objects to use: load, infer, act, save. No trainer is built."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from laplacian_keyboard import player as playing
from laplacian_keyboard import zero_shot
from laplacian_keyboard.baselines import td3
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.checkpoint import load_arrays, read_arrays, save_arrays
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import discrete
from laplacian_keyboard.successor.weights import to_sphere
from laplacian_keyboard.types import Spec, UserError

FORMAT = "1"
KEYBOARD_FILE, PLAYER_FILE = "keyboard.safetensors", "player.safetensors"


@dataclass(frozen=True)
class KeyboardConfig:
    """What a keyboard is made of; with the arrays, all that is needed to use it."""

    spec: Spec
    basis: laplacian.Config
    successor: discrete.Config
    domain: str = ""
    """The world it was trained in, if it has a name."""

    @property
    def k(self) -> int:
        return self.basis.k


class KeyboardParams(eqx.Module):
    """The arrays of a keyboard."""

    basis: MLP
    successor: MLP


def features(config: KeyboardConfig, params: KeyboardParams, obs: Any) -> Any:
    """phi(obs)."""
    return laplacian.phi(config.basis, params.basis, obs)


def behave(config: KeyboardConfig, params: KeyboardParams, obs: Any, w: Any) -> Any:
    """The action of behavior w."""
    return discrete.act(params.successor, obs, w)


_features = jax.jit(features, static_argnums=0)
_behave = jax.jit(behave, static_argnums=0)


class Keyboard:
    """A basis and its behaviors: one behavior for every weight vector w."""

    def __init__(self, config: KeyboardConfig, params: KeyboardParams):
        self.config, self.params = config, params

    @property
    def k(self) -> int:
        """Number of keys: the length of w."""
        return self.config.k

    def phi(self, obs: Any) -> jax.Array:
        """Features of observations `(..., o)`: the eigenvectors e_1 to e_k there."""
        return _features(self.config, self.params, self._observations(obs))

    def psi(self, obs: Any, w: Any) -> jax.Array:
        """Successor features `(..., a, k)` of every action under behavior w."""
        obs, w = self._pair(obs, w)
        return discrete.psi(self.params.successor, obs, w)

    def infer(
        self, next_obs: Any, rewards: Any, method: zero_shot.Method = "least-squares"
    ) -> jax.Array:
        """The weights of a task, from its rewards on some states."""
        return self.inference(next_obs, rewards, method).w

    def inference(
        self, next_obs: Any, rewards: Any, method: zero_shot.Method = "least-squares"
    ) -> zero_shot.Inference:
        """The weights of a task, and the fraction of its reward outside the span."""
        rewards = jnp.asarray(rewards, jnp.float32).reshape(-1)
        phi = self.phi(next_obs)
        if phi.shape[:-1] != rewards.shape:
            raise ValueError(f"{len(rewards)} rewards do not fit observations of {phi.shape[:-1]}")
        if not np.all(np.isfinite(rewards)):
            raise UserError("a reward is not a finite number")
        if np.ptp(np.asarray(rewards)) == 0.0:
            raise UserError(
                "all rewards are equal, so they say nothing about the task; label other states"
            )
        return zero_shot.infer(phi, rewards, method)

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

    def save(self, folder: str | Path) -> None:
        """Write `keyboard.safetensors` into a folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_arrays(Path(folder) / KEYBOARD_FILE, self.params, _header(self.config))

    @classmethod
    def load(cls, path: str | Path) -> "Keyboard":
        """Read a keyboard from its file or the folder it is in."""
        file = _file(path, KEYBOARD_FILE)
        config = _read_config(file, KeyboardConfig)
        like = jax.eval_shape(lambda: empty_params(config))
        params, _ = load_arrays(file, like)
        return cls(config, params)


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
        return playing.chord(_output(self.config, self.actor, jnp.asarray(obs, jnp.float32)))

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
        save_arrays(Path(folder) / PLAYER_FILE, self.actor, _header(self.config))

    @classmethod
    def load(cls, path: str | Path) -> "Player":
        file = _file(path, PLAYER_FILE)
        keyboard = Keyboard.load(file.parent)
        config = _read_config(file, playing.Config)
        like = jax.eval_shape(
            lambda: (
                playing.init(
                    config, keyboard.config.spec, keyboard.k, key=jax.random.key(0)
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
    key = jax.random.key(0)
    basis = laplacian.init(config.basis, config.spec, key=key).encoder.params
    network = discrete.init(config.successor, config.spec, config.k, key=key).network.params
    return KeyboardParams(basis, network)


def _file(path: str | Path, name: str) -> Path:
    path = Path(path)
    file = path / name if path.is_dir() else path
    if not file.exists():
        raise UserError(f"{path} holds no {name}; give the folder of a finished run")
    return file


def _header(config: Any) -> dict[str, str]:
    return {"format": FORMAT, "config": json.dumps(dataclasses.asdict(config))}


def _read_config(file: Path, kind: Any) -> Any:
    _, metadata = read_arrays(file)
    if metadata.get("format") != FORMAT:
        raise UserError(f"{file} has format {metadata.get('format')}; this version reads {FORMAT}")
    return _revive(kind, json.loads(metadata["config"]))


def _revive(kind: Any, values: dict[str, Any]) -> Any:
    """A frozen dataclass from the JSON of its fields, nested ones included."""
    nested = {
        "spec": Spec,
        "basis": laplacian.Config,
        "successor": discrete.Config,
        "td3": td3.Config,
    }
    arguments = {}
    for name, value in values.items():
        if name in nested:
            arguments[name] = _revive(nested[name], value)
        else:
            arguments[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**arguments)
    except TypeError as error:
        raise UserError(f"settings of another version: {error}") from error
