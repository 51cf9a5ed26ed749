"""Keyboards and players of the robots: the experiments share them, so each is trained once.

They lie beside the experiments' own folders, in `keyboards/DOMAIN/EXPLORER`. The protocol, decided
beforehand: everything is evaluated at the last checkpoint; zero-shot over 20 episodes, also at
every tenth of the training to show how stable it is; players over 10 episodes every 10,000 steps,
the untrained player included.

For every seed one Laplacian basis is learned, of the preset's largest k. Its eigenvectors are
ordered, so the smaller bases are its first ones.
"""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder, fingerprint, read_json, read_log, write_json
from laplacian_keyboard.data.dataset import Dataset, load_dataset
from laplacian_keyboard.envs.dmc import DmcVectorEnv
from laplacian_keyboard.envs.domains import DMC
from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.evaluate import episode_returns
from laplacian_keyboard.experiments.common import (
    ZERO_SHOT_EPISODES,
    ZERO_SHOT_SEED,
    ChordOfEach,
    data_for,
)
from laplacian_keyboard.host_loop import EVALUATE_EPISODES, Table, learn_players
from laplacian_keyboard.keyboard import Keyboard, Player, acting_part
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.pretraining import pretrain
from laplacian_keyboard.types import UserError

EXPLORER = {"cheetah": "babble", "walker": "rnd", "quadruped": "babble+rnd"}
"""Who collects the data; in `paper` it is APS. Babbling leaves walker and quadruped on the ground;
RND gets up. On the quadruped both take turns, so that its slowest feature is whether it is up
(docs/explorers.md)."""
SIZES = {"smoke": (1, 2), "cpu": (1, 3, 10), "paper": (1, 2, 3, 5, 10, 20, 50)}
"""Keys of the keyboards that are compared; an experiment with one size takes the largest."""
CHECKPOINTS = 10
RESULT_FILE = "zero-shot.json"


class Robot(NamedTuple):
    """A robot, data of it, and the folder of all that is trained on them."""

    domain: str
    explorer: str
    dataset: str
    preset: str
    folder: str


class Keys(NamedTuple):
    """Which keyboard of a robot: its basis, size and seed."""

    basis: str
    k: int
    seed: int


def robot_of(domain: str, preset: str, out: str, *, dataset: str = "", explorer: str = "") -> Robot:
    """A robot with the user's `dataset`, or with data that an explorer collects on the first call.
    What is trained lies beside the experiment's folder `out`."""
    if domain not in DMC:
        raise UserError(f"this experiment runs on {', '.join(DMC)}, not {domain!r}")
    if dataset:
        data = load_dataset(dataset)
        if data.domain != domain:
            raise UserError(f"{dataset} is data of {data.domain}, not of {domain}: give --domain")
        explorer = data.description.get("explorer") or "given"
    explorer = explorer or ("aps" if preset == "paper" else EXPLORER[domain])
    folder = Path(out).parent / "keyboards" / domain / explorer
    place = data_for(domain, preset, folder / "data", dataset=dataset, explorer=explorer)
    return Robot(domain, explorer, place, preset, str(folder))


