"""Datasets on disk: the layout, the packed cache, interrupted writes, bad input, conversion."""

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import laplacian_keyboard as lk
from laplacian_keyboard.data import minari as minari_data
from laplacian_keyboard.data.dataset import Dataset, copy_dataset, describe, load_dataset
from laplacian_keyboard.data.exorl import EpisodeWriter, list_episodes, read_episode
from laplacian_keyboard.types import UserError

DESCRIPTION = {"domain": "cheetah", "explorer": "babble", "seed": 3, "mujoco": "3.17.0"}


def make_arrays(number: int, steps: int, *, discrete: bool = False) -> dict[str, np.ndarray]:
    """Episode `number` of a synthetic collection, the same whenever it is made."""
    rng = np.random.default_rng([number, steps])
    rows = steps + 1
    arrays = {
        "observation": rng.standard_normal((rows, 4)).astype(np.float32),
        "action": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "reward": rng.uniform(size=(rows, 1)).astype(np.float32),
        "discount": np.ones((rows, 1), np.float32),
        "physics": rng.standard_normal((rows, 5)),
    }
    arrays["action"][0] = 0
    if discrete:
        arrays["observation"] = np.eye(6, dtype=np.uint8)[rng.integers(0, 6, rows)]
        arrays["action"] = rng.integers(0, 3, rows).astype(np.int32)
        arrays["action"][-1] = 2
    return arrays


def write_folder(folder: Path, lengths=(5, 8, 3), *, discrete: bool = False) -> Path:
    description = DESCRIPTION | ({"num_actions": 3} if discrete else {})
    with EpisodeWriter(folder, description) as writer:
        for number, steps in enumerate(lengths):
            writer.add(**make_arrays(number, steps, discrete=discrete))
    return folder


