"""The paper's controlled study: the Laplacian keyboard against a privileged option basis.

Five items of each of two types lie on a torus; all of one type are to be collected before the
other. For every seed there is one dataset of random walks and one basis of the largest k, whose
first eigenvectors are the smaller bases.

| method | chord | who acts |
|---|---|---|
| LK-USFA | w in R^k | the behavior of w |
| LK-GPE&GPI | w in R^k | the best of the 2k behaviors of +-e_i, by their values on w |
| OKB | z in R^2 | the best behavior of the basis that linear support built on the given features |

All three learn from the same data with the same networks and the same player; OKB is told which
type was collected at every transition. Zero-shot is the chord that regression gives on the task's
rewards of stored transitions, played throughout. The reward of an item out of order is -1, and for
comparison 0 (`OTHER_REWARD`).

A finished cell is not repeated. Everything is evaluated at the last step, over 250 episodes.
"""

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from laplacian_keyboard import gpi, option_keyboard, presets, zero_shot
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.checkpoint import RunFolder, load_arrays, write_json
from laplacian_keyboard.composing import PlayerUpdate, learn_actor, returns_of_actor
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.envs.item_collector import (
    NUM_TYPES,
    TASKS,
    TIME_LIMIT,
    WRONG_ORDER_REWARD,
    ItemCollector,
    collected,
    label,
)
from laplacian_keyboard.envs.item_references import greedy
from laplacian_keyboard.figures import draw_interval, new_figure, to_png
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.keyboard import (
    KeyboardConfig,
    KeyboardParams,
    empty_params,
    features,
    prepare,
)
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.player import init as init_player
from laplacian_keyboard.pretraining import kept, learn_basis, learn_behaviors, prepare_experience
from laplacian_keyboard.stats import mean_interval

DOMAIN, TASK = "item-collector", TASKS[0]
SIZES = {"smoke": (2, 3), "cpu": (20, 30, 40), "paper": (20, 30, 40)}
DATA_STEPS = {"smoke": 2_000, "cpu": 200_000, "paper": 1_000_000}
INFERENCE_STATES = 50_000
"""Transitions that zero-shot sees the rewards of (paper)."""
OTHER_REWARD = 0.0
"""The other reward of an item out of order, tried with the smallest k and OKB."""
CURVE_POINTS, CURVE_EPISODES = 10, 50
FINAL_ROUNDS = 5
"""Times as many episodes at the end of the curve as on it."""
REFERENCE_EPISODES = 5_000
FIGURE_FILE, RESULT_FILE = "item-collector.png", "cells.json"


def run(
    preset: str = "cpu", seeds: int = 5, out: str = "runs/item-collector"
) -> list[dict[str, Any]]:
    """One row for each method, k and reward: means and intervals over seeds. The figure and the
    cells go to `out`."""
    settings_of(preset, 1)  # an unknown preset is the user's mistake
    sizes, folder = SIZES[preset], Path(out)
    spread("bases", basis_of, [(preset, out, seed) for seed in range(seeds)])
    cells = [("okb", 0, seed) for seed in range(seeds)]
    cells += [("lk", k, seed) for k in sorted(sizes, reverse=True) for seed in range(seeds)]
    results = spread("players", cell, [(preset, out, *which) for which in cells])
    entries = [entry for result in results for entry in result["entries"]]
    references = reference_lines()
    rows = summary_rows(entries)
    write_json(folder / RESULT_FILE, {"references": references, "cells": results})
    write_atomically(folder / FIGURE_FILE, to_png(draw(entries, references)))
    return [*rows, *({"method": name, **values} for name, values in references.items())]


def experience_of(preset: str, seed: int) -> Dataset:
    """Random walks in memory: collecting them again takes seconds."""
    world = ItemCollector.for_task()
    return collect_random_walks(world, steps=DATA_STEPS[preset], length=TIME_LIMIT, seed=seed)


def settings_of(preset: str, k: int) -> presets.Settings:
    """The preset of the domain."""
    return presets.settings(preset, k, discrete=True, domain=DOMAIN)


def basis_of(preset: str, out: str, seed: int) -> None:
    """Learn the basis of a seed, if it is not there yet."""
    load_basis(preset, Path(out), seed)


