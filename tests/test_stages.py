"""The stages on real data: keyboards, seeds, interruption, players."""

import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import laplacian_keyboard as lk
from laplacian_keyboard import cli, composing, pretraining, run_report, seeds, train
from laplacian_keyboard.data.collect import collect_random_walks
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.envs.domains import jax_world
from laplacian_keyboard.envs.grid import GridMap, GridWorld
from laplacian_keyboard.envs.gym import JaxVectorEnv
from laplacian_keyboard.keyboard import Chord, Keyboard, Player
from laplacian_keyboard.parallel import own_cores, spreading
from laplacian_keyboard.types import UserError

# The sizes of the demo and of test_cli.py, so that one process compiles the updates once.
K, STEPS, LENGTH = 10, 20_000, 1_000
WORLD = jax_world("four-rooms", None, time_limit=LENGTH + 1)
OBS = np.asarray(WORLD.observations)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    walks = collect_random_walks(WORLD, steps=STEPS, length=LENGTH, seed=0)
    return dataclasses.replace(walks, description={"domain": "four-rooms"})


@pytest.fixture(scope="module")
def keyboard(dataset) -> Keyboard:
    return pretraining.pretrain(dataset, k=K, preset="smoke", seed=0)


@pytest.fixture(scope="module")
def env() -> JaxVectorEnv:
    return JaxVectorEnv(jax_world("four-rooms", "goal"), 4)


@pytest.fixture(scope="module")
def player(keyboard, env) -> Player:
    return learn_player_quickly(keyboard, env)


