"""Every hyper-parameter in one place: `smoke` (seconds), `cpu` (minutes), `paper` (its tables)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from laplacian_keyboard import player, successor
from laplacian_keyboard.baselines import td3
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.successor import continuous
from laplacian_keyboard.successor import discrete as discrete_successor
from laplacian_keyboard.types import UserError

Name: TypeAlias = Literal["smoke", "cpu", "paper"]


@dataclass(frozen=True)
class Settings:
    """All stages of one way to run the method."""

    normalise: bool
    """Shift and scale observations by the mean and deviation of the data."""
    basis: laplacian.Config
    basis_steps: int
    successor: successor.Config
    successor_steps: int
    player: player.Config
    player_steps: int
    """Environment steps the player learns for."""
    player_envs: int
    """Environments the player learns in at once."""
    player_updates: int
    """Gradient steps for every choice of chords in all of them."""


def settings(name: str, k: int, *, discrete: bool, domain: str = "") -> Settings:
    """The settings of a preset for k keys and discrete or continuous actions, in a domain that may
    have its own."""
    table = _OF_DOMAIN.get(domain, _DISCRETE if discrete else _CONTINUOUS)
    if name not in table:
        raise UserError(f"unknown preset {name!r}; known presets: {', '.join(get_args(Name))}")
    return table[name](k)


def _smoke(k: int) -> Settings:
    """Small enough for tests: nothing is learned well."""
    return Settings(
        normalise=False,
        basis=laplacian.Config(k=k, hidden=(32, 32), batch_size=64, step_size=1e-3),
        basis_steps=60,
        successor=discrete_successor.Config(
            hidden=(32, 32), batch_size=32, step_size=1e-3, tau=0.01
        ),
        successor_steps=60,
        player=player.Config(warmup=64, capacity=1_000, td3=td3.Config(hidden=(32, 32))),
        player_steps=640,
        player_envs=4,
        player_updates=4,
    )


def _cpu(k: int) -> Settings:
    """Four-Rooms in about a minute on two cores; the choices are measured in docs/four-rooms.md."""
    basis_steps, successor_steps = 5_000, 12_000
    return Settings(
        normalise=False,
        basis=laplacian.Config(
            k=k,
            hidden=(128, 128, 128),
            batch_size=256,
            step_size=1e-3,
            num_steps=basis_steps,
            pair_discount=0.9,
            barrier=2.0,
        ),
        basis_steps=basis_steps,
        successor=discrete_successor.Config(
            hidden=(256, 256, 256),
            batch_size=256,
            step_size=3e-3,
            num_steps=successor_steps,
            tau=0.01,
            gamma=0.9,
            emphasis=10.0,
        ),
        successor_steps=successor_steps,
        player=player.Config(
            t_term=6,
            gamma=0.95,
            warmup=4_000,
            random_fraction=0.3,
            capacity=20_000,
            td3=td3.Config(
                hidden=(256, 256),
                batch_size=128,
                actor_step_size=3e-4,
                critic_step_size=1e-3,
                tau=0.01,
                policy_delay=2,
                policy_noise=0.1,
                exploration_noise=0.3,
            ),
        ),
        player_steps=60_000,
        player_envs=32,
        player_updates=32,
    )


def _paper(k: int) -> Settings:
    """The paper's table for discrete actions (its second, for Item-Collector); what it leaves open
    is filled with the reference implementations' values."""
    return Settings(
        normalise=False,
        basis=laplacian.Config(k=k, pair_discount=0.1, step_size=1e-4),
        basis_steps=500_000,
        successor=discrete_successor.Config(
            step_size=1e-4, max_grad_norm=0.01, tau=0.001, gamma=0.95
        ),
        successor_steps=1_000_000,
        player=player.Config(
            t_term=5,
            gamma=0.95,
            td3=td3.Config(
                batch_size=32,
                actor_step_size=1e-4,
                critic_step_size=1e-4,
                tau=0.001,
                policy_delay=10,
                policy_noise=0.0,
                exploration_noise=0.1,
            ),
        ),
        player_steps=500_000,
        player_envs=1,
        player_updates=5,
    )


