"""Training from a window on a dataset: what it shows, in which order, and in how much memory."""

import dataclasses
import os
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from test_train import Interrupted, after, bitwise_equal

from laplacian_keyboard import presets, pretraining, train
from laplacian_keyboard.bases import registry
from laplacian_keyboard.data import stream as streams
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.data.replay import sample_pairs, sample_transitions
from laplacian_keyboard.data.stream import Layout, Stream, layout_of
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.types import UserError

LENGTHS = (5, 8, 3, 12, 1, 7, 7, 2)
OBS_BYTES = 8
K = 2


def make_dataset(lengths=LENGTHS, *, discrete: bool = False) -> Dataset:
    """Rows that know themselves: episode number and step."""
    lengths = np.array(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths + 1)
    step = np.concatenate([np.arange(n + 1) for n in lengths])
    rows = len(step)
    action = step.astype(np.int32) % 3 if discrete else np.stack([step / 100, -step / 100], 1)
    return Dataset(
        path=None,
        description={},
        observation=np.stack([episode, step], axis=1).astype(np.float32),
        action=action if discrete else action.astype(np.float32),
        reward=np.zeros(rows, np.float32),
        discount=np.where(step == 0, 0.0, 1.0).astype(np.float32),
        physics=None,
        lengths=lengths,
        num_actions=3 if discrete else 0,
    )


def contents(experience: Any) -> list[tuple[int, int]]:
    """Episode and step of every transition of a window."""
    obs, start = np.asarray(experience.obs), np.asarray(experience.start)
    return [(int(episode), int(step)) for episode, step in obs[start]]


def window_of(dataset: Dataset, memory: int) -> Stream:
    layout = layout_of(dataset, obs_bytes=OBS_BYTES, memory=memory)
    assert layout is not None
    return Stream(dataset, layout)


def test_a_window_depends_on_its_number_alone():
    dataset = make_dataset()
    walked = Stream(dataset, Layout(block=12, rows=24, slots=2))
    for number in range(9):
        walked.at(number)
    seen = walked.at(9)
    jumped = Stream(dataset, Layout(block=12, rows=24, slots=2)).at(9)
    assert bitwise_equal(seen, jumped)
    assert bitwise_equal(walked.at(9), jumped), "asked again"
    assert bitwise_equal(walked.at(0), Stream(dataset, walked.layout).at(0)), "and back"
    assert contents(Stream(dataset, walked.layout, seed=1).at(9)) != contents(jumped)


@pytest.mark.parametrize("lengths", [LENGTHS, (6,) * 9])
def test_every_pass_shows_every_transition_once(lengths):
    dataset = make_dataset(lengths)
    block, total = 12, sum(lengths)
    stream = Stream(dataset, Layout(block, rows=2 * block, slots=1))
    shown = [step for number in range(total) for step in contents(stream.at(number))]
    everything = sorted((e, t) for e, length in enumerate(lengths) for t in range(length))
    for turn in range(block):
        assert sorted(shown[turn * total : (turn + 1) * total]) == everything
    assert shown[:total] != shown[total : 2 * total], "passes have orders of their own"


def test_samples_stay_inside_an_episode_and_are_spread_evenly():
    stream = window_of(make_dataset(), memory=1400)
    window = stream.at(3)
    batch = sample_transitions(window, 4000, key=jax.random.key(0))
    obs, following = np.asarray(batch.obs), np.asarray(batch.next_obs)
    np.testing.assert_array_equal(following, obs + np.array([0, 1]))
    np.testing.assert_allclose(np.asarray(batch.action)[:, 0], following[:, 1] / 100)
    assert set(np.asarray(batch.discount)) == {1.0}
    found, counts = np.unique(obs, axis=0, return_counts=True)
    assert len(found) == len(set(contents(window)))
    expected = 4000 / window.num_transitions
    assert counts.min() > expected / 2 and counts.max() < expected * 2
    pairs = sample_pairs(
        window, 1000, discount=0.9, negatives="same-episode", num_negatives=2, key=jax.random.key(1)
    )
    reference, future = np.asarray(pairs.obs), np.asarray(pairs.future_obs)
    assert (future[:, 0] == reference[:, 0]).all() and (future[:, 1] > reference[:, 1]).all()
    assert (np.asarray(pairs.negative_obs)[..., 0] == reference[:, 0]).all()


