"""Beyond the linear span: what a player adds to zero-shot control, over the size of the basis.

For every seed one basis of the largest k is learned; its eigenvectors are ordered, so the smaller
bases are its first ones. For every k: behaviors, zero-shot on every task, and one player a task.

The protocol, decided beforehand: everything is evaluated at the last checkpoint; zero-shot over 20
episodes, also at every tenth of the training to show how stable it is; players over 10 episodes
every 10,000 steps, the untrained player included.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from laplacian_keyboard import presets
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.checkpoint import RunFolder, load_arrays, write_json
from laplacian_keyboard.data.dataset import Dataset, load_dataset
from laplacian_keyboard.data.labels import sample_states
from laplacian_keyboard.envs.domains import ANGLES
from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.evaluate import episode_returns
from laplacian_keyboard.experiments.common import (
    ZERO_SHOT_EPISODES,
    ZERO_SHOT_SEED,
    ChordOfEach,
    data_for,
    env_of_each,
    require_robot,
)
from laplacian_keyboard.host_loop import EVALUATE_EPISODES, Table, learn_players
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.keyboard import (
    Keyboard,
    KeyboardConfig,
    KeyboardParams,
    Player,
    empty_params,
)
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.pretraining import (
    kept,
    learn_basis,
    learn_behaviors,
    prepare_experience,
)
from laplacian_keyboard.stats import mean_interval

SIZES = (1, 3, 10)
CHECKPOINTS = 10


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/hierarchy",
    domain: str = "cheetah",
    dataset: str = "",
    sizes: tuple[int, ...] = SIZES,
) -> list[dict[str, Any]]:
    """One row for each k and task: means and intervals over seeds. `dataset` is a folder of the
    user's own; without it one is collected."""
    require_robot("hierarchy", domain)
    folder = Path(out) / domain
    dataset = data_for(domain, preset, folder / "data", dataset=dataset)
    largest, places = max(sizes), (dataset, preset, str(folder))
    spread("bases", basis_of, [(*places, largest, seed) for seed in range(seeds)])
    cells = [(k, seed) for k in sorted(sizes, reverse=True) for seed in range(seeds)]
    results = spread(
        "keyboards and players", cell, [(*places, largest, k, seed) for k, seed in cells]
    )
    write_json(folder / "cells.json", results)
    return [summary_row(results, k, task) for k in sizes for task in tasks_of(domain)]


def basis_of(dataset: str, preset: str, out: str, k: int, seed: int) -> None:
    """Learn the basis of a seed, if it is not there yet."""
    load_basis(load_dataset(dataset), preset, k, seed, Path(out))


def load_basis(data: Dataset, preset: str, k: int, seed: int, out: Path) -> Any:
    """Inputs, experience and encoder of a seed; learned on the first call."""
    settings = presets.settings(preset, k, discrete=False)
    angles = ANGLES.get(data.domain or "", ())
    inputs, experience = prepare_experience(data, angles, settings.normalise)
    key, spec = jax.random.fold_in(jax.random.key(seed), 0), experience.spec
    empty = laplacian.init(settings.basis, spec, key=key).encoder.params, laplacian.empty_report(k)
    folder = out / f"basis-{seed}"
    if (folder / "done").exists():  # several processes may read it at once
        (encoder, _), _ = load_arrays(folder / "basis.safetensors", empty)
        return inputs, experience, encoder
    described = {"kind": "basis", "k": k, "seed": seed, "steps": settings.basis_steps}
    run = RunFolder(folder, {**described, **dataclasses.asdict(settings.basis)})
    encoder, report = kept(
        run,
        "basis.safetensors",
        empty,
        lambda: learn_basis(
            settings.basis, experience, num_steps=settings.basis_steps, key=key, run=run
        ),
    )
    run.finish({name: np.asarray(value).tolist() for name, value in vars(report).items()})
    return inputs, experience, encoder