def sizes_of(preset: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The user's `sizes` of the basis, or the preset's."""
    if any(k < 1 for k in sizes):
        raise UserError(f"--sizes are numbers of keys, at least 1, not {min(sizes)}")
    return tuple(dict.fromkeys(sizes)) or SIZES[preset]


def largest(preset: str) -> int:
    """The largest k of a preset."""
    return max(SIZES[preset])


def keyboards(wanted: list[tuple[Robot, Keys]]) -> list[dict[str, Any]]:
    """Train what is not there yet; returns the zero-shot figures of each, see `keyboard_cell`."""
    cells, after = _with_larger(wanted)
    found = dict(zip(cells, spread("keyboards", keyboard_cell, cells, after=after), strict=True))
    return [found[cell] for cell in wanted]


def _with_larger(
    wanted: list[tuple[Robot, Keys]],
) -> tuple[list[tuple[Robot, Keys]], dict[int, int]]:
    """The keyboards that others take their basis from and then those others, and which of them
    comes after which."""
    larger = [(robot, one) for robot, keys in wanted if (one := _larger(robot, keys))]
    whole = [cell for cell in wanted if not _larger(*cell)]
    cells = list(dict.fromkeys([*whole, *larger, *wanted]))
    of = {cell: i for i, cell in enumerate(cells)}
    after = {i: of[robot, one] for (robot, keys), i in of.items() if (one := _larger(robot, keys))}
    return cells, after


def _larger(robot: Robot, keys: Keys) -> Keys | None:
    """The keyboard whose first eigenvectors are the basis of this one."""
    part = keys.basis == "laplacian" and keys.k < largest(robot.preset)
    return keys._replace(k=largest(robot.preset)) if part else None


def folder_of(robot: Robot, keys: Keys) -> Path:
    """The run folder of a keyboard."""
    return Path(robot.folder) / f"{keys.basis}-k{keys.k}-{keys.seed}"


def data_of(robot: Robot) -> Dataset:
    """A robot's experience; in `paper` the first 5,000 episodes, as in the implementations it
    follows, of ExORL's 10,000."""
    return load_dataset(robot.dataset, max_episodes=5_000 if robot.preset == "paper" else None)


def keyboard_cell(robot: Robot, keys: Keys) -> dict[str, Any]:
    """Train one keyboard. For every task: its weights, how much of its reward lies inside the span,
    and zero-shot returns at the checkpoints, of which `zero_shot` is the last.

    What an earlier version wrote with another rule of inference is evaluated again, at the last
    checkpoint.
    """
    folder, larger, zero_shot = folder_of(robot, keys), _larger(robot, keys), ZeroShot(robot.domain)
    keyboard = pretrain(
        data_of(robot),
        k=keys.k,
        basis=keys.basis,
        preset=robot.preset,
        seed=keys.seed,
        out=folder,
        first_of=Keyboard.load(folder_of(robot, larger)) if larger else None,
        evaluate=zero_shot,
        evaluations=CHECKPOINTS,
    )
    rule, kept = keyboard.config.inference_method, {}
    if (folder / RESULT_FILE).exists():
        kept = read_json(folder / RESULT_FILE)
        if kept.get("inference") == rule:
            return kept
    if kept:
        steps, returns = kept["checkpoints"][-1:], list(zero_shot(keyboard).values())
    else:
        steps, returns = read_log(folder, "behaviors", "behaviors/evaluation")
    means, inferred = np.mean(returns, axis=-1), map(keyboard.infer_task, zero_shot.tasks)
    result = {
        **keys._asdict(),
        "inference": rule,
        "checkpoints": steps,
        "tasks": {
            task: {
                "inside_span": 1.0 - float(inference.residual),
                "w": np.asarray(inference.w).round(4).tolist(),
                "zero_shot_checkpoints": means[:, i].tolist(),
                "zero_shot": float(means[-1, i]),
            }
            for i, (task, inference) in enumerate(zip(zero_shot.tasks, inferred, strict=True))
        },
    }
    write_json(folder / RESULT_FILE, result)
    return result


class ZeroShot:
    """Returns of a keyboard on every task of a robot, by the chord that its states infer."""

    def __init__(self, domain: str):
        self.domain, self.tasks = domain, tasks_of(domain)

    @cached_property
    def env(self) -> DmcVectorEnv:
        """Environments of every task; many, so made only when something is evaluated."""
        return env_of_each(self.domain, self.tasks, ZERO_SHOT_EPISODES)

    def __call__(self, keyboard: Keyboard) -> dict[str, Any]:
        agent = ChordOfEach(keyboard, [keyboard.infer_task(task).w for task in self.tasks])
        returns, _ = episode_returns(self.env, agent, self.env.num_envs, seed=ZERO_SHOT_SEED)
        return {"behaviors/evaluation": returns.reshape(len(self.tasks), -1)}


def env_of_each(domain: str, tasks: tuple[str, ...], copies: int) -> DmcVectorEnv:
    """Environments of every task, `copies` of each."""
    each = [task for task in tasks for _ in range(copies)]
    return DmcVectorEnv(domain, each, len(each))


def players(
    wanted: list[tuple[Robot, Keys]], t_terms: tuple[int | None, ...] = (None,)
) -> list[dict[str, Any]]:
    """Train what is not there yet: for every keyboard and horizon (None: the preset's) a player of
    each task; see `player_cell`. Players begin as soon as their keyboard is there."""
    cells, after = _with_larger(wanted)
    pieces: list[tuple[Any, ...]] = [(keyboard_cell, *cell) for cell in cells]
    for t_term in t_terms:
        for cell in wanted:
            after[len(pieces)] = cells.index(cell)
            pieces.append((player_cell, *cell, t_term))
    return spread("keyboards and players", _call, pieces, after=after)[len(cells) :]


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def player_cell(robot: Robot, keys: Keys, t_term: int | None = None) -> dict[str, Any]:
    """Players of every task on one keyboard: their learning curves beside its zero-shot figures."""
    folder = folder_of(robot, keys)
    keyboard, zero_shot = Keyboard.load(folder), read_json(folder / RESULT_FILE)
    settings = presets.settings(
        robot.preset, keys.k, discrete=False, basis=keys.basis, domain=robot.domain
    )
    tasks, config = tasks_of(robot.domain), settings.player
    if t_term is not None:
        config = dataclasses.replace(config, t_term=t_term)
    run = RunFolder(
        Path(robot.folder) / f"players-{keys.basis}-k{keys.k}-t{config.t_term}-{keys.seed}",
        {
            "kind": "players",
            "domain": robot.domain,
            **keys._asdict(),
            "steps": settings.player_steps,
            "keyboard": fingerprint(keyboard.params),
            **dataclasses.asdict(config),
        },
    )
    if run.is_done:
        return _beside(zero_shot, run.result())
    actors, curves = learn_players(
        Table(config, keyboard.config),
        acting_part(keyboard.params),
        env_of_each(robot.domain, tasks, 1),
        keys=jax.random.split(jax.random.fold_in(jax.random.key(keys.seed), 2), len(tasks)),
        steps=settings.player_steps,
        evaluate_in=env_of_each(robot.domain, tasks, EVALUATE_EPISODES),
        run=run,
    )
    result: dict[str, Any] = {"t_term": config.t_term, "tasks": {}}
    for task, actor, curve in zip(tasks, actors, curves, strict=True):
        Player(keyboard, config, actor).save(run.path / task)
        returns = [float(np.mean(each)) for each in curve.returns]
        result["tasks"][task] = {
            "untrained_player": returns[0],
            "player": returns[-1],
            "player_curve": returns,
            "player_steps": curve.steps,
            "area": curve.area,
        }
    run.finish(result)
    return _beside(zero_shot, result)


def _beside(zero_shot: dict[str, Any], learned: dict[str, Any]) -> dict[str, Any]:
    """What players learned, beside the zero-shot figures of their keyboard."""
    tasks = {task: {**learned["tasks"][task], **of} for task, of in zero_shot["tasks"].items()}
    return {**learned, **zero_shot, "tasks": tasks}
