"""Experiments at their smallest: they run, resume without repeating, and stand beside the paper."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from laplacian_keyboard import host_loop, presets
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.experiments import (
    EXPERIMENTS,
    bases,
    basis_size,
    behaviors,
    common,
    continuous_options,
    goals,
    hierarchy,
    load_experiment,
    quadruped_weights,
    robots,
    sample_efficiency,
    termination,
    zero_shot,
)
from laplacian_keyboard.host_loop import learn_players
from laplacian_keyboard.parallel import spreading
from laplacian_keyboard.pretraining import pretrain, pretrain_seeds
from laplacian_keyboard.types import UserError


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    for module in (robots, host_loop):
        monkeypatch.setattr(module, "EVALUATE_EPISODES", 1)
    for module in (robots, bases):
        monkeypatch.setattr(module, "ZERO_SHOT_EPISODES", 1)
    for module in (robots, continuous_options):
        monkeypatch.setattr(module, "CHECKPOINTS", 2)
    with spreading(lambda f, arguments, **_: [f(*a) for a in arguments]):
        yield


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_loaded(name):
    module = load_experiment(name)
    assert callable(module.run) and module.__doc__


def test_the_experiments_of_a_robot_share_what_they_train(tmp_path, monkeypatch):
    options = {"preset": "smoke", "seeds": 1}
    tasks = ["run", "run_backward", "walk", "walk_backward"]
    rows = zero_shot.run(out=str(tmp_path / "zero-shot"), **options)
    assert [row["task"] for row in rows] == tasks
    assert rows[0]["paper_fb"] == 248.0 and rows[0]["k"] == 2
    trained: list[Any] = []

    def train(*arguments: Any, **more: Any) -> Any:
        found = more["out"] / "done"
        trained.extend([] if found.exists() else [more["out"].name])
        return pretrain(*arguments, **more)

    monkeypatch.setattr(robots, "pretrain", train)
    assert zero_shot.run(out=str(tmp_path / "zero-shot"), **options) == rows and not trained
    sizes = basis_size.run(out=str(tmp_path / "basis-size"), **options)
    assert trained == ["laplacian-k1-0"]
    assert [row["mean"] for row in sizes[4:]] == [row["laplacian"]["mean"] for row in rows]

    learned: list[Any] = []

    def learn(*arguments: Any, **more: Any) -> Any:
        learned.append(more["run"].path.name)
        return learn_players(*arguments, **more)

    monkeypatch.setattr(robots, "learn_players", learn)
    rows = hierarchy.run(out=str(tmp_path / "hierarchy"), **options)
    assert [(row["k"], row["task"]) for row in rows] == [
        (k, task) for k in (1, 2) for task in tasks
    ]
    for row in rows:
        assert 0.0 <= row["inside_span"] <= 1.0
        assert row["improvement"] == pytest.approx(row["player"] - row["zero_shot"], abs=0.11)
    assert hierarchy.run(out=str(tmp_path / "hierarchy"), sizes=(2,), **options) == rows[4:]
    with pytest.raises(UserError, match="--sizes are numbers of keys, at least 1, not 0"):
        hierarchy.run(out=str(tmp_path / "hierarchy"), sizes=(2, 0), **options)
    monkeypatch.setattr(termination, "HORIZONS", (5, 10))
    areas = termination.run(out=str(tmp_path / "termination"), **options)
    assert [row["mean"] for row in areas[:4]] == [row["area"] for row in rows[4:]]
    monkeypatch.setattr(sample_efficiency, "flat_cell", lambda *cell: {"task": cell[3], **flat})
    flat = {"seed": 0, "final": 1.0, "area": 2.0}
    ratios = sample_efficiency.run(out=str(tmp_path / "sample-efficiency"), **options)
    assert [row["player_area"]["mean"] for row in ratios] == [row["area"] for row in rows]
    assert learned == [f"players-laplacian-{name}-0" for name in ("k1-t5", "k2-t5", "k2-t10")]
    assert trained == ["laplacian-k1-0"], "no keyboard was trained twice"
    folder = tmp_path / "keyboards" / "cheetah" / "babble"
    assert (folder / "players-laplacian-k1-t5-0" / "walk" / "player.safetensors").exists()

    kept = folder / "laplacian-k1-0" / robots.RESULT_FILE
    other = json.loads(kept.read_text()) | {"inference": "another rule"}
    for task in other["tasks"].values():
        task["zero_shot"] = -1.0
    kept.write_text(json.dumps(other))
    again = hierarchy.run(out=str(tmp_path / "hierarchy"), **options)
    assert again == rows, "what another rule inferred is evaluated again, at the last checkpoint"

    longer = continuous_options.Variant(behaviors={"emphasis": 1.0}, times=2)
    monkeypatch.setattr(continuous_options, "VARIANTS", {"longer, emphasis 1": longer})
    (row,) = continuous_options.run(out=str(tmp_path / "continuous-options"), **options)
    assert row["tasks"] == tasks and len(row["returns"][-1]) == 4
    preset = presets.settings("smoke", 1, discrete=False)
    assert row["checkpoints"][-1] == 2 * preset.successor_steps


def test_a_smaller_keyboard_has_the_first_keys_of_the_larger(tmp_path):
    data = load_dataset(common.data_for("cheetah", "smoke", tmp_path / "data", explorer="babble"))
    larger = pretrain(data, k=3, preset="smoke")
    smaller = pretrain(data, k=2, preset="smoke", first_of=larger, out=tmp_path / "k2")
    states = data.observation[:50]
    np.testing.assert_allclose(smaller.phi(states), larger.phi(states)[:, :2], rtol=1e-5, atol=1e-6)
    again = pretrain(data, k=2, preset="smoke", first_of=larger, out=tmp_path / "k2")
    np.testing.assert_array_equal(again.phi(states), smaller.phi(states))
    with pytest.raises(UserError, match="fewer than k = 4"):
        pretrain(data, k=4, preset="smoke", first_of=larger)
    with pytest.raises(UserError, match="needs a Laplacian keyboard"):
        pretrain(data, k=2, basis="random", preset="smoke", first_of=larger)
    with pytest.raises(UserError, match="one seed at a time"):
        pretrain_seeds(data, k=2, seeds=[0, 1], preset="smoke", first_of=larger)
    other = dataclasses.replace(data, observation=data.observation + 1.0)
    with pytest.raises(UserError, match="other data"):
        pretrain(other, k=2, preset="smoke", first_of=larger)
    with pytest.raises(UserError, match="holds a run with dataset = "):
        pretrain(other, k=2, preset="smoke", first_of=larger, out=tmp_path / "k2")


def test_only_robots_have_robots_experiments(tmp_path):
    with pytest.raises(UserError, match="four-rooms"):
        zero_shot.run(preset="smoke", domain="four-rooms", out=str(tmp_path / "zero-shot"))
    data = common.data_for("cheetah", "smoke", tmp_path / "data", explorer="random")
    with pytest.raises(UserError, match="is data of cheetah, not of walker"):
        zero_shot.run(preset="smoke", domain="walker", dataset=data, out=str(tmp_path / "walker"))


def test_an_experiment_stopped_half_way_ends_with_the_same_table(tmp_path, monkeypatch):
    data = common.data_for("point-maze", "smoke", tmp_path / "data", explorer="random")
    monkeypatch.setattr(bases, "TASKS", ("goal",))
    monkeypatch.setattr(bases, "BASES", ("random",))
    options = {"preset": "smoke", "seeds": 2, "dataset": data}
    whole = bases.run(out=str(tmp_path / "whole"), **options)
    real, calls = bases.compose, []

    def stop_at_the_second(*arguments: Any, **more: Any) -> Any:
        calls.append(more["out"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bases, "compose", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            bases.run(out=str(tmp_path / "broken"), **options)
    first = tmp_path / "broken" / "random-0" / "goal" / "player.safetensors"
    written = first.stat().st_mtime_ns
    assert bases.run(out=str(tmp_path / "broken"), **options) == whole
    assert first.stat().st_mtime_ns == written, "the finished player was not made again"
    assert [row["basis"] for row in whole] == ["random"]


def test_a_flat_agent_of_an_experiment_gives_its_area(tmp_path):
    cell = sample_efficiency.flat_cell("smoke", str(tmp_path), "cheetah", "walk", 0)
    result = json.loads((tmp_path / "cheetah" / "td3-walk-0" / "result.json").read_text())
    assert cell["area"] == result["area"] and cell["task"] == "walk"


def test_a_ratio_of_equal_areas_is_one_and_its_interval_holds_it():
    found = sample_efficiency.ratio_interval([2.0, 4.0, 6.0], [2.0, 4.0, 6.0])
    low, high = found["ratio_ci95"]
    assert found["ratio"] == 1.0 and low < 1.0 < high
    assert sample_efficiency.ratio_interval([6.0], [3.0]) == {
        "ratio": 2.0,
        "ratio_ci95": [2.0, 2.0],
    }


def test_the_pictures_of_keys_and_weights_are_drawn(tmp_path):
    rows = quadruped_weights.run(preset="smoke", seeds=1, out=str(tmp_path / "weights"), sizes=(2,))
    assert [row["task"] for row in rows] == ["jump", "run", "stand", "walk"]
    assert all(len(row["w"]) == row["k"] == 2 for row in rows)
    shared = {"preset": "smoke", "seeds": 1, "out": str(tmp_path / "keys"), "domain": "quadruped"}
    rows = behaviors.run(**shared)
    assert [row["key"] for row in rows] == ["+e_1", "-e_1", "+e_2", "-e_2"]
    for picture in ("weights/weights-k2.png", "keys/quadruped/behaviors-0.png"):
        assert (tmp_path / picture).read_bytes()[:4] == b"\x89PNG"


def test_goals_of_four_rooms_are_measured_against_the_optimum(tmp_path):
    rows = goals.run(preset="smoke", seeds=1, out=str(tmp_path))
    assert [row["basis"] for row in rows] == ["laplacian", "fb"]
    for row in rows:
        assert 0.0 <= row["of_optimal_worst_goal"]["mean"] <= row["of_optimal"]["mean"] <= 1.0
    assert goals.run(preset="smoke", seeds=1, out=str(tmp_path)) == rows
