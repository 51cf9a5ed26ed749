"""What the choices of the continuous `cpu` preset are worth: zero-shot returns along training."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder, fingerprint
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.experiments.robots import (
    CHECKPOINTS,
    Keys,
    Robot,
    ZeroShot,
    folder_of,
    keyboards,
    largest,
    robot_of,
)
from laplacian_keyboard.keyboard import Keyboard, KeyboardParams
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.pretraining import learn_behaviors, prepare_experience

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as in the preset": ({}, {}),
    "plain vector loss and features (paper)": ({"bound": 0.0}, {"emphasis": 0.0}),
    "features not squashed": ({"bound": 0.0}, {}),
    "emphasis 1": ({}, {"emphasis": 1.0}),
    "actor climbs the smaller head": ({}, {"climb": "smaller"}),
    "constant step sizes": ({}, {"num_steps": 0}),
    "no layer normalisation": ({}, {"layer_norm": False}),
    "two-branch networks": ({}, {"network": "two-branch"}),
}
"""What each row changes in the preset: of the basis, and of the behaviors."""


def run(
    preset: str = "cpu",
    seeds: int = 3,
    out: str = "runs/continuous-options",
    domain: str = "cheetah",
    dataset: str = "",
) -> list[dict[str, Any]]:
    """One row for each variant and seed: returns of every task at the checkpoints."""
    robot = robot_of(domain, preset, out, dataset=dataset)
    keyboards([(robot, Keys("laplacian", largest(preset), seed)) for seed in range(seeds)])
    cells = [(robot, out, name, seed) for name in VARIANTS for seed in range(seeds)]
    return spread("variants", cell, cells)


def cell(robot: Robot, out: str, variant: str, seed: int) -> dict[str, Any]:
    """Behaviors of one variant and seed, on the basis of the preset's keyboard."""
    data, k = load_dataset(robot.dataset), largest(robot.preset)
    settings = presets.settings(robot.preset, k, discrete=False)
    of_basis, of_behaviors = VARIANTS[variant]
    basis = dataclasses.replace(settings.basis, **of_basis)
    successor = dataclasses.replace(settings.successor, **of_behaviors)
    whole = Keyboard.load(folder_of(robot, Keys("laplacian", k, seed)))
    config = dataclasses.replace(whole.config, basis=basis, successor=successor)
    run = RunFolder(
        Path(out) / robot.domain / f"{list(VARIANTS).index(variant)}-{seed}",
        {
            "kind": "variant",
            "variant": variant,
            "seed": seed,
            "keyboard": fingerprint(whole.params.basis),
            **dataclasses.asdict(config),
        },
    )
    if run.is_done:
        return run.result()
    inputs, experience = prepare_experience(data, config.angles, settings.normalise)
    zero_shot = ZeroShot(robot.domain)

    def evaluate(behaviors: Any) -> dict[str, Any]:
        params = KeyboardParams(inputs, whole.params.basis, behaviors)
        return zero_shot(Keyboard(config, params, whole.states))

    learn_behaviors(
        basis,
        successor,
        whole.params.basis,
        experience,
        num_steps=settings.successor_steps,
        key=jax.random.fold_in(jax.random.key(seed), 1),
        run=run,
        evaluate=evaluate,
        evaluate_every=settings.successor_steps // CHECKPOINTS or 1,
    )
    steps, returns = run.logged("behaviors", "behaviors/evaluation")
    means = np.array(returns).mean(axis=-1)
    result = {
        "variant": variant,
        "seed": seed,
        "tasks": list(zero_shot.tasks),
        "checkpoints": steps,
        "returns": means.round(1).tolist(),
        "sums": means.sum(axis=-1).round(1).tolist(),
    }
    run.finish(result)
    return result
