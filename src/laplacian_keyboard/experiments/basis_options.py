"""How the options of the Laplacian objective compare, against the exact eigenvectors of Four-Rooms:
where negatives come from, which squared error, and the refinement."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laplacian_keyboard import presets, spectral
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.envs.domains import jax_world
from laplacian_keyboard.envs.grid import four_rooms, grid_observations
from laplacian_keyboard.experiments.demo import DATA_STEPS, EPISODE, NUM_BASIS
from laplacian_keyboard.experiments.eigenvectors import Geometry
from laplacian_keyboard.pretraining import average_moments, learn_basis, seed_of


def run(preset: str = "cpu", seeds: int = 3, out: str = "") -> list[dict[str, Any]]:
    """One row for each combination of options: mean |cos| of e_1 to e_10 by seed, as learned and
    refined."""
    grid = four_rooms()
    exact = Geometry.of(grid).first(NUM_BASIS)
    obs = jnp.asarray(grid_observations(grid))
    world = jax_world("four-rooms", None, time_limit=EPISODE + 1)
    data = collect_random_walks(world, steps=DATA_STEPS[preset], length=EPISODE, seed=0)
    experience = data.experience()
    settings = presets.settings(preset, NUM_BASIS, discrete=True)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))

    def cosine(encoder: Any) -> float:
        return float(spectral.eigenvector_cosines(encoder(obs), exact)[1:].mean())

    rows = []
    for negatives, quadratic in itertools.product(
        ("independent", "same-episode"), ("product", "square")
    ):
        config = dataclasses.replace(
            settings.basis, negatives=negatives, quadratic=quadratic, refine=False
        )
        encoders, _ = learn_basis(
            config, experience, num_steps=settings.basis_steps, key=keys, quiet=False
        )
        learned, refined = [], []
        for i in range(seeds):
            encoder = seed_of(encoders, i)
            moments = average_moments(config, encoder, experience, jax.random.key(seeds + i))
            learned.append(cosine(encoder))
            refined.append(cosine(laplacian.refine(encoder, moments)))
        rows.append(
            {
                "negatives": negatives,
                "quadratic": quadratic,
                "learned": np.round(learned, 4).tolist(),
                "refined": np.round(refined, 4).tolist(),
            }
        )
    return rows
