"""A dataset on the host: episodes packed once into memory-mapped arrays, and what is known of them.

The npz files of a folder are the data; `FOLDER/.cache` holds the same rows as plain npy files, so
that a large dataset opens at once and is never read as a whole. Its `index.json` is written last
and records size and time of every file on both sides: whatever disagrees is packed again.
"""

import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from laplacian_keyboard.data.exorl import (
    DESCRIPTION,
    Episode,
    EpisodeFile,
    EpisodeWriter,
    list_episodes,
    read_description,
    read_episode,
    rows_of_steps,
)
from laplacian_keyboard.data.replay import Experience
from laplacian_keyboard.files import atomic_file
from laplacian_keyboard.types import Spec, UserError

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the episodes done and the episodes in all."""
Source: TypeAlias = list[str | int]
"""Name, size, modification time and steps of an episode's file; a list, as JSON gives it back."""

CACHE_FORMAT = 1
CHUNK_ROWS = 1 << 16
ACTION_TOLERANCE = 1e-6
SHORT_EPISODE = 10
"""Steps below which an episode is too short to tell near from far."""
EXORL_EXPLORERS = frozenset(
    {"aps", "icm_apt", "diayn", "disagreement", "icm", "proto", "random", "rnd", "smm"}
)
"""ExORL unpacks to DOMAIN/EXPLORER/buffer, the only place where it says what it is."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Reward-free episodes laid end to end, T + 1 rows for an episode of T steps."""

    path: Path | None
    """The folder it was read from; None for data made in memory."""
    description: dict[str, Any]
    """What dataset.json says: domain, explorer, seed, and so on."""
    observation: np.ndarray
    """`(rows, o)`, float32 or uint8."""
    action: np.ndarray
    """`(rows, a)` float32, or `(rows,)` int32 for discrete actions: what led to the row."""
    reward: np.ndarray
    """`(rows,)`, the collecting environment's own."""
    discount: np.ndarray
    """`(rows,)`: 0 after a true termination, else 1."""
    physics: np.ndarray | None
    """`(rows, p)` float64, the simulator's state; None where it was not recorded."""
    lengths: np.ndarray
    """Steps of each episode."""
    num_actions: int = 0
    """Number of discrete actions; 0 for continuous actions."""
    files: Sequence[Path] = field(default=(), repr=False)
    """The file of each episode, if there are files."""

    @classmethod
    def from_arrays(
        cls,
        observation: np.ndarray,
        action: np.ndarray,
        discount: np.ndarray | None = None,
        *,
        reward: np.ndarray | None = None,
        physics: np.ndarray | None = None,
        num_actions: int = 0,
        description: Mapping[str, Any] | None = None,
    ) -> "Dataset":
        """From equally long episodes in memory: `observation (e, T+1, o)`, `action (e, T+1, a)` or
        `(e, T+1)` if discrete, `discount` (1 if left out) and `reward` (0) `(e, T+1)`."""
        shape = observation.shape[:2]
        given = {"action": action, "discount": discount, "reward": reward, "physics": physics}
        for name, values in given.items():
            if values is not None and values.shape[:2] != shape:
                raise UserError(f"{name} has shape {values.shape}, but observation {shape}")
        discrete = action.dtype.kind in "iu"
        if discrete != (num_actions > 0):
            kind = "integer" if discrete else "real"
            raise UserError(f"num_actions is {num_actions}, but the actions are {kind} numbers")
        rows = shape[0] * shape[1]
        reward = np.zeros(shape) if reward is None else reward
        discount = np.ones(shape) if discount is None else discount
        one_hot = observation.dtype == np.uint8
        return cls(
            path=None,
            description=dict(description or {}),
            observation=observation.reshape(rows, -1).astype(np.uint8 if one_hot else np.float32),
            action=action.reshape(rows).astype(np.int32)
            if discrete
            else action.reshape(rows, -1).astype(np.float32),
            reward=reward.reshape(rows).astype(np.float32),
            discount=discount.reshape(rows).astype(np.float32),
            physics=None if physics is None else physics.reshape(rows, -1).astype(np.float64),
            lengths=np.full(shape[0], shape[1] - 1),
            num_actions=num_actions,
        )

    @property
    def num_episodes(self) -> int:
        return len(self.lengths)

    @property
    def num_transitions(self) -> int:
        return int(np.sum(self.lengths))

    @property
    def domain(self) -> str | None:
        return self.description.get("domain")

    @property
    def spec(self) -> Spec:
        action_dim = 0 if self.num_actions else self.action.shape[1]
        return Spec(self.observation.shape[1], self.num_actions, action_dim)

    @cached_property
    def ends(self) -> np.ndarray:
        """One past the last row of each episode."""
        return np.cumsum(self.lengths + 1)

    def experience(self) -> Experience:
        """The rows as device arrays, for jitted sampling."""
        return Experience.from_rows(
            self.observation,
            self.action,
            self.discount,
            self.lengths,
            num_actions=self.num_actions,
        )

    def sample_next_rows(self, count: int, seed: int) -> np.ndarray:
        """Sorted rows of `count` different next states, or of all if there are fewer."""
        total = self.num_transitions
        generator = np.random.default_rng(seed)
        transition = np.sort(generator.choice(total, min(count, total), replace=False))
        episode = np.searchsorted(np.cumsum(self.lengths), transition, side="right")
        return transition + episode + 1

    def next_observations(self, rows: np.ndarray) -> np.ndarray:
        """Observations of those rows as float32."""
        return self.observation[rows].astype(np.float32)

    def source_of(self, row: int) -> str:
        """The file or the number of the episode a row belongs to, for messages."""
        episode = int(np.searchsorted(self.ends, row, side="right"))
        return str(self.files[episode]) if self.files else f"episode {episode}"


