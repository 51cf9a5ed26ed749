"""The report of a finished run: one HTML file with what was learned and how it looks.

`write_report(folder)` reads only what the run has left in its folder. A part that cannot be made,
for want of states, of physics or of a world that can be drawn, says so and the rest is still there:
a report must never cost a finished run.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laplacian_keyboard import run_figures
from laplacian_keyboard.checkpoint import read_arrays, read_json
from laplacian_keyboard.data import labels
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.envs.domains import DMC, is_grid, is_point_maze
from laplacian_keyboard.figures import to_png
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.film import film_strip, record, record_many
from laplacian_keyboard.host_loop import CHORDS_FILE
from laplacian_keyboard.keyboard import KEYBOARD_FILE, PLAYER_FILE, Chord, Keyboard, Player
from laplacian_keyboard.report import Page
from laplacian_keyboard.stats import mean_interval
from laplacian_keyboard.types import UserError

REPORT_FILE = "report.html"
SHOWN_KEYS = 3
"""Behaviors +-e_1 to +-e_3 are filmed."""
FILM_SECONDS, FILM_STEPS = 6.0, 1_000
"""Length of the behaviors' films, and most steps of any."""
FILM_SEED, MAP_STARTS = 0, 6
"""All films begin alike; on a map they begin in several places."""


@dataclass(frozen=True)
class Run:
    """What a run has left in its folder."""

    folder: Path
    settings: dict[str, Any]
    command: str
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    keyboard: Keyboard
    player: Player | None

    @property
    def domain(self) -> str:
        """The keyboard's world, to be made again."""
        if not self.keyboard.config.domain:
            raise UserError("the keyboard does not say which domain it was trained in")
        return self.keyboard.config.domain

    @property
    def task(self) -> str | None:
        """The player's task, if the run says which."""
        return self.result.get("task") or self.settings.get("task")

    @property
    def states(self) -> Dataset:
        """The states kept with the keyboard."""
        if self.keyboard.states is None:
            raise UserError("the keyboard keeps no states of its data")
        return self.keyboard.states

    @property
    def zero_shot(self) -> float | None:
        """Return of the task's single chord, if the run says so."""
        return (self.result.get("zero_shot") or {}).get("return_mean")

    def logged(self, *stages: str) -> dict[str, tuple[list[int], list[Any]]]:
        """Steps and values of every metric of some stages."""
        found: dict[str, tuple[list[int], list[Any]]] = {}
        for entry in self.metrics:
            if entry.get("stage") not in stages:
                continue
            for name, value in entry.items():
                if "/" in name and value is not None:
                    steps, values = found.setdefault(name, ([], []))
                    steps.append(entry["step"])
                    values.append(value)
        return found


