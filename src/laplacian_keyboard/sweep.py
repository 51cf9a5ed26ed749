"""Many runs from one file: the product of settings, seeds and tasks as run folders.

    out = "runs/sweep"

    [grid]
    k = [1, 3, 10]
    seed = [0, 1, 2]
    task = ["walk", "run"]

    [[run]]
    name = "keyboard-k{k}-{seed}"
    command = "pretrain data/cheetah --k {k} --seed {seed}"

    [[run]]
    name = "player-k{k}-{seed}-{task}"
    command = "compose {out}/keyboard-k{k}-{seed} --task {task} --seed {seed}"

A run is an `lk` command whose `--out` is the folder of its name; there is one for each combination
of the settings that its name mentions. Runs of one `[[run]]` begin when all of the one before have
ended. What is finished is not repeated: start the sweep again after a crash, or with a larger grid.
"""

import contextlib
import fcntl
import itertools
import shlex
import string
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from laplacian_keyboard.checkpoint import read_json, write_json
from laplacian_keyboard.files import make_folder
from laplacian_keyboard.parallel import spread
from laplacian_keyboard.types import UserError

SUMMARY_FILE = "sweep.json"
FINISHED = ("finished", "finished before")
PATIENCE = 120.0
"""Seconds to wait for another process in the same folder. One that was killed is gone at once, but
a network file system may keep its lock for 90 seconds."""


@dataclass(frozen=True)
class Job:
    """One run: a command and its folder."""

    name: str
    arguments: tuple[str, ...]
    folder: str

    @property
    def is_done(self) -> bool:
        """Whether its folder holds a finished run, or a whole dataset."""
        dataset = Path(self.folder) / "dataset.json"
        whole = dataset.exists() and read_json(dataset).get("complete", False)
        return whole or (Path(self.folder) / "done").exists()


@dataclass(frozen=True)
class Sweep:
    """The runs of a file, in stages."""

    out: str
    stages: tuple[tuple[Job, ...], ...]

    @property
    def jobs(self) -> list[Job]:
        """All runs."""
        return [job for stage in self.stages for job in stage]


def read_sweep(path: str | Path) -> Sweep:
    """The sweep a file describes; what is wrong with it is named."""
    path = Path(path)
    try:
        described = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # TOML or encoding
        raise UserError(f"{path} is not valid TOML: {error}") from error
    unknown = described.keys() - {"out", "grid", "run"}
    if unknown:
        raise UserError(f"{path}: unknown {', '.join(sorted(unknown))}; known: out, grid, run")
    out, grid, runs = (described.get(name) for name in ("out", "grid", "run"))
    if not isinstance(out, str) or not out:
        raise UserError(f"{path}: out must name a folder")
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise UserError(f"{path}: [grid] must give a list of values for each setting")
    if not isinstance(runs, list) or not runs:
        raise UserError(f"{path}: at least one [[run]] with a name and a command is needed")
    stages = tuple(tuple(_jobs(path, out, grid, run)) for run in runs)
    names = [job.name for stage in stages for job in stage]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"{path}: two runs are named {min(twice)}; their settings must differ")
    return Sweep(out, stages)


def _jobs(path: Path, out: str, grid: dict[str, list[Any]], run: Any) -> Iterator[Job]:
    if not isinstance(run, dict) or not {"name", "command"} >= run.keys() >= {"name", "command"}:
        raise UserError(f"{path}: a [[run]] has a name and a command, and nothing else")
    name, command = str(run["name"]), str(run["command"])
    mentioned = _fields(path, name)
    for field in [*mentioned, *_fields(path, command)]:
        if field != "out" and field not in grid:
            raise UserError(f"{path}: {{{field}}} is not in [grid]")
        if field != "out" and field not in mentioned:
            raise UserError(f"{path}: {{{field}}} is in the command but not in the name {name!r}")
    chosen = [field for field in grid if field in mentioned]
    for values in itertools.product(*(grid[field] for field in chosen)):
        settings = {"out": out, **dict(zip(chosen, values, strict=True))}
        folder = name.format(**settings)
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise UserError(f"{path}: the name {folder!r} leads out of {out}")
        try:
            words = [word.format(**settings) for word in shlex.split(command)]
        except ValueError as error:
            raise UserError(f"{path}: the command {command!r}: {error}") from error
        place = str(Path(out) / folder)
        yield Job(folder, (*words, "--out", place), place)


def _fields(path: Path, template: str) -> list[str]:
    """Names in braces. Nothing but names: no attributes, indices or conversions."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UserError(f"{path}: {template!r}: {error}") from error
    fields = [field for _, field, _, _ in parsed if field is not None]
    for _, field, form, conversion in parsed:
        if field is not None and (not field.isidentifier() or form or conversion):
            raise UserError(f"{path}: write a setting of [grid] in braces, not {{{field}}}")
    return fields


def run_sweep(sweep: Sweep) -> dict[str, Any]:
    """Run what is not finished, where `parallel.spreading` says; returns what became of each run.

    A run that fails leaves its message and does not stop the others, but its stage's successors
    do not begin.
    """
    make_folder(Path(sweep.out))
    outcome: dict[str, str] = {job.name: FINISHED[1] for job in sweep.jobs if job.is_done}
    for stage in sweep.stages:
        waiting = [job for job in stage if not job.is_done]
        ended = spread("runs", run_job, [(job,) for job in waiting])
        for job, message in zip(waiting, ended, strict=True):
            outcome[job.name] = message or _finished(job)
        if any(outcome[job.name] not in FINISHED for job in stage):
            break
    runs = {job.name: outcome.get(job.name, "not begun") for job in sweep.jobs}
    failed = [name for name, what in runs.items() if what not in FINISHED]
    result = {"out": sweep.out, "runs": runs, "failed": len(failed)}
    write_json(Path(sweep.out) / SUMMARY_FILE, result)
    return result


def _finished(job: Job) -> str:
    """What became of a run that ended well: another node may have written to a disk of its own."""
    folder = Path(job.folder)
    # Listing makes a network file system look again, where a path might be remembered as missing.
    here = folder.name in {path.name for path in folder.parent.glob("*")}
    return FINISHED[0] if here else f"{folder} is not here: do all nodes share its file system?"


def run_job(job: Job) -> str:
    """Run one command in this process, its words in `NAME.log`; returns why it failed, or ''.

    Only one process at a time works on a run: it holds a lock on the log.
    """
    from laplacian_keyboard import cli

    log = Path(f"{job.folder}.log")
    make_folder(log.parent)
    with log.open("a+", encoding="utf-8") as file:
        if not _lock(file):
            return f"another process is working on {job.name}"
        if job.is_done:  # by the process we waited for
            return ""
        file.truncate(0)
        before, sys.argv = sys.argv, ["lk", *job.arguments]
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                cli.main(list(job.arguments))
        except SystemExit as stop:
            if stop.code:
                file.seek(0)
                return (file.read().strip().splitlines() or [f"exit {stop.code}"])[-1]
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            print(message, file=file)
            return message
        finally:
            sys.argv = before
    return ""


def _lock(file: TextIO) -> bool:
    """Whether the file is ours, perhaps after a wait; it is until it is closed."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.2)
        else:
            return True