def _items_smoke(k: int) -> Settings:
    """Item-Collector, small enough for tests."""
    return dataclasses.replace(
        _smoke(k),
        normalise=True,
        player_steps=800,
        basis=laplacian.Config(k=k, hidden=(), batch_size=64, step_size=1e-3, pair_discount=0.1),
    )


def _items_cpu(k: int) -> Settings:
    """Item-Collector in minutes on one core; the choices are measured in docs/item-collector.md."""
    basis_steps, successor_steps = 3_000, 18_000
    return Settings(
        normalise=True,
        basis=laplacian.Config(
            k=k,
            hidden=(),
            batch_size=256,
            step_size=1e-3,
            num_steps=basis_steps,
            pair_discount=0.1,
            barrier=2.0,
        ),
        basis_steps=basis_steps,
        successor=discrete_successor.Config(
            hidden=(256, 256),
            batch_size=256,
            step_size=3e-3,
            num_steps=successor_steps,
            tau=0.01,
            gamma=0.9,
            emphasis=10.0,
            changes=True,
        ),
        successor_steps=successor_steps,
        player=player.Config(
            t_term=5,
            gamma=0.95,
            warmup=5_000,
            random_fraction=0.1,
            capacity=20_000,
            td3=td3.Config(
                hidden=(128, 128),
                layer_norm=True,
                batch_size=128,
                actor_step_size=3e-4,
                critic_step_size=1e-3,
                tau=0.01,
                policy_delay=2,
                policy_noise=0.1,
                exploration_noise=0.2,
                critic_sees="direction",
            ),
        ),
        player_steps=80_000,
        player_envs=32,
        player_updates=16,
    )


def _continuous_smoke(k: int) -> Settings:
    """Small enough for tests: nothing is learned well."""
    return Settings(
        normalise=True,
        basis=laplacian.Config(k=k, hidden=(32, 32), batch_size=64, step_size=1e-3),
        basis_steps=60,
        successor=continuous.Config(
            network="plain", hidden=(32, 32), batch_size=32, max_grad_norm=0.0, tau=0.01
        ),
        successor_steps=60,
        player=player.Config(warmup=100, capacity=1_000, td3=td3.Config(hidden=(32, 32))),
        player_steps=2_000,
        player_envs=1,
        player_updates=5,
    )


def _continuous_cpu(k: int) -> Settings:
    """Cheetah, walker, quadruped in minutes on two cores; what each choice is worth is measured in
    docs/continuous-control.md."""
    basis_steps, successor_steps = 20_000, 30_000
    return Settings(
        normalise=True,
        basis=laplacian.Config(
            k=k,
            hidden=(256, 256, 256),
            batch_size=256,
            step_size=1e-3,
            num_steps=basis_steps,
            pair_discount=0.5,
            barrier=2.0,
            bound=1.5,
        ),
        basis_steps=basis_steps,
        successor=continuous.Config(
            network="plain",
            hidden=(256, 256),
            batch_size=256,
            num_steps=successor_steps,
            max_grad_norm=0.0,
            tau=0.005,
            climb="first",
            emphasis=10.0,
        ),
        successor_steps=successor_steps,
        player=player.Config(
            capacity=40_000, td3=dataclasses.replace(player.Config().td3, hidden=(128, 128))
        ),
        player_steps=200_000,
        player_envs=1,
        player_updates=5,
    )


def _continuous_paper(k: int) -> Settings:
    """The paper's table for DeepMind Control; what it leaves open is filled with the values of the
    implementations it follows. The defaults of the configs are these."""
    return Settings(
        normalise=True,
        basis=laplacian.Config(k=k, pair_discount=0.5, step_size=1e-4),
        basis_steps=1_000_000,
        successor=continuous.Config(),
        successor_steps=1_000_000,
        player=player.Config(),
        player_steps=200_000,
        player_envs=1,
        player_updates=5,
    )


_DISCRETE: dict[str, Callable[[int], Settings]] = {"smoke": _smoke, "cpu": _cpu, "paper": _paper}
_CONTINUOUS: dict[str, Callable[[int], Settings]] = {
    "smoke": _continuous_smoke,
    "cpu": _continuous_cpu,
    "paper": _continuous_paper,
}
_OF_DOMAIN: dict[str, dict[str, Callable[[int], Settings]]] = {
    "item-collector": {"smoke": _items_smoke, "cpu": _items_cpu, "paper": _paper}
}