def learn_player_quickly(keyboard: Keyboard, env: JaxVectorEnv, **options: Any) -> Player:
    """A few decisions, in chunks small enough to be interrupted between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        learn = functools.partial(composing.learn_player, chunk=8)
        patch.setattr(composing, "learn_player", learn)
        return composing.compose(keyboard, env, steps=480, preset="smoke", seed=0, **options)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_bits(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def test_a_keyboard_has_features_behaviors_and_actions(keyboard):
    w = np.ones(K)
    assert keyboard.k == K
    assert keyboard.phi(OBS).shape == (104, K)
    assert keyboard.psi(OBS, w).shape == (104, 4, K)
    actions = keyboard.act(OBS, w)
    assert actions.shape == (104,)
    np.testing.assert_array_equal(actions, np.argmax(keyboard.psi(OBS, w) @ w, axis=-1))
    assert keyboard.act(OBS[0], w) == actions[0]
    np.testing.assert_array_equal(keyboard.act(OBS, 10 * w), actions)


def test_features_are_orthonormal_on_the_data(keyboard, dataset):
    phi = np.asarray(keyboard.phi(dataset.observation))
    np.testing.assert_allclose(phi.T @ phi / len(phi), np.eye(K), atol=0.1)


def test_the_same_call_gives_the_same_keyboard(keyboard, dataset):
    again = pretraining.pretrain(dataset, k=K, preset="smoke", seed=0)
    assert same_bits(again.params, keyboard.params)


def test_a_loaded_keyboard_acts_like_the_saved_one(keyboard, tmp_path):
    keyboard.save(tmp_path / "new" / "folder")
    for path in (tmp_path / "new" / "folder", tmp_path / "new" / "folder" / "keyboard.safetensors"):
        loaded = lk.load(path)
        assert isinstance(loaded, Keyboard)
        assert loaded.config == keyboard.config
        assert same_bits(loaded.phi(OBS), keyboard.phi(OBS))
        w = np.linspace(-1.0, 1.0, K)
        np.testing.assert_array_equal(loaded.act(OBS, w), keyboard.act(OBS, w))


def test_a_finished_run_loads_and_other_settings_are_refused(dataset, keyboard, tmp_path):
    run = pretraining.pretrain(dataset, k=K, preset="smoke", seed=0, out=tmp_path / "run")
    assert same_bits(run.params, keyboard.params)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        ".lock",
        "basis.safetensors",
        "config.json",
        "done",
        "keyboard.safetensors",
        "metrics.jsonl",
        "result.json",
        "states.safetensors",
    }
    written = (tmp_path / "run" / "keyboard.safetensors").stat().st_mtime_ns
    again = pretraining.pretrain(dataset, k=K, preset="smoke", seed=0, out=tmp_path / "run")
    assert same_bits(again.params, keyboard.params)
    assert (tmp_path / "run" / "keyboard.safetensors").stat().st_mtime_ns == written
    (tmp_path / "run" / "keyboard.safetensors").unlink()  # as its error says if it is damaged
    again = pretraining.pretrain(dataset, k=K, preset="smoke", seed=0, out=tmp_path / "run")
    assert same_bits(again.params, keyboard.params)
    assert (tmp_path / "run" / "done").exists()
    with pytest.raises(UserError, match=f"k = {K}, not {K + 1}"):
        pretraining.pretrain(dataset, k=K + 1, preset="smoke", seed=0, out=tmp_path / "run")


def test_seeds_trained_together_are_close_to_seeds_trained_alone(dataset, keyboard, tmp_path):
    both = pretraining.pretrain_seeds(dataset, k=K, preset="smoke", seeds=[0, 1], out=tmp_path)
    assert len(both) == 2
    for seed, together in enumerate(both):
        own = tmp_path / f"seed-{seed}"
        assert same_bits(lk.load(own).params, together.params)
        assert json.loads((own / "config.json").read_text())["settings"]["seeds"] == [seed]
        assert np.shape(json.loads((own / "result.json").read_text())["eigenvalues"]) == (K,)
    assert not np.allclose(both[0].phi(OBS), both[1].phi(OBS), atol=0.1)
    found, wanted = np.asarray(both[0].phi(OBS)), np.asarray(keyboard.phi(OBS))
    signs = np.sign(np.sum(found * wanted, axis=0))
    np.testing.assert_allclose(found * signs, wanted, atol=0.02)
    assert all(np.shape(line["laplacian/loss"]) == (2,) for line in metrics(tmp_path)[:1])


def test_seeds_of_large_networks_are_trained_apart(dataset, keyboard, tmp_path, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "run"
    episodes = zip(
        dataset.observation.reshape(-1, LENGTH + 1, OBS.shape[1]),
        dataset.action.reshape(-1, LENGTH + 1)[:, 1:],
        strict=True,
    )
    lk.save_dataset(data, episodes, num_actions=4, domain="four-rooms")
    assert not seeds.learn_faster_apart(data, K, "laplacian", "smoke")
    assert seeds.learn_faster_apart(data, K, "laplacian", "cpu") == (len(own_cores()) > 1)
    monkeypatch.setattr(seeds, "learn_faster_apart", lambda *_: True)
    here = lambda function, cells, **_: [function(*cell) for cell in cells]  # noqa: E731
    options: Any = {"k": K, "seeds": [0, 1], "preset": "smoke", "out": out}
    with spreading(here):
        seeds.pretrain_all(data, **options)
    assert same_bits(lk.load(out / "seed-0").params, keyboard.params)
    assert np.shape(json.loads((out / "result.json").read_text())["eigenvalues"]) == (2, K)
    assert "Eigenvalues" in run_report.write_report(out).read_text()

    before = (out / "seed-1" / "keyboard.safetensors").read_bytes()
    shutil.rmtree(out / "seed-1")
    (out / "done").unlink()
    monkeypatch.setattr(seeds, "learn_faster_apart", lambda *_: False)
    with spreading(here):
        seeds.pretrain_all(data, **options)
    assert (out / "seed-1" / "keyboard.safetensors").read_bytes() == before
    with pytest.raises(UserError, match="seeds = "):
        seeds.pretrain_all(data, **{**options, "seeds": [0, 1, 2]})


def test_k_beyond_the_number_of_states_is_refused_before_anything_is_written(tmp_path):
    small = GridWorld.from_map(GridMap.parse("....."), goals=[], time_limit=101)
    dataset = collect_random_walks(small, steps=200, length=100, seed=0)
    with pytest.raises(UserError, match=r"5 different observations.* at most 4"):
        pretraining.pretrain(dataset, k=5, preset="smoke", out=tmp_path / "run")
    with pytest.raises(UserError, match="at least 1"):
        pretraining.pretrain(dataset, k=0, preset="smoke", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_inference_finds_the_weights_of_a_reward_in_the_span(keyboard):
    w = np.linspace(-2.0, 1.0, K)
    rewards = np.asarray(keyboard.phi(OBS)) @ w + 3.0
    inference = keyboard.inference(OBS, rewards)
    np.testing.assert_allclose(inference.raw, w, atol=1e-3)
    np.testing.assert_allclose(inference.w, w * np.sqrt(K) / np.linalg.norm(w), atol=1e-3)
    assert inference.residual < 1e-5
    np.testing.assert_array_equal(keyboard.infer(OBS, rewards), inference.w)


def test_inference_explains_what_is_wrong_with_its_labels(keyboard):
    with pytest.raises(UserError, match="all rewards are equal"):
        keyboard.infer(OBS, np.ones(104))
    with pytest.raises(UserError, match="not a finite number"):
        keyboard.infer(OBS, np.full(104, np.nan))
    with pytest.raises(UserError, match="observation is not a finite number"):
        keyboard.infer(np.full_like(OBS, np.nan), np.arange(104.0))
    with pytest.raises(UserError, match="unknown method 'magic'; known methods: mean"):
        keyboard.infer(OBS, np.arange(104.0), "magic")
    with pytest.raises(ValueError, match="103 rewards do not fit"):
        keyboard.infer(OBS, np.arange(103.0))
    with pytest.raises(ValueError, match="26 entries"):
        keyboard.infer(OBS[:, :20], np.arange(104.0))
    with pytest.raises(ValueError, match=f"w has {K} entries"):
        keyboard.act(OBS, np.ones(K + 1))


def test_a_chord_is_an_agent(keyboard):
    w = np.eye(K)[0]
    np.testing.assert_array_equal(Chord(keyboard, w).act(OBS), keyboard.act(OBS, w))


def test_a_player_keeps_its_chord_for_t_term_steps(player):
    t_term = player.config.t_term
    player.reset()
    chosen = []
    for step in range(2 * t_term):
        action = player.act(OBS[step])
        assert action == player.keyboard.act(OBS[step], player.w)
        chosen.append(np.asarray(player.w))
    first, second = (np.asarray(player.choose(OBS[step])) for step in (0, t_term))
    assert not np.allclose(first, second)
    np.testing.assert_allclose(chosen[:t_term], [first] * t_term, rtol=1e-5)
    np.testing.assert_allclose(chosen[t_term:], [second] * t_term, rtol=1e-5)


def test_reset_and_first_make_a_player_choose_again(player):
    player.reset()
    player.act(OBS[0])
    player.act(OBS[50])
    np.testing.assert_allclose(player.w, player.choose(OBS[0]), rtol=1e-5)
    player.reset()
    player.act(OBS[50])
    np.testing.assert_allclose(player.w, player.choose(OBS[50]), rtol=1e-5)

    player.act(OBS[[0, 1]])
    player.act(OBS[[50, 51]], first=np.array([False, True]))
    expected = player.choose(OBS[[0, 51]])
    np.testing.assert_allclose(player.w, expected, rtol=1e-5)
    for step in range(player.config.t_term - 2):
        player.act(OBS[[60 + step, 70 + step]])
        np.testing.assert_allclose(player.w, expected, rtol=1e-5)
    player.act(OBS[[80, 90]])
    np.testing.assert_allclose(player.w[0], player.choose(OBS[80]), rtol=1e-5)
    np.testing.assert_allclose(player.w[1], expected[1], rtol=1e-5)


def test_a_loaded_player_acts_like_the_saved_one(player, tmp_path):
    player.save(tmp_path)
    loaded = lk.load(tmp_path)
    assert isinstance(loaded, Player)
    assert loaded.config == player.config
    assert same_bits(loaded.choose(OBS), player.choose(OBS))
    player.reset()
    for _ in range(7):
        np.testing.assert_array_equal(loaded.act(OBS), player.act(OBS))


def test_a_resumed_player_ends_like_an_uninterrupted_one(keyboard, env, player, tmp_path):
    calls = iter(range(1))

    def evaluate(player: Player) -> dict[str, float]:
        if next(calls, None) is None:
            raise InterruptedError
        return {"player/score": 1.0}

    with pytest.raises(InterruptedError):
        learn_player_quickly(keyboard, env, out=tmp_path, evaluate=evaluate)
    assert metrics(tmp_path)[-1]["step"] == 8
    resumed = learn_player_quickly(keyboard, env, out=tmp_path)
    assert same_bits(resumed.actor, player.actor)
    assert [line["step"] for line in metrics(tmp_path)] == [8, 16, 24]
    assert same_bits(learn_player_quickly(keyboard, env, out=tmp_path).actor, player.actor)


def test_a_player_needs_a_world_like_the_keyboards(keyboard):
    with pytest.raises(UserError, match="the keyboard was trained for"):
        composing.compose(keyboard, JaxVectorEnv(GridWorld.from_map(GridMap.parse("..G")), 1))


DRIVER = """
import functools, sys, time
from laplacian_keyboard import cli, composing, pretraining, run_report, seeds, train
from laplacian_keyboard.checkpoint import RunFolder

