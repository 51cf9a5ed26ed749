"""Every hyper-parameter in one place: `smoke` (seconds), `cpu` (minutes), `paper` (its tables)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from laplacian_keyboard import player, successor
from laplacian_keyboard.baselines import forward_backward, td3
from laplacian_keyboard.bases import hilp, lap, laplacian, random_features, registry
from laplacian_keyboard.explore.backbone import BACKBONE
from laplacian_keyboard.successor import continuous
from laplacian_keyboard.successor import discrete as discrete_successor
from laplacian_keyboard.types import UserError

Name: TypeAlias = Literal["smoke", "cpu", "paper"]


@dataclass(frozen=True)
class Settings:
    """All stages of one way to run the method."""

    normalise: bool
    """Shift and scale observations by the mean and deviation of the data."""
    basis: Any
    """One of `registry.Config`; which one, the caller knows who asked for it by name."""
    basis_steps: int
    """Updates of the basis; 0 where it is not learned, or learned with the behaviors."""
    successor: successor.Config
    successor_steps: int
    player: player.Config
    player_steps: int
    """Environment steps the player learns for."""
    player_envs: int
    """Environments the player learns in at once."""
    player_updates: int
    """Gradient steps for every choice of chords in all of them."""
    inference_states: int = 10_000
    """States a keyboard keeps, from which tasks are inferred: N of the paper's tables."""


def require_known(name: str) -> None:
    """Refuse a preset that there is not."""
    if name not in get_args(Name):
        raise UserError(f"unknown preset {name!r}; known presets: {', '.join(get_args(Name))}")


def settings(
    name: str, k: int, *, discrete: bool, basis: str = "laplacian", domain: str = ""
) -> Settings:
    """The settings of a preset for k keys and discrete or continuous actions, over a basis, in a
    domain that may have its own."""
    kind, _, _ = domain.partition(":")
    table = _OF_DOMAIN.get(kind, _DISCRETE if discrete else _CONTINUOUS)
    require_known(name)
    registry.basis_module(basis)  # refuses an unknown name
    found = table[name](k)
    if basis == "laplacian":
        return found
    if name != "paper":
        return _small_basis(found, basis)
    return _authors_basis(found, basis, domain)


def flat(name: str) -> tuple[player.Config, int]:
    """Settings of flat TD3, and environment steps: `cleanrl` (CleanRL's), `exorl` (ExORL's agent,
    whose networks need a GPU) or `smoke`. A step is a stretch of length one, with one update."""
    flats = {
        "smoke": (
            player.Config(
                t_term=1,
                gamma=0.99,
                warmup=100,
                capacity=1_000,
                td3=td3.Config(hidden=(32, 32), batch_size=32),
            ),
            2_000,
        ),
        "cleanrl": (
            player.Config(t_term=1, gamma=0.99, warmup=25_000, td3=td3.Config()),
            200_000,
        ),
        "exorl": (
            player.Config(
                t_term=1,
                gamma=0.99,
                warmup=4_000,
                td3=BACKBONE,  # ExORL's agent has the settings of URLB's
            ),
            200_000,
        ),
    }
    if name not in flats:
        raise UserError(f"unknown preset of flat TD3 {name!r}; known: {', '.join(flats)}")
    return flats[name]


def _small_basis(settings: Settings, name: str) -> Settings:
    """Another basis with the budget of the Laplacian one: its widths, batches and updates."""
    own, steps = settings.basis, settings.basis_steps
    k, hidden = own.k, own.hidden[:2]
    learned = {"hidden": hidden, "batch_size": own.batch_size, "num_steps": own.num_steps}
    if name == "lap":
        config = lap.Config(k, **learned, pair_discount=own.pair_discount)
        return dataclasses.replace(settings, basis=config)
    if name == "hilp":
        return dataclasses.replace(settings, basis=hilp.Config(k, **learned))
    if name == "random":
        config = random_features.Config(k, hidden=hidden)
        return dataclasses.replace(settings, basis=config, basis_steps=0)
    # Forward-backward learns everything in one stage, which gets the updates of both.
    steps = (steps + settings.successor_steps) * (settings.successor.num_steps > 0)
    config = forward_backward.Config(k, hidden=hidden, step_size=own.step_size, num_steps=steps)
    successor = dataclasses.replace(settings.successor, num_steps=steps)
    if isinstance(successor, discrete_successor.Config):
        # F is large at goals, up to the number of states / (1 - gamma), and a slow target keeps it
        # from getting there.
        successor = dataclasses.replace(successor, changes=False, tau=0.05)
    else:
        # The paper's step size of the actor: its figures in docs/baselines.md were made with it.
        successor = dataclasses.replace(
            successor, climb="smaller", emphasis=0.0, actor_step_size=1e-4
        )
    return dataclasses.replace(
        settings,
        basis=config,
        basis_steps=0,
        successor=successor,
        successor_steps=settings.basis_steps + settings.successor_steps,
    )