def load_dataset(
    path: str | Path,
    *,
    max_episodes: int | None = None,
    incomplete_ok: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Open a folder of episodes, ours or ExORL's; the first time, or after it changed, pack it.
    What was not written to its end is refused unless `incomplete_ok`."""
    folder = Path(path)
    if folder.name == "buffer" and not (folder / "buffer").is_dir():
        folder = folder.parent
    if max_episodes is not None and max_episodes < 1:
        raise UserError(f"max_episodes must be at least 1, not {max_episodes}")
    files = list_episodes(folder)
    description = read_description(folder) or _guess_description(folder)
    _require_listed_files(folder, description, files)
    if description.get("complete") is False and not incomplete_ok:
        raise UserError(
            f"{folder}: is incomplete ({len(files)} episodes are there); run the command that "
            "writes it again, with fewer --steps if these are enough"
        )
    files = files[:max_episodes]
    rows = _map_rows(folder, files, description, progress)
    num_actions = description.get("num_actions") or 0
    if rows.discrete and not num_actions:
        num_actions = int(rows.action.max()) + 1
    lengths = np.array([file.steps for file in files])
    description.pop("checksums", None)
    counts = {"episodes": len(files), "steps": int(lengths.sum())}
    return Dataset(
        path=folder,
        description=description | counts,
        **rows._asdict(),
        lengths=lengths,
        num_actions=num_actions,
        files=[file.path for file in files],
    )


def save_dataset(
    folder: str | Path, episodes: Iterable[Sequence[Any]], *, num_actions: int = 0, **facts: Any
) -> Dataset:
    """Write episodes of your own as a dataset folder, and open it.

    An episode is its T + 1 observations, the T actions between them and, if it has a third entry,
    whether it ended for good (a time limit is not such an end). Actions lie in [-1, 1], or with
    `num_actions` are integers below that. `facts`, such as `domain="gym:Pendulum-v1"`, go into the
    folder's description.
    """
    description = {"explorer": "own", "num_actions": num_actions, **facts}
    with EpisodeWriter(folder, description, resume=False) as writer:
        for episode in episodes:
            writer.add(**_rows_of(episode, num_actions, f"episode {writer.episodes}"))
    return load_dataset(folder)


def _rows_of(episode: Sequence[Any], num_actions: int, name: str) -> dict[str, np.ndarray]:
    """An episode of the user's as the rows of a file; what does not fit is named."""
    if len(episode) not in (2, 3):
        raise UserError(f"{name}: must be observations, actions and perhaps whether it terminated")
    observation, action = (np.asarray(each) for each in episode[:2])
    steps = len(action)
    if len(observation) != steps + 1:
        raise UserError(
            f"{name}: {len(observation)} observations and {steps} actions; there must be one "
            "observation more than actions, the last one included"
        )
    if not num_actions and np.abs(action).max(initial=0.0) > 1 + ACTION_TOLERANCE:
        raise UserError(
            f"{name}: action lies outside [-1, 1]; scale actions to that range, or give "
            "num_actions if they are choices"
        )
    discount = np.ones(steps, np.float32)
    discount[-1:] = 0.0 if len(episode) == 3 and episode[2] else 1.0
    return rows_of_steps(observation, action, np.zeros(steps), discount)


def copy_dataset(
    source: str | Path, folder: str | Path, *, progress: Progress | None = None
) -> Dataset:
    """Write the episodes of an ExORL folder into one of ours, and open it. An interrupted copy
    continues where it stopped."""
    files = list_episodes(source)
    known = read_description(source) or _guess_description(Path(source))
    kept = ("domain", "explorer", "seed", "num_actions", "mujoco")
    description = {name: known[name] for name in kept if name in known}
    with EpisodeWriter(folder, description) as writer:
        for file in files[writer.episodes :]:
            writer.add(**read_episode(file.path)._asdict())
            if progress:
                progress(writer.episodes, len(files))
    return load_dataset(folder)


def describe(
    dataset: Dataset, *, quantities: Mapping[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """What `lk data info` shows: sizes, ranges, problems, and how `quantities` are spread."""
    spec = dataset.spec
    low, high = _ranges(dataset.observation)
    description = {
        "domain": dataset.domain,
        "explorer": dataset.description.get("explorer"),
        "episodes": dataset.num_episodes,
        "steps": dataset.num_transitions,
        "obs_dim": spec.obs_dim,
        "action_dim": spec.action_dim,
        "num_actions": spec.num_actions,
        "physics_dim": 0 if dataset.physics is None else dataset.physics.shape[1],
        "lengths": {"min": int(dataset.lengths.min()), "max": int(dataset.lengths.max())},
        "observation": {"min": low, "max": high},
        "problems": _problems(dataset, low, high),
    }
    if quantities:
        description["coverage"] = {name: _spread(x) for name, x in quantities.items()}
    return description


def _problems(dataset: Dataset, low: list[float | None], high: list[float | None]) -> list[str]:
    problems = []
    if dataset.description.get("complete") is False:
        problems.append("collection is incomplete; run the same command again to finish it")
    constant = [i for i, (least, most) in enumerate(zip(low, high, strict=True)) if least == most]
    if constant:
        listed = ", ".join(map(str, constant[:10])) + (", ..." if len(constant) > 10 else "")
        problems.append(f"{len(constant)} observation dimensions never change: {listed}")
    for name in ("observation", "action", "reward", "physics"):
        values = getattr(dataset, name)
        if values is not None and values.dtype.kind == "f":
            bad = _rows_where(values, lambda x: ~np.isfinite(x))
            problems += _report(dataset, bad, f"{name} is not finite (NaN or infinity)")
    if not dataset.num_actions:
        outside = _rows_where(dataset.action, lambda x: np.abs(x) > 1 + ACTION_TOLERANCE)
        problems += _report(dataset, outside, "action lies outside [-1, 1]")
    stops = np.flatnonzero(dataset.discount == 0)
    first, last = dataset.ends - dataset.lengths - 1, dataset.ends - 1
    inner = np.setdiff1d(stops, np.concatenate([first, last]))
    problems += _report(dataset, inner, "discount is 0 in the middle of an episode")
    limit = max(SHORT_EPISODE, float(np.median(dataset.lengths)) / 10)
    if len(short := np.flatnonzero(dataset.lengths < limit)):
        source = dataset.source_of(int(first[short[0]]))
        problems.append(f"{len(short)} episodes are shorter than {limit:.0f} steps: {source}")
    return problems


def _report(dataset: Dataset, rows: np.ndarray, what: str) -> list[str]:
    """The problem, where it starts and how often it occurs; nothing if there are no rows."""
    if not len(rows):
        return []
    return [f"{what} in {len(rows)} rows, first in {dataset.source_of(int(rows[0]))}"]


def _rows_where(values: np.ndarray, is_bad: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Rows with any bad number."""
    found = [
        start + np.flatnonzero(is_bad(chunk).reshape(len(chunk), -1).any(axis=1))
        for start, chunk in _chunks(values)
    ]
    return np.concatenate(found)


def _ranges(values: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """Least and largest finite value of each column; None where there is none."""
    low, high = np.full(values.shape[1], np.inf), np.full(values.shape[1], -np.inf)
    for _, chunk in _chunks(values):
        finite = np.isfinite(chunk)
        low = np.minimum(low, np.min(chunk, 0, where=finite, initial=np.inf))
        high = np.maximum(high, np.max(chunk, 0, where=finite, initial=-np.inf))
    numbers = [[float(x) if np.isfinite(x) else None for x in ends] for ends in (low, high)]
    return numbers[0], numbers[1]


def _chunks(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(values), CHUNK_ROWS):
        chunk = np.asarray(values[start : start + CHUNK_ROWS])
        yield start, chunk.astype(np.float32) if chunk.dtype.kind in "iu" else chunk


def _spread(values: np.ndarray) -> dict[str, Any]:
    """Percentiles and a histogram of the finite values."""
    values = np.ravel(values)
    values = values[np.isfinite(values)]
    if not len(values):
        return {"percentiles": {}, "range": None, "counts": []}
    counts, edges = np.histogram(values, bins=20)
    levels = (5, 25, 50, 75, 95)
    percentiles = np.percentile(values, levels).tolist()
    return {
        "percentiles": dict(zip(map(str, levels), percentiles, strict=True)),
        "range": [float(edges[0]), float(edges[-1])],
        "counts": counts.tolist(),
    }


def _guess_description(folder: Path) -> dict[str, Any]:
    folder = folder.resolve()
    if folder.name not in EXORL_EXPLORERS:
        return {}
    return {"domain": folder.parent.name, "explorer": folder.name}


def _require_listed_files(
    folder: Path, description: Mapping[str, Any], files: Sequence[EpisodeFile]
) -> None:
    missing = set(description.get("checksums", ())) - {file.path.name for file in files}
    if missing:
        raise UserError(
            f"{folder}: {min(missing)} is missing, though {DESCRIPTION} lists it "
            f"({len(missing)} missing in all); copy or collect it again"
        )


def _map_rows(
    folder: Path,
    files: Sequence[EpisodeFile],
    description: Mapping[str, Any],
    progress: Progress | None,
) -> Episode:
    """All rows, as one long episode of memory-mapped arrays."""
    sources: list[Source] = []
    for file in files:
        stat = file.path.stat()
        name = file.path.relative_to(folder).as_posix()
        sources.append([name, stat.st_size, stat.st_mtime_ns, file.steps])
    for cache in _cache_folders(folder):
        if rows := _open_cache(cache, sources):
            return rows
    cache = _writable_cache(folder)
    with _only_packer(cache):
        # Another process may have packed while this one waited for its turn.
        if rows := _open_cache(cache, sources):
            return rows
        _pack(files, sources, description, cache, progress)
        if rows := _open_cache(cache, sources):
            return rows
    raise UserError(f"{cache}: changed while it was written; remove it and try again")


def _open_cache(cache: Path, sources: list[Source]) -> Episode | None:
    """The first rows of the cache, if it holds these sources and is as it was written."""
    try:
        index = json.loads((cache / "index.json").read_text(encoding="utf-8"))
        if index["format"] != CACHE_FORMAT or index["sources"][: len(sources)] != sources:
            return None
        rows = sum(int(steps) + 1 for *_, steps in sources)
        arrays = {}
        for name, (file, size, modified) in index["arrays"].items():
            stat = (cache / file).stat()
            if (stat.st_size, stat.st_mtime_ns) != (size, modified):
                return None
            arrays[name] = np.load(cache / file, mmap_mode="r", allow_pickle=False)[:rows]
        return Episode(**arrays)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _pack(
    files: Sequence[EpisodeFile],
    sources: list[Source],
    description: Mapping[str, Any],
    cache: Path,
    progress: Progress | None,
) -> None:
    """Copy the episodes one by one into npy files named after the sources' fingerprint, so that an
    index never points at rows of another packing."""
    for stale in (cache / "index.json", *cache.glob("*.npy"), *cache.glob(".*.tmp")):
        stale.unlink(missing_ok=True)
    checksums = description.get("checksums", {})
    num_actions = description.get("num_actions")
    first = read_episode(files[0].path)
    rows = sum(file.steps + 1 for file in files)
    fingerprint = f"{zlib.crc32(json.dumps(sources).encode()):08x}"
    targets = {
        name: cache / f"{name}-{fingerprint}.npy"
        for name, values in first._asdict().items()
        if values is not None
    }
    with ExitStack() as stack:
        # Written in sequence rather than through a memory map, where a full disk kills the process.
        opened = {name: stack.enter_context(atomic_file(path)) for name, path in targets.items()}
        for name, file in opened.items():
            _write_header(file, getattr(first, name), rows)
        for number, (path, _, _) in enumerate(files):
            episode = read_episode(path, checksum=checksums.get(path.name))
            episode.require_like(first, str(path), files[0].path.name)
            if num_actions is not None:
                episode.require_actions_below(num_actions, str(path))
            for name, file in opened.items():
                file.write(getattr(episode, name).tobytes())
            if progress:
                progress(number + 1, len(files))
    stats = {name: path.stat() for name, path in targets.items()}
    arrays = {
        name: [targets[name].name, stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()
    }
    index = {"format": CACHE_FORMAT, "sources": sources, "arrays": arrays}
    with atomic_file(cache / "index.json") as file:
        file.write(json.dumps(index).encode())


def _write_header(file: Any, like: np.ndarray, rows: int) -> None:
    """The npy header of an array with rows like these."""
    descr = np.lib.format.dtype_to_descr(like.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (rows, *like.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)


def _cache_folders(folder: Path) -> tuple[Path, Path]:
    """Beside the data, or, where that cannot be written, in the user's own cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = folder.resolve()
    name = f"{place.name}-{zlib.crc32(str(place).encode()):08x}"
    return folder / ".cache", home / "laplacian-keyboard" / name


def _writable_cache(folder: Path) -> Path:
    error = None
    for cache in _cache_folders(folder):
        try:
            cache.mkdir(parents=True, exist_ok=True)
            (cache / "lock").touch()
            return cache
        except OSError as refused:
            error = refused
    raise UserError(
        f"{folder}: neither it nor the user's cache can be written ({error}); set XDG_CACHE_HOME "
        "to a folder that can"
    )


@contextmanager
def _only_packer(cache: Path) -> Iterator[None]:
    """Waits until no other process packs here; the lock ends with its process."""
    with (cache / "lock").open("w") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
