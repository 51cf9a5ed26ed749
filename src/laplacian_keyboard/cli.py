"""`lk`: every command of the package."""

import contextlib
import inspect
import io
import os
import shlex
import sys
import time
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tyro

import laplacian_keyboard
from laplacian_keyboard.compiling import keep_compilations, run_where_called, use_one_thread
from laplacian_keyboard.types import UserError

_POSITIONAL = tyro.conf.Positional
Domain: TypeAlias = Annotated[str, _POSITIONAL, tyro.conf.arg(metavar="DOMAIN")]
Folder: TypeAlias = Annotated[str, _POSITIONAL, tyro.conf.arg(metavar="DATASET")]
RunOrName: TypeAlias = Annotated[str | None, _POSITIONAL, tyro.conf.arg(metavar="[RUN_OR_NAME]")]
Run: TypeAlias = Annotated[str, _POSITIONAL, tyro.conf.arg(metavar="RUN")]
Source: TypeAlias = Annotated[str, _POSITIONAL, tyro.conf.arg(metavar="SOURCE")]
Name: TypeAlias = Annotated[str, _POSITIONAL, tyro.conf.arg(metavar="NAME")]


def demo(
    domain: str = "four-rooms",
    task: str = "goal",
    k: int = 5,
    preset: str = "cpu",
    seed: int = 0,
    out: str = "lk-demo",
    json: bool = False,
) -> None:
    """Four-Rooms from nothing to a report with pictures, in a minute or two.

    Args:
        domain: four-rooms, or grid:MAP_FILE for a map of your own ('#' walls, '.' free, 'G' goal).
        task: goal, or goal:ROW,COLUMN.
        k: Number of keys: eigenvectors the behaviors are made of.
        preset: smoke (seconds, learns nothing well), cpu, or paper.
        seed: Seed of everything random.
        out: Folder of the run; an interrupted run in it is resumed.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.experiments.demo import run_demo, table

    result = run_demo(domain=domain, task=task, k=k, preset=preset, seed=seed, out=out)
    if not json:
        _print_table(table(result))
        print(f"\nreport: {out}/report.html   ({result['seconds']:.0f} s)")
    _finish(result, json)


def collect(
    domain: Domain,
    out: str,
    explorer: str = "random",
    steps: int = 1_000_000,
    preset: str = "cpu",
    num_envs: int = 16,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Gather reward-free experience into a dataset folder.

    Args:
        domain: four-rooms, grid:MAP_FILE, item-collector, point-maze, cheetah, walker, quadruped,
            or gym:ENV_ID for any Gymnasium environment with Box observations.
        out: Folder of the dataset; an interrupted collection in it is continued.
        explorer: random, babble (movement, nothing learned), rnd, proto or aps; or several that
            take turns within every episode, as in babble+rnd.
        steps: Environment steps to collect, rounded up to whole rounds of episodes.
        preset: Size of the learned explorers: smoke, cpu or paper (URLB's).
        num_envs: Environments stepped at once.
        seed: Seed of everything random.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.envs import domains, item_collector
    from laplacian_keyboard.gather import gather, gather_random_walks

    began = time.monotonic()
    domain = domains.canonical(domain)
    if domains.is_walked(domain) and explorer == "random":
        in_grid = domains.is_grid(domain)
        result = gather_random_walks(
            domains.discrete_world(domain, None),
            out,
            domain=domain,
            steps=steps,
            length=EPISODE if in_grid else item_collector.TIME_LIMIT,
            seed=seed,
            physics_of=None if in_grid else item_collector.inventory,
        )
    else:
        result = gather(
            lambda count: domains.make_vector_env(domain, None, count),
            out,
            domain=domain,
            explorer=explorer,
            steps=steps,
            seed=seed,
            preset=preset,
            num_envs=num_envs,
        )
    result["seconds"] = round(time.monotonic() - began, 1)
    if not json:
        print(f"{result['episodes']:,} episodes, {result['steps']:,} steps in {out}")
    _finish(result, json)


def data_info(dataset: Folder, json: bool = False) -> None:
    """Describe a dataset and check it: sizes, coverage, each task's mean reward, problems.

    Args:
        dataset: Folder of the dataset, ours or ExORL's.
        json: Print one JSON object as the last line.
    """
    import numpy as np

    from laplacian_keyboard.data import labels
    from laplacian_keyboard.data.dataset import describe, load_dataset

    data = load_dataset(dataset, incomplete_ok=True)
    everywhere = labels.rows_to_label(data, np.arange(len(data.observation)))
    rows = labels.rows_to_label(data, data.sample_next_rows(100_000, seed=0))
    try:
        result = describe(data, quantities=labels.quantities(data, everywhere))
        result["task_rewards"] = {
            task: float(labels.relabel(data, task, rows).mean())
            for task in labels.tasks_of(data)
            if len(rows)
        }
    except UserError as error:
        raise UserError(f"{dataset}: {error}") from error
    if not json:
        shown = ("domain", "explorer", "episodes", "steps", "obs_dim", "action_dim", "num_actions")
        _print_table([(name.replace("_", " "), str(result[name])) for name in shown])
        for name, spread in result.get("coverage", {}).items():
            if spread["counts"]:
                print(_histogram(name.replace("_", " "), spread))
        for task, reward in result["task_rewards"].items():
            print(f"mean reward of {task}: {reward:.4f}")
        for problem in result["problems"]:
            print(f"problem: {problem}")
        print("no problems found" if not result["problems"] else "")
    _finish(result, json)


def _histogram(name: str, spread: dict[str, Any]) -> str:
    """A quantity's distribution on one line."""
    counts, (low, high) = spread["counts"], spread["range"]
    largest = max(counts) or 1
    bars = "".join(" ▁▂▃▄▅▆▇█"[-(-8 * count // largest)] for count in counts)
    middle = ", ".join(f"{spread['percentiles'][p]:.3g}" for p in ("5", "50", "95"))
    return f"{name:<18} {low:>8.3g} |{bars}| {high:<8.3g} 5, 50, 95 %: {middle}"


def data_convert(source: Source, out: Folder, json: bool = False) -> None:
    """Convert a dataset to this package's folder.

    Args:
        source: minari:ID of a local Minari dataset, or a folder of ExORL episodes.
        out: Folder of the new dataset; an interrupted conversion in it is continued.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.data.dataset import copy_dataset
    from laplacian_keyboard.data.minari import convert
    from laplacian_keyboard.log import progress

    with progress("convert", 1) as bar:
        report = lambda done, total: bar(done / max(total, 1))  # noqa: E731
        if source.startswith("minari:"):
            dataset = convert(source.removeprefix("minari:"), out, progress=report)
        else:
            dataset = copy_dataset(source, out, progress=report)
    result = {"episodes": dataset.num_episodes, "steps": dataset.num_transitions}
    if not json:
        print(f"{result['episodes']:,} episodes, {result['steps']:,} steps in {out}")
    _finish(result, json)


def pretrain(
    dataset: Folder,
    out: str,
    k: int = 10,
    basis: str = "laplacian",
    preset: str = "cpu",
    seed: int = 0,
    seeds: int = 1,
    max_episodes: int | None = None,
    memory: float | None = None,
    shard_batch: bool = False,
    json: bool = False,
) -> None:
    """Learn a keyboard from a dataset: the Laplacian basis, then the behaviors over it.

    Args:
        dataset: Folder of the dataset.
        out: Folder of the run; an interrupted run in it is resumed.
        k: Number of keys: eigenvectors besides the constant one.
        basis: laplacian, or another: fb (forward-backward, learned with its behaviors), hilp, lap
            (plain graph drawing) or random (nothing learned).
        preset: smoke (seconds, learns nothing well), cpu (minutes), or paper (its tables).
        seed: First seed.
        seeds: Number of seeds; each keyboard goes to OUT/seed-N. They are trained in one program,
            split over several devices, or in processes with a core each, whichever is faster.
        max_episodes: Use the first episodes only, as the paper does of ExORL's (5,000 of 10,000).
        memory: Gigabytes for the data of training; of a larger dataset a window of this size moves
            over it. By default a quarter of the memory of the machine, or of its accelerator.
        shard_batch: Split every batch of a single seed over all devices.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.checkpoint import read_json
    from laplacian_keyboard.data.dataset import load_dataset
    from laplacian_keyboard.pretraining import pretrain as pretrain_one
    from laplacian_keyboard.seeds import pretrain_all

    began = time.monotonic()
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    settings = {"k": k, "basis": basis, "preset": preset, "out": out, "memory": memory}
    if seeds == 1:
        pretrain_one(
            load_dataset(dataset, max_episodes=max_episodes),
            seed=seed,
            shard_batch=shard_batch,
            quiet=False,
            **settings,
        )
    elif shard_batch:
        raise UserError(
            "--shard-batch is for a single seed; several are split over devices as it is"
        )
    else:
        all_seeds = list(range(seed, seed + seeds))
        pretrain_all(dataset, seeds=all_seeds, max_episodes=max_episodes, **settings)
    result = {"k": k, **read_json(Path(out) / "result.json")}
    result["seconds"] = round(time.monotonic() - began, 1)
    report = _report_of(out)
    if not json:
        print(f"keyboard of {k} keys in {out}{report}")
    _finish(result, json)


def zero_shot(
    run: Run,
    task: str,
    method: str | None = None,
    episodes: int = 20,
    seed: int = 0,
    out: str | None = None,
    json: bool = False,
) -> None:
    """Infer a task's chord from rewards on states, and evaluate it.

    Args:
        run: Folder of a keyboard, or the name of a shipped one.
        task: A task of the keyboard's domain, such as walk or goal:ROW,COLUMN; env for the
            environment's own reward; or module:function, a function of the next observation.
        method: mean (the paper's mean of r * phi), least-squares, or smooth, which trusts slow
            eigenvectors more; by default the one that suits the basis.
        episodes: Episodes to evaluate.
        seed: Seed of the evaluation.
        out: Folder to keep the figures in, as evaluation.json.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.keyboard import Chord, Keyboard

    began = time.monotonic()
    keyboard = Keyboard.load(run)
    _domain_of(keyboard, run)
    inference = _infer(keyboard, task, method)
    chord = Chord(keyboard, inference.w)
    result = _evaluated(keyboard, run, chord, task, episodes, seed, began)
    result["w"] = [round(float(x), 6) for x in inference.w]
    result["outside_span"] = float(inference.residual)
    if not json:
        _print_evaluation(result)
        print(f"outside the span: {100 * result['outside_span']:.0f} % of the reward's variance")
    _finish(result, json, out)


def _domain_of(found: Any, run: str) -> str:
    """The domain of a keyboard, or of what has a config like it, in the folder `run`."""
    if not found.config.domain:
        raise UserError(
            f"{run} does not say which domain it was trained for: give lk.save_dataset a domain, "
            "or use lk.compose and the keyboard itself in Python"
        )
    return found.config.domain


def _evaluated(
    found: Any, run: str, agent: Any, task: str, episodes: int, seed: int, began: float
) -> dict[str, Any]:
    """The figures of an evaluation of what was `found` in `run`, or of what plays it."""
    from laplacian_keyboard.envs.domains import make_vector_env
    from laplacian_keyboard.envs.host import spec_of
    from laplacian_keyboard.evaluate import episode_returns, summary
    from laplacian_keyboard.log import progress

    domain = _domain_of(found, run)
    env = make_vector_env(domain, task, _copies(episodes))
    if spec_of(env) != found.config.spec:
        raise UserError(
            f"{run} was trained for {found.config.spec}, but {domain} is {spec_of(env)}"
        )
    with progress("evaluate", max(episodes, 1)) as bar:
        returns, _ = episode_returns(env, agent, episodes, seed=seed, bar=bar)
    return summary(task, returns, time.monotonic() - began)


def _infer(keyboard: Any, task: str, method: Any = None) -> Any:
    """A task's chord: from every state where all are known, else from those the keyboard keeps."""
    from laplacian_keyboard.envs.domains import is_function, is_grid, jax_world, task_named

    domain = keyboard.config.domain
    if is_grid(domain) and not is_function(task):
        world = jax_world(domain, task_named(domain, task))
        if world.spec != keyboard.config.spec:
            raise UserError(
                f"the keyboard was trained for {keyboard.config.spec}, but the map of {domain} is "
                f"{world.spec}: it has changed since"
            )
        return keyboard.inference(world.observations, world.reward, method)
    return keyboard.infer_task(task, method)


def compose(
    run: Run,
    task: str,
    out: str | None = None,
    steps: int | None = None,
    t_term: int | None = None,
    preset: str = "cpu",
    seed: int = 0,
    seeds: int = 1,
    json: bool = False,
) -> None:
    """Learn a player: a policy over chords for one task, online.

    Args:
        run: Folder of a keyboard, or the name of a shipped one.
        task: A task of the keyboard's domain, such as walk or goal:ROW,COLUMN; env for the
            environment's own reward; or module:function, a function of the next observation.
        out: Folder of the player; an interrupted run in it is resumed. By default
            runs/DOMAIN-TASK-SEED.
        steps: Environment steps to learn for; by default the preset's.
        t_term: Steps a behavior runs before the player chooses again; by default the preset's.
        preset: smoke, cpu or paper.
        seed: Seed of everything random.
        seeds: Number of players, with this seed and those after it; each goes to OUT/seed-N. Every
            core teaches a share of them side by side.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard import composing
    from laplacian_keyboard.envs.domains import is_function, make_vector_env
    from laplacian_keyboard.envs.host import spec_of
    from laplacian_keyboard.evaluate import episode_returns, summary
    from laplacian_keyboard.host_loop import EVALUATE_EPISODES
    from laplacian_keyboard.keyboard import Chord, Keyboard
    from laplacian_keyboard.seeds import compose_all

    began = time.monotonic()
    config = Keyboard.config_of(run)
    domain = config.domain
    if not domain:
        raise UserError(f"{run} does not say which domain it was trained for; use lk.compose")
    out = out or f"runs/{_file_name(f'{domain}-{task}-{seed}')}"
    in_scan = config.spec.discrete and not domain.startswith("gym:") and not is_function(task)
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    if seeds > 1 and in_scan:
        raise UserError(f"players of {domain} learn one at a time: give --seed instead of --seeds")
    if not in_scan:
        use_one_thread()
    keyboard = Keyboard.load(run)
    episodes = 100 if in_scan else EVALUATE_EPISODES
    evaluate_in = make_vector_env(domain, task, episodes)
    if spec_of(evaluate_in) != config.spec:
        raise UserError(
            f"{run} was trained for {config.spec}, but {domain} is {spec_of(evaluate_in)}"
        )

    def evaluate(player: Any) -> dict[str, float]:
        returns, _ = episode_returns(evaluate_in, player, episodes, seed=seed)
        return {"player/evaluation": float(returns.mean())}

    facts: dict[str, Any] = {"task": task}
    with contextlib.suppress(UserError):  # the task may be unlabelled; the player needs no labels
        chord = Chord(keyboard, _infer(keyboard, task).w)
        returns, _ = episode_returns(evaluate_in, chord, episodes, seed=seed)
        facts["zero_shot"] = summary(task, returns, time.monotonic() - began)
    if seeds > 1:
        returns = compose_all(
            run,
            task=task,
            seeds=list(range(seed, seed + seeds)),
            out=out,
            steps=steps,
            t_term=t_term,
            preset=preset,
            facts=facts,
        )
        means = returns.mean(axis=1)
        result = summary(task, means, time.monotonic() - began)
        result = {**result, "episodes": returns.size, "return_of_each": means.tolist()}
        if not json:
            _print_evaluation(result)
            print(f"players in {out}/seed-N; lk report {out} draws their curves")
        _finish({**result, **facts, "out": out}, json)
        return
    player = composing.compose(
        keyboard,
        evaluate_in if in_scan else make_vector_env(domain, task, 1),
        steps=steps,
        t_term=t_term,
        preset=preset,
        seed=seed,
        out=out,
        quiet=False,
        evaluate=evaluate,
        evaluate_in=evaluate_in,
        facts=facts,
    )
    report = _report_of(out)
    returns, _ = episode_returns(evaluate_in, player, episodes, seed=seed)
    result = summary(task, returns, time.monotonic() - began)
    if not json:
        _print_evaluation(result)
        print(f"player in {out}{report}")
    _finish({**result, **facts, "out": out}, json)


def _report_of(out: str) -> str:
    """Write the report of a finished run, which is finished even where that fails; returns what to
    say of it."""
    from laplacian_keyboard.run_report import write_report

    try:
        return f"; see {write_report(out)}"
    except UserError as error:
        print(f"lk: the run is finished, but not its report: {error}", file=sys.stderr)
        return ""


def baseline_td3(
    domain: Domain,
    task: str,
    out: str | None = None,
    steps: int | None = None,
    preset: str = "cleanrl",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Learn one task by flat TD3, without a keyboard: what a player is compared with.

    Args:
        domain: cheetah, walker, quadruped, point-maze, or gym:ENV_ID with Box actions.
        task: A task of the domain; env for the environment's own reward; or module:function.
        out: Folder of the run; an interrupted run in it is resumed. By default
            runs/td3-DOMAIN-TASK-SEED.
        steps: Environment steps to learn for; by default 200,000, the players'.
        preset: cleanrl (minutes), exorl (its wide networks, for a GPU) or smoke.
        seed: Seed of everything random.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.envs.domains import canonical, make_vector_env
    from laplacian_keyboard.evaluate import episode_returns, summary
    from laplacian_keyboard.flat import train_flat
    from laplacian_keyboard.host_loop import EVALUATE_EPISODES

    began, domain = time.monotonic(), canonical(domain)
    out = out or f"runs/{_file_name(f'td3-{domain}-{task}-{seed}')}"
    evaluate_in = make_vector_env(domain, task, EVALUATE_EPISODES)
    agent = train_flat(
        make_vector_env(domain, task, 1),
        steps=steps,
        preset=preset,
        domain=domain,
        seed=seed,
        out=out,
        evaluate_in=evaluate_in,
        facts={"task": task},
        quiet=False,
    )
    returns, _ = episode_returns(evaluate_in, agent, EVALUATE_EPISODES, seed=seed)
    result = summary(task, returns, time.monotonic() - began)
    if not json:
        _print_evaluation(result)
        print(f"agent in {out}")
    _finish({**result, "out": out}, json)


def baseline_fb(
    dataset: Folder,
    out: str,
    k: int = 10,
    preset: str = "cpu",
    seed: int = 0,
    seeds: int = 1,
    json: bool = False,
) -> None:
    """Learn a forward-backward keyboard: the same as `lk pretrain --basis fb`.

    Args:
        dataset: Folder of the dataset.
        out: Folder of the run; an interrupted run in it is resumed.
        k: Number of features.
        preset: smoke (seconds, learns nothing well), cpu (minutes), or paper (its authors').
        seed: First seed.
        seeds: Number of seeds; each keyboard goes to OUT/seed-N.
        json: Print one JSON object as the last line.
    """
    pretrain(dataset, out, k=k, basis="fb", preset=preset, seed=seed, seeds=seeds, json=json)


def baseline_okb(
    out: str = "runs/okb",
    preset: str = "cpu",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Learn an option keyboard's basis and player for Item-Collector, whose reward features it is
    given: what a keyboard without them is compared with.

    Args:
        out: Folder of the run; an interrupted run in it is resumed. It holds no keyboard for other
            commands: its behaviors need the features of this world.
        preset: smoke, cpu or paper.
        seed: Seed of everything random.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.experiments import item_collector

    began = time.monotonic()
    entries = item_collector.cell(preset, out, "okb", 0, seed, quiet=False)["entries"]
    first = entries[0]
    result = {
        "task": item_collector.TASK,
        "return_mean": first["player"],
        "return_ci95": first["player_ci95"],
        "episodes": first["episodes"],
        "entries": entries,
        "seconds": round(time.monotonic() - began, 1),
    }
    if not json:
        _print_evaluation(result)
        print(f"{len(first['behaviors'])} behaviors and their player in {out}")
    _finish(result, json)


def evaluate(
    run: Run,
    task: str,
    episodes: int = 20,
    video: str | None = None,
    seed: int = 0,
    out: str | None = None,
    json: bool = False,
) -> None:
    """Evaluate a run: its player, or the zero-shot chord of its keyboard.

    Args:
        run: Folder of a player, a keyboard or a flat agent, or the name of a shipped keyboard.
        task: A task of its domain, env, or module:function.
        episodes: Episodes to evaluate.
        video: Also write one episode as FILE.gif or FILE.mp4 (the latter with the extra video).
        seed: Seed of the evaluation.
        out: Folder to keep the figures in, as evaluation.json.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard import film
    from laplacian_keyboard.flat import AGENT_FILE, FlatAgent
    from laplacian_keyboard.keyboard import Chord, Keyboard, Player, load

    began = time.monotonic()
    if video is not None:
        film.check_video(video)
    found = FlatAgent.load(run) if (Path(run) / AGENT_FILE).exists() else load(run)
    agent = Chord(found, _infer(found, task).w) if isinstance(found, Keyboard) else found
    below = found.keyboard if isinstance(found, Player) else found
    domain, result = below.config.domain, _evaluated(below, run, agent, task, episodes, seed, began)
    if video is not None:
        if isinstance(agent, Player):
            agent.reset()
        states = film.record(domain, agent, steps=FILM_STEPS, seed=seed, task=task)
        film.save_video(video, domain, states, task=task)
        result["video"] = video
    if not json:
        _print_evaluation(result)
    _finish(result, json, out)


def play(run: RunOrName = None, port: int = 8012, host: str = "127.0.0.1") -> None:
    """Play a keyboard in the browser: every key is a behavior, and the body answers at once.

    Args:
        run: Folder of a keyboard or player, or the name of a shipped keyboard; without it, the
            shipped ones are offered.
        port: Port of the page.
        host: Address to listen on. Anything but this machine's own lets others in: there is no
            password.
    """
    from laplacian_keyboard.play.page import serve

    serve(run or _choose_shipped(), host=host, port=port)


def _choose_shipped() -> str:
    """A keyboard that comes with the package: what a person at a terminal picks, or the first."""
    from laplacian_keyboard.keyboard import shipped

    names = shipped()
    for number, name in enumerate(names, 1):
        print(f"{number}  {name}")
    if not sys.stdin.isatty() or len(names) == 1:
        return names[0]
    answer = input(f"Which one? [{names[0]}] ").strip() or names[0]
    if answer.isdecimal() and 1 <= int(answer) <= len(names):
        return names[int(answer) - 1]
    if answer not in names:
        raise UserError(f"no shipped keyboard {answer!r}: choose one of {', '.join(names)}")
    return answer


def export(run: Run, out: str, json: bool = False) -> None:
    """Write a keyboard as a small file to hand on: half precision, no psi, few states.

    Args:
        run: Folder of a keyboard, or of a player for the keyboard under it.
        out: Folder to write to.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.keyboard import Keyboard

    keyboard = Keyboard.load(run)
    if (Path(out) / "config.json").exists():
        raise UserError(
            f"{out} holds a run, whose keyboard this would replace: choose another --out"
        )
    keyboard.save(out, small=True)
    size = sum(path.stat().st_size for path in Path(out).glob("*.safetensors"))
    if not json:
        print(f"keyboard of {keyboard.k} keys in {out}, {size / 1e6:.2f} MB")
    _finish({"k": keyboard.k, "domain": keyboard.config.domain, "bytes": size}, json)


def reproduce(
    name: Name,
    preset: str = "cpu",
    seeds: int = 3,
    domain: str = "",
    dataset: str = "",
    explorer: str = "",
    sizes: tuple[int, ...] = (),
    out: str = "runs",
    ray: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    retries: int | None = None,
    json: bool = False,
) -> None:
    """Repeat an experiment behind a table of the docs or the paper.

    Args:
        name: list, to see what there is, or one of its names.
        preset: smoke, cpu or paper.
        seeds: Number of seeds.
        domain: The domain of experiments that have several: cheetah, walker or quadruped.
        dataset: Folder of a dataset to use instead of collecting one, where an experiment can.
        explorer: Who collects it, where an experiment can choose: one of lk collect's explorers.
        sizes: Numbers of keys to compare instead of the preset's, where an experiment does.
        out: Folder for what the experiment keeps; finished parts in it are not repeated.
        ray: Run on a Ray cluster: its address HOST:PORT, or auto for the one of this machine.
        cpus: With --ray, CPUs for each part; 1 unless told.
        gpus: With --ray, GPUs for each part, or a fraction of one; 0 unless told.
        retries: With --ray, how often a part that is lost with its node begins again; 3 unless
            told.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.checkpoint import command, write_json
    from laplacian_keyboard.experiments import EXPERIMENTS, load_experiment
    from laplacian_keyboard.files import make_folder
    from laplacian_keyboard.folder_report import TABLE_FILE
    from laplacian_keyboard.presets import require_known

    if name == "list":
        result: dict[str, Any] = {"experiments": EXPERIMENTS}
        if not json:
            for experiment, what in EXPERIMENTS.items():
                print(f"{experiment:<20} {what}")
        return _finish(result, json)
    run = load_experiment(name).run
    given: dict[str, Any] = {"domain": domain, "dataset": dataset, "explorer": explorer}
    given["sizes"] = sizes
    if dataset and explorer:
        raise UserError(
            "--explorer is for data still to collect, --dataset for data that are there"
        )
    options = {key: value for key, value in given.items() if value}
    for key in options.keys() - inspect.signature(run).parameters.keys():
        raise UserError(f"the experiment {name} has no --{key}")
    require_known(preset)
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    with _spreading(ray, cpus=cpus, gpus=gpus, retries=retries):
        rows = run(preset=preset, seeds=seeds, out=str(Path(out) / name), **options)
    result = {"experiment": name, "preset": preset, **options, "rows": rows}
    folder = Path(out) / name / options.get("domain", "")
    make_folder(folder)
    write_json(folder / TABLE_FILE, result | {"command": command()})
    if not json:
        _print_rows(rows)
    _finish(result, json)


def sweep(
    file: Annotated[str, _POSITIONAL, tyro.conf.arg(metavar="FILE")],
    workers: int | None = None,
    ray: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    retries: int | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Run the product of settings, seeds and tasks that a TOML file describes.

    Args:
        file: out = "FOLDER"; a [grid] with a list of values for each setting; and, in the order
            they are to run, [[run]] entries with a name and an lk command, both with settings
            in braces: name = "k{k}-{seed}", command = "pretrain data/x --k {k} --seed {seed}".
        workers: Runs at a time, a core each; by default as many as there are cores.
        ray: Run on a Ray cluster: its address HOST:PORT, or auto for the one of this machine.
        cpus: With --ray, CPUs for each run; 1 unless told.
        gpus: With --ray, GPUs for each run, or a fraction of one; 0 unless told.
        retries: With --ray, how often a run that is lost with its node begins again; 3 unless
            told.
        dry_run: Only print the commands, and which of them are finished.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.sweep import read_sweep, run_sweep

    described = read_sweep(file)
    if dry_run:
        commands = {shlex.join(["lk", *job.arguments]): job.is_done for job in described.jobs}
        if not json:
            for command, is_done in commands.items():
                print(f"{'done   ' if is_done else 'to do  '} {command}")
        jobs = [{"command": command, "done": is_done} for command, is_done in commands.items()]
        return _finish({"runs": jobs}, json)
    with _spreading(ray, workers=workers, cpus=cpus, gpus=gpus, retries=retries):
        result = run_sweep(described)
    if not json:
        for name, what in result["runs"].items():
            print(f"{name:<40} {what}")
    _finish(result, json)
    if result["failed"]:
        raise UserError(f"{result['failed']} of {len(result['runs'])} runs are not finished")


def _spreading(
    address: str | None, *, workers: int | None = None, **resources: float | None
) -> contextlib.AbstractContextManager[None]:
    """Where independent runs run: in processes of this machine, or on a Ray cluster."""
    from laplacian_keyboard.cluster import on_cluster
    from laplacian_keyboard.parallel import in_processes, spreading

    given: dict[str, Any] = {name: x for name, x in resources.items() if x is not None}
    for name, lowest in {"workers": 1, "cpus": 1, "gpus": 0, "retries": 0}.items():
        if (value := {"workers": workers, **given}.get(name)) is not None and value < lowest:
            raise UserError(f"--{name} must be at least {lowest}, not {value}")
    if address is None:
        for name in given:
            raise UserError(f"--{name} is for a cluster; use it with --ray")
        return spreading(partial(in_processes, workers=workers))
    if workers is not None:
        raise UserError("--workers is for this machine; on a cluster, --cpus of each run decides")
    return on_cluster(address, **given)


def report(
    folder: Annotated[str, _POSITIONAL, tyro.conf.arg(metavar="DIR")], json: bool = False
) -> None:
    """Write one page with the tables and learning curves of every run below a folder.

    Args:
        folder: A folder of runs, such as runs; report.html and report.md are written into it.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.folder_report import write_folder_report

    page, markdown = write_folder_report(folder)
    if not json:
        print(f"{page}\n{markdown}")
    _finish({"html": str(page), "markdown": str(markdown)}, json)


def bench(name: Name = "envs", json: bool = False) -> None:
    """Measure speed: ratios within one run, medians of repeats.

    Args:
        name: envs: environment steps a second, beside dm_control. update: gradient steps of every
            learner, as a fraction of the machine's peak. compose: the player's loop, beside its
            updates and MuJoCo alone. peers: TD3, beside Stable-Baselines3 and SBX. seeds: several
            at once, beside one. item-collector: steps a second of this world. load: ten million
            transitions, packed, opened, and trained on in memory and through a window. play: from
            key to frame in a real browser.
        json: Print one JSON object as the last line.
    """
    from laplacian_keyboard.bench import load_benchmark

    benchmark = load_benchmark(name)
    result = benchmark.run()
    if not json:
        for line in benchmark.lines(result):
            print(line)
    _finish(result, json)


def _print_table(rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", style="bold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """An experiment's table."""
    from rich.console import Console
    from rich.table import Table

    from laplacian_keyboard.folder_report import cells_of

    header, lines = cells_of(rows)
    table = Table(*header, box=None, padding=(0, 2, 0, 0))
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def _print_evaluation(result: dict[str, Any]) -> None:
    low, high = result["return_ci95"]
    print(
        f"{result['task']}: return {result['return_mean']:.4g} "
        f"(95 % interval {low:.4g} to {high:.4g}, {result['episodes']} episodes)"
    )


def _file_name(text: str) -> str:
    """A text as part of a path."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)


def _copies(episodes: int) -> int:
    """Environments to evaluate in at once."""
    return max(1, min(episodes, 100))


def _finish(result: dict[str, Any], as_json: bool, out: str | None = None) -> None:
    """Keep a command's result in the folder `out`, if there is one, and print it if wanted."""
    from laplacian_keyboard.checkpoint import to_json, write_json
    from laplacian_keyboard.files import make_folder

    if out is not None:
        make_folder(Path(out))
        write_json(Path(out) / EVALUATION_FILE, result)
    if as_json:
        print(to_json(result))


COMMANDS = {
    "demo": demo,
    "collect": collect,
    "data info": data_info,
    "data convert": data_convert,
    "pretrain": pretrain,
    "zero-shot": zero_shot,
    "compose": compose,
    "baseline td3": baseline_td3,
    "baseline fb": baseline_fb,
    "baseline okb": baseline_okb,
    "evaluate": evaluate,
    "play": play,
    "export": export,
    "reproduce": reproduce,
    "sweep": sweep,
    "report": report,
    "bench": bench,
}
DESCRIPTION = """Behaviors from the eigenvectors of the graph Laplacian, and a player that composes
them beyond their linear span. A command that was interrupted continues when it is started again
on the same folder. `lk COMMAND --help` explains each."""
EVALUATION_FILE = "evaluation.json"
"""Not a run's own result.json, so that a run may keep its evaluations itself."""
FILM_STEPS = 500
"""Steps of a filmed episode."""
EPISODE = 1_000
"""Steps of a collected episode, as in ExORL."""


def main(arguments: list[str] | None = None) -> None:
    """Run `lk`. A user's mistake is one line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"laplacian-keyboard {laplacian_keyboard.__version__}")
        return
    if (two_words := " ".join(arguments[:2])) in COMMANDS:
        arguments = [two_words, *arguments[2:]]
    try:
        command = _parse(arguments)
        if (seed := command.keywords.get("seed", 0)) not in range(2**31):
            raise UserError(f"--seed must lie between 0 and {2**31 - 1}, not {seed}")
        keep_compilations()
        run_where_called()
        command()
        sys.stdout.flush()
    except UserError as error:
        print(f"lk: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("lk: interrupted; the same command continues from here", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone, as in `lk ... | head`; keep Python from failing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _parse(arguments: list[str]) -> partial[None]:
    """The command with its arguments, not yet run. What is wrong with them is a UserError."""
    if arguments:
        prefix = f"{arguments[0]} "
        second = [name.removeprefix(prefix) for name in COMMANDS if name.startswith(prefix)]
        if second:
            raise UserError(f"lk {arguments[0]} is followed by one of: {', '.join(second)}")

    def later(command: Any) -> Any:
        # `wraps` shows tyro the command's own signature and docstring.
        return wraps(command)(lambda *args, **kwargs: partial(command, *args, **kwargs))

    commands = {name: later(command) for name, command in COMMANDS.items()}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                commands, prog="lk", description=DESCRIPTION, args=arguments
            )
    except SystemExit as stop:
        if stop.code != 2:
            raise
        raise UserError(_first_sentence(complaint.getvalue())) from None


def _first_sentence(box: str) -> str:
    """What tyro says inside its box, up to the first line drawn across it."""
    words: list[str] = []
    for line in box.splitlines()[1:]:
        inside = line.strip("│|╰╯+ ")
        if set(inside) <= {"─", "-"}:
            if words:
                break
            continue
        words.append(inside)
    return " ".join(words) + "; see lk --help"