def _authors_basis(settings: Settings, name: str, domain: str) -> Settings:
    """Another basis with the settings of its authors; forward-backward with those of metamotivo,
    as in the paper."""
    basis = registry.basis_module(name).Config(settings.basis.k)
    if name == "random":
        return dataclasses.replace(settings, basis=basis, basis_steps=0)
    if isinstance(basis, hilp.Config) and domain == "walker":
        basis = dataclasses.replace(basis, gamma=0.96)
    if name != "fb":
        return dataclasses.replace(settings, basis=basis)
    basis = dataclasses.replace(basis, hidden=(256, 256), orthonormality=0.5, target_rule="mean")
    successor = settings.successor
    if isinstance(successor, continuous.Config):
        successor = forward_backward.REFERENCE
    return dataclasses.replace(settings, basis=basis, basis_steps=0, successor=successor)


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
    """The paper's Table 4, Item-Collector: every value here but `normalise` and the number of
    environments. The defaults of the configs fill what it leaves open with the values of the
    implementations it follows, and say where they are ours (docs/method.md)."""
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
        inference_states=50_000,
    )


def _rooms_paper(k: int) -> Settings:
    """Four-Rooms, of which the paper says no more than the horizon of its stitching figure."""
    items = _paper(k)
    player = dataclasses.replace(items.player, t_term=6)
    return dataclasses.replace(items, player=player, player_updates=6, inference_states=10_000)


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
            bound=1.0,
        ),
        basis_steps=basis_steps,
        successor=continuous.Config(
            network="plain",
            hidden=(256, 256),
            batch_size=256,
            num_steps=successor_steps,
            actor_step_size=1e-3,
            max_grad_norm=0.0,
            tau=0.005,
            climb="first",
            emphasis=10.0,
        ),
        successor_steps=successor_steps,
        player=player.Config(
            capacity=40_000,
            td3=dataclasses.replace(
                player.Config().td3,
                hidden=(128, 128),
                critic_sees="direction" if k > 1 else None,  # one key has no slope but its length
            ),
        ),
        player_steps=200_000,
        player_envs=1,
        player_updates=5,
    )


def _quadruped_cpu(k: int) -> Settings:
    """Of the quadruped e_1, which tells whether it is up, has no tail to bound
    (docs/continuous-control.md)."""
    robots = _continuous_cpu(k)
    return dataclasses.replace(robots, basis=dataclasses.replace(robots.basis, bound=2.0))


def _maze_cpu(k: int) -> Settings:
    """A point in a maze needs little: networks of 128, a tenth of the arithmetic. It looks further
    ahead, since a room is twenty steps wide. Its figures are of the paper's step size."""
    robots, basis_steps, successor_steps = _continuous_cpu(k), 8_000, 15_000
    return dataclasses.replace(
        robots,
        basis=dataclasses.replace(
            robots.basis, hidden=(128, 128, 128), num_steps=basis_steps, pair_discount=0.9
        ),
        basis_steps=basis_steps,
        successor=dataclasses.replace(
            robots.successor,
            hidden=(128, 128),
            batch_size=128,
            num_steps=successor_steps,
            actor_step_size=1e-4,
        ),
        successor_steps=successor_steps,
        player_steps=50_000,
    )


def _continuous_paper(k: int) -> Settings:
    """The paper's Table 3, DeepMind Control: every value here but `normalise`, `policy_noise` of
    the player and the number of environments. The defaults of the configs fill what it leaves open
    with the values of the implementations it follows, and say where they are ours
    (docs/method.md)."""
    return Settings(
        normalise=True,
        basis=laplacian.Config(k=k, pair_discount=0.5, step_size=1e-4),
        basis_steps=1_000_000,
        successor=continuous.Config(
            max_grad_norm=0.001,
            tau=0.001,
            policy_delay=1,
            policy_noise=0.0,
            actor_step_size=1e-4,
            critic_step_size=1e-3,
            gamma=0.98,
        ),
        successor_steps=1_000_000,
        player=player.Config(
            t_term=5,
            gamma=0.98,
            td3=td3.Config(
                batch_size=16,
                actor_step_size=1e-4,
                critic_step_size=1e-3,
                tau=0.01,
                policy_delay=5,
                policy_noise=0.0,
                exploration_noise=0.01,
            ),
        ),
        player_steps=200_000,
        player_envs=1,
        player_updates=5,
        inference_states=10_000,
    )


_DISCRETE: dict[str, Callable[[int], Settings]] = {"smoke": _smoke, "cpu": _cpu, "paper": _paper}
_CONTINUOUS: dict[str, Callable[[int], Settings]] = {
    "smoke": _continuous_smoke,
    "cpu": _continuous_cpu,
    "paper": _continuous_paper,
}
_OF_DOMAIN: dict[str, dict[str, Callable[[int], Settings]]] = {
    "four-rooms": {**_DISCRETE, "paper": _rooms_paper},
    "item-collector": {"smoke": _items_smoke, "cpu": _items_cpu, "paper": _paper},
    "point-maze": {**_CONTINUOUS, "cpu": _maze_cpu},
    "quadruped": {**_CONTINUOUS, "cpu": _quadruped_cpu},
}
