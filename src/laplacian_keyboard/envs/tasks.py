"""Rewards of the MuJoCo domains, as pure functions of named physical quantities.

A domain (`cheetah`) offers quantities (`speed`), a task (`run`) is a reward computed from them.
Quantities are arrays of any one shape, single numbers included; a reward has their shape and lies
in [0, 1].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_keyboard.types import UserError

Quantities = Mapping[str, ArrayLike]
Reward = Callable[[Quantities], NDArray[np.float64]]
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Task:
    """A reward on a domain."""

    reward: Reward
    formula: str
    """The reward in terms of quantities and `stand`; `ramp(x, a, b)` goes from 0 at a to 1 at b."""


def find_task(domain: str, task: str) -> Task:
    """The task of that name; a UserError lists the domain's tasks if there is none."""
    tasks = _of(_TASKS, domain)
    if task not in tasks:
        raise UserError(f"{domain} has no task {task!r}: choose one of {', '.join(tasks)}")
    return tasks[task]


def tasks_of(domain: str) -> tuple[str, ...]:
    """Names of the domain's tasks."""
    return tuple(_of(_TASKS, domain))


def quantities_of(domain: str) -> dict[str, str]:
    """What rewards of the domain can be made of: name to meaning, with unit."""
    return dict(_of(_QUANTITIES, domain))


def _of(table: Mapping[str, Mapping[str, Entry]], domain: str) -> Mapping[str, Entry]:
    if domain not in table:
        raise UserError(f"unknown domain {domain!r}: choose one of {', '.join(table)}")
    return table[domain]


def _ramp(x: ArrayLike, start: float, full: float) -> NDArray[np.float64]:
    """0 at `start` and before, 1 at `full` and beyond, a straight line between."""
    fraction = (np.asarray(x, np.float64) - start) / (full - start)
    # A third of np.clip's time on the few numbers of one step.
    return np.minimum(np.maximum(fraction, 0.0), 1.0)


def _upright(q: Quantities) -> NDArray[np.float64]:
    return _ramp(q["upright"], -1.0, 1.0)


def _walker_stand(q: Quantities) -> NDArray[np.float64]:
    missing = np.maximum(0.0, (1.2 - np.asarray(q["height"], np.float64)) / 0.6)
    return (3.0 * 0.1 ** (missing**2) + _upright(q)) / 4.0


def _moving(full: float) -> Reward:
    """Cheetah: speed alone; a negative `full` rewards going backward."""
    return lambda q: _ramp(q["speed"], 0.0, full)


def _while_standing(name: str, full: float) -> Reward:
    """Walker: standing earns a sixth, the quantity `name` the rest."""
    return lambda q: _walker_stand(q) * (5.0 * _ramp(q[name], 0.0, full) + 1.0) / 6.0


def _while_upright(name: str, full: float) -> Reward:
    """Quadruped: the ramp starts at -full, so half of the reward is already earned at rest."""
    return lambda q: _upright(q) * _ramp(q[name], -full, full)


_QUANTITIES: Mapping[str, Mapping[str, str]] = {
    "cheetah": {
        "speed": "forward velocity of the centre of mass, m/s",
        "height": "height of the torso, m",
        "upright": "cosine between the torso's up axis and the world's, -1 to 1",
        "angular_momentum": "about the centre of mass, positive for a forward flip, kg m^2/s",
    },
    "walker": {
        "speed": "forward velocity of the centre of mass, m/s",
        "height": "height of the torso, m",
        "upright": "cosine between the torso's up axis and the world's, -1 to 1",
        "angular_momentum": "about the centre of mass, positive for a forward flip, kg m^2/s",
    },
    "quadruped": {
        "speed": "velocity of the torso along its own forward axis, m/s",
        "sideways_speed": "velocity of the torso along its own left axis, m/s",
        "turning_speed": "angular velocity of the torso about its own up axis, rad/s",
        "height": "height of the torso, m",
        "upright": "cosine between the torso's up axis and the world's, -1 to 1",
        "com_height": "height of the centre of mass, m",
    },
}

_STAND = "(3 * 0.1 ** (max(0, 1.2 - height) / 0.6) ** 2 + ramp(upright, -1, 1)) / 4"

_TASKS: Mapping[str, Mapping[str, Task]] = {
    "cheetah": {
        "run": Task(_moving(10), "ramp(speed, 0, 10)"),
        "run_backward": Task(_moving(-10), "ramp(speed, 0, -10)"),
        "walk": Task(_moving(2), "ramp(speed, 0, 2)"),
        "walk_backward": Task(_moving(-2), "ramp(speed, 0, -2)"),
    },
    "walker": {
        "flip": Task(
            _while_standing("angular_momentum", 5),
            "stand * (5 * ramp(angular_momentum, 0, 5) + 1) / 6",
        ),
        "run": Task(_while_standing("speed", 8), "stand * (5 * ramp(speed, 0, 8) + 1) / 6"),
        "stand": Task(_walker_stand, _STAND),
        "walk": Task(_while_standing("speed", 1), "stand * (5 * ramp(speed, 0, 1) + 1) / 6"),
    },
    "quadruped": {
        "jump": Task(_while_upright("com_height", 1), "stand * ramp(com_height, -1, 1)"),
        "run": Task(_while_upright("speed", 5), "stand * ramp(speed, -5, 5)"),
        "stand": Task(_upright, "ramp(upright, -1, 1)"),
        "walk": Task(_while_upright("speed", 0.5), "stand * ramp(speed, -0.5, 0.5)"),
    },
}

DOMAINS = tuple(_TASKS)
