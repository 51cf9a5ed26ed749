"""Several devices: seeds, or batches of one seed, are split and learn what one device learns."""

import json
import os
import subprocess
import sys

import jax
import pytest

from laplacian_keyboard import pretraining
from laplacian_keyboard.devices import line_of_devices
from laplacian_keyboard.types import UserError

ON_TWO_DEVICES = """
import json
from functools import partial
import jax
import numpy as np
from laplacian_keyboard import pretraining, train
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.data.replay import sample_transitions
from laplacian_keyboard.data.stream import Stream

def places(tree):
    # Of how many devices, and whether each has all of it.
    return sorted({
        (len(leaf.sharding.device_set), leaf.addressable_shards[0].data.shape == leaf.shape)
        for leaf in jax.tree.leaves(tree)
    })

def fit(update, state, data, **options):
    source = data[0] if isinstance(data, tuple) else data
    seen["data"] = places(source.at(0) if isinstance(source, Stream) else source)
    state = train.fit(update, state, data, **{**options, "num_steps": 4, "chunk": 2})
    seen["state"] = places(state)
    return state

def learn(**options):
    keyboards = pretraining.pretrain_seeds(dataset, k=2, preset="smoke", **options)
    leaves = jax.tree.leaves([keyboard.params for keyboard in keyboards])
    assert places(leaves) == [(1, True)], "what is learned is handed back on one device"
    return {**seen, "sums": [float(abs(leaf).sum()) for leaf in leaves]}

seen = {}
pretraining.MOMENT_BATCHES, pretraining.fit = 1, fit
rng = np.random.default_rng(0)
obs, action = rng.normal(size=(60, 21, 3)), rng.integers(0, 3, (60, 21))
dataset = Dataset.from_arrays(obs, action, num_actions=3)
seeds = {"seeds": [0, 1], "basis": "random", "memory": 2e-5}
one_seed = {"seeds": [0], "basis": "random"}
found = {"seeds on two": learn(**seeds), "batch on two": learn(**one_seed, shard_batch=True)}
_, experience = pretraining.prepare_experience(dataset, (), False, shard_batch=True)
draw = jax.jit(partial(sample_transitions, count=8))
batch = draw(experience, key=jax.random.key(0))
found["batch"] = places((batch.obs, batch.action, batch.next_obs))
pretraining.line_of_devices = lambda count: None
found |= {"seeds on one": learn(**seeds), "batch on one": learn(**one_seed)}
print(json.dumps(found))
"""


def test_two_devices_learn_what_one_learns():
    flags = "--xla_force_host_platform_device_count=2"
    run = [sys.executable, "-c", ON_TWO_DEVICES]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    copied, split, alone = [[2, True]], [[2, False]], [[1, True]]
    for case, state in {"seeds": split, "batch": copied}.items():
        two, one = found[f"{case} on two"], found[f"{case} on one"]
        assert (two["data"], two["state"]) == (copied, state), case
        assert (one["data"], one["state"]) == (alone, alone), case
        assert two["sums"] == pytest.approx(one["sums"], rel=1e-4, abs=1e-5), case
    assert found["batch"] == split


def test_seeds_that_devices_cannot_share_stay_on_fewer(monkeypatch):
    assert line_of_devices(3) is None
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices() * 4)
    sizes = {count: line.size if (line := line_of_devices(count)) else 1 for count in range(1, 9)}
    assert sizes == {1: 1, 2: 2, 3: 3, 4: 4, 5: 1, 6: 3, 7: 1, 8: 4}


def test_batches_are_split_only_where_that_helps():
    with pytest.raises(UserError, match="JAX sees only one"):
        pretraining.pretrain(None, k=2, shard_batch=True)  # type: ignore
    with pytest.raises(UserError, match="several seeds"):
        pretraining.pretrain_seeds(None, k=2, seeds=[0, 1], shard_batch=True)  # type: ignore