def plain_write(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> Path:
    """A peer's writer: NumPy alone."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / name, allow_pickle=True, **arrays)
    return folder / name


def plain_transitions(folder: Path) -> Iterator[tuple[np.ndarray, ...]]:
    """A peer's reader: NumPy alone, knowing only the layout."""
    for path in sorted((folder / "buffer").glob("*.npz")):
        with np.load(path) as file:
            data = {key: file[key] for key in file.files}
        assert int(path.stem.split("_")[2]) == len(data["observation"]) - 1
        for t in range(1, len(data["observation"])):
            yield (
                data["observation"][t - 1],
                data["action"][t],
                data["reward"][t, 0],
                data["discount"][t, 0],
                data["observation"][t],
                data["physics"][t],
            )


def our_transitions(dataset: Dataset) -> Iterator[tuple[np.ndarray, ...]]:
    experience = dataset.experience()
    assert experience.spec == dataset.spec
    assert dataset.physics is not None
    for start in np.asarray(experience.start):
        yield (
            np.asarray(experience.obs)[start],
            np.asarray(experience.action)[start + 1],
            dataset.reward[start + 1],
            np.asarray(experience.discount)[start + 1],
            np.asarray(experience.obs)[start + 1],
            dataset.physics[start + 1],
        )


def assert_same_transitions(ours, theirs) -> None:
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        for x, y in zip(mine, other, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("discrete", [False, True])
def test_peers_read_what_we_write(tmp_path, discrete):
    write_folder(tmp_path, discrete=discrete)
    assert_same_transitions(our_transitions(load_dataset(tmp_path)), plain_transitions(tmp_path))
    with np.load(tmp_path / "buffer" / "episode_000001_8.npz") as file:
        written = {key: file[key] for key in file.files}
    expected = make_arrays(1, 8, discrete=discrete)
    assert written.keys() == expected.keys()
    for key, values in expected.items():
        assert written[key].dtype == values.dtype
        np.testing.assert_array_equal(written[key], values)


def test_we_read_what_peers_write(tmp_path):
    folder = tmp_path / "walker" / "rnd"
    for number in range(3):
        plain_write(folder / "buffer", f"episode_{number:06d}_4.npz", make_arrays(number, 4))
    dataset = load_dataset(folder)
    assert_same_transitions(our_transitions(dataset), plain_transitions(folder))
    assert (dataset.domain, dataset.description["explorer"]) == ("walker", "rnd")
    assert load_dataset(folder / "buffer").num_transitions == 12


def test_urlb_names_flat_folder_extra_keys_and_flat_columns(tmp_path):
    """In the order of collection, though names sort otherwise."""
    names = {2: "20211112T100000_2_6.npz", 10: "20211111T100000_10_6.npz"}
    for number, name in names.items():
        arrays = make_arrays(number, 6)
        del arrays["physics"]
        arrays["reward"], arrays["discount"] = arrays["reward"][:, 0], arrays["discount"][:, 0]
        arrays["skill"] = np.array([{"never": "loaded"}], dtype=object)
        plain_write(tmp_path, name, arrays)
    dataset = load_dataset(tmp_path)
    expected = [make_arrays(number, 6)["observation"] for number in names]
    np.testing.assert_array_equal(dataset.observation, np.concatenate(expected))
    assert dataset.physics is None and dataset.domain is None


def test_description_and_checksums(tmp_path):
    write_folder(tmp_path)
    description = json.loads((tmp_path / "dataset.json").read_text())
    expected = {"steps": 16, "episodes": 3, "obs_dim": 4, "action_dim": 2, "num_actions": 0}
    assert description.items() >= (DESCRIPTION | expected | {"complete": True}).items()
    assert len(description["checksums"]) == 3 and description["package_version"]
    dataset = load_dataset(tmp_path)
    assert dataset.lengths.tolist() == [5, 8, 3]
    assert dataset.domain == "cheetah" and "checksums" not in dataset.description


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_any_lengths_round_trip_and_no_index_crosses_an_episode(lengths):
    with tempfile.TemporaryDirectory() as name:
        dataset = load_dataset(write_folder(Path(name), lengths))
        arrays = [make_arrays(number, steps) for number, steps in enumerate(lengths)]
        for key in ("observation", "action", "physics"):
            rows = np.concatenate([episode[key] for episode in arrays])
            np.testing.assert_array_equal(getattr(dataset, key), rows)
        episode_of_row = np.repeat(np.arange(len(lengths)), np.array(lengths) + 1)
        data = dataset.experience()
        start, first, last = (np.asarray(x) for x in (data.start, data.first, data.last))
        assert len(start) == sum(lengths)
        assert (start < last).all()
        for rows in (start + 1, first, last):
            np.testing.assert_array_equal(episode_of_row[start], episode_of_row[rows])
        next_rows = dataset.sample_next_rows(10**6, seed=0)
        np.testing.assert_array_equal(next_rows, start + 1)


def test_next_rows_are_different_next_states(tmp_path):
    dataset = load_dataset(write_folder(tmp_path, (20, 1, 30)))
    rows = dataset.sample_next_rows(25, seed=1)
    assert len(set(rows.tolist())) == 25
    assert not {0, 21, 23} & set(rows.tolist())
    np.testing.assert_array_equal(rows, dataset.sample_next_rows(25, seed=1))
    assert rows.tolist() != dataset.sample_next_rows(25, seed=2).tolist()
    np.testing.assert_array_equal(dataset.next_observations(rows), dataset.observation[rows])


def test_from_arrays():
    observation = np.eye(3, dtype=np.uint8)[np.array([[0, 1, 2], [2, 1, 0]])]
    action = np.array([[0, 1, 1], [0, 3, 2]])
    dataset = Dataset.from_arrays(observation, action, num_actions=4)
    assert dataset.path is None and dataset.num_episodes == 2 and dataset.num_transitions == 4
    assert dataset.spec.num_actions == 4 and dataset.spec.obs_dim == 3
    assert dataset.observation.dtype == np.uint8 and dataset.discount.tolist() == [1] * 6
    np.testing.assert_array_equal(np.asarray(dataset.experience().start), [0, 1, 3, 4])
    assert dataset.next_observations(np.array([1])).dtype == np.float32
    with pytest.raises(UserError, match="num_actions"):
        Dataset.from_arrays(observation, action)
    with pytest.raises(UserError, match="discount"):
        Dataset.from_arrays(observation, action, np.ones((2, 2)), num_actions=4)


def test_copying_an_exorl_folder_keeps_every_row(tmp_path):
    source = tmp_path / "walker" / "rnd"
    for number in range(3):
        plain_write(source / "buffer", f"episode_{number:06d}_6.npz", make_arrays(number, 6))
    copied = copy_dataset(source, tmp_path / "copy")
    original = load_dataset(source)
    assert copied.domain == "walker" and copied.description["explorer"] == "rnd"
    for name in ("observation", "action", "reward", "discount", "physics"):
        np.testing.assert_array_equal(getattr(copied, name), getattr(original, name))


def scramble(path: Path) -> None:
    """Other content, same size and time: whoever reads it will notice."""
    stat = path.stat()
    path.write_bytes(b"?" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_second_open_maps_the_cache_and_leaves_the_episodes_alone(tmp_path):
    write_folder(tmp_path)
    before = load_dataset(tmp_path)
    for file in list_episodes(tmp_path):
        scramble(file.path)
    calls = []
    after = load_dataset(tmp_path, progress=lambda *counts: calls.append(counts))
    assert isinstance(after.observation, np.memmap) and not calls
    np.testing.assert_array_equal(after.observation, before.observation)
    part = load_dataset(tmp_path, max_episodes=2)
    assert part.lengths.tolist() == [5, 8] and not calls
    np.testing.assert_array_equal(part.action, before.action[:15])


def test_changed_folder_is_packed_again(tmp_path):
    write_folder(tmp_path)
    load_dataset(tmp_path, max_episodes=1)
    calls = []
    assert load_dataset(tmp_path, progress=lambda *n: calls.append(n)).num_episodes == 3
    assert calls == [(1, 3), (2, 3), (3, 3)]
    with EpisodeWriter(tmp_path, DESCRIPTION) as writer:
        writer.add(**make_arrays(3, 7))
    assert load_dataset(tmp_path).lengths.tolist() == [5, 8, 3, 7]
    shutil.rmtree(tmp_path / "buffer")
    (tmp_path / "dataset.json").unlink()
    write_folder(tmp_path, (4,))
    dataset = load_dataset(tmp_path)
    np.testing.assert_array_equal(dataset.observation, make_arrays(0, 4)["observation"])
    assert len(list((tmp_path / ".cache").glob("*.npy"))) == 5


@pytest.mark.parametrize("damage", ["truncate", "garbage", "remove", "index", "empty index"])
def test_damaged_cache_is_rebuilt(tmp_path, damage):
    before = np.array(load_dataset(write_folder(tmp_path)).observation)
    index = tmp_path / ".cache" / "index.json"
    (packed,) = (tmp_path / ".cache").glob("observation-*.npy")
    if damage == "truncate":
        os.truncate(packed, packed.stat().st_size - 4)
    elif damage == "garbage":
        packed.write_bytes(packed.read_bytes()[:-8] + b"????????")
    elif damage == "remove":
        packed.unlink()
    else:
        index.write_text('{"format": 1' if damage == "index" else "{}")
    np.testing.assert_array_equal(load_dataset(tmp_path).observation, before)


def test_interrupted_packing_is_not_trusted(tmp_path):
    write_folder(tmp_path)

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_dataset(tmp_path, progress=interrupt)
    assert {path.name for path in (tmp_path / ".cache").iterdir()} == {"lock"}
    assert load_dataset(tmp_path).num_episodes == 3


def test_only_one_of_many_packs(tmp_path):
    write_folder(tmp_path, [5] * 20)
    calls = []

    def load(_: int) -> int:
        return load_dataset(tmp_path, progress=lambda *n: calls.append(n)).num_transitions

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(load, range(4))) == [100] * 4
    assert len(calls) == 20


def test_read_only_folder_is_cached_elsewhere(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "data")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    make = Path.mkdir

    def refuse(self, *args, **kwargs):
        if self == folder / ".cache":
            raise OSError(errno.EROFS, "Read-only file system")
        make(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refuse)
    load_dataset(folder)
    assert not (folder / ".cache").exists()
    assert list((tmp_path / "home" / "laplacian-keyboard").glob("data-*/observation-*.npy"))
    calls = []
    load_dataset(folder, progress=lambda *n: calls.append(n))
    assert not calls


def without(name):
    return lambda arrays: {key: x for key, x in arrays.items() if key != name}


def changed(name, value):
    return lambda arrays: arrays | {name: value(arrays[name])}


def poisoned(name, value):
    def poison(values):
        values = values.copy()
        values[3] = value
        return values

    return changed(name, poison)


BAD_ARRAYS = {
    "lacks the array discount": without("discount"),
    "observation is not finite": poisoned("observation", np.nan),
    "observation is not finite .* in row 3": poisoned("observation", np.inf),
    "action is not finite": poisoned("action", -np.inf),
    "discount lies outside": poisoned("discount", 2),
    "action holds pickled Python objects": changed("action", lambda x: x.astype(object)),
    "observation is 3 wide float32, but 4 wide": changed("observation", lambda x: x[:, :3]),
    "action is 1 wide float32, but 2 wide": changed("action", lambda x: x[:, 0]),
    "action is discrete int32": changed("action", lambda x: np.zeros(len(x), int)),
    "physics is absent": without("physics"),
    "number of rows .*reward 6": changed("reward", lambda x: x[:-1]),
    "holds 5 steps .* its name says 6": lambda arrays: {k: x[:-1] for k, x in arrays.items()},
    "has no steps": lambda arrays: {key: x[:1] for key, x in arrays.items()},
    "flat vector": changed("observation", lambda x: np.zeros((len(x), 2, 2))),
    "one number a row": changed("reward", lambda x: np.zeros((len(x), 2))),
    "not <U1": changed("observation", lambda x: np.full((len(x), 4), "a")),
}


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_bad_arrays_are_named_with_their_file(tmp_path, message):
    write_folder(tmp_path, (6,))
    (tmp_path / "dataset.json").unlink()
    bad = plain_write(
        tmp_path / "buffer", "episode_000001_6.npz", BAD_ARRAYS[message](make_arrays(1, 6))
    )
    with pytest.raises(UserError, match=message) as caught:
        load_dataset(tmp_path)
    assert str(caught.value).startswith(f"{bad}: ") and "\n" not in str(caught.value)
    assert load_dataset(tmp_path, max_episodes=1).num_episodes == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-40],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"no archive",
        lambda content: content[:300] + bytes(200) + content[500:],
    ],
    ids=["end cut", "half", "empty", "garbage", "zeros inside"],
)
@pytest.mark.parametrize("described", [True, False])
def test_damaged_files_are_named(tmp_path, damage, described):
    write_folder(tmp_path)
    if not described:
        (tmp_path / "dataset.json").unlink()
    path = tmp_path / "buffer" / "episode_000001_8.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match="checksum" if described else "corrupt") as caught:
        load_dataset(tmp_path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}: no episodes"):
        load_dataset(tmp_path)
    with pytest.raises(UserError, match="absent: no such folder"):
        load_dataset(tmp_path / "absent")
    with pytest.raises(UserError, match="max_episodes"):
        load_dataset(tmp_path, max_episodes=0)
    write_folder(tmp_path)
    (tmp_path / "buffer" / "episode_000001_8.npz").unlink()
    with pytest.raises(UserError, match=r"episode_000001_8.npz is missing"):
        load_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text('{"num_actions": "3"}')
    with pytest.raises(UserError, match=r"dataset\.json: num_actions"):
        load_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(UserError, match=r"dataset\.json: is not JSON"):
        load_dataset(tmp_path)
    stray = plain_write(tmp_path / "buffer", "stray.npz", make_arrays(0, 4))
    with pytest.raises(UserError, match=f"{stray}: is not named"):
        load_dataset(tmp_path)