def test_layouts_fit_their_memory():
    dataset = make_dataset((10,) * 50)
    whole = 50 * 11 * (OBS_BYTES + 8 + 4) + 500 * 12
    assert layout_of(dataset, obs_bytes=OBS_BYTES, memory=whole) is None
    layout = layout_of(dataset, obs_bytes=OBS_BYTES, memory=whole - 1)
    assert layout is not None
    assert layout.block % 10 == 0, "equally long episodes stay whole"
    blocks = layout.slots + streams.BLOCKS_IN_HAND
    assert blocks * (layout.rows * 20 + layout.block * 12) < whole
    with pytest.raises(UserError, match=r"memory of 1e-07 GB is too little"):
        layout_of(dataset, obs_bytes=OBS_BYTES, memory=100)
    assert streams.default_memory() > 1e8


@pytest.mark.parametrize("lengths", [(1,) * 200, (1, 50) * 10, tuple(range(1, 40))])
def test_a_block_has_room_for_the_shortest_episodes(lengths):
    stream = window_of(make_dataset(lengths), memory=4000)
    for block in range(3 * sum(lengths) // stream.layout.block):
        _, steps = stream.pieces(block)
        assert steps.sum() == stream.layout.block and steps.min() > 0
        assert np.sum(steps + 1) <= stream.layout.rows


def test_windows_hold_prepared_observations():
    dataset = make_dataset()
    inputs = Inputs.of_data(dataset.observation, (1,))
    stream = Stream(dataset, Layout(12, 24, 2), inputs, (1,))
    window, plain = stream.at(0), Stream(dataset, Layout(12, 24, 2)).at(0)
    assert window.spec == stream.spec and stream.spec.obs_dim == 3
    np.testing.assert_allclose(window.obs, inputs.of_rows(np.asarray(plain.obs), (1,)), rtol=1e-6)


def pretrain(dataset: Dataset, **options: Any) -> Any:
    keyboards = pretraining.pretrain_seeds(dataset, k=K, preset="smoke", **options)
    return [keyboard.params for keyboard in keyboards]


SMALL = {"memory": 2e-5}
"""20 kB, of the 60 kB of `random_dataset`."""


def random_dataset() -> Dataset:
    rng, shape = np.random.default_rng(0), (60, 21)
    action = rng.integers(0, 3, shape)
    return Dataset.from_arrays(rng.normal(size=(*shape, 3)), action, num_actions=3)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(pretraining, "MOMENT_BATCHES", 2)
    monkeypatch.setattr(pretraining, "fit", partial(train.fit, chunk=20))


def test_an_interrupted_streaming_run_ends_like_an_uninterrupted_one(
    tmp_path, monkeypatch, small_chunks
):
    dataset = random_dataset()
    whole = pretrain(dataset, seeds=[0], **SMALL)
    monkeypatch.setattr(train, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    for chunks in (1, 4):  # in the middle of stage 1, then of stage 2
        with monkeypatch.context() as patch:
            patch.setattr(pretraining, "fit", partial(fit_until, after(chunks)))
            with pytest.raises(Interrupted):
                pretrain(dataset, seeds=[0], out=tmp_path / "run", **SMALL)
    resumed = pretrain(dataset, seeds=[0], out=tmp_path / "run", **SMALL)
    assert bitwise_equal(resumed, whole)
    with pytest.raises(UserError, match="window"):
        pretrain(dataset, seeds=[0], out=tmp_path / "run")


@pytest.mark.parametrize("basis", ["fb", "hilp"])
def test_other_bases_and_several_seeds_learn_from_a_stream(basis):
    """Traced, not compiled: the window is an `Experience` like any other."""
    stream = window_of(random_dataset(), memory=20_000)
    settings = presets.settings("smoke", K, discrete=True, basis=basis)
    keys = jax.random.split(jax.random.key(0), 2)
    module = registry.module_of(settings.basis)
    if basis == "fb":
        configs = settings.basis, settings.successor
        update = pretraining.ForwardBackwardUpdate(*configs)
    else:
        configs = (settings.basis,)
        update = pretraining.BasisUpdate(*configs)
    init = lambda key: module.init(*configs, stream.spec, key=key)  # noqa: E731
    state = jax.eval_shape(jax.vmap(init), keys)
    many = pretraining.OverSeeds(update, None)
    after, metrics = jax.eval_shape(many, state, stream.at(0), keys)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert all(value.shape == (2,) for value in metrics.values())


MEASURE = r"""
import re, sys, threading, time
from functools import partial
from pathlib import Path
import numpy as np
from laplacian_keyboard import pretraining, train
from laplacian_keyboard.data.dataset import Dataset

def megabytes():
    # Pages of mapped files do not count: the kernel takes them back when it needs them.
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1e3

def watch():
    while True:
        seen.append(megabytes())
        time.sleep(0.005)

def learn(rows):
    files = Path(sys.argv[1]).iterdir()
    arrays = {file.stem: np.load(file, mmap_mode="r")[:rows] for file in files}
    dataset = Dataset(None, {}, **arrays, physics=None, lengths=np.full(rows // 1000, 999))
    pretraining.pretrain(dataset, k=2, basis="random", preset="smoke", memory=0.04)

pretraining.MOMENT_BATCHES = 2
pretraining.fit = partial(train.fit, chunk=20)
learn(500_000)
seen = []
before = megabytes()
threading.Thread(target=watch, daemon=True).start()
learn(4_000_000)
print(before, max(seen))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_far_below_the_size_of_the_dataset(tmp_path):
    folder, rows = tmp_path / "rows", 4_000_000
    folder.mkdir()
    some = np.random.default_rng(0).uniform(-1, 1, (rows // 100, 17)).astype(np.float32)
    widths = {"observation": (17,), "action": (6,), "reward": (), "discount": ()}
    for name, width in widths.items():
        shape = (rows, *width)
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, shape)
        for part in range(100):
            array[part * len(some) :][: len(some)] = some[:, : width[0]] if width else 1.0
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    assert size > 390
    run = [sys.executable, "-c", MEASURE, str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    before, most = map(float, done.stdout.split())
    assert most - before < size / 2


def fit_until(interrupt: Any, *arguments: Any, **options: Any) -> Any:
    """The training loop in small chunks, interrupted after some."""
    options |= {"chunk": 20, "evaluate": interrupt, "evaluate_every": 1}
    return train.fit(*arguments, **options)


def test_tabulated_features_are_those_of_the_network():
    dataset = make_dataset()
    basis = presets.settings("smoke", K, discrete=False).basis
    module, whole = registry.module_of(basis), dataset.experience()
    encoder = module.encoder(module.init(basis, whole.spec, key=jax.random.key(0)))
    expected = module.phi(basis, encoder, whole.obs)
    table = pretraining.tabulate(basis, encoder, whole).phi
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-6)
    stream = Stream(dataset, Layout(block=12, rows=24, slots=2))
    assert stream.at(0).phi is None
    pretraining.tabulate(basis, encoder, stream)
    for number in (0, 1, 5):
        window = stream.at(number)
        in_window = module.phi(basis, encoder, window.obs)
        np.testing.assert_allclose(window.phi, in_window, rtol=1e-5, atol=1e-6)
    many = dataclasses.replace(basis, k=whole.obs.shape[1] + 1)
    assert pretraining.tabulate(many, encoder, whole) is whole, "it would take too much memory"
