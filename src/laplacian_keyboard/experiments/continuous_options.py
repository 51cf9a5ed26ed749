"""What the choices of the continuous `cpu` preset are worth: zero-shot returns along training."""

import dataclasses
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Variant:
    """What a row changes in the preset."""

    basis: dict[str, Any] = field(default_factory=dict)
    behaviors: dict[str, Any] = field(default_factory=dict)
    times: int = 1
    """How many times the preset's updates of stage 2, its step sizes annealed over all of them."""


VARIANTS = {
    "as in the preset": Variant(),
    "plain vector loss and features (paper)": Variant({"bound": 0.0}, {"emphasis": 0.0}),
    "features not squashed": Variant({"bound": 0.0}),
    "emphasis 1": Variant(behaviors={"emphasis": 1.0}),
    "actor climbs the smaller head": Variant(behaviors={"climb": "smaller"}),
    "actor's step size 3e-4": Variant(behaviors={"actor_step_size": 3e-4}),
    "actor's step size 1e-4 (paper)": Variant(behaviors={"actor_step_size": 1e-4}),
    "constant step sizes": Variant(behaviors={"num_steps": 0}),
    "no layer normalisation": Variant(behaviors={"layer_norm": False}),
    "two-branch networks": Variant(behaviors={"network": "two-branch"}),
    "twice the updates": Variant(times=2),
    "three times the updates": Variant(times=3),
    "both step sizes 3e-4": Variant(behaviors={"actor_step_size": 3e-4, "critic_step_size": 3e-4}),
}


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
    settings = presets.settings(robot.preset, k, discrete=False, domain=robot.domain)
    change = VARIANTS[variant]
    basis = dataclasses.replace(settings.basis, **change.basis)
    annealed = {"num_steps": change.times * settings.successor.num_steps}
    successor = dataclasses.replace(settings.successor, **{**annealed, **change.behaviors})
    num_steps = change.times * settings.successor_steps
    whole = Keyboard.load(folder_of(robot, Keys("laplacian", k, seed)))
    config = dataclasses.replace(whole.config, basis=basis, successor=successor)
    run = RunFolder(
        Path(out) / robot.domain / f"{list(VARIANTS).index(variant)}-{seed}",
        {
            "kind": "variant",
            "variant": variant,
            "seed": seed,
            "steps": num_steps,
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
        num_steps=num_steps,
        key=jax.random.fold_in(jax.random.key(seed), 1),
        run=run,
        evaluate=evaluate,
        evaluate_every=num_steps // CHECKPOINTS or 1,
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
