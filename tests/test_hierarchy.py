"""The experiment behind the main table, at its smallest."""

import json

import pytest

from laplacian_keyboard import host_loop
from laplacian_keyboard.experiments import hierarchy
from laplacian_keyboard.parallel import spreading
from laplacian_keyboard.types import UserError


def test_hierarchy_runs_resumes_and_sums_up(tmp_path, monkeypatch):
    monkeypatch.setattr(hierarchy, "ZERO_SHOT_EPISODES", 1)
    monkeypatch.setattr(hierarchy, "CHECKPOINTS", 2)
    for module in (hierarchy, host_loop):
        monkeypatch.setattr(module, "EVALUATE_EPISODES", 1)
    options = {"preset": "smoke", "seeds": 1, "out": str(tmp_path), "sizes": (2,)}
    with spreading(lambda f, arguments, done: [f(*a) for a in arguments]):
        rows = hierarchy.run(**options)
        assert hierarchy.run(**options) == rows
    assert [(row["k"], row["task"]) for row in rows][:2] == [(2, "run"), (2, "run_backward")]
    assert len(rows) == 4
    for row in rows:
        assert 0.0 <= row["inside_span"] <= 1.0
        assert row["improvement"] == pytest.approx(row["player"] - row["zero_shot"], abs=0.11)
    cells = json.loads((tmp_path / "cheetah" / "cells.json").read_text())
    assert cells[0]["tasks"]["walk"]["player_steps"] == [0, 2_000]
    assert (tmp_path / "cheetah" / "k2-0" / "walk" / "player.safetensors").exists()


def test_hierarchy_refuses_other_domains(tmp_path):
    with pytest.raises(UserError, match="four-rooms"):
        hierarchy.run(domain="four-rooms", out=str(tmp_path))
