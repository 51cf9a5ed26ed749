"""Large datasets: how long they take to pack and to open, in how much memory one is trained on, and
what training through a window costs beside training with everything in memory."""

import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from laplacian_keyboard import presets, successor
from laplacian_keyboard.bases import registry
from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.data.exorl import EpisodeWriter
from laplacian_keyboard.data.stream import Stream
from laplacian_keyboard.envs.domains import ANGLES
from laplacian_keyboard.pretraining import (
    Source,
    SuccessorUpdate,
    find_layout,
    prepare_experience,
    tabulate,
)
from laplacian_keyboard.train import run_chunk

EPISODES, EPISODE = 10_000, 1_000
"""Ten million transitions."""
OBS, ACTION, K = 17, 6, 10
PRESET = "cpu"
CHUNK, CHUNKS_A_TURN = 500, 2
"""Updates between two windows; several windows a turn, so that a turn pays for its reading."""
REPEATS = 5
WINDOW_SHARE = 0.25
"""Memory for the window, as a part of what all of the data take."""
DOMAIN = "cheetah"


def run() -> dict[str, Any]:
    """Seconds to pack and open, memory of training, and updates a second both ways."""
    with tempfile.TemporaryDirectory(prefix="lk-bench-load-") as folder:
        write_dataset(folder)
        seconds = {}
        for name in ("pack", "open"):
            began = time.perf_counter()
            dataset = load_dataset(folder)
            seconds[name] = round(time.perf_counter() - began, 2)
        inputs, everything = prepare_experience(dataset, ANGLES[DOMAIN], True)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(everything)) / 1e9
        memory = WINDOW_SHARE * size
        layout = find_layout(dataset, K, ANGLES[DOMAIN], True, memory)
        assert layout is not None, "a part is smaller than the whole"
        window = Stream(dataset, layout, inputs, ANGLES[DOMAIN])
        rates = median_rates(
            {"in_memory": _training(everything), "streamed": _training(window)}, repeats=REPEATS
        )
        return {
            "benchmark": "load",
            "ratio": "updates a second streamed over those with all data in memory",
            **machine(),
            "transitions": dataset.num_transitions,
            "pack_seconds": seconds["pack"],
            "open_seconds": seconds["open"],
            "data_gb": round(size, 3),
            "memory_gb": {
                "in_memory": trained_in(folder, None),
                "streamed": trained_in(folder, memory),
            },
            "window_gb": round(memory, 3),
            "window_transitions": layout.slots * layout.block,
            "updates_per_second": {name: round(rate, 1) for name, rate in rates.items()},
            "streamed_over_in_memory": round(rates["streamed"] / rates["in_memory"], 3),
        }


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    memory, rates = result["memory_gb"], result["updates_per_second"]
    return [
        f"{result['transitions']:,} transitions: packed in {result['pack_seconds']} s, opened in "
        f"{result['open_seconds']} s, {result['data_gb']} GB as training data",
        f"in memory: {rates['in_memory']:,.1f} updates/s, "
        f"{memory['in_memory']['peak']} GB resident",
        f"streamed:  {rates['streamed']:,.1f} updates/s, {memory['streamed']['peak']} GB resident, "
        f"in a window of {result['window_gb']} GB",
        f"streamed over in memory: {result['streamed_over_in_memory']:.2f}",
    ]


def write_dataset(folder: str) -> None:
    """Noise in the shapes of the cheetah, in the ExORL layout."""
    rng = np.random.default_rng(0)
    rows = EPISODE + 1
    with EpisodeWriter(folder, {"domain": DOMAIN, "explorer": "noise"}) as writer:
        for _ in range(EPISODES):
            writer.add(
                observation=rng.standard_normal((rows, OBS), np.float32),
                action=2 * rng.random((rows, ACTION), np.float32) - 1,
                reward=np.zeros(rows, np.float32),
                discount=np.ones(rows, np.float32),
            )


def _training(source: Source) -> Callable[[], int]:
    """A turn of stage 2 over an untrained basis, which costs what a trained one does."""
    settings = presets.settings(PRESET, K, discrete=False, domain=DOMAIN)
    basis = registry.module_of(settings.basis)
    key = jax.random.key(0)
    encoder = basis.encoder(basis.init(settings.basis, source.spec, key=key))
    source = tabulate(settings.basis, encoder, source)
    learner = successor.module_of(settings.successor)
    update = SuccessorUpdate(settings.basis, settings.successor)
    state = learner.init(settings.successor, source.spec, K, key=key)
    numbers = itertools.count()

    def work() -> int:
        nonlocal state
        for number in itertools.islice(numbers, CHUNKS_A_TURN):
            experience = source.at(number) if isinstance(source, Stream) else source
            step = jnp.int32(number * CHUNK)
            state, _ = jax.block_until_ready(
                run_chunk(update, CHUNK, state, (experience, encoder), step, key)
            )
        return CHUNK * CHUNKS_A_TURN

    return work


def trained_in(folder: str, memory: float | None) -> dict[str, float]:
    """Gigabytes of a process that opens the dataset and trains for a turn: the most that was
    resident, and what of it at the end is its own rather than pages of the dataset's files."""
    code = f"from laplacian_keyboard.bench import load; load.train_and_report({folder!r}, {memory})"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def train_and_report(folder: str, memory: float | None) -> None:
    """What `trained_in` starts."""
    dataset, angles = load_dataset(folder), ANGLES[DOMAIN]
    layout = find_layout(dataset, K, angles, True, memory)
    _, source = prepare_experience(dataset, angles, True, layout=layout)
    _training(source)()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    kilobytes = {name: line.split()[0] for name, line in re.findall(r"(\w+):\s+(.*)", status)}
    found = {"peak": kilobytes["VmHWM"], "own": kilobytes["RssAnon"]}
    print(json.dumps({name: round(int(value) / 1e6, 3) for name, value in found.items()}))
