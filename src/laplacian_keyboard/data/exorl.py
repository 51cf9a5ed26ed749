"""Episodes on disk in the ExORL layout, so that peers read our data and we read theirs.

    FOLDER/buffer/episode_000000_1000.npz    one file an episode: NAME_INDEX_STEPS.npz
    FOLDER/dataset.json                      what it is, and the checksum of every file (ours only)

An episode of T steps has T + 1 rows, row 0 being the reset. Row t holds the observation (and the
physics state) after step t, and the action, reward and discount of that step.
"""

import fcntl
import io
import json
import os
import re
import weakref
import zipfile
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from laplacian_keyboard.files import atomic_file
from laplacian_keyboard.types import UserError

DESCRIPTION = "dataset.json"
_REQUIRED = ("observation", "action", "reward", "discount")
_IDENTITY = ("domain", "explorer", "seed", "num_actions", "preset", "num_envs", "length")
"""What must agree for two collections to be one."""
_EPISODE_NAME = re.compile(r".+_(\d+)_(\d+)\.npz")


class Episode(NamedTuple):
    """The rows of one episode, checked and in their stored types."""

    observation: np.ndarray
    """`(T+1, o)`, float32, or uint8 for one-hot observations."""
    action: np.ndarray
    """`(T+1, a)` float32, or `(T+1,)` int32 for discrete actions."""
    reward: np.ndarray
    """`(T+1,)` float32."""
    discount: np.ndarray
    """`(T+1,)` float32: 0 after a true termination, else 1."""
    physics: np.ndarray | None = None
    """`(T+1, p)` float64, the simulator's state."""

    @property
    def steps(self) -> int:
        return len(self.observation) - 1

    @property
    def discrete(self) -> bool:
        return self.action.ndim == 1

    def require_like(self, other: "Episode", source: str, other_source: str) -> None:
        """A UserError if the two cannot belong to one dataset."""
        for name in ("observation", "action", "physics"):
            ours, theirs = _row_type(getattr(self, name)), _row_type(getattr(other, name))
            if ours != theirs:
                raise UserError(
                    f"{source}: {name} is {ours}, but {theirs} in {other_source}; "
                    "keep different kinds of episodes in different folders"
                )

    def require_actions_below(self, num_actions: int, source: str) -> None:
        """A UserError if there are other actions than the discrete ones 0 .. num_actions - 1."""
        if self.discrete != (num_actions > 0):
            kind = "discrete" if self.discrete else "continuous"
            raise UserError(
                f"{source}: actions are {kind}, but num_actions in the description is {num_actions}"
            )
        if self.discrete and self.action.max() >= num_actions:
            raise UserError(
                f"{source}: action {self.action.max()}, but the description has num_actions "
                f"{num_actions}, so the largest is {num_actions - 1}"
            )


class EpisodeFile(NamedTuple):
    """An episode's file, with what its name says."""

    path: Path
    number: int
    steps: int


