"""Keyboards of one dataset, or players of one task, that differ in nothing but their seeds, learned
in whichever way is faster:

    together    one program whose updates are mapped over the seeds, on one device or several
    apart       a process with a core of its own for each seed

Small networks leave a processor waiting, so that several of them in one program cost little more
than one. Networks that keep a core busy gain nothing from that, and cores share the products of one
program badly: they learn apart. Players are both: every core has a share of them, together in one
program. `lk bench seeds` measures all three.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from laplacian_keyboard import presets
from laplacian_keyboard.checkpoint import RunFolder, read_json
from laplacian_keyboard.composing import SIDE_BY_SIDE, compose_side_by_side
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.data.stream import default_memory
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.host_loop import EVALUATE_EPISODES
from laplacian_keyboard.keyboard import Keyboard
from laplacian_keyboard.parallel import own_cores, spread
from laplacian_keyboard.pretraining import pretrain, pretrain_seeds

KEEPS_A_CORE_BUSY = 2**24
"""Multiplications in a hidden layer, from which on seeds learn apart: networks of 256 at batch 256,
those of the robots, are the smallest for which it was measured."""
KIND = "keyboards apart"
KIND_OF_PLAYERS = "players of several seeds"


def pretrain_all(
    folder: str | Path,
    *,
    k: int,
    seeds: list[int],
    out: str | Path,
    basis: str = "laplacian",
    preset: str = "cpu",
    max_episodes: int | None = None,
    memory: float | None = None,
) -> None:
    """Keyboards of the dataset in `folder`, or of its first episodes, one a seed, in `out/seed-N`.
    An interrupted call continues, in the way it began."""
    config = Path(out) / "config.json"
    if config.exists():
        apart = read_json(config).get("settings", {}).get("kind") == KIND
    else:
        apart = learn_faster_apart(folder, k, basis, preset)
    if not apart:
        pretrain_seeds(
            load_dataset(folder, max_episodes=max_episodes),
            k=k,
            seeds=seeds,
            basis=basis,
            preset=preset,
            out=out,
            memory=memory,
            quiet=False,
        )
        return
    described = {"kind": KIND, "seeds": seeds, "k": k, "basis_name": basis, "preset": preset}
    if max_episodes is not None:
        described["max_episodes"] = max_episodes
    run = RunFolder(out, {**described, "dataset": str(folder)})
    if run.is_done:
        return
    workers = min(len(own_cores()), len(seeds))
    share = (default_memory() / 1e9 if memory is None else memory) / workers
    cells = [
        (str(folder), k, basis, preset, seed, str(run.path / f"seed-{seed}"), share, max_episodes)
        for seed in seeds
    ]
    results = spread("keyboards", pretrain_one, cells)
    run.finish({name: [result[name] for result in results] for name in results[0]})


def learn_faster_apart(folder: str | Path, k: int, basis: str, preset: str) -> bool:
    """Whether seeds of these settings learn faster in processes than mapped in one."""
    dataset = load_dataset(folder)
    settings = presets.settings(
        preset, k, discrete=dataset.spec.discrete, basis=basis, domain=dataset.domain or ""
    )
    learner = settings.successor
    is_large = learner.batch_size * max(learner.hidden) ** 2 >= KEEPS_A_CORE_BUSY
    alone = jax.default_backend() == "cpu" and len(jax.devices()) == 1
    return is_large and alone and len(own_cores()) > 1


def pretrain_one(
    folder: str,
    k: int,
    basis: str,
    preset: str,
    seed: int,
    out: str,
    memory: float,
    max_episodes: int | None,
) -> dict[str, Any]:
    """One of the keyboards that learn apart; returns what its run found."""
    data = load_dataset(folder, max_episodes=max_episodes)
    pretrain(data, k=k, basis=basis, preset=preset, seed=seed, out=out, memory=memory)
    return read_json(Path(out) / "result.json")


def compose_all(
    folder: str | Path,
    *,
    task: str,
    seeds: list[int],
    out: str | Path,
    steps: int | None = None,
    t_term: int | None = None,
    preset: str = "cpu",
    facts: dict[str, Any] | None = None,
) -> np.ndarray:
    """Players of `task` on the keyboard in `folder`, one a seed, in `out/seed-N`. Returns those of
    their last evaluations, `(seeds, episodes)`. An interrupted call continues."""
    described = {"kind": KIND_OF_PLAYERS, "seeds": seeds, "keyboard": str(folder), "task": task}
    asked = {"steps": steps, "t_term": t_term, "preset": preset}
    run = RunFolder(out, {**described, **asked})
    if not run.is_done:
        shares = _shares(run.path, seeds)
        cells = [(str(folder), task, share, str(out), *asked.values(), facts) for share in shares]
        spread("players", compose_share, cells)
    results = [read_json(run.path / f"seed-{seed}" / "result.json") for seed in seeds]
    returns = np.array([result["curve"]["returns"][-1] for result in results])
    if not run.is_done:
        run.finish({"seeds": seeds, "task": task, "return_of_each": returns.mean(axis=1).tolist()})
    return returns


def _shares(out: Path, seeds: list[int]) -> list[list[int]]:
    """The seeds of each core, or as an interrupted call had shared them out, maybe on a machine
    with more cores or fewer."""
    begun = [
        read_json(path)["settings"]["seeds"]
        for path in sorted(out.glob(f"{SIDE_BY_SIDE}*/config.json"))
    ]
    if sorted(seed for share in begun for seed in share) == sorted(seeds):
        return begun
    parts = min(len(own_cores()), len(seeds))
    return [seeds[i::parts] for i in range(parts)]


def compose_share(
    folder: str,
    task: str,
    seeds: list[int],
    out: str,
    steps: int | None,
    t_term: int | None,
    preset: str,
    facts: dict[str, Any] | None,
) -> None:
    """The players of one core."""
    keyboard = Keyboard.load(folder)
    worlds = partial(make_vector_env, keyboard.config.domain, task)
    compose_side_by_side(
        keyboard,
        worlds(len(seeds)),
        task=task,
        seeds=seeds,
        out=out,
        evaluate_in=worlds(EVALUATE_EPISODES * len(seeds)),
        steps=steps,
        t_term=t_term,
        preset=preset,
        facts=facts,
    )