def load_basis(preset: str, out: Path, seed: int) -> tuple[Dataset, Any, Any, MLP]:
    """Dataset, inputs, experience and the encoder of the largest k; learned on the first call."""
    largest = max(SIZES[preset])
    settings, data = settings_of(preset, largest), experience_of(preset, seed)
    inputs, experience = prepare_experience(data, (), settings.normalise)
    key = jax.random.fold_in(jax.random.key(seed), 0)
    untrained = laplacian.init(settings.basis, experience.spec, key=key).encoder.params
    folder = out / f"basis-{seed}"
    if (folder / "done").exists():  # several processes may read it at once
        encoder, _ = load_arrays(folder / "basis.safetensors", untrained)
        return data, inputs, experience, encoder
    described = {"kind": "basis", "seed": seed, "steps": settings.basis_steps}
    run = RunFolder(folder, {**described, **dataclasses.asdict(settings.basis)})

    def learn() -> MLP:
        steps = settings.basis_steps
        encoder, report = learn_basis(settings.basis, experience, num_steps=steps, key=key, run=run)
        assert report is not None, "a Laplacian basis has one"
        run.log("basis", steps, {"laplacian/eigenvalues": report.eigenvalues.tolist()})
        return encoder

    encoder = kept(run, "basis.safetensors", untrained, learn)
    run.finish({"counts_explained": counts_explained(settings.basis, encoder, inputs, data)})
    return data, inputs, experience, encoder


def counts_explained(
    config: laplacian.Config, encoder: MLP, inputs: Any, data: Dataset
) -> dict[str, list[float]]:
    """How much of the number of items left of each type the first k eigenvectors explain: R^2 for
    each type. A keyboard whose basis shows them can be asked to collect a type."""
    obs = data.next_observations(data.sample_next_rows(10_000, seed=0)).astype(np.float32)
    phi = laplacian.phi(config, encoder, inputs(jnp.asarray(obs)))
    counts = obs.reshape(len(obs), NUM_TYPES, -1).sum(axis=-1)
    return {
        str(k): [round(1 - float(zero_shot.residual(phi[:, :k], c)), 3) for c in counts.T]
        for k in range(1, config.k + 1)
        if k <= 4 or k % 10 == 0
    }


def cell(
    preset: str, out: str, kind: str, k: int, seed: int, *, quiet: bool = True
) -> dict[str, Any]:
    """One keyboard and its players: `lk` with k keys, or `okb`."""
    began = time.process_time()
    settings = settings_of(preset, k or NUM_TYPES)
    run = RunFolder(
        Path(out) / (f"k{k}-{seed}" if kind == "lk" else f"okb-{seed}"),
        {"kind": kind, "k": k, "seed": seed, "preset": preset, **dataclasses.asdict(settings)},
    )
    if run.is_done:
        return run.result()
    entries = (
        lk_entries(preset, out, k, seed, run)
        if kind == "lk"
        else okb_entries(preset, seed, run, quiet)
    )
    result = {"entries": entries, "cpu_seconds": round(time.process_time() - began)}
    run.finish(result)
    return result


def behave_on_keys(config: KeyboardConfig, params: KeyboardParams, obs: Any, w: Any) -> Any:
    """The action for chord w on the behaviors of +-e_i."""
    assert isinstance(params.successor, MLP)
    return gpi.act(params.successor, prepare(config, params, obs), w)


def lk_entries(preset: str, out: str, k: int, seed: int, run: RunFolder) -> list[dict[str, Any]]:
    """The Laplacian keyboard of k keys, zero-shot and with a player, in both forms."""
    settings = settings_of(preset, k)
    data, inputs, experience, encoder = load_basis(preset, Path(out), seed)
    encoder = laplacian.truncate(encoder, k)
    config = KeyboardConfig(data.spec, settings.basis, settings.successor, DOMAIN)
    key_behaviors, key_player = (jax.random.fold_in(jax.random.key(seed), i) for i in (1, 2))
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
        ),
    )
    params = KeyboardParams(inputs, encoder, behaviors)
    usfa = PlayerUpdate(settings.player, config, settings.player_updates)
    on_keys = dataclasses.replace(usfa, behave=behave_on_keys)
    variants = [("LK-USFA", usfa, WRONG_ORDER_REWARD), ("LK-GPE&GPI", on_keys, WRONG_ORDER_REWARD)]
    if k == min(SIZES[preset]):
        variants.append(("LK-USFA", usfa, OTHER_REWARD))
    entries = []
    for method, update, wrong in variants:
        inferred = infer(config, params, data, wrong)
        world = ItemCollector.for_task(TASK, wrong_order_reward=wrong)
        alone = partial(returns_of_chord, update, params, world, inferred.w)
        entries.append(
            {
                "method": method,
                "k": k,
                "wrong_order_reward": wrong,
                "zero_shot": float(final_returns(alone).mean()),
                "outside_span": float(inferred.residual),
                **learn_and_evaluate(settings, update, params, world, key_player, run, method),
            }
        )
    return entries


