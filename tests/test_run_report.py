"""Reports of real runs: a smoke keyboard and a smoke player of the cheetah, whole and in ruins."""

import base64
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from laplacian_keyboard import composing, pretraining, run_figures, run_report
from laplacian_keyboard.data.dataset import load_dataset
from laplacian_keyboard.envs.dmc import DmcVectorEnv
from laplacian_keyboard.gather import gather
from laplacian_keyboard.keyboard import Keyboard
from laplacian_keyboard.run_report import write_report
from laplacian_keyboard.types import UserError


@pytest.fixture(scope="module", autouse=True)
def short():
    """Short films, and a rough estimate of the eigenvalues."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "FILM_SECONDS", 0.2)
        patch.setattr(run_report, "FILM_STEPS", 20)
        patch.setattr(pretraining, "MOMENT_BATCHES", 2)
        yield


@pytest.fixture(scope="module")
def keyboard_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    gather(
        lambda count: DmcVectorEnv("cheetah", "run", count, episode_length=100),
        folder / "data",
        domain="cheetah",
        explorer="random",
        steps=400,
        preset="smoke",
        num_envs=4,
        quiet=True,
    )
    pretraining.pretrain(
        load_dataset(folder / "data"), k=2, preset="smoke", out=folder / "keyboard"
    )
    return folder / "keyboard"


@pytest.fixture(scope="module")
def player_run(keyboard_run) -> Path:
    folder = keyboard_run.parent / "player"
    composing.compose(
        Keyboard.load(keyboard_run),
        DmcVectorEnv("cheetah", "walk", 1),
        steps=200,
        preset="smoke",
        out=folder,
        evaluate_in=DmcVectorEnv("cheetah", "walk", 10, episode_length=20),
    )
    return folder


def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns(".lock")))


def edit_json(path: Path, **changes) -> None:
    values = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({name: value for name, value in values.items() if value is not None})
    )


def pictures(page: str) -> list[Image.Image]:
    found = [base64.b64decode(data) for data in re.findall(r"base64,([^\"]+)\"", page)]
    return [Image.open(io.BytesIO(png)) for png in found]


def test_the_report_of_a_keyboard_is_whole_and_self_contained(keyboard_run):
    path = write_report(keyboard_run)
    assert path == keyboard_run / "report.html"
    page = path.read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "Eigenvalues",
        "What the features are",
        "What the keys do",
        "Zero-shot weights by task",
        "Training",
    ]
    assert "Left out" not in page
    assert "A keyboard for cheetah, k = 2" in page
    assert "+e_1" in page and "-e_2" in page and "angular momentum" in page
    assert len(pictures(page)) == 5
    assert "http" not in page and "<script" not in page
    assert all(source.startswith("data:") for source in re.findall(r'src="(.{5})', page))


def test_the_report_of_a_player_is_whole(player_run):
    page = write_report(player_run).read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Learning", "Chords", "What it does", "Training"]
    assert "Left out" not in page
    assert "return, untrained" in page and "area under the curve" in page
    assert "zero-shot" not in page and "over 10 episodes" in page
    assert len(pictures(page)) == 4


def test_the_report_of_a_player_compares_it_with_zero_shot(player_run, tmp_path):
    run = copied(player_run, tmp_path)
    plain = pictures(write_report(run).read_text())
    edit_json(run / "result.json", task="walk", zero_shot={"return_mean": 123.4})
    page = write_report(run).read_text()
    assert "A player for cheetah, walk" in page
    assert "123.4" in page and "the task&#x27;s single chord" in page
    compared = pictures(page)
    assert compared[2].height > 1.5 * plain[2].height  # two rows of poses instead of one


def test_evaluations_are_also_read_from_the_log(player_run, tmp_path):
    run = copied(player_run, tmp_path)
    edit_json(run / "result.json", curve=None, area=None)
    page = write_report(run).read_text()
    assert "Left out" not in page and "over 10 episodes" in page
    lines = [json.dumps({"stage": "player", "step": i, "player/evaluation": i / 9}) for i in (5, 9)]
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"stage": "pla']))  # torn by a crash
    page = write_report(run).read_text()
    assert "as it learned." in page and "untrained" not in page
    assert "Left out: the folder has no metrics.jsonl with what was logged." in page


def test_several_seeds_share_a_report(keyboard_run, tmp_path):
    run = copied(keyboard_run, tmp_path)
    for seed in (2, 10):
        shutil.copytree(keyboard_run, run / f"seed-{seed}")
    for file in ("keyboard.safetensors", "states.safetensors"):
        (run / file).unlink()
    edit_json(run / "result.json", eigenvalues=[[0.1, 0.2], [0.1, 0.3]])
    settings = json.loads((run / "config.json").read_text())["settings"]
    edit_json(run / "config.json", settings=settings | {"seeds": [2, 10]})
    page = write_report(run).read_text()
    assert "all 2 seeds, the rest is seed 2" in page
    assert "Left out" not in page


def test_a_keyboard_alone_still_has_a_report(keyboard_run, tmp_path):
    keyboard = Keyboard.load(keyboard_run)
    nameless = dataclasses.replace(keyboard.config, domain="")
    Keyboard(nameless, keyboard.params).save(tmp_path)
    page = write_report(tmp_path).read_text()
    reasons = re.findall(r"<p>Left out: (.*?)</p>", page)
    assert len(reasons) == 5
    assert "the keyboard keeps no states of its data." in reasons
    assert "the keyboard does not say which domain it was trained in." in reasons


def test_what_cannot_be_drawn_is_left_out(keyboard_run, tmp_path):
    keyboard = Keyboard.load(keyboard_run)
    assert keyboard.states is not None
    blind = dataclasses.replace(keyboard.states, physics=None)
    Keyboard(keyboard.config, keyboard.params, blind).save(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "no physical quantities of cheetah are known" in page
    assert "the states say nothing about any task" in page
    assert len(pictures(page)) == 1  # the behaviors
    elsewhere = dataclasses.replace(keyboard.config, domain="nonsense")
    Keyboard(elsewhere, keyboard.params, blind).save(tmp_path)
    assert "unknown domain &#x27;nonsense&#x27;" in write_report(tmp_path).read_text()


def test_a_mistake_in_a_part_does_not_cost_the_report(keyboard_run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_report, "film_strip", lambda domain, films: 1 / 0)
    page = write_report(copied(keyboard_run, tmp_path)).read_text()
    assert "drawing it failed: ZeroDivisionError" in page
    assert len(pictures(page)) == 4


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no keyboard"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_correlations_are_pearsons():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 3)), rng.standard_normal((50, 2))
    expected = np.corrcoef(x.T, y.T)[:3, 3:]
    np.testing.assert_allclose(run_figures.correlations(x, y), expected, rtol=1e-12)
    lines = np.stack([2 * x[:, 0] + 7, -x[:, 0], np.full(50, 3.0)], axis=1)
    np.testing.assert_allclose(run_figures.correlations(x[:, :1], lines), [[1, -1, np.nan]])
