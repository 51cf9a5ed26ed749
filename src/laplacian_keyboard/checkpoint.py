"""Files that are either whole or not there: arrays, JSON, and the folder of a run.

Everything is written under a temporary name, flushed and renamed. Arrays are safetensors with a
checksum of their bytes; nothing is ever pickled.
"""

import fcntl
import importlib.metadata
import json
import math
import os
import platform
import shlex
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy

from laplacian_keyboard.files import make_folder, write_atomically
from laplacian_keyboard.types import UserError

Tree = TypeVar("Tree")

_LOCKS: dict[tuple[int, int], int] = {}
"""Open lock files of this process, by device and inode."""
RECORDED_PACKAGES = (
    "laplacian-keyboard",
    *("jax", "jaxlib", "numpy", "scipy", "optax", "equinox", "safetensors"),
    *("gymnasium", "mujoco", "dm_control"),
)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON; a number that is not finite becomes null, since JSON has no word for it."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_atomically(path, (to_json(value, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; all of ours hold one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); remove it to start afresh") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a description of ours; remove it to start afresh")
    return value


def save_arrays(path: Path, tree: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write the arrays of a pytree under the names of their places in it."""
    arrays = _named_arrays(jax.device_get(tree))
    header = json.dumps({"metadata": dict(metadata or {})}, sort_keys=True)
    # One entry each: safetensors orders entries at random, and equal arrays should be equal files.
    written = safetensors.numpy.save(arrays, {"header": header + _checksum(arrays, header)})
    write_atomically(path, written)


def load_arrays(path: Path, like: Tree) -> tuple[Tree, dict[str, str]]:
    """Arrays written by `save_arrays`, in the structure of `like`, and their metadata.

    `like` may hold arrays or shapes; names, shapes and types must all agree.
    """
    arrays, metadata = read_arrays(path)
    wanted = _named_leaves(like)
    if missing := sorted(wanted.keys() - arrays.keys()):
        raise UserError(f"{path} lacks {missing[0]}: it was written by other settings")
    if unknown := sorted(arrays.keys() - wanted.keys()):
        raise UserError(f"{path} has {unknown[0]}, which is not expected: other settings wrote it")
    for name, leaf in wanted.items():
        found, expected = arrays[name], (tuple(leaf.shape), np.dtype(leaf.dtype))
        if (found.shape, found.dtype) != expected:
            raise UserError(
                f"{path}: {name} is {found.dtype}{list(found.shape)}, expected "
                f"{expected[1]}{list(expected[0])}: it was written by other settings"
            )
    structure = jax.tree.structure(like)
    leaves = [jax.numpy.asarray(arrays[name]) for name in wanted]
    return jax.tree.unflatten(structure, leaves), metadata


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Named arrays and metadata of a file, its checksum verified."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            stored = (file.metadata() or {}).get("header", "")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise UserError(
            f"{path} is corrupt ({error}); remove it to train again from the last whole file"
        ) from error
    header, checksum = stored[:-8], stored[-8:]
    if checksum != _checksum(arrays, header):
        raise UserError(
            f"{path} is corrupt (its checksum does not match); remove it to train again"
        )
    return arrays, json.loads(header)["metadata"]


def fingerprint(tree: Any) -> str:
    """A short name for the arrays of a pytree: equal trees have equal ones."""
    return _checksum(_named_arrays(jax.device_get(tree)), "")


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) or "value": leaf for path, leaf in leaves}


def _named_arrays(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf, order="C") for name, leaf in _named_leaves(tree).items()}


def _checksum(arrays: Mapping[str, np.ndarray], header: str) -> str:
    total = zlib.crc32(header.encode())
    for name in sorted(arrays):
        total = zlib.crc32(
            np.asarray(arrays[name], order="C").tobytes(), zlib.crc32(name.encode(), total)
        )
    return f"{total:08x}"


def versions() -> dict[str, str]:
    """The software a result was made with."""
    found = {"python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def command() -> str:
    """What this process was started with, or the one that started it as a worker."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


class RunFolder:
    """The folder of one run: its settings, metrics, training state, result.

    Opening a folder of the same settings resumes it; of other settings is an error that names the
    first difference, and nothing is touched.
    """

    def __init__(
        self, path: str | Path, settings: dict[str, Any], origin: dict[str, Any] | None = None
    ):
        """`origin` is kept beside the settings and may differ when the run is resumed: where its
        dataset lay, say."""
        self.path = Path(path)
        self._lock_of: tuple[int, int] = (0, 0)
        settings = json.loads(json.dumps(settings))
        config = self.path / "config.json"
        if config.exists():
            stored = read_json(config).get("settings")
            if not isinstance(stored, dict):
                raise UserError(f"{config} has no settings of a run; choose another --out")
            _require_same_settings(self.path, stored, settings)
        elif self.path.exists() and not _is_empty(self.path):
            raise UserError(
                f"{self.path} exists and is not a run folder; choose another --out or remove it"
            )
        make_folder(self.path)
        if not self.is_done:
            self._lock()
        if not config.exists():
            described = {"command": command(), "settings": settings, "versions": versions()}
            write_json(config, described | ({} if origin is None else {"origin": origin}))

    def _lock(self) -> None:
        """Keep other processes out. The lock is this process's until the run is complete or the
        process ends, however it ends, so that an interrupted call can be repeated in the same
        session."""
        try:
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror or error}") from error
        status = os.fstat(lock)
        self._lock_of = status.st_dev, status.st_ino
        if self._lock_of in _LOCKS:
            os.close(lock)
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise UserError(f"another process is writing to {self.path}") from error
        _LOCKS[self._lock_of] = lock

    def _unlock(self) -> None:
        """Let others read a run that is complete."""
        if (lock := _LOCKS.pop(self._lock_of, None)) is not None:
            os.close(lock)

    @property
    def is_done(self) -> bool:
        return (self.path / "done").exists()

    def is_whole(self, *files: Path) -> bool:
        """Whether the run is complete and its result and these files are there. One that has lost
        a file is to be finished again."""
        kept = (self.path / "result.json", *files)
        if self.is_done and not all(file.exists() for file in kept):
            (self.path / "done").unlink()
            self._lock()
        return self.is_done

    def result(self) -> dict[str, Any]:
        return read_json(self.path / "result.json")

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, then the mark that the run is complete."""
        write_json(self.path / "result.json", result)
        write_atomically(self.path / "done", b"")
        (self.path / "state.safetensors").unlink(missing_ok=True)
        self._unlock()

    def save_state(self, stage: str, step: int, state: Any) -> None:
        """The training state of a stage, replacing that of an earlier step or stage."""
        save_arrays(self.path / "state.safetensors", state, {"stage": stage, "step": str(step)})

    def stage(self) -> tuple[str, int] | None:
        """The stage and step the stored training state belongs to."""
        path = self.path / "state.safetensors"
        if not path.exists():
            return None
        _, metadata = read_arrays(path)
        return metadata["stage"], int(metadata["step"])

    def load_state(self, stage: str, like: Tree) -> tuple[Tree, int] | None:
        """The stored training state and its step, if there is one of this stage."""
        found = self.stage()
        if found is None or found[0] != stage:
            return None
        state, metadata = load_arrays(self.path / "state.safetensors", like)
        return state, int(metadata["step"])

    def log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        line = to_json({"stage": stage, "step": step, **metrics})
        path = self.path / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error

    def logged(self, stage: str, name: str) -> tuple[list[int], list[Any]]:
        """Steps and values of one metric of a stage, from metrics.jsonl."""
        return read_log(self.path, stage, name)

    def forget_after(self, stage: str, step: int) -> None:
        """Drop logged lines of this stage past `step`, and a torn line: they will come again."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry["stage"] != stage or entry["step"] <= step:
                kept.append(line + "\n")
        write_atomically(path, "".join(kept).encode())


def read_log(folder: Path, stage: str, name: str) -> tuple[list[int], list[Any]]:
    """Steps and values of one metric of a stage, from a run folder's metrics.jsonl."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return [], []
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [(e["step"], e[name]) for e in entries if e["stage"] == stage and name in e]
    return [step for step, _ in found], [value for _, value in found]


def _is_empty(path: Path) -> bool:
    """Whether a folder holds nothing but hidden files, as after a kill at the very start."""
    return path.is_dir() and all(item.name.startswith(".") for item in path.iterdir())


def _require_same_settings(path: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in sorted(stored.keys() | wanted.keys(), key=lambda name: (name != "kind", name)):
        old, new = stored.get(name), wanted.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            _require_same_settings(path, old, new)
        elif old != new:
            raise UserError(
                f"{path} holds a run with {name} = {old}, not {new}; choose another --out, or "
                "remove the folder to start afresh"
            )
