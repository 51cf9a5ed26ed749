"""The paper's table of termination horizons: how long a behavior runs before the next choice."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.envs.tasks import tasks_of
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.experiments.common import (
    NUM_KEYS,
    data_for,
    env_of_each,
    over_seeds,
)
from laplacian_keyboard.host_loop import EVALUATE_EPISODES, Table, learn_players
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.pretraining import pretrain

DOMAIN = "cheetah"
HORIZONS = (5, 10, 15)
PAPER_EVALUATIONS = 20
"""The paper's figures are sums over this many evaluations; ours are means."""


def run(
    preset: str = "cpu", seeds: int = 3, out: str = "runs/termination", dataset: str = ""
) -> list[dict[str, Any]]:
    """One row for each horizon and task: the player's area under the curve, as a mean return."""
    dataset = data_for(DOMAIN, preset, Path(out) / "data", dataset=dataset)
    places = (dataset, preset, out)
    spread("keyboards", keyboard_of, [(*places, seed) for seed in range(seeds)])
    cells = [(*places, t_term, seed) for t_term in HORIZONS for seed in range(seeds)]
    results = spread("players", cell, cells)
    published = paper.table("termination")
    return [
        {
            "t_term": t_term,
            "task": task,
            **over_seeds([r["areas"][task] for r in results if r["t_term"] == t_term]),
            "paper": published.value(t_term=t_term, task=task).mean / PAPER_EVALUATIONS,
        }
        for t_term in HORIZONS
        for task in tasks_of(DOMAIN)
    ]


def keyboard_of(dataset: str, preset: str, out: str, seed: int) -> None:
    """The keyboard of a seed, if it is not there yet."""
    _keyboard(dataset, preset, out, seed)


def _keyboard(dataset: str, preset: str, out: str, seed: int) -> Any:
    folder, k = Path(out) / f"keyboard-{seed}", NUM_KEYS[preset]
    return pretrain(load_dataset(dataset), k=k, preset=preset, seed=seed, out=folder)


def cell(dataset: str, preset: str, out: str, t_term: int, seed: int) -> dict[str, Any]:
    """Players of every task with one horizon, on the keyboard of a seed."""
    tasks = tasks_of(DOMAIN)
    settings = presets.settings(preset, NUM_KEYS[preset], discrete=False)
    config = dataclasses.replace(settings.player, t_term=t_term)
    described = {"kind": "termination", "seed": seed, "steps": settings.player_steps}
    run = RunFolder(
        Path(out) / f"t{t_term}-{seed}", {**described, "player": dataclasses.asdict(config)}
    )
    if run.is_done:
        return run.result()
    keyboard = _keyboard(dataset, preset, out, seed)
    _, curves = learn_players(
        Table(config, keyboard.config),
        keyboard.params,
        env_of_each(DOMAIN, tasks, 1),
        keys=jax.random.split(jax.random.key(seed), len(tasks)),
        steps=settings.player_steps,
        evaluate_in=env_of_each(DOMAIN, tasks, EVALUATE_EPISODES),
        run=run,
    )
    areas = {task: curve.area for task, curve in zip(tasks, curves, strict=True)}
    run.finish({"t_term": t_term, "seed": seed, "areas": areas})
    return run.result()
