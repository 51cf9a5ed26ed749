"""The Item-Collector study at its smallest: it runs, resumes, draws, and sums up."""

import json

import pytest

from laplacian_keyboard.experiments import common, item_collector
from laplacian_keyboard.types import UserError


def test_the_study_runs_resumes_and_sums_up(tmp_path, monkeypatch):
    in_turn = lambda f, arguments, done: [f(*a) for a in arguments]  # noqa: E731
    monkeypatch.setattr(common, "in_processes", in_turn)
    monkeypatch.setitem(item_collector.SIZES, "smoke", (2,))
    monkeypatch.setattr(item_collector, "REFERENCE_EPISODES", 50)
    monkeypatch.setattr(item_collector, "CURVE_EPISODES", 8)
    rows = item_collector.run("smoke", seeds=1, out=str(tmp_path))
    found = [(row["method"], row.get("wrong_order_reward")) for row in rows]
    assert found == [
        ("LK-GPE&GPI", -1.0),
        ("LK-USFA", -1.0),
        ("OKB", -1.0),
        ("LK-USFA", 0.0),
        ("OKB", 0.0),
        ("random", None),
        ("greedy oracle", None),
    ]
    assert all(-5.0 <= row["player"] <= 10.0 for row in rows[:5])
    assert rows[-1]["return_-1"] > 9.5 and abs(rows[-2]["return_-1"]) < 1.5
    stored = json.loads((tmp_path / "cells.json").read_text())
    curve = stored["cells"][0]["entries"][0]
    assert len(curve["steps"]) == len(curve["curve"]) > 2 and curve["steps"][0] == 0
    assert (tmp_path / "item-collector.png").read_bytes().startswith(b"\x89PNG")
    assert item_collector.run("smoke", seeds=1, out=str(tmp_path)) == rows


def test_an_unknown_preset_is_named(tmp_path):
    with pytest.raises(UserError, match="huge"):
        item_collector.run("huge", out=str(tmp_path))
