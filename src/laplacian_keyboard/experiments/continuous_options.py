"""What the choices of the continuous `cpu` preset are worth: zero-shot returns along training."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.data.labels import sample_states
from laplacian_keyboard.envs.domains import ANGLES
from laplacian_keyboard.experiments.common import data_for
from laplacian_keyboard.experiments.hierarchy import CHECKPOINTS, ZeroShot, basis_of, load_basis
from laplacian_keyboard.keyboard import KeyboardConfig
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.pretraining import learn_behaviors

NUM_KEYS = 10
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
    folder = Path(out) / domain
    dataset = data_for(domain, preset, folder / "data", dataset=dataset)
    places = (dataset, preset, str(folder))
    spread("bases", basis_of, [(*places, NUM_KEYS, seed) for seed in range(seeds)])
    cells = [(name, seed) for name in VARIANTS for seed in range(seeds)]
    return spread("variants", cell, [(*places, *one) for one in cells])


def cell(dataset: str, preset: str, out: str, variant: str, seed: int) -> dict[str, Any]:
    """Behaviors of one variant and seed."""
    data = load_dataset(dataset)
    settings = presets.settings(preset, NUM_KEYS, discrete=False)
    of_basis, of_behaviors = VARIANTS[variant]
    basis = dataclasses.replace(settings.basis, **of_basis)
    successor = dataclasses.replace(settings.successor, **of_behaviors)
    domain = data.domain or ""
    config = KeyboardConfig(data.spec, basis, successor, domain, ANGLES.get(domain, ()))
    name = f"{list(VARIANTS).index(variant)}-{seed}"
    described = {"kind": "variant", "variant": variant, "seed": seed, **dataclasses.asdict(config)}
    run = RunFolder(Path(out) / name, described)
    if run.is_done:
        return run.result()
    inputs, experience, encoder = load_basis(data, preset, NUM_KEYS, seed, Path(out))
    zero_shot = ZeroShot(config, inputs, encoder, sample_states(data))
    learn_behaviors(
        basis,
        successor,
        encoder,
        experience,
        num_steps=settings.successor_steps,
        key=jax.random.fold_in(jax.random.key(seed), 1),
        run=run,
        evaluate=zero_shot,
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
