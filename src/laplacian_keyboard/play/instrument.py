"""What everybody who plays a keyboard shares: its keys, the states it learned from, its tasks.

An `Aim` is a reward together with the chord that zero-shot inference finds for it, whether it was
chosen by name, written as a formula or painted on a map.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_keyboard import keyboard as keyboards
from laplacian_keyboard.checkpoint import read_json
from laplacian_keyboard.data import labels
from laplacian_keyboard.envs import domains, tasks
from laplacian_keyboard.envs.grid import GridMap, grid_observations
from laplacian_keyboard.keyboard import Keyboard, Player
from laplacian_keyboard.play.bodies import named_quantities
from laplacian_keyboard.play.formula import Formula, parse
from laplacian_keyboard.types import UserError

MAP_QUANTITIES = {"x": "cells from the left", "y": "cells from the top"}

Array = NDArray[np.float64]
Quantities = Mapping[str, Any]
Reward = Callable[[Quantities], Array]


@dataclass(frozen=True)
class Aim:
    """A reward to play for."""

    title: str
    reward: Reward
    w: Array
    """Its zero-shot chord, at the radius the behaviors were trained on."""
    inside: float
    """Fraction of the reward's variance inside the span of the basis."""
    task: str | None = None
    """The name under which a player can learn it."""
    cells: Mapping[int, float] | None = None
    """The cells of the map that it rewards, where it was painted."""