def okb_entries(preset: str, seed: int, run: RunFolder, quiet: bool) -> list[dict[str, Any]]:
    """OKB: its basis from the given features, and a player over it."""
    settings, basis_settings = (
        settings_of(preset, NUM_TYPES),
        option_keyboard.settings_of(preset, DOMAIN),
    )
    data = experience_of(preset, seed)
    inputs, _ = prepare_experience(data, (), settings.normalise)
    key_basis, key_player = (jax.random.fold_in(jax.random.key(seed), i) for i in (1, 2))
    world = ItemCollector.for_task(TASK)
    params = kept(
        run,
        "basis.safetensors",
        option_keyboard.empty_params(basis_settings, data.spec, NUM_TYPES),
        lambda: option_keyboard.learn_basis(
            basis_settings,
            world,
            collected,
            data,
            inputs,
            time_limit=TIME_LIMIT,
            key=key_basis,
            quiet=quiet,
        )[0],
    )
    keyboard = option_keyboard.OptionKeyboard(data.spec, NUM_TYPES)
    update = option_keyboard.player_of(basis_settings, keyboard)
    entries = []
    for wrong in (WRONG_ORDER_REWARD, OTHER_REWARD):
        world = ItemCollector.for_task(TASK, wrong_order_reward=wrong)
        entries.append(
            {
                "method": "OKB",
                "k": NUM_TYPES,
                "wrong_order_reward": wrong,
                "behaviors": np.unique(np.asarray(params.weights).round(3), axis=0).tolist(),
                **learn_and_evaluate(
                    settings, update, params, world, key_player, run, "OKB", quiet=quiet
                ),
            }
        )
    return entries


def infer(
    config: KeyboardConfig, params: KeyboardParams, data: Dataset, wrong_order_reward: float
) -> zero_shot.Inference:
    """The task's chord. Its reward is of a transition; the regression sees the state reached."""
    rows = data.sample_next_rows(min(INFERENCE_STATES, data.num_transitions), seed=0)
    before, after = (jnp.asarray(data.observation[i], jnp.float32) for i in (rows - 1, rows))
    rewards = label(before, after, TASK, wrong_order_reward=wrong_order_reward)
    return zero_shot.infer(features(config, params, after), rewards)


