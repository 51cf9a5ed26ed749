"""The flat baseline on real worlds: TD3 that acts by itself, without a keyboard.

It learns in the loop of the players (`host_loop`): stretches of one step, and what is chosen is the
action. So both have the same updates, the same evaluations and the same way to resume.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium.vector import VectorEnv

from laplacian_keyboard import player as playing
from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder, load_arrays, save_arrays
from laplacian_keyboard.envs.host import as_vector, spec_of
from laplacian_keyboard.host_loop import Table, learn_players, place_of
from laplacian_keyboard.keyboard import header_of, read_config
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.types import Spec, UserError

AGENT_FILE = "agent.safetensors"


@dataclass(frozen=True)
class FlatConfig:
    """What a flat agent is made of. Stands where a player has a keyboard's config."""

    spec: Spec
    player: playing.Config
    """The settings it learns with."""
    domain: str = ""
    """The world it is for, if it has a name."""

    @property
    def k(self) -> int:
        """Numbers to choose: those of the action."""
        return self.spec.action_dim

    @property
    def input_spec(self) -> Spec:
        """Observations are taken as they are."""
        return self.spec


def table_of(config: FlatConfig) -> Table:
    """The table of agents whose chords are their actions."""
    return Table(config.player, config, prepare=_see, chord=_as_chosen, behave=_do)


def _see(config: FlatConfig, params: Any, obs: Any) -> Any:
    return jnp.asarray(obs, jnp.float32)


def _as_chosen(u: Any) -> Any:
    return u


def _do(config: FlatConfig, params: Any, obs: Any, action: Any) -> Any:
    return action


_output = jax.jit(playing.act, static_argnums=0)


class FlatAgent:
    """A policy from observations to actions."""

    def __init__(self, config: FlatConfig, actor: MLP):
        self.config, self.actor = config, actor

    def act(self, obs: Any, first: Any = None) -> jax.Array:
        """Actions at observations `(..., o)`."""
        return _output(self.config.player, self.actor, jnp.asarray(obs, jnp.float32))

    def save(self, folder: str | Path) -> None:
        """Write `agent.safetensors` into a folder."""
        save_arrays(Path(folder) / AGENT_FILE, self.actor, header_of(self.config))

    @classmethod
    def load(cls, folder: str | Path) -> "FlatAgent":
        """Read an agent from the folder of its run."""
        file = Path(folder) / AGENT_FILE
        config = read_config(file, FlatConfig)
        like = jax.eval_shape(
            lambda: (
                (
                    playing.init(config.player, config.spec, config.k, key=jax.random.key(0))
                ).actor.params
            )
        )
        return cls(config, load_arrays(file, like)[0])


def train_flat(
    env: Any,
    *,
    steps: int | None = None,
    preset: str = "cleanrl",
    domain: str = "",
    seed: int = 0,
    out: str | Path | None = None,
    evaluate_in: VectorEnv | None = None,
    facts: dict[str, Any] | None = None,
    quiet: bool = True,
) -> FlatAgent:
    """TD3 on the task of `env`, a Gymnasium environment, single or vector, with Box actions.

    With a folder `out`, an interrupted call continues there and a finished one loads.
    """
    env = as_vector(env)
    spec = spec_of(env)
    if spec.discrete:
        raise UserError("TD3 needs continuous actions (a Box); these are discrete")
    settings, default_steps = presets.flat(preset)
    steps = default_steps if steps is None else steps
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    config, run = FlatConfig(spec, settings, domain), None
    if out is not None:
        described = {"kind": "td3", "seed": seed, "steps": steps, "world": place_of(env)}
        run = RunFolder(out, {**described, **dataclasses.asdict(config)})
        if run.is_whole(run.path / AGENT_FILE):
            return FlatAgent.load(run.path)
    (actor,), (curve,) = learn_players(
        table_of(config),
        (),
        env,
        keys=jax.random.key(seed)[None],
        steps=steps,
        evaluate_in=evaluate_in,
        run=run,
        quiet=quiet,
    )
    agent = FlatAgent(config, actor)
    if run is not None:
        agent.save(run.path)
        result = {"curve": dataclasses.asdict(curve), "area": curve.area}
        run.finish({"steps": steps, **(facts or {}), **result})
    return agent