class Instrument:
    """A keyboard ready to be played by several people."""

    def __init__(self, keyboard: Keyboard, player: Player | None = None, name: str = ""):
        self.keyboard, self.player = keyboard, player
        self.name = name or self.domain
        self.player_task = ""
        domain = self.domain
        self.map: GridMap | None = None
        if domains.is_grid(domain):
            self.map = domains.grid_map(domain)
            self._observations = grid_observations(self.map)
            self._quantities: dict[str, Any] = _centres(self.map)
        else:
            if domains.is_point_maze(domain):
                self.map = domains.point_maze_map(domain)
            states = keyboard.states
            self._observations = None if states is None else np.asarray(states.observation)
            found = {} if states is None else labels.quantities(states)
            self._quantities = named_quantities(domain, found)

    @classmethod
    def load(cls, run: str | Path) -> "Instrument":
        """From the folder of a keyboard or player, or the name of a shipped keyboard."""
        found = keyboards.load(run)
        name = Path(run).resolve().name
        if isinstance(found, Keyboard):
            return cls(found, None, name)
        instrument = cls(found.keyboard, found, name)
        result = Path(run) / "result.json"
        if result.exists():
            instrument.player_task = str(read_json(result).get("task", ""))
        return instrument

    @property
    def domain(self) -> str:
        return self.keyboard.config.domain

    @property
    def k(self) -> int:
        return self.keyboard.k

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that can be inferred here."""
        if self._observations is None:
            return ()
        if domains.is_grid(self.domain) or self.keyboard.states is None:
            known = self.domain == "four-rooms" or (self.map is not None and len(self.map.goals))
            return ("goal",) if known else ()
        return labels.tasks_of(self.keyboard.states)

    @property
    def quantities(self) -> dict[str, str]:
        """What formulas can be made of: name to meaning."""
        known = {"stand": "the reward of the task stand"} | MAP_QUANTITIES
        if self.domain in domains.DMC:
            known |= tasks.quantities_of(self.domain)
        return {name: known.get(name, "") for name in self._quantities}

    def warm_up(self) -> None:
        """Compile what inference needs, so that the first person does not wait for it."""
        if self._observations is not None:
            with contextlib.suppress(UserError):
                self.aim_at_formula(next(iter(self._quantities), ""))

    def aim_at_task(self, task: str) -> Aim:
        """The aim of one of the domain's own tasks."""
        # Nothing but these names: `module:function` from a browser would import what it says.
        if task not in self.tasks:
            raise UserError(f"no task {task[:40]!r}: choose one of {', '.join(self.tasks)}")
        if self.map is not None:
            return self.aim_at_cells(self.goals(task), task=task)
        return self._aim(task, tasks.find_task(self.domain, task).reward, task)

    def aim_at_formula(self, text: str) -> Aim:
        """The aim that a formula describes."""
        formula, rewards = self.rewards_of_formula(text)
        return self._infer(formula.text, formula, rewards)

    def rewards_of_formula(self, text: str) -> tuple[Formula, Array]:
        """A formula and its rewards in the stored states, or why it cannot be used."""
        formula = parse(text, self._quantities)
        return formula, self._rewards(formula)

    def aim_at_cells(self, cells: Mapping[int, float], *, task: str | None = None) -> Aim:
        """The aim of rewards painted on cells of the map."""
        grid = self._map()
        if not cells:
            raise UserError("no cell has a reward yet: click one")
        picture = np.zeros(grid.shape)
        for cell, value in cells.items():
            picture[tuple(grid.cells[cell])] = value
        if task is None and list(cells.values()) == [1.0]:
            (row, column) = grid.cells[next(iter(cells))]
            task = f"goal:{row},{column}"
        title = task or f"{len(cells)} painted cells"

        def reward(quantities: Quantities) -> Array:
            row = np.asarray(quantities["y"], np.float64).astype(int)
            column = np.asarray(quantities["x"], np.float64).astype(int)
            return picture[row, column]

        aim = self._aim(title, reward, task)
        return replace(aim, cells=dict(cells))

    def rewards_of_cells(self, aim: Aim) -> Array:
        """An aim's reward at the centre of every cell of the map, `(s,)`."""
        return np.asarray(aim.reward(_centres(self._map())), np.float64)

    def goals(self, task: str) -> dict[int, float]:
        """The rewarded cells of a task on a map."""
        grid = self._map()
        if domains.is_grid(self.domain):
            return dict.fromkeys(domains.grid_goals(self.domain, task), 1.0)
        place = domains.point_maze_goal(self.domain, task)
        assert place is not None, "a task has a goal"
        return {grid.cell_number(int(place[1]), int(place[0])): 1.0}

    def phi_of_cells(self) -> Array:
        """The eigenvectors at the centre of every cell of the map, `(s, k)`."""
        return np.asarray(self.keyboard.phi(self.observations_of_cells()), np.float64)

    def observations_of_cells(self) -> NDArray[np.float32]:
        """What is seen at the centre of every cell of the map, `(s, o)`: a point in a maze sees
        there what an agent on a grid does."""
        return grid_observations(self._map())

    def new_player(self) -> Player | None:
        """A player of one's own: it remembers its chord."""
        player = self.player
        return None if player is None else Player(self.keyboard, player.config, player.actor)

    def _map(self) -> GridMap:
        if self.map is None:
            raise UserError(f"{self.domain} has no map")
        return self.map

    def _aim(self, title: str, reward: Reward, task: str | None = None) -> Aim:
        return self._infer(title, reward, self._rewards(reward), task)

    def _rewards(self, reward: Reward) -> Array:
        rewards = np.asarray(reward(self._quantities), np.float64)
        if not np.isfinite(rewards).all():
            raise UserError("the reward is not a finite number in some of the states")
        if np.ptp(rewards) == 0.0:
            raise UserError("the reward is the same in all states, so it says nothing")
        return rewards

    def _infer(self, title: str, reward: Reward, rewards: Array, task: str | None = None) -> Aim:
        if self._observations is None:
            raise UserError("this keyboard keeps no states to infer a reward from")
        # Only the direction of w matters, and single precision is short of range.
        scaled = (rewards - rewards.mean()) / np.ptp(rewards)
        inference = self.keyboard.inference(self._observations, scaled)
        w = np.asarray(inference.w, np.float64)
        return Aim(title, reward, w, 1.0 - float(inference.residual), task)


def _centres(grid: GridMap) -> dict[str, Array]:
    return {"x": grid.cells[:, 1] + 0.5, "y": grid.cells[:, 0] + 0.5}
