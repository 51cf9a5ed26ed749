"""What several experiments share: data to start from, keyboards, and their zero-shot returns."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.data.labels import tasks_of
from laplacian_keyboard.envs.dmc import DmcVectorEnv
from laplacian_keyboard.envs.domains import DMC, make_vector_env
from laplacian_keyboard.evaluate import episode_returns
from laplacian_keyboard.gather import gather
from laplacian_keyboard.keyboard import Keyboard
from laplacian_keyboard.pretraining import pretrain
from laplacian_keyboard.stats import mean_interval
from laplacian_keyboard.types import UserError

DATA_STEPS = {"smoke": 4_000, "cpu": 500_000, "paper": 5_000_000}
EXPLORER = {"walker": "rnd", "quadruped": "rnd"}
"""Who collects the data; else babble. Babbling leaves walker and quadruped on the ground; RND gets
up."""
NUM_KEYS = {"smoke": 2, "cpu": 10, "paper": 50}
"""Keys of the robots' keyboards, where an experiment does not compare sizes."""
ZERO_SHOT_EPISODES = 20
ZERO_SHOT_SEED = 10_000


def require_robot(experiment: str, domain: str) -> None:
    """Refuse a domain that is not a robot."""
    if domain not in DMC:
        raise UserError(f"{experiment} runs on {', '.join(DMC)}, not {domain!r}")


def data_for(
    domain: str, preset: str, folder: Path, *, dataset: str = "", explorer: str = ""
) -> str:
    """The user's `dataset`, or one collected on the first call; returns its folder. Either is
    packed, so that several processes may open it."""
    if not dataset:
        dataset = str(folder)
        gather(
            lambda count: make_vector_env(domain, None, count),
            folder,
            domain=domain,
            explorer=explorer or EXPLORER.get(domain, "babble"),
            steps=DATA_STEPS[preset],
            preset=preset,
        )
    load_dataset(dataset)
    return dataset


def env_of_each(domain: str, tasks: tuple[str, ...], copies: int) -> DmcVectorEnv:
    """Environments of every task, `copies` of each."""
    each = [task for task in tasks for _ in range(copies)]
    return DmcVectorEnv(domain, each, len(each))


class ChordOfEach:
    """One chord for each share of the environments."""

    def __init__(self, keyboard: Keyboard, chords: list[Any]):
        self.keyboard, self.chords = keyboard, np.stack(chords)

    def act(self, obs: np.ndarray, first: Any = None) -> Any:
        """Actions of the chords."""
        return self.keyboard.act(obs, np.repeat(self.chords, len(obs) // len(self.chords), axis=0))


def zero_shot_returns(keyboard: Keyboard, episodes: int) -> dict[str, list[float]]:
    """Returns of the inferred chord of every task that the keyboard's states can label."""
    assert keyboard.states is not None
    domain, tasks = keyboard.config.domain, tasks_of(keyboard.states)
    chords = [keyboard.infer_task(task).w for task in tasks]
    if domain in DMC:
        env = env_of_each(domain, tasks, episodes)
        agent, count = ChordOfEach(keyboard, chords), episodes * len(tasks)
        returns, _ = episode_returns(env, agent, count, seed=ZERO_SHOT_SEED)
        return dict(zip(tasks, returns.reshape(len(tasks), -1).tolist(), strict=True))
    found = {}
    for task, chord in zip(tasks, chords, strict=True):
        env, agent = make_vector_env(domain, task, episodes), ChordOfEach(keyboard, [chord])
        found[task] = episode_returns(env, agent, episodes, seed=ZERO_SHOT_SEED)[0].tolist()
    return found


def zero_shot_cell(
    dataset: str, preset: str, out: str, basis: str, k: int, seed: int
) -> dict[str, Any]:
    """One keyboard, and its zero-shot returns on every task; kept in `out/BASIS-kK-SEED`."""
    folder, data = Path(out) / f"{basis}-k{k}-{seed}", load_dataset(dataset)
    settings = presets.settings(
        preset, k, discrete=data.spec.discrete, basis=basis, domain=data.domain or ""
    )
    run = RunFolder(
        folder,
        {
            "kind": "zero-shot",
            "basis_name": basis,
            "k": k,
            "seed": seed,
            "dataset_steps": data.num_transitions,
            "episodes": ZERO_SHOT_EPISODES,
            "basis": dataclasses.asdict(settings.basis),
            "successor": dataclasses.asdict(settings.successor),
        },
    )
    if run.is_done:
        return run.result()
    keyboard = pretrain(
        data, k=k, basis=basis, preset=preset, seed=seed, out=folder / "keyboard", quiet=True
    )
    returns = zero_shot_returns(keyboard, ZERO_SHOT_EPISODES)
    result = {
        "basis": basis,
        "k": k,
        "seed": seed,
        "explorer": data.description.get("explorer"),
        "returns": {task: float(np.mean(each)) for task, each in returns.items()},
        "inside_span": {task: 1.0 - float(keyboard.infer_task(task).residual) for task in returns},
    }
    run.finish(result)
    return result


def over_seeds(values: list[float], *, digits: int = 1) -> dict[str, Any]:
    """A mean over seeds with its 95 % bootstrap interval."""
    mean, (low, high) = mean_interval(np.array(values), rng=np.random.default_rng(0))
    return {
        "mean": round(mean, digits),
        "ci95": [round(low, digits), round(high, digits)],
        "each": [round(value, digits) for value in values],
    }