def test_discrete_actions_must_fit_their_number(tmp_path):
    write_folder(tmp_path, (5, 5), discrete=True)
    description = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(description | {"num_actions": 2}))
    with pytest.raises(UserError, match=r"episode_000000_5.npz: action 2, but .* num_actions 2"):
        load_dataset(tmp_path)
    (tmp_path / "dataset.json").unlink()
    assert load_dataset(tmp_path).num_actions == 3
    with pytest.raises(UserError, match=r"episode 0 .*: actions are discrete"):
        EpisodeWriter(tmp_path / "other", DESCRIPTION).add(**make_arrays(0, 5, discrete=True))


def test_describe_names_problems(tmp_path):
    arrays = [make_arrays(number, 20) for number in range(3)] + [make_arrays(3, 2)]
    for episode in arrays:
        episode["observation"][:, 2] = 7
    arrays[1]["action"][4] = 1.5
    arrays[2]["discount"][9] = 0
    arrays[2]["discount"][-1] = 0
    arrays[2]["reward"][1] = np.nan
    writer = EpisodeWriter(tmp_path, DESCRIPTION)
    for episode in arrays:
        writer.add(**episode)
    data = load_dataset(tmp_path, incomplete_ok=True)
    info = describe(data, quantities={"speed": np.arange(101.0)})
    problems = "\n".join(info["problems"])
    assert "incomplete" in problems
    assert "1 observation dimensions never change: 2" in problems
    assert "action lies outside [-1, 1] in 1 rows, first in " in problems
    assert "episode_000001_20.npz" in problems
    assert "reward is not finite (NaN or infinity) in 1 rows" in problems
    assert "discount is 0 in the middle of an episode in 1 rows" in problems
    assert "1 episodes are shorter than 10 steps" in problems
    assert len(info["problems"]) == 6
    assert (info["episodes"], info["steps"], info["obs_dim"], info["action_dim"]) == (4, 62, 4, 2)
    assert info["lengths"] == {"min": 2, "max": 20}
    assert info["observation"]["min"][2] == info["observation"]["max"][2] == 7
    speed = info["coverage"]["speed"]
    assert speed["percentiles"] == {"5": 5, "25": 25, "50": 50, "75": 75, "95": 95}
    assert len(speed["counts"]) == 20 and sum(speed["counts"]) == 101
    json.dumps(info, allow_nan=False)


