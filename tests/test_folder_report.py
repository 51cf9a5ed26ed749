"""`lk report`: tables of experiments and curves of runs on one page."""

import json
from pathlib import Path

import numpy as np
import pytest

from laplacian_keyboard.checkpoint import RunFolder, write_json
from laplacian_keyboard.folder_report import cells_of, find_curves, write_folder_report
from laplacian_keyboard.types import UserError


def a_run(folder: Path, seed: int, height: float, **settings: object) -> None:
    run = RunFolder(folder, {"kind": "td3", "domain": "cheetah", "seed": seed, **settings})
    returns = [[0.0, 0.0], [height, height + 2.0]]
    run.finish({"task": "run", "curve": {"steps": [0, 100], "returns": returns}})


def test_a_mean_is_shown_with_its_interval_and_the_papers_figure_with_the_difference():
    fb = {"mean": 240.0, "ci95": [200.0, 280.0], "each": [200.0, 280.0]}
    header, rows = cells_of([{"task": "run", "fb": fb, "paper_fb": 248.0}])
    assert header == ["task", "fb", "paper fb", "difference"]
    assert rows == [["run", "240 [200, 280]", "248", "-8"]]
    header, rows = cells_of([{"k": 3, "mean": 1.5, "ci95": [1.0, 2.0], "paper": None}])
    assert rows == [["3", "1.5 [1, 2]", "", ""]]


def test_runs_that_differ_only_in_the_seed_become_one_curve(tmp_path):
    a_run(tmp_path / "a", 0, 10.0)
    a_run(tmp_path / "b", 1, 20.0)
    a_run(tmp_path / "c", 0, 90.0, steps=5)
    RunFolder(tmp_path / "unfinished", {"kind": "td3"})
    curves = find_curves(tmp_path)
    assert [curve.returns[-1] for curve in curves] == [11.0, 21.0, 91.0]
    assert len({curve.group for curve in curves}) == 2
    table = {"experiment": "zero-shot", "preset": "cpu", "command": "lk reproduce zero-shot"}
    write_json(tmp_path / "table.json", {**table, "rows": [{"task": "run", "mean": 1.0}]})
    page, markdown = write_folder_report(tmp_path)
    text = markdown.read_text()
    assert "| cheetah run | flat TD3 | 2 | 100 | 16.0 [11.0, 21.0] |" in text
    assert "`lk reproduce zero-shot`" in text and "| run | 1 |" in text
    assert "data:image/png" in page.read_text()


def test_cells_with_a_curve_for_each_task_are_found(tmp_path):
    run = RunFolder(tmp_path / "k3-0", {"kind": "players", "k": 3, "t_term": 5, "seed": 0})
    each = {"player_steps": [0, 10], "player_curve": [1.0, 2.0]}
    run.finish({"domain": "walker", "tasks": {"stand": each, "walk": {"zero_shot": 1.0}}})
    (curve,) = find_curves(tmp_path)
    assert (curve.title, curve.name) == ("walker stand", "player, k = 3, 5 steps a chord")
    np.testing.assert_array_equal(curve.returns, [1.0, 2.0])


def test_a_return_that_was_no_number_is_drawn_around_and_damage_is_named(tmp_path):
    a_run(tmp_path / "a", 0, float("nan"))
    (curve,) = find_curves(tmp_path)
    assert curve.returns[0] == 0.0 and np.isnan(curve.returns[1])
    assert write_folder_report(tmp_path)[0].exists()
    (tmp_path / "a" / "result.json").write_text("[]")
    with pytest.raises(UserError, match=r"result.json is not a description"):
        find_curves(tmp_path)


def test_a_folder_without_runs_says_so(tmp_path):
    with pytest.raises(UserError, match="no finished runs"):
        write_folder_report(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        write_folder_report(tmp_path / "none")
    (tmp_path / "table.json").write_text(json.dumps({})[:1])
    with pytest.raises(UserError, match="not valid JSON"):
        write_folder_report(tmp_path)