def cell(dataset: str, preset: str, out: str, largest: int, k: int, seed: int) -> dict[str, Any]:
    """One k and seed: behaviors, zero-shot and players."""
    data = load_dataset(dataset)
    domain = data.domain or ""
    settings = presets.settings(preset, k, discrete=False)
    config = KeyboardConfig(
        data.spec, settings.basis, settings.successor, domain, ANGLES.get(domain, ())
    )
    run = RunFolder(
        Path(out) / f"k{k}-{seed}",
        {
            "kind": "hierarchy",
            "seed": seed,
            "largest": largest,
            "successor_steps": settings.successor_steps,
            "player_steps": settings.player_steps,
            "player": dataclasses.asdict(settings.player),
            **dataclasses.asdict(config),
        },
    )
    if run.is_done:
        return run.result()
    key_behaviors, key_players = (jax.random.fold_in(jax.random.key(seed), i) for i in (1, 2))
    inputs, experience, encoder = load_basis(data, preset, largest, seed, Path(out))
    encoder = laplacian.truncate(encoder, k)
    zero_shot = ZeroShot(config, inputs, encoder, sample_states(data))
    names = zero_shot.tasks
    behaviors = kept(
        run,
        "behaviors.safetensors",
        empty_params(config).successor,
        lambda: learn_behaviors(
            settings.basis,
            settings.successor,
            encoder,
            experience,
            num_steps=settings.successor_steps,
            key=key_behaviors,
            run=run,
            evaluate=zero_shot,
            evaluate_every=settings.successor_steps // CHECKPOINTS or 1,
        ),
    )
    keyboard, inferred = zero_shot.keyboard_of(behaviors), zero_shot.inferred
    actors, curves = learn_players(
        Table(settings.player, keyboard.config),
        keyboard.params,
        env_of_each(domain, names, 1),
        keys=jax.random.split(key_players, len(names)),
        steps=settings.player_steps,
        evaluate_in=env_of_each(domain, names, EVALUATE_EPISODES),
        run=run,
    )
    for actor, task in zip(actors, names, strict=True):
        Player(keyboard, settings.player, actor).save(run.path / task)
    checkpoints, zero_shot_returns = run.logged("behaviors", "behaviors/evaluation")
    result = {
        "domain": domain,
        "k": k,
        "seed": seed,
        "checkpoints": checkpoints,
        "tasks": {
            task: {
                "inside_span": 1.0 - float(inferred[task].residual),
                "w": np.asarray(inferred[task].w).round(4).tolist(),
                "zero_shot_checkpoints": [float(np.mean(r[i])) for r in zero_shot_returns],
                "zero_shot": float(np.mean(zero_shot_returns[-1][i])),
                "untrained_player": float(np.mean(curves[i].returns[0])),
                "player": float(np.mean(curves[i].returns[-1])),
                "player_curve": [float(np.mean(r)) for r in curves[i].returns],
                "player_steps": curves[i].steps,
                "area": curves[i].area,
            }
            for i, task in enumerate(names)
        },
    }
    run.finish(result)
    return result


class ZeroShot:
    """Evaluates behaviors on every task of their domain, called with the behaviors alone."""

    def __init__(self, config: KeyboardConfig, inputs: Inputs, encoder: MLP, states: Dataset):
        self.config, self.inputs, self.encoder, self.states = config, inputs, encoder, states
        self.tasks = tasks_of(config.domain)
        untrained = self.keyboard_of(empty_params(config).successor)
        self.inferred = {task: untrained.infer_task(task) for task in self.tasks}
        self.env = env_of_each(config.domain, self.tasks, ZERO_SHOT_EPISODES)

    def keyboard_of(self, behaviors: Any) -> Keyboard:
        """The keyboard with these behaviors."""
        params = KeyboardParams(self.inputs, self.encoder, behaviors)
        return Keyboard(self.config, params, self.states)

    def __call__(self, behaviors: Any) -> dict[str, Any]:
        chords = [self.inferred[task].w for task in self.tasks]
        agent, count = ChordOfEach(self.keyboard_of(behaviors), chords), len(self.tasks)
        returns, _ = episode_returns(
            self.env, agent, ZERO_SHOT_EPISODES * count, seed=ZERO_SHOT_SEED
        )
        return {"behaviors/evaluation": returns.reshape(count, -1)}


def summary_row(results: list[dict[str, Any]], k: int, task: str) -> dict[str, Any]:
    """Means over seeds with 95 % intervals."""
    cells = [result["tasks"][task] for result in results if result["k"] == k]
    generator = np.random.default_rng(0)
    row: dict[str, Any] = {"k": k, "task": task, "seeds": len(cells)}
    for name in ("zero_shot", "untrained_player", "player", "area"):
        mean, (low, high) = mean_interval(np.array([c[name] for c in cells]), rng=generator)
        row[name] = round(mean, 1)
        row[f"{name}_ci95"] = [round(low, 1), round(high, 1)]
    gains = np.array([c["player"] - c["zero_shot"] for c in cells])
    row["improvement"] = round(float(gains.mean()), 1)
    row["improvement_percent"] = round(100 * row["improvement"] / max(row["zero_shot"], 1e-9), 1)
    row["inside_span"] = round(float(np.mean([c["inside_span"] for c in cells])), 3)
    return row