Part: TypeAlias = Callable[[Page, Run], None]
"""Adds to a page; a UserError says why it cannot."""


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a finished run, a keyboard's or a player's."""
    run = _read_run(Path(folder))
    page = _keyboard_page(run) if run.player is None else _player_page(run)
    path = run.folder / REPORT_FILE
    write_atomically(path, page.render())
    return path


def _read_run(folder: Path) -> Run:
    config, result, trained = (
        folder / "config.json",
        folder / "result.json",
        _keyboard_folder(folder),
    )
    described = read_json(config) if config.exists() else {}
    player = Player.load(folder) if (folder / PLAYER_FILE).exists() else None
    return Run(
        folder=folder,
        settings=described.get("settings", {}),
        command=described.get("command", ""),
        result=read_json(result) if result.exists() else {},
        metrics=_read_metrics(folder / "metrics.jsonl") or _read_metrics(trained / "metrics.jsonl"),
        keyboard=Keyboard.load(trained) if player is None else player.keyboard,
        player=player,
    )


def _keyboard_folder(folder: Path) -> Path:
    """The folder itself, or that of the first of several seeds."""
    seeds = [path.parent for path in folder.glob(f"seed-*/{KEYBOARD_FILE}")]
    if (folder / KEYBOARD_FILE).exists() or not seeds:
        return folder
    return min(seeds, key=lambda path: (len(path.name), path.name))


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:  # a line torn by a crash
            continue
    return entries


def _add(page: Page, run: Run, parts: dict[str, Part]) -> Page:
    for title, part in parts.items():
        page.heading(title)
        try:
            part(page, run)
        except UserError as error:
            page.text(f"Left out: {error}.")
        except Exception as error:  # a picture is not worth a run
            page.text(f"Left out because drawing it failed: {type(error).__name__}: {error}")
    if run.command:
        page.code(run.command)
    return page


def _table(page: Page, figures: dict[str, Any]) -> None:
    """The figures that are known."""
    shown = lambda value: f"{value:,}" if isinstance(value, int) else str(value)  # noqa: E731
    rows = [(name, shown(value)) for name, value in figures.items() if value not in (None, "")]
    page.table(("what", "figure"), rows)


def _keyboard_page(run: Run) -> Page:
    keyboard, settings = run.keyboard, run.settings
    page = Page(
        f"A keyboard for {keyboard.config.domain or 'a world without a name'}, k = {keyboard.k}",
        "Features learned from reward-free experience, and a behavior for every weighting of them.",
    )
    seeds, error = settings.get("seeds", []), run.result.get("orthonormality_error")
    figures = {
        "preset": settings.get("preset"),
        "steps of experience": settings.get("dataset_steps"),
        "updates of the basis": settings.get("basis_steps"),
        "updates of the behaviors": settings.get("successor_steps"),
        "seeds": ", ".join(map(str, seeds)),
        "largest deviation from orthonormal": None if error is None else f"{np.max(error):.3f}",
    }
    _table(page, figures)
    if len(seeds) > 1:
        page.text(
            f"Eigenvalues and training show all {len(seeds)} seeds, the rest is seed {seeds[0]}."
        )
    parts: dict[str, Part] = {
        "Eigenvalues": _eigenvalues,
        "What the features are": _correlations,
        "What the keys do": _behaviors,
        "Zero-shot weights by task": _task_weights,
        "Training": _training,
    }
    return _add(page, run, parts)


def _eigenvalues(page: Page, run: Run) -> None:
    if "eigenvalues" not in run.result:
        raise UserError("the folder has no result.json with eigenvalues")
    page.picture(
        to_png(run_figures.eigenvalue_bars(run.result["eigenvalues"])),
        "How much each eigenvector changes between states shortly after each other: the low ones "
        "are slow. The constant e_0 has eigenvalue 0.",
    )


def _correlations(page: Page, run: Run) -> None:
    known = labels.quantities(run.states)
    if not known:
        raise UserError(f"no physical quantities of {run.domain} are known")
    phi = np.asarray(run.keyboard.phi(run.states.observation))
    values = run_figures.correlations(phi, np.stack(list(known.values()), axis=1))
    page.picture(
        to_png(run_figures.correlation_map(values, list(known))),
        f"Correlation of every feature with physical quantities, on {len(phi):,} states of the "
        "data. A feature's sign is arbitrary.",
    )


def _behaviors(page: Page, run: Run) -> None:
    domain, films = run.domain, film_keys(run.keyboard)
    how = "Above, the time; below, the way travelled; faint, the moments before."
    if _is_map(domain):
        how = f"Paths from {MAP_STARTS} starts; faint is earlier."
    page.picture(
        to_png(film_strip(domain, films)),
        f"The behaviors of single keys: each raises (+) or lowers (-) one feature. {how}",
    )
    if domain in DMC:
        from laplacian_keyboard.envs.dmc import quantities_from_physics

        seen = {name: quantities_from_physics(domain, film) for name, film in films.items()}
        header = [name.replace("_", " ") for name in next(iter(seen.values()))]
        rows = [
            [name.strip("$"), *(f"{np.mean(values):.2f}" for values in each.values())]
            for name, each in seen.items()
        ]
        page.table(["mean over the film", *header], rows)


def film_keys(keyboard: Keyboard) -> dict[str, NDArray[Any]]:
    """Recordings of +e_1, -e_1, +e_2 and so on."""
    domain, count = keyboard.config.domain, min(SHOWN_KEYS, keyboard.k)
    names = [f"${sign}e_{i + 1}$" for i in range(count) for sign in "+-"]
    chords = np.stack([sign * np.eye(keyboard.k)[i] for i in range(count) for sign in (1, -1)])
    if domain.startswith("gym:"):
        each = [Chord(keyboard, w) for w in chords]
        films = [record(domain, chord, steps=FILM_STEPS, seed=FILM_SEED) for chord in each]
        return dict(zip(names, films, strict=True))
    seeds = range(FILM_SEED, FILM_SEED + (MAP_STARTS if _is_map(domain) else 1))
    together = Chord(keyboard, np.repeat(chords, len(seeds), axis=0))
    steps = _film_length(domain)
    films = record_many(domain, together, steps=steps, seeds=[*seeds] * len(chords))
    paths = films.reshape(len(chords), len(seeds), *films.shape[1:])
    return dict(zip(names, paths if _is_map(domain) else paths[:, 0], strict=True))


def _film_length(domain: str) -> int:
    if domain not in DMC:
        return FILM_STEPS
    from laplacian_keyboard.envs.dmc import load_domain

    world = load_domain(domain)
    return round(FILM_SECONDS / (world.substeps * world.model.opt.timestep))


def _is_map(domain: str) -> bool:
    return is_grid(domain) or is_point_maze(domain)


def _task_weights(page: Page, run: Run) -> None:
    weights = {}
    for task in labels.tasks_of(run.states):
        try:
            inference = run.keyboard.infer_task(task)
        except UserError as error:
            page.text(f"Left out: {error}.")
        else:
            weights[task] = inference.w, 1 - float(inference.residual)
    if not weights:
        raise UserError("the states say nothing about any task")
    page.picture(
        to_png(run_figures.weight_bars(weights)),
        f"The chord of every task, by regression of its reward on {len(run.states.observation):,} "
        "states, and how much of the reward's variance it explains. The rest is for a player.",
    )


def _player_page(run: Run) -> Page:
    assert run.player is not None
    world = run.keyboard.config.domain or "a world without a name"
    page = Page(
        f"A player for {world}{f', {run.task}' if run.task else ''}",
        "A policy that chooses a new chord of the keyboard every few steps, learned online.",
    )
    figures: dict[str, Any] = {
        "environment steps": run.result.get("steps"),
        "keys": run.keyboard.k,
        "steps a chord is kept": run.player.config.t_term,
    }
    if found := _evaluations(run):
        steps, returns = found
        figures["return, untrained"] = _with_interval(returns[0][0]) if steps[0] == 0 else None
        figures["return, after learning"] = _with_interval(returns[-1][0])
    if run.zero_shot is not None:
        figures["return, zero-shot"] = f"{run.zero_shot:.1f}"
    if (area := run.result.get("area")) is not None:
        figures["area under the curve, as a mean return"] = f"{area:.1f}"
    _table(page, figures)
    parts: dict[str, Part] = {
        "Learning": _learning_curve,
        "Chords": _chords,
        "What it does": _episode,
        "Training": _training,
    }
    return _add(page, run, parts)


def _evaluations(run: Run) -> tuple[list[int], list[list[list[float]]]] | None:
    """Steps, and the returns after each of them by player and episode."""
    if curve := run.result.get("curve"):
        return curve["steps"], [[episodes] for episodes in curve["returns"]]
    steps, values = run.logged("player").get("player/evaluation", ([], []))
    # Some runs log the mean alone: one player's one episode.
    return (steps, [np.atleast_2d(value).tolist() for value in values]) if steps else None


def _with_interval(episodes: list[float]) -> str:
    mean, (low, high) = mean_interval(np.array(episodes), rng=np.random.default_rng(0))
    return f"{mean:.1f}" if len(episodes) == 1 else f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _learning_curve(page: Page, run: Run) -> None:
    found = _evaluations(run)
    if found is None:
        raise UserError("the player was not evaluated as it learned")
    steps, returns = found
    xlabel = "environment steps" if "curve" in run.result else "steps, as logged"
    figure = run_figures.learning_curve(steps, returns, zero_shot=run.zero_shot, xlabel=xlabel)
    count = len(returns[0][0])
    shaded = f"; shaded, the 95 % interval over {count} episodes" if count > 1 else ""
    page.picture(to_png(figure), f"Evaluations of the player as it learned{shaded}.")


def _chords(page: Page, run: Run) -> None:
    path = run.folder / CHORDS_FILE
    if not path.exists():
        raise UserError("the chords of an evaluation were not stored")
    assert run.player is not None
    arrays, _ = read_arrays(path)
    (chords,), t_term = arrays.values(), run.player.config.t_term
    page.picture(
        to_png(run_figures.chord_map(chords[:, 0], t_term)),
        f"The chords of one episode of the last evaluation, a new one every {t_term} steps.",
    )


def _episode(page: Page, run: Run) -> None:
    assert run.player is not None
    domain, task = run.domain, run.task
    run.player.reset()
    films = {"player": record(domain, run.player, steps=FILM_STEPS, seed=FILM_SEED, task=task)}
    text = "An episode of the player"
    if (w := _zero_shot_weights(run)) is not None:
        chord = Chord(run.keyboard, w)
        films["zero-shot"] = record(domain, chord, steps=FILM_STEPS, seed=FILM_SEED, task=task)
        text += ", and of the task's single chord from the same start"
    page.picture(to_png(film_strip(domain, films, task=task)), f"{text}.")


def _zero_shot_weights(run: Run) -> Any:
    """The task's weights, if they can be inferred from what the run keeps."""
    try:
        return run.keyboard.infer_task(run.task).w if run.task else None
    except UserError:
        return None


def _training(page: Page, run: Run) -> None:
    found = run.logged("basis", "behaviors") if run.player is None else run.logged("player")
    found.pop("player/evaluation", None)
    if not found:
        raise UserError("the folder has no metrics.jsonl with what was logged")
    page.picture(to_png(run_figures.metric_panels(found)), "What was logged, over the steps.")