class EpisodeWriter:
    """Writes a dataset folder episode by episode, and continues one that was interrupted.

    An episode appears under its name only when it is whole on disk. `dataset.json` exists from the
    start and says `complete: false` until `close`. As a context manager it closes unless the block
    raises.
    """

    def __init__(self, folder: str | Path, description: Mapping[str, Any], *, resume: bool = True):
        self.folder = Path(folder)
        self.description = dict(description)
        self.episodes = 0
        """Episodes on disk."""
        self.steps = 0
        """Steps in them."""
        self._checksums: dict[str, str] = {}
        self._first: tuple[Episode, str] | None = None
        self._buffer = self.folder / "buffer"
        stored = read_description(self.folder)
        self._complete = bool(stored.get("complete"))
        found = list_episodes(self.folder, missing_ok=True)
        if found and not resume:
            raise UserError(f"{self.folder}: already holds {len(found)} episodes; choose another")
        if found and not stored:
            raise UserError(
                f"{self.folder}: holds episodes but no {DESCRIPTION}, so it is not ours to "
                "continue; choose another folder"
            )
        self._require_same_collection(stored)
        try:
            self._buffer.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self._buffer}: cannot be created ({error.strerror})") from error
        self._lock()
        self._take_over(found, stored.get("checksums", {}))
        if not self._complete:
            self._write_description()

    def __enter__(self) -> "EpisodeWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        self._unlock()

    def _lock(self) -> None:
        """Keep other processes out until this writer is left, or gone: two would overwrite each
        other's episodes."""
        folder = os.open(self._buffer, os.O_RDONLY)
        self._unlock = weakref.finalize(self, os.close, folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unlock()
            raise UserError(f"another process is writing to {self.folder}") from error
        except OSError:  # a file system without locks
            pass

    def add(
        self,
        *,
        observation: ArrayLike,
        action: ArrayLike,
        reward: ArrayLike,
        discount: ArrayLike,
        physics: ArrayLike | None = None,
    ) -> None:
        """Write one episode; every array has T + 1 rows."""
        source = f"episode {self.episodes} for {self.folder}"
        given = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "discount": discount,
            "physics": physics,
        }
        arrays = {name: np.asarray(x) for name, x in given.items() if x is not None}
        episode = make_episode(arrays, source)
        episode.require_actions_below(int(self.description.get("num_actions", 0)), source)
        if self._first:
            episode.require_like(self._first[0], source, self._first[1])
        if self._complete:
            self._complete = False
            self._write_description()
        path = self._buffer / f"episode_{self.episodes:06d}_{episode.steps}.npz"
        content = _npz(episode)
        with atomic_file(path) as file:
            file.write(content)
        self._count(path.name, content, episode.steps)
        self._first = self._first or (episode, path.name)

    def close(self) -> None:
        """Declare the collection complete."""
        self._complete = True
        self._write_description()

    def _require_same_collection(self, stored: Mapping[str, Any]) -> None:
        for field in _IDENTITY:
            wanted = self.description.get(field)
            if field in stored and field in self.description and stored[field] != wanted:
                raise UserError(
                    f"{self.folder / DESCRIPTION}: {field} is {stored[field]!r}, but this "
                    f"collection has {wanted!r}; choose another folder"
                )

    def _take_over(self, found: list[EpisodeFile], checksums: Mapping[str, str]) -> None:
        """Count the whole episodes and clear away what an interrupted write left."""
        for folder in (self.folder, self._buffer):
            for leftover in folder.glob(".*.tmp"):
                leftover.unlink()
        for number, file in enumerate(found):
            if file.number != number:
                raise UserError(
                    f"{file.path}: expected episode {number} here; the folder is not in the "
                    "order it was collected in, so it cannot be continued"
                )
        # Writes are in order, so only the last file can be torn (by a crash of the machine).
        if found and not self._complete and not _is_whole(found[-1].path):
            found.pop().path.unlink()
        if found:
            self._first = (read_episode(found[0].path), found[0].path.name)
        for file in found:
            content = _read(file.path)
            _require_checksum(file.path, content, checksums.get(file.path.name))
            self._count(file.path.name, content, file.steps)

    def _count(self, name: str, content: bytes, steps: int) -> None:
        self._checksums[name] = _checksum(content)
        self.episodes += 1
        self.steps += steps

    def _write_description(self) -> None:
        description = self.description | {"episodes": self.episodes, "steps": self.steps}
        if self._first:
            episode = self._first[0]
            description["obs_dim"] = episode.observation.shape[1]
            description["action_dim"] = 0 if episode.discrete else episode.action.shape[1]
            description.setdefault("num_actions", 0)
        description["package_version"] = version("laplacian-keyboard")
        description["complete"] = self._complete
        description["checksums"] = self._checksums
        with atomic_file(self.folder / DESCRIPTION) as file:
            file.write(json.dumps(description, indent=1).encode())


def rows_of_steps(
    observation: ArrayLike, action: ArrayLike, reward: ArrayLike, discount: ArrayLike
) -> dict[str, np.ndarray]:
    """T steps and their T + 1 observations as the rows of an episode. Row 0 is the reset: no
    action, reward 0, discount 1."""
    action = np.asarray(action)
    return {
        "observation": np.asarray(observation),
        "action": np.concatenate([np.zeros_like(action[:1]), action]),
        "reward": np.concatenate([[0], np.asarray(reward, np.float32)]),
        "discount": np.concatenate([[1], np.asarray(discount, np.float32)]),
    }


def list_episodes(folder: str | Path, *, missing_ok: bool = False) -> list[EpisodeFile]:
    """The episode files of FOLDER/buffer, or of FOLDER itself, in the order of collection."""
    folder = Path(folder)
    if not folder.is_dir() and not missing_ok:
        raise UserError(f"{folder}: no such folder; collect data into it with `lk collect`")
    for place in (folder / "buffer", folder):
        # macOS leaves ._* beside files it unpacks.
        paths = [path for path in place.glob("*.npz") if not path.name.startswith(".")]
        if paths:
            return sorted(map(_episode_file, paths), key=lambda file: (file.number, file.path.name))
    if missing_ok:
        return []
    raise UserError(f"{folder}: no episodes; expected buffer/episode_000000_1000.npz and so on")


def read_episode(path: Path, *, checksum: str | None = None) -> Episode:
    """One episode's rows; a UserError names the file and what is wrong with it."""
    content = _read(path)
    _require_checksum(path, content, checksum)
    arrays = {}
    name = None
    # A damaged archive can fail in any layer: zip, inflate, npy header, allocation.
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            for name in (*_REQUIRED, "physics"):
                if name in archive.files:
                    arrays[name] = archive[name]
    except Exception as error:
        if name and "allow_pickle" in str(error):
            reason = f"{name} holds pickled Python objects, which are never loaded; save numbers"
        else:
            reason = "truncated or corrupt, no readable npz archive; copy or collect it again"
        raise UserError(f"{path}: {reason}") from error
    episode = make_episode(arrays, str(path))
    steps = _episode_file(path).steps
    if episode.steps != steps:
        raise UserError(
            f"{path}: holds {episode.steps} steps ({episode.steps + 1} rows), but its name says "
            f"{steps}"
        )
    return episode


