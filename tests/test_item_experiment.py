"""The Item-Collector study at its smallest: a cell runs and resumes; rows and figure sum up."""

import json

import jax
import pytest

from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.composing import start_composing
from laplacian_keyboard.experiments import item_collector
from laplacian_keyboard.parallel import spreading
from laplacian_keyboard.types import UserError


def test_a_cell_of_the_laplacian_keyboard_runs_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setitem(item_collector.SIZES, "smoke", (2, 3))
    monkeypatch.setattr(item_collector, "CURVE_EPISODES", 4)
    monkeypatch.setattr(item_collector, "learn_actor", traced)
    result = item_collector.cell("smoke", str(tmp_path), "lk", 3, 0)
    assert [entry["method"] for entry in result["entries"]] == ["LK-USFA", "LK-GPE&GPI"]
    for entry in result["entries"]:
        assert entry["steps"] == [0, 200] and len(entry["curve"]) == 2
        assert -5.0 <= entry["player"] <= 10.0 and 0.0 < entry["outside_span"] <= 1.0
    monkeypatch.setattr(RunFolder, "finish", lambda *_: pytest.fail("run again"))
    assert item_collector.cell("smoke", str(tmp_path), "lk", 3, 0) == result


def traced(update, params, world, *, num_envs, key, run, stage, evaluate, **_):
    """`learn_actor` up to the first step, which is traced and not compiled."""
    state = start_composing(update, world, num_envs, key=key)
    jax.eval_shape(update, state, (world, params), key)
    run.log(stage, 10, evaluate(state.player.actor.params))
    return state.player.actor.params


def entry(method, k, wrong, player):
    return {
        "method": method,
        "k": k,
        "wrong_order_reward": wrong,
        "zero_shot": 1.0,
        "player": player,
        "steps": [0, 100],
        "curve": [0.0, player],
    }


def test_rows_and_figure_sum_up_the_cells(tmp_path, monkeypatch):
    def cell(preset, out, kind, k, seed):
        methods = ("LK-USFA", "LK-GPE&GPI") if kind == "lk" else ("OKB",)
        both = (-1.0, 0.0) if k in (0, 2) else (-1.0,)
        return {"entries": [entry(m, k, wrong, k + seed) for m in methods for wrong in both]}

    monkeypatch.setattr(item_collector, "basis_of", lambda *_: None)
    monkeypatch.setattr(item_collector, "cell", cell)
    monkeypatch.setattr(item_collector, "REFERENCE_EPISODES", 50)
    with spreading(lambda f, arguments, **_: [f(*a) for a in arguments]):
        rows = item_collector.run("smoke", seeds=3, out=str(tmp_path))
    usual = [(r["method"], r["k"]) for r in rows if r.get("wrong_order_reward") == -1.0]
    assert usual == [(m, k) for m in ("LK-GPE&GPI", "LK-USFA") for k in (2, 3)] + [("OKB", 0)]
    assert rows[1]["player"] == 4.0 and rows[1]["player_ci95"] == [3.0, 5.0]
    assert rows[-1]["method"] == "greedy oracle" and rows[-1]["return_-1"] > 9.5
    assert rows[-2]["method"] == "random" and abs(rows[-2]["return_-1"]) < 1.5
    assert len(json.loads((tmp_path / "cells.json").read_text())["cells"]) == 9
    assert (tmp_path / "item-collector.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_preset_is_named(tmp_path):
    with pytest.raises(UserError, match="huge"):
        item_collector.run("huge", out=str(tmp_path))
