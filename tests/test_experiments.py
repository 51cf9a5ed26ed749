"""Experiments at their smallest: they run, resume without repeating, and stand beside the paper."""

import json
from typing import Any

import numpy as np
import pytest

from laplacian_keyboard.experiments import (
    EXPERIMENTS,
    bases,
    behaviors,
    common,
    goals,
    load_experiment,
    quadruped_weights,
    sample_efficiency,
    zero_shot,
)
from laplacian_keyboard.parallel import spreading
from laplacian_keyboard.types import UserError


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(common, "ZERO_SHOT_EPISODES", 1)
    with spreading(lambda f, arguments, done: [f(*a) for a in arguments]):
        yield


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_loaded(name):
    module = load_experiment(name)
    assert callable(module.run) and module.__doc__


def test_zero_shot_compares_both_methods_with_the_paper_and_repeats_nothing(tmp_path, monkeypatch):
    rows = zero_shot.run(preset="smoke", seeds=1, out=str(tmp_path))
    assert [row["task"] for row in rows] == ["run", "run_backward", "walk", "walk_backward"]
    assert rows[0]["paper_fb"] == 248.0 and rows[0]["k"] == 2
    monkeypatch.setattr(common, "pretrain", _never)
    assert zero_shot.run(preset="smoke", seeds=1, out=str(tmp_path)) == rows
    with pytest.raises(UserError, match="four-rooms"):
        zero_shot.run(preset="smoke", domain="four-rooms", out=str(tmp_path))


def _never(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("a finished part was repeated")


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
    rows = quadruped_weights.run(preset="smoke", seeds=1, out=str(tmp_path / "weights"))
    assert [row["task"] for row in rows] == ["jump", "run", "stand", "walk"]
    assert all(np.isclose(np.linalg.norm(row["w"]), np.sqrt(2), atol=1e-2) for row in rows)
    shared = {"preset": "smoke", "seeds": 1, "out": str(tmp_path / "keys"), "domain": "quadruped"}
    rows = behaviors.run(**shared, dataset=str(tmp_path / "weights" / "data"))
    assert [row["key"] for row in rows] == ["+e_1", "-e_1", "+e_2", "-e_2"]
    for picture in ("weights/weights.png", "keys/quadruped/behaviors-0.png"):
        assert (tmp_path / picture).read_bytes()[:4] == b"\x89PNG"


def test_goals_of_four_rooms_are_measured_against_the_optimum(tmp_path):
    rows = goals.run(preset="smoke", seeds=1, out=str(tmp_path))
    assert [row["basis"] for row in rows] == ["laplacian", "fb"]
    for row in rows:
        assert 0.0 <= row["of_optimal_worst_goal"]["mean"] <= row["of_optimal"]["mean"] <= 1.0
    assert goals.run(preset="smoke", seeds=1, out=str(tmp_path)) == rows
