"""How the choices of stage 2 compare on Four-Rooms: value of the behaviors for rewards inside the
span, over the optimal value."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from laplacian_keyboard import presets
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.envs.domains import jax_world
from laplacian_keyboard.envs.grid import four_rooms
from laplacian_keyboard.experiments import stitching
from laplacian_keyboard.experiments.demo import DATA_STEPS, EPISODE
from laplacian_keyboard.experiments.eigenvectors import Geometry
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.keyboard import Keyboard, KeyboardConfig, KeyboardParams
from laplacian_keyboard.pretraining import learn_basis, learn_behaviors, seed_of

NUM_KEYS = 5
NUM_TASKS = 100
VARIANTS: dict[str, dict[str, Any]] = {
    "as in the preset": {},
    "plain vector loss (paper)": {"emphasis": 0.0},
    "two hidden layers": {"hidden": (256, 256)},
    "no layer normalisation": {"layer_norm": False},
    "gamma 0.95": {"gamma": 0.95},
}
"""What each row changes in the preset."""


def run(preset: str = "cpu", seeds: int = 3, out: str = "") -> list[dict[str, Any]]:
    """One row for each variant: the in-span value of every seed, over 100 random w."""
    world = jax_world("four-rooms", None, time_limit=EPISODE + 1)
    data = collect_random_walks(world, steps=DATA_STEPS[preset], length=EPISODE, seed=0)
    experience = data.experience()
    geometry = Geometry.of(four_rooms())
    settings = presets.settings(preset, NUM_KEYS, discrete=True)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    encoders, _ = learn_basis(
        settings.basis, experience, num_steps=settings.basis_steps, key=keys, quiet=False
    )
    rows = []
    for name, change in VARIANTS.items():
        config = dataclasses.replace(settings.successor, **change)
        networks = learn_behaviors(
            settings.basis,
            config,
            encoders,
            experience,
            num_steps=settings.successor_steps,
            key=keys,
            quiet=False,
        )
        described = KeyboardConfig(data.spec, settings.basis, config)
        inputs = Inputs.plain(data.spec.obs_dim)
        keyboards = [
            Keyboard(described, KeyboardParams(inputs, *seed_of((encoders, networks), i)))
            for i in range(seeds)
        ]
        values = [
            stitching.in_span_value(keyboard, geometry, num_tasks=NUM_TASKS)
            for keyboard in keyboards
        ]
        rows.append({"variant": name, "in_span_value": [round(value, 4) for value in values]})
    return rows