def read_description(folder: str | Path) -> dict[str, Any]:
    """The content of dataset.json; empty if there is none."""
    path = Path(folder) / DESCRIPTION
    if not path.exists():
        return {}
    try:
        description = json.loads(_read(path))
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}); mend or remove it") from error
    if not isinstance(description, dict):
        raise UserError(f"{path}: is not a dataset description; mend or remove it")
    kinds = {"domain": str, "explorer": str, "checksums": dict, "num_actions": int}
    for field, kind in kinds.items():
        if not isinstance(description.get(field) or kind(), kind):
            raise UserError(f"{path}: {field} must be of type {kind.__name__}; mend or remove it")
    return description


def make_episode(arrays: Mapping[str, np.ndarray], source: str) -> Episode:
    """An episode from its arrays, each checked; errors begin with `source`."""
    missing = [name for name in _REQUIRED if name not in arrays]
    if missing:
        raise UserError(f"{source}: lacks the array {', '.join(missing)}")
    rows = {name: len(x) if x.ndim else 0 for name, x in arrays.items()}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise UserError(f"{source}: arrays differ in their number of rows ({listed})")
    if rows["observation"] < 2:
        raise UserError(f"{source}: has no steps; an episode of T steps has T + 1 rows")
    discrete = arrays["action"].dtype.kind in "iu"
    one_hot = arrays["observation"].dtype.kind in "bu" and arrays["observation"].itemsize == 1
    physics = arrays.get("physics")
    episode = Episode(
        observation=_numbers(arrays, "observation", np.uint8 if one_hot else np.float32, source),
        action=_numbers(arrays, "action", np.int32 if discrete else np.float32, source),
        reward=_column(_numbers(arrays, "reward", np.float32, source), "reward", source),
        discount=_column(_numbers(arrays, "discount", np.float32, source), "discount", source),
        physics=None if physics is None else _numbers(arrays, "physics", np.float64, source),
    )
    if discrete:
        episode = episode._replace(action=_column(episode.action, "action", source))
        if episode.action.min() < 0:
            raise UserError(f"{source}: negative discrete action {episode.action.min()}")
    for name in ("observation", "action"):
        if not np.isfinite(values := getattr(episode, name)).all():
            row = int(np.nonzero(~np.isfinite(values))[0][0])
            raise UserError(f"{source}: {name} is not finite (NaN or infinity) in row {row}")
    if not ((episode.discount >= 0) & (episode.discount <= 1)).all():
        raise UserError(f"{source}: discount lies outside [0, 1]")
    return episode


def _npz(episode: Episode) -> bytes:
    """The episode as an npz archive; equal episodes make equal bytes, as no date is stored."""
    arrays = {name: x for name, x in episode._asdict().items() if x is not None}
    for name in ("reward", "discount"):
        arrays[name] = arrays[name][:, None]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            # One-hot observations shrink twentyfold; floats by 8 %, for 20 times the time.
            compression = zipfile.ZIP_DEFLATED if array.dtype.kind in "iu" else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), compression)
    return content.getvalue()


def _is_whole(path: Path) -> bool:
    try:
        read_episode(path)
    except UserError:
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _checksum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def _require_checksum(path: Path, content: bytes, expected: str | None) -> None:
    if expected is not None and _checksum(content) != expected:
        raise UserError(
            f"{path}: differs from its checksum in {DESCRIPTION}; copy or collect it again"
        )


def _episode_file(path: Path) -> EpisodeFile:
    match = _EPISODE_NAME.fullmatch(path.name)
    if match is None:
        raise UserError(f"{path}: is not named like an episode (episode_000000_1000.npz)")
    return EpisodeFile(path, int(match[1]), int(match[2]))


def _numbers(arrays: Mapping[str, np.ndarray], name: str, dtype: type, source: str) -> np.ndarray:
    """The array in a stored type, as `(rows, width)`."""
    values = arrays[name]
    if values.dtype.kind not in "biuf" or values.ndim > 2 or values.size == 0:
        raise UserError(
            f"{source}: {name} must be a number or a flat vector in each row, not "
            f"{values.dtype} of shape {values.shape}"
        )
    # What float32 cannot hold becomes infinite, and is then reported as such.
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    return values.reshape(len(values), -1)


def _column(values: np.ndarray, name: str, source: str) -> np.ndarray:
    if values.shape[1] != 1:
        raise UserError(f"{source}: {name} must be one number a row, not {values.shape[1]}")
    return values[:, 0]


def _row_type(values: np.ndarray | None) -> str:
    if values is None:
        return "absent"
    kind = "discrete" if values.ndim == 1 else f"{values.shape[1]} wide"
    return f"{kind} {values.dtype}"
