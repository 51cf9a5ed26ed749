"""The commands on continuous control: a shipped keyboard at once, and a chain of one's own."""

from pathlib import Path

import pytest
from test_cli import EVALUATION, lk

from laplacian_keyboard import keyboard


@pytest.mark.parametrize("name", keyboard.shipped())
def test_shipped_keyboards_are_small_and_play_at_once(name):
    folder = Path(keyboard.__file__).parent / "keyboards" / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    loaded = keyboard.Keyboard.load(name)
    assert loaded.config.domain == name and loaded.states is not None
    task = {"cheetah": "walk_backward", "point-maze": "goal"}.get(name, "stand")
    result = lk("zero-shot", name, "--task", task, "--episodes", 1, "--json").result
    assert result.keys() >= EVALUATION and len(result["w"]) == loaded.k
    assert 0 <= result["outside_span"] <= 1


def test_an_unknown_keyboard_names_the_shipped_ones():
    outcome = lk("zero-shot", "no-such-run", "--task", "walk")
    assert outcome.code == 2 and outcome.messages == [
        "lk: no-such-run holds no keyboard.safetensors; give the folder of a finished run, or the "
        f"name of a shipped keyboard: {', '.join(keyboard.shipped())}"
    ]


def test_the_chain_on_a_gymnasium_environment(tmp_path):
    data, run, player = tmp_path / "data", tmp_path / "run", tmp_path / "player"
    domain = "gym:Pendulum-v1"
    collected = lk("collect", domain, "--steps", 800, "--num-envs", 2, "--out", data, "--json")
    assert collected.result["steps"] == 800
    made = lk("pretrain", data, "--k", 2, "--preset", "smoke", "--out", run, "--json").result
    assert len(made["eigenvalues"]) == 2
    shot = lk("zero-shot", run, "--task", "env", "--episodes", 2, "--json").result
    assert shot["return_mean"] < 0, "Pendulum only ever punishes"
    learning = ("--preset", "smoke", "--steps", 200, "--out", player)
    composed = lk("compose", run, "--task", "env", *learning, "--json").result
    assert composed["zero_shot"]["episodes"] == 10 and composed["out"] == str(player)
    result = lk("evaluate", player, "--task", "env", "--episodes", 2, "--json").result
    assert result.keys() >= EVALUATION
    assert (run / "report.html").exists() and (player / "report.html").exists()
    small = lk("export", run, "--out", tmp_path / "small", "--json").result
    assert small["k"] == 2 and small["bytes"] < 400_000


def test_a_video_is_written_and_a_wrong_name_refused_before_the_work(tmp_path):
    video = tmp_path / "walk.gif"
    arguments = ("evaluate", "cheetah", "--task", "walk", "--episodes", 1, "--video")
    assert lk(*arguments, video, "--json").result["video"] == str(video)
    assert video.read_bytes()[:4] == b"GIF8"
    outcome = lk(*arguments, tmp_path / "walk.avi")
    assert outcome.code == 2 and "must end in .gif or .mp4" in outcome.messages[0]


def test_an_experiment_with_an_unknown_preset_says_so(tmp_path):
    outcome = lk("reproduce", "hierarchy", "--preset", "fast", "--out", tmp_path)
    assert outcome.code == 2 and not list(tmp_path.iterdir())
    assert outcome.messages == ["lk: unknown preset 'fast'; known presets: smoke, cpu, paper"]


def test_an_experiment_without_domains_says_so(tmp_path):
    outcome = lk("reproduce", "coverage", "--domain", "walker", "--out", tmp_path)
    assert outcome.code == 2
    assert outcome.messages == ["lk: the experiment coverage has no --domain"]