def test_describe_finds_nothing_wrong_with_good_data(tmp_path):
    assert describe(load_dataset(write_folder(tmp_path, (30, 30))))["problems"] == []


def assert_same_folders(ours: Path, theirs: Path) -> None:
    names = [sorted(path.name for path in (x / "buffer").iterdir()) for x in (ours, theirs)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (ours / "buffer" / name).read_bytes() == (theirs / "buffer" / name).read_bytes()
    assert (ours / "dataset.json").read_bytes() == (theirs / "dataset.json").read_bytes()


def test_writer_resumes_after_an_interruption(tmp_path):
    folder = tmp_path / "interrupted"
    with EpisodeWriter(folder, DESCRIPTION), pytest.raises(UserError, match="another process"):
        EpisodeWriter(folder, DESCRIPTION)
    with pytest.raises(KeyboardInterrupt), EpisodeWriter(folder, DESCRIPTION) as writer:
        writer.add(**make_arrays(0, 5))
        writer.add(**make_arrays(1, 8))
        raise KeyboardInterrupt
    assert json.loads((folder / "dataset.json").read_text())["complete"] is False
    leftover = folder / "buffer" / ".episode_000002_3.npz.tmp"
    leftover.write_bytes(b"half")
    torn = folder / "buffer" / "episode_000001_8.npz"
    torn.write_bytes(torn.read_bytes()[:99])
    with EpisodeWriter(folder, DESCRIPTION) as writer:
        assert (writer.episodes, writer.steps) == (1, 5)
        assert not leftover.exists() and not torn.exists()
        writer.add(**make_arrays(1, 8))
        writer.add(**make_arrays(2, 3))
    assert_same_folders(folder, write_folder(tmp_path / "whole"))


@pytest.mark.parametrize("field", ["domain", "explorer", "seed"])
def test_another_collection_is_refused(tmp_path, field):
    write_folder(tmp_path)
    with pytest.raises(UserError, match=rf"dataset\.json: {field} is "):
        EpisodeWriter(tmp_path, DESCRIPTION | {field: "other"})


def test_writer_refuses_what_is_not_its_own(tmp_path):
    write_folder(tmp_path)
    with pytest.raises(UserError, match="already holds 3 episodes"):
        EpisodeWriter(tmp_path, DESCRIPTION, resume=False)
    with EpisodeWriter(tmp_path, DESCRIPTION) as writer:
        with pytest.raises(UserError, match="observation is 6 wide uint8"):
            writer.add(**(make_arrays(3, 5) | {"observation": np.zeros((6, 6), np.uint8)}))
        with pytest.raises(UserError, match=r"episode 3 for .* not finite"):
            writer.add(**poisoned("observation", np.nan)(make_arrays(3, 5)))
    assert json.loads((tmp_path / "dataset.json").read_text())["complete"] is True
    scramble(tmp_path / "buffer" / "episode_000001_8.npz")
    with pytest.raises(UserError, match=r"episode_000001_8\.npz: differs from its checksum"):
        EpisodeWriter(tmp_path, DESCRIPTION)
    (tmp_path / "dataset.json").unlink()
    with pytest.raises(UserError, match=r"no dataset\.json"):
        EpisodeWriter(tmp_path, DESCRIPTION)


def test_killed_collection_continues_as_if_nothing_happened(tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_dataset import DESCRIPTION, EpisodeWriter, make_arrays\n"
        "writer = EpisodeWriter(sys.argv[2], DESCRIPTION)\n"
        "while True: writer.add(**make_arrays(writer.episodes, 300))\n"
    )
    folder = tmp_path / "killed"
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(folder)]
    for target in (5, 20):
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 30
        while len(list(folder.glob("buffer/*.npz"))) < target:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    total = len(list(folder.glob("buffer/*.npz"))) + 2
    with pytest.raises(UserError, match=rf"is incomplete \({total - 2} episodes"):
        load_dataset(folder)
    assert load_dataset(folder, incomplete_ok=True).num_episodes == total - 2
    with EpisodeWriter(folder, DESCRIPTION) as writer:
        assert writer.episodes == total - 2
        while writer.episodes < total:
            writer.add(**make_arrays(writer.episodes, 300))
    assert_same_folders(folder, write_folder(tmp_path / "whole", [300] * total))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failing_write_leaves_nothing_behind(tmp_path, monkeypatch, call):
    writer = EpisodeWriter(tmp_path, DESCRIPTION)
    writer.add(**make_arrays(0, 5))

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(UserError, match=r"episode_000001_8\.npz: No space"):
            writer.add(**make_arrays(1, 8))
        with pytest.raises(UserError, match=r"\.npy: No space"):
            load_dataset(tmp_path, incomplete_ok=True)
    assert [path.name for path in (tmp_path / "buffer").iterdir()] == ["episode_000000_5.npz"]
    assert [path.name for path in (tmp_path / ".cache").iterdir()] == ["lock"]
    writer.add(**make_arrays(1, 8))
    writer.close()
    assert load_dataset(tmp_path).lengths.tolist() == [5, 8]


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 128 kB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_full_disk(tiny_disk, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    writer = EpisodeWriter(tiny_disk / "data", DESCRIPTION)
    with pytest.raises(UserError, match=r"npz: No space left on device"):
        while True:
            writer.add(**make_arrays(writer.episodes, 300))
    files = list_episodes(tiny_disk / "data")
    assert len(files) == writer.episodes > 0
    for file in files:
        read_episode(file.path)
    with pytest.raises(UserError, match=r"npy: No space"):
        load_dataset(tiny_disk / "data", incomplete_ok=True)
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    dataset = load_dataset(tiny_disk / "data", incomplete_ok=True)
    assert dataset.num_episodes == writer.episodes
    assert list((tmp_path / "home").glob("*/data-*/index.json"))


@pytest.fixture
def minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return pytest.importorskip("minari")


def record(minari, env_id: str, dataset_id: str, steps: int, *, limit: int, wrap=lambda env: env):
    """A Minari dataset of random actions, and the transitions as they happened."""
    # Minari leaves its temporary folders to the garbage collector, which warns.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        env = minari.DataCollector(wrap(gymnasium.make(env_id, max_episode_steps=limit)))
        happened = act_randomly(env, steps)
        dataset = env.create_dataset(
            dataset_id,
            eval_env=env_id,
            algorithm_name="random",
            author="test",
            author_email="test@example.org",
            code_permalink="https://example.org",
            description="test",
        )
        env.close()
        del env
        gc.collect()
    return dataset, happened


def act_randomly(env: gymnasium.Env, steps: int) -> list[tuple]:
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    happened = []
    for _ in range(steps):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        happened.append((obs, action, reward, 1.0 - terminated, next_obs))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return happened


def assert_converted(dataset: Dataset, happened, to_ours) -> None:
    start = np.asarray(dataset.experience().start)
    assert len(start) == len(happened)
    for row, (obs, action, reward, discount, next_obs) in zip(start, happened, strict=True):
        np.testing.assert_array_equal(dataset.observation[row], np.float32(obs))
        np.testing.assert_allclose(dataset.action[row + 1], to_ours(action), rtol=1e-6)
        np.testing.assert_allclose(dataset.reward[row + 1], reward, rtol=1e-6)
        assert dataset.discount[row + 1] == discount
        np.testing.assert_array_equal(dataset.observation[row + 1], np.float32(next_obs))


def test_minari_box_actions(minari, tmp_path):
    source, happened = record(minari, "Pendulum-v1", "pendulum/random-v0", 47, limit=20)
    dataset = minari_data.convert("pendulum/random-v0", tmp_path / "data")
    assert_converted(dataset, happened, lambda action: action / 2)
    assert dataset.lengths.tolist() == [20, 20, 7]
    assert dataset.discount.min() == 1 and dataset.domain == "gym:Pendulum-v1"
    assert dataset.description["action_high"] == [2.0]
    assert np.abs(dataset.action).max() <= 1
    shorter = EpisodeWriter(tmp_path / "resumed", dict(dataset.description))
    shorter.add(**read_episode(list_episodes(tmp_path / "data")[0].path)._asdict())
    del shorter  # as a process that was killed: it is not complete, and keeps nobody out
    keyboard = lk.pretrain(dataset, k=2, preset="smoke")
    assert keyboard.config.domain == "gym:Pendulum-v1"
    assert np.abs(keyboard.act(dataset.observation, keyboard.infer_task("env").w)).max() <= 1.0
    resumed = minari_data.convert(source, tmp_path / "resumed")
    assert_converted(resumed, happened, lambda action: action / 2)


def test_minari_discrete_actions_and_terminations(minari, tmp_path):
    source, happened = record(minari, "CartPole-v1", "cartpole/random-v0", 120, limit=15)
    dataset = minari_data.convert(source, tmp_path / "data")
    assert_converted(dataset, happened, int)
    assert dataset.num_actions == 2
    last = dataset.ends - 1
    assert set(dataset.discount[last].tolist()) == {0.0, 1.0}
    assert dataset.discount.sum() == len(dataset.discount) - (dataset.discount[last] == 0).sum()


def test_minari_what_cannot_be_converted(minari, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="minari download no/such-v0"):
        minari_data.convert("no/such-v0", tmp_path / "data")
    wrap = lambda env: gymnasium.wrappers.ReshapeObservation(env, (3, 1))  # noqa: E731
    source, _ = record(minari, "Pendulum-v1", "pendulum/column-v0", 5, limit=20, wrap=wrap)
    with pytest.raises(UserError, match="pendulum/column-v0: its observations are Box"):
        minari_data.convert(source, tmp_path / "data")
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UserError, match=r"pip install laplacian-keyboard\[minari\]"):
        minari_data.convert("pendulum/column-v0", tmp_path / "data")


