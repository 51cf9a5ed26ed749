"""`lk demo`: the whole method on Four-Rooms, from nothing to a report with pictures."""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laplacian_keyboard import presets, spectral
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.composing import learn_player
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.envs.domains import grid_goals, grid_map, jax_world
from laplacian_keyboard.envs.grid import GridWorld, grid_observations
from laplacian_keyboard.experiments import bound, eigenvectors, stitching
from laplacian_keyboard.experiments.eigenvectors import Geometry
from laplacian_keyboard.figures import draw_curves, new_figure, to_png
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.keyboard import Keyboard, KeyboardConfig, KeyboardParams, empty_params
from laplacian_keyboard.pretraining import kept, learn_basis, learn_behaviors
from laplacian_keyboard.report import Page
from laplacian_keyboard.types import UserError

DATA_STEPS = {"smoke": 20_000, "cpu": 2_000_000, "paper": 2_000_000}
EPISODE = 1_000
NUM_BASIS = 10
"""Eigenvectors learned and compared with the exact ones."""


def run_demo(
    *,
    domain: str = "four-rooms",
    task: str = "goal",
    k: int = 5,
    preset: str = "cpu",
    seed: int = 0,
    out: str | Path = "lk-demo",
    quiet: bool = False,
) -> dict[str, Any]:
    """Run or resume the demo in the folder `out`; returns the figures of `result.json`."""
    began = time.monotonic()
    geometry = Geometry.of(grid_map(domain))
    grid = geometry.grid
    goal = grid_goals(domain, task)[0]
    num_basis = max(k, NUM_BASIS)
    if not k >= 1 or num_basis >= grid.num_states:
        raise UserError(
            f"k = {k} is too large or small: {domain} has {grid.num_states} states and the demo "
            f"learns max(k, {NUM_BASIS}) eigenvectors besides the constant one"
        )
    if (grid.distances(goal) < 0).any():
        raise UserError(f"{grid.source}: some free cells have no path to the goal")
    full, small = (
        presets.settings(preset, n, discrete=True, domain=domain) for n in (num_basis, k)
    )
    described = {"kind": "demo", "domain": domain, "task": task, "k": k, "seed": seed}
    run = RunFolder(out, {**described, "preset": preset})
    if run.is_done:
        return run.result()

    data = collect_random_walks(
        jax_world(domain, None, time_limit=EPISODE + 1),
        steps=DATA_STEPS[preset],
        length=EPISODE,
        seed=seed,
    )
    experience = data.experience()
    key_basis, key_behaviors, key_player = jax.random.split(jax.random.key(seed), 3)

    encoder, report = kept(
        run,
        "basis.safetensors",
        (
            laplacian.init(full.basis, data.spec, key=key_basis).encoder.params,
            laplacian.empty_report(num_basis),
        ),
        lambda: learn_basis(
            full.basis, experience, num_steps=full.basis_steps, key=key_basis, run=run, quiet=quiet
        ),
    )
    learned = np.asarray(laplacian.phi(full.basis, encoder, jnp.asarray(grid_observations(grid))))
    exact = geometry.first(num_basis)
    exact = spectral.Eigenbasis(exact.eigenvalues[1:], exact.vectors[:, 1:])
    cosines = spectral.eigenvector_cosines(learned, exact)

    config = KeyboardConfig(data.spec, small.basis, small.successor, domain)
    encoder = laplacian.truncate(encoder, k)
    network = kept(
        run,
        "behaviors.safetensors",
        empty_params(config).successor,
        lambda: learn_behaviors(
            small.basis,
            small.successor,
            encoder,
            experience,
            num_steps=small.successor_steps,
            key=key_behaviors,
            run=run,
            quiet=quiet,
        ),
    )
    keyboard = Keyboard(config, KeyboardParams(Inputs.plain(data.spec.obs_dim), encoder, network))
    reward = (np.arange(grid.num_states) == goal).astype(np.float32)
    inference = keyboard.inference(grid_observations(grid), reward)
    zero_shot = stitching.chord_success(keyboard, grid, np.asarray(inference.w), goal)
    best = stitching.best_success(keyboard, grid, goal, small.player.t_term)

    def evaluate(player: Any) -> dict[str, float]:
        return {"player/success": stitching.player_success(player, grid, goal).fraction}

    player = learn_player(
        small.player,
        keyboard,
        GridWorld.from_map(grid, goals=[goal]),
        steps=small.player_steps,
        num_envs=small.player_envs,
        num_updates=small.player_updates,
        key=key_player,
        run=run,
        evaluate=evaluate,
        chunk=20,
        quiet=quiet,
    )
    player.save(run.path)
    composed = stitching.player_success(player, grid, goal)
    bounds = [bound.curves(geometry, name, r) for name, r in bound.rewards(geometry).items()]
    result = {
        **described,
        "states": grid.num_states,
        "goal": grid.cells[goal].tolist(),
        "t_term": small.player.t_term,
        "basis_cosine": float(cosines.mean()),
        "basis_cosines": cosines.round(5).tolist(),
        "orthonormality_error": float(report.orthonormality_error),
        "eigenvalues": np.asarray(report.eigenvalues).round(5).tolist(),
        "bound_violations": sum(one.violations for one in bounds),
        "in_span_value": stitching.in_span_value(keyboard, geometry),
        "outside_span": float(inference.residual),
        "zero_shot_success": zero_shot.fraction,
        "player_success": composed.fraction,
        "player_path_ratio": composed.path_ratio,
        "best_path_ratio": best.path_ratio,
        "player_steps": small.player_steps,
    }
    decisions, reached = run.logged("player", "player/success")
    steps = np.array(decisions) * small.player_envs * small.player.t_term
    curve = (steps, np.array(reached))
    page = _page(geometry, result, learned, cosines, bounds, player, inference.w, goal, curve)
    result["seconds"] = round(time.monotonic() - began, 1)
    write_atomically(run.path / "report.html", page.render())
    run.finish(result)
    return result