pause_in, *arguments = sys.argv[1:]
train.SECONDS_BETWEEN_CHECKPOINTS = 0.0
pretraining.MOMENT_BATCHES = 2
pretraining.fit = functools.partial(train.fit, chunk=5)
log = RunFolder.log

def log_and_pause(run, stage, step, metrics):
    log(run, stage, step, metrics)
    if stage == pause_in and step == 25:
        print("ready", flush=True)
    if stage == pause_in and step == 50:
        time.sleep(600)

RunFolder.log = log_and_pause
cli.main(arguments)
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A dataset on disk; `drive` keeps compiled code there too, so only one process compiles."""
    folder = tmp_path_factory.mktemp("killed")
    cli.main(["collect", "four-rooms", "--steps", "4000", "--out", str(folder / "data")])
    return folder


def drive(folder: Path, out: str, *, pause_in: str = "nothing") -> subprocess.Popen[str]:
    """`lk pretrain` in small chunks in a process that, once in the middle of a stage, says so and
    never gets to the end of it."""
    arguments = ["pretrain", "data", "--k", str(K), "--preset", "smoke", "--out", out]
    little_compilation = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, pause_in, *arguments],
        cwd=folder,
        env=os.environ | little_compilation,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_process_killed_in_both_stages_ends_with_the_same_bytes(workplace):
    with drive(workplace, "whole") as process:
        process.communicate()
    assert process.returncode == 0

    killed = workplace / "killed"
    for stage in ("basis", "behaviors"):
        with drive(workplace, "killed", pause_in=stage) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert not (killed / "done").exists()
        assert metrics(killed)[-1]["stage"] == stage
        assert 25 <= metrics(killed)[-1]["step"] <= 50

    with drive(workplace, "killed") as process:
        process.communicate()
    assert process.returncode == 0
    for name in ("keyboard.safetensors", "metrics.jsonl", "result.json"):
        assert (killed / name).read_bytes() == (workplace / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("basis", ["lap", "fb", "hilp", "random"])
def test_any_basis_makes_a_keyboard_that_loads_and_plays(dataset, basis, tmp_path):
    made = pretraining.pretrain(dataset, k=3, basis=basis, preset="smoke", out=tmp_path)
    loaded = lk.load(tmp_path)
    assert isinstance(loaded, Keyboard) and type(loaded.config.basis) is type(made.config.basis)
    assert same_bits(loaded.params, made.params)
    assert loaded.config.inference_method == ("mean" if basis == "fb" else "least-squares")
    rewards = np.random.default_rng(0).random(len(OBS))
    assert loaded.act(OBS, loaded.infer(OBS, rewards)).shape == (len(OBS),)


def test_an_unknown_basis_names_the_known_ones(dataset):
    with pytest.raises(UserError, match="known bases: laplacian, lap, fb, hilp, random"):
        pretraining.pretrain(dataset, k=3, basis="fourier", preset="smoke")