def test_episodes_of_ones_own_become_a_dataset(tmp_path):
    rng = np.random.default_rng(0)
    own = [
        (rng.standard_normal((steps + 1, 3)), rng.uniform(-1, 1, (steps, 2)), ended)
        for steps, ended in ((4, False), (7, True))
    ]
    dataset = lk.save_dataset(tmp_path / "own", own, domain="gym:Mine-v0")
    assert (dataset.num_transitions, dataset.domain) == (11, "gym:Mine-v0")
    assert lk.load_dataset(tmp_path / "own").spec == dataset.spec
    for (observation, action, _), end, steps in zip(own, dataset.ends, (4, 7), strict=True):
        np.testing.assert_allclose(dataset.observation[end - steps - 1 : end], observation, 1e-6)
        np.testing.assert_allclose(dataset.action[end - steps : end], action, 1e-6)
    np.testing.assert_array_equal(dataset.discount.ravel(), [1] * 12 + [0])
    choices = lk.save_dataset(tmp_path / "two", [([[0.0], [1.0]], [1])], num_actions=2)
    assert choices.spec.num_actions == 2


@pytest.mark.parametrize(
    ("episode", "complaint"),
    [
        ((np.zeros((3, 1)), np.zeros((3, 1))), "3 observations and 3 actions; there must be one"),
        ((np.zeros((2, 1)), np.full((1, 1), 2.0)), r"outside \[-1, 1\]; scale"),
        ((np.zeros((2, 1)),), "must be observations, actions"),
    ],
)
def test_an_episode_of_ones_own_that_does_not_fit_is_named(tmp_path, episode, complaint):
    fits = np.zeros((2, 1)), np.zeros((1, 1))
    with pytest.raises(UserError, match=f"episode 1: .*{complaint}"):
        lk.save_dataset(tmp_path / "own", [fits, episode])