def learn_and_evaluate(
    settings: presets.Settings,
    update: PlayerUpdate,
    params: Any,
    world: ItemCollector,
    key: PRNGKeyArray,
    run: RunFolder,
    method: str,
    *,
    quiet: bool = True,
) -> dict[str, Any]:
    """A player for the world's task: its return at the end, and the curve that led there."""
    stage = f"{method} {float(world.wrong_order_reward):g}"
    per_decision = settings.player_envs * update.config.t_term
    every = max(1, settings.player_steps // per_decision // CURVE_POINTS)

    def returns(actor: MLP, keys: PRNGKeyArray) -> Any:
        return returns_of_actor(update, TIME_LIMIT, actor, params, world, keys)

    on_curve = lambda actor: float(returns(actor, episodes(-1)).mean())  # noqa: E731
    spec, k = update.keyboard.input_spec, update.keyboard.k
    untrained = init_player(update.config, spec, k, key=key).actor.params
    actor = kept(
        run,
        f"{stage.replace(' ', '-').replace('&', '-')}.safetensors",
        untrained,
        lambda: learn_actor(
            update,
            params,
            world,
            steps=settings.player_steps,
            num_envs=settings.player_envs,
            key=key,
            run=run,
            stage=stage,
            evaluate=lambda actor: {"player/evaluation": on_curve(actor)},
            evaluate_every=every,
            chunk=every,
            quiet=quiet,
        ),
    )
    decisions, means = run.logged(stage, "player/evaluation")
    final = final_returns(partial(returns, actor))
    interval = mean_interval(final, rng=np.random.default_rng(0))[1]
    return {
        "steps": [0, *(n * per_decision for n in decisions)],
        "curve": [on_curve(untrained), *means],
        "player": float(final.mean()),
        "player_ci95": list(interval),
        "episodes": len(final),
    }


def episodes(number: int) -> PRNGKeyArray:
    """The keys of a round of episodes, the same for every method."""
    return jax.random.split(jax.random.key(10_000 + number), CURVE_EPISODES)


def final_returns(returns: Any) -> np.ndarray:
    """`returns(keys)` of the episodes that end an experiment."""
    return np.concatenate([returns(episodes(number)) for number in range(FINAL_ROUNDS)])


@partial(jax.jit, static_argnums=0)
def returns_of_chord(
    update: PlayerUpdate, params: Any, world: ItemCollector, w: Any, keys: PRNGKeyArray
) -> Any:
    """Returns of one chord played throughout."""
    chords = jnp.broadcast_to(w, (len(keys), len(w)))
    return _returns(world, lambda _, obs: update.behave(update.keyboard, params, obs, chords), keys)


@jax.jit
def _reference_returns(world: ItemCollector, keys: PRNGKeyArray) -> dict[str, Any]:
    at_random = lambda state, _: jax.random.randint(  # noqa: E731
        jax.random.fold_in(keys[0], state.time[0]), keys.shape, 0, world.spec.num_actions
    )
    nearest = lambda state, _: jax.vmap(lambda s: greedy(world, s))(state)  # noqa: E731
    return {
        "random": _returns(world, at_random, keys),
        "greedy oracle": _returns(world, nearest, keys),
    }


def _returns(world: ItemCollector, act: Any, keys: PRNGKeyArray) -> Any:
    def step(carry: Any, _: Any) -> tuple[Any, Any]:
        state, obs = carry
        state, seen = jax.vmap(lambda s, a: world.step(s, a))(state, act(state, obs))
        return (state, seen.obs), seen.reward

    start = jax.vmap(lambda key: world.reset(key))(keys)
    return jax.lax.scan(step, start, length=world.time_limit)[1].sum(axis=0)


def reference_lines() -> dict[str, dict[str, float]]:
    """Mean returns of random and greedy collectors, for both rewards of an item out of order."""
    keys = jax.random.split(jax.random.key(0), REFERENCE_EPISODES)
    found: dict[str, dict[str, float]] = {}
    for wrong in (WRONG_ORDER_REWARD, OTHER_REWARD):
        world = ItemCollector.for_task(TASK, wrong_order_reward=wrong)
        returns = _reference_returns(world, keys)
        for name in ("random", "greedy oracle"):
            found.setdefault(name, {})[f"return_{wrong:g}"] = round(float(returns[name].mean()), 3)
    return found


def summary_rows(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds with 95 % intervals."""
    rows, generator = [], np.random.default_rng(0)
    for which, group in grouped(entries).items():
        row: dict[str, Any] = dict(zip(("method", "k", "wrong_order_reward"), which, strict=True))
        row["seeds"] = len(group)
        for name in ("zero_shot", "player"):
            values = [entry[name] for entry in group if name in entry]
            if values:
                mean, interval = mean_interval(np.array(values), rng=generator)
                row[name] = round(mean, 2)
                row[f"{name}_ci95"] = [round(x, 2) for x in interval]
        rows.append(row)
    return rows


def grouped(entries: list[dict[str, Any]]) -> dict[tuple[str, int, float], list[dict[str, Any]]]:
    """The entries of all seeds, by method, k and reward."""
    groups: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
    for entry in entries:
        which = entry["method"], entry["k"], entry["wrong_order_reward"]
        groups.setdefault(which, []).append(entry)
    return dict(sorted(groups.items(), key=lambda item: (item[0][2], item[0])))


def draw(entries: list[dict[str, Any]], references: dict[str, dict[str, float]]) -> Any:
    """The paper's figure, the two forms side by side: players as curves, zero-shot dashed."""
    forms = ("LK-USFA", "LK-GPE&GPI")
    figure, axes = new_figure(1, len(forms), cell=(5.0, 3.8))
    colours = ("#8ecae6", "#219ebc", "#023047", "#5e548e", "#9f86c0")
    groups = grouped(entries)
    usual = {which[:2]: group for which, group in groups.items() if which[2] == WRONG_ORDER_REWARD}
    for panel, form in zip(axes[0], forms, strict=True):
        shown = [which for which in usual if which[0] in (form, "OKB")]
        sizes = sorted(k for method, k in shown if method == form)
        for method, k in shown:
            group = usual[method, k]
            colour = "#d8572a" if method == "OKB" else colours[sizes.index(k) % len(colours)]
            name = method if method == "OKB" else f"{method}, k = {k}"
            curves = np.array([entry["curve"] for entry in group])
            draw_interval(panel, group[0]["steps"], curves.T, label=name, color=colour)
            if method != "OKB":
                alone = np.mean([entry["zero_shot"] for entry in group])
                panel.axhline(alone, color=colour, ls="--", lw=1.2)
        for name, values in references.items():
            height = values[f"return_{WRONG_ORDER_REWARD:g}"]
            panel.axhline(height, color="#999999", ls=":", lw=1.2)
            place = {"xytext": (0, 2), "textcoords": "offset points", "fontsize": 7}
            panel.annotate(name, (0.01, height), xycoords=("axes fraction", "data"), **place)
        panel.set_title(f"{form} and OKB (dashed: zero-shot)", fontsize=9)
        panel.set_xlabel("environment steps of the player")
        panel.set_ylabel("return")
        panel.grid(alpha=0.25)
        panel.legend(fontsize=7, frameon=False, loc="lower right")
    return figure