def table(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The figures of a demo in words."""
    number = lambda name, digits: f"{result[name]:.{digits}f}"  # noqa: E731
    return [
        (
            f"learned against exact eigenvectors, mean |cos| of {len(result['basis_cosines'])}",
            number("basis_cosine", 4),
        ),
        ("bounds violated, all k and four rewards", str(result["bound_violations"])),
        ("behaviors on rewards inside the span, of the optimal value", number("in_span_value", 3)),
        ("this task's reward outside the span", f"{100 * result['outside_span']:.0f} %"),
        (
            f"starts that reach the goal: zero-shot, k = {result['k']}",
            f"{100 * result['zero_shot_success']:.0f} %",
        ),
        (
            f"starts that reach the goal: player after {result['player_steps']:,} steps",
            f"{100 * result['player_success']:.0f} %",
        ),
        ("player's path over the shortest path", number("player_path_ratio", 3)),
        ("best possible with these behaviors", number("best_path_ratio", 3)),
    ]


def _page(
    geometry: Geometry,
    result: dict[str, Any],
    learned: np.ndarray,
    cosines: np.ndarray,
    bounds: list[bound.Curves],
    player: Any,
    w: Any,
    goal: int,
    curve: tuple[np.ndarray, np.ndarray],
) -> Page:
    grid, k = geometry.grid, result["k"]
    reward = (np.arange(grid.num_states) == goal).astype(float)
    page = Page(
        "The Laplacian Keyboard on Four-Rooms",
        "Eigenvectors from reward-free steps, behaviors for every combination of them, and a "
        "player that reaches a goal no single behavior reaches.",
    )
    page.table(("what", "figure"), table(result))
    page.heading("1. The basis")
    page.text(
        "The eigenvectors of the graph Laplacian are the smoothest functions on the world: each "
        "varies faster than the one before. A reward is rebuilt from the first k of them; a sharp "
        "goal needs many."
    )
    page.picture(
        to_png(eigenvectors.draw(geometry, reward)),
        "Above: exact eigenvectors with their graph norms. Below: the goal's reward and its "
        "reconstructions with mean squared errors.",
    )
    page.picture(
        to_png(eigenvectors.draw_learned(geometry, learned, cosines)),
        "Eigenvectors learned from random walks alone, below the exact ones.",
    )
    page.heading("2. What a small basis costs")
    page.picture(
        to_png(bound.draw(geometry, bounds)),
        "Four rewards: error of the optimal value when the reward is rebuilt from e_0 to e_k, and "
        "the two upper bounds.",
    )
    page.heading("3. One behavior fails, the player succeeds")
    page.text(
        f"With k = {k}, {100 * result['outside_span']:.0f} % of the goal's reward lies outside the "
        f"span. The zero-shot behavior reaches the goal from "
        f"{100 * result['zero_shot_success']:.0f} % of the cells, the player from "
        f"{100 * result['player_success']:.0f} %, choosing a new behavior every "
        f"{result['t_term']} steps."
    )
    start = stitching.far_start(grid, goal, 3 * result["t_term"])
    page.picture(
        to_png(stitching.draw(geometry, player, np.asarray(w), goal, start)),
        "The optimal policy, the zero-shot behavior, and the player's successive behaviors from "
        "one start.",
    )
    steps, reached = curve
    figure, axes = new_figure(1, 1, cell=(5.5, 2.6))
    draw_curves(
        axes[0, 0],
        steps,
        {"player": reached, "zero-shot": np.full(len(steps), result["zero_shot_success"])},
        xlabel="environment steps",
        ylabel="starts that reach the goal",
    )
    page.picture(to_png(figure), "The player learning.")
    return page
