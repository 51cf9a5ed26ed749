"""The commands: help, results, chains, and one line for every mistake."""

import contextlib
import inspect
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import laplacian_keyboard
from laplacian_keyboard import cli

K = 10
EVALUATION = {"task", "return_mean", "return_ci95", "episodes", "seconds"}
PROGRESS = re.compile(r"[\w -]+: [\d,]+/[\d,]+")
LK = Path(sys.executable).with_name("lk")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The last line of stdout, as strict JSON."""
        assert self.code == 0, self.err
        return json.loads(self.out.splitlines()[-1], parse_constant=pytest.fail)

    @property
    def messages(self) -> list[str]:
        """Lines on stderr that are not progress."""
        return [line for line in self.err.splitlines() if not PROGRESS.match(line)]


def lk(*arguments: Any) -> Outcome:
    """`lk` in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = int(exit.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Place(NamedTuple):
    """A folder in which every command has run once, and what each printed."""

    path: Path
    collect: Outcome
    info: Outcome
    pretrain: Outcome
    zero_shot: Outcome
    compose: Outcome
    evaluate: Outcome


PRETRAIN = ("--k", K, "--preset", "smoke", "--json")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    path = tmp_path_factory.mktemp("lk")
    data, run, player = path / "data", path / "run", path / "player"
    return Place(
        path,
        lk("collect", "four-rooms", "--steps", 20_000, "--out", data, "--json"),
        lk("data", "info", data, "--json"),
        lk("pretrain", data, "--out", run, *PRETRAIN),
        lk("zero-shot", run, "--task", "goal", "--episodes", 8, "--json"),
        lk(
            *("compose", run, "--task", "goal", "--steps", 160, "--preset", "smoke"),
            *("--out", player, "--json"),
        ),
        lk("evaluate", player, "--task", "goal:1,1", "--episodes", 8, "--json"),
    )


@pytest.fixture
def copied(place, tmp_path) -> Path:
    """The same folder, for a test to damage."""
    shutil.copytree(place.path, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_explains_every_option_with_its_default(command):
    outcome = lk(*re.split("[: ]", command), "--help")
    assert outcome.code == 0
    text = " ".join(outcome.out.replace("│", " ").split())
    parameters = inspect.signature(cli.COMMANDS[command]).parameters
    assert text.count("(default: ") + text.count("(required)") == len(parameters)


def test_help_gives_units():
    assert "Environment steps" in lk("collect", "--help").out
    assert "Environment steps" in lk("compose", "--help").out
    for command in ("zero-shot", "evaluate"):
        assert "Episodes to evaluate" in lk(command, "--help").out


def test_help_of_lk_names_every_command():
    outcome = lk("--help")
    assert outcome.code == 0
    for command in cli.COMMANDS:
        assert command in outcome.out


def test_collect_counts_what_it_wrote(place):
    assert place.collect.result["episodes"] == 20
    assert place.collect.result["steps"] == 20_000


def test_data_info_describes_and_finds_no_problems(place):
    info = place.info.result
    assert {"episodes", "steps", "obs_dim", "action_dim", "problems"} <= info.keys()
    assert (info["episodes"], info["steps"], info["obs_dim"]) == (20, 20_000, 26)
    assert (info["action_dim"], info["num_actions"]) == (0, 4)
    assert isinstance(info["problems"], list)


def test_pretrain_reports_its_basis(place):
    result = place.pretrain.result
    assert result["k"] == K
    assert len(result["eigenvalues"]) == K
    assert result["orthonormality_error"] < 0.1
    assert (place.path / "run" / "keyboard.safetensors").exists()


@pytest.mark.parametrize("command", ["zero_shot", "compose", "evaluate"])
def test_evaluations_report_return_interval_and_episodes(place, command):
    result = getattr(place, command).result
    assert result.keys() >= EVALUATION
    low, high = result["return_ci95"]
    assert low <= result["return_mean"] <= high
    assert result["episodes"] == (100 if command == "compose" else 8)
    assert result["task"] == ("goal:1,1" if command == "evaluate" else "goal")


def test_evaluating_a_keyboard_is_zero_shot(place, tmp_path):
    asked = ["--task", "goal", "--episodes", "8", "--json", "--out", tmp_path / "kept"]
    evaluated = lk("evaluate", f"{place.path}/run", *asked)
    assert evaluated.result["return_mean"] == place.zero_shot.result["return_mean"]
    assert json.loads((tmp_path / "kept" / "evaluation.json").read_text()) == evaluated.result


def test_progress_goes_to_stderr_and_stdout_has_the_result_alone(place):
    for outcome in place[1:]:
        assert len(outcome.out.splitlines()) == 1
        assert not outcome.messages
    assert PROGRESS.match(place.pretrain.err)


def test_without_json_results_are_words(place):
    outcome = lk("data", "info", place.path / "data")
    assert "episodes" in outcome.out
    outcome = lk("zero-shot", place.path / "run", "--task", "goal", "--episodes", 8)
    assert outcome.out.startswith("goal: return ")


def test_a_finished_command_returns_its_result_again(place, copied):
    before = contents(copied)
    again = lk("pretrain", copied / "data", "--out", copied / "run", *PRETRAIN).result
    first = place.pretrain.result
    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert contents(copied) == before


def test_demo_makes_a_result_and_a_report_that_needs_no_network(tmp_path):
    command = ("demo", "--preset", "smoke", "--k", K, "--out", tmp_path / "demo", "--json")
    outcome = lk(*command)
    result = outcome.result
    assert not outcome.messages
    assert result["bound_violations"] == 0
    wanted = {"basis_cosine", "zero_shot_success", "player_success", "player_path_ratio"}
    assert wanted | {"best_path_ratio", "seconds"} <= result.keys()
    for name in ("basis_cosine", "zero_shot_success", "player_success"):
        assert 0.0 <= result[name] <= 1.0
    assert result == json.loads((tmp_path / "demo" / "result.json").read_text())

    page = (tmp_path / "demo" / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "http://" not in page and "https://" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)

    before = contents(tmp_path)
    assert lk(*command).result == result
    assert contents(tmp_path) == before


BAD_INPUT = {
    "unknown domain": ("collect mars --out {p}/new", "unknown domain 'mars'"),
    "map without free cells": ("collect grid:{p}/full.txt --out {p}/new", "no free cells"),
    "map with other characters": ("demo --domain grid:{p}/odd.txt --out {p}/new", "line 2"),
    "map that is missing": ("demo --domain grid:{p}/none.txt --out {p}/new", "none.txt"),
    "goal in a wall": ("demo --task goal:0,0 --out {p}/new", "row 0, column 0"),
    "map without a goal": ("demo --domain grid:{p}/small.txt --out {p}/new", "marks no goal"),
    "k above the demo's states": ("demo --k 104 --out {p}/new", "104 states"),
    "k of zero": ("pretrain {p}/data --k 0 --out {p}/new", "at least 1"),
    "k above the data's states": ("pretrain {p}/data --k 104 --out {p}/new", "104 different"),
    "k above the basis's width": (
        "pretrain {p}/data --k 40 --preset smoke --out {p}/new",
        "32 wide",
    ),
    "run of another k": ("pretrain {p}/data --k 9 --preset smoke --out {p}/run", "k = 10, not 9"),
    "run of another seed": (
        "pretrain {p}/data --k 10 --seed 1 --preset smoke --out {p}/run",
        "seeds = [0], not [1]",
    ),
    "run of another kind": (
        "compose {p}/run --task goal --preset smoke --out {p}/run",
        "holds a run with",
    ),
    "folder that is not a run": (
        "pretrain {p}/data --k 10 --preset smoke --out {p}/data",
        "not a run folder",
    ),
    "unknown preset": ("pretrain {p}/data --preset huge --out {p}/new", "unknown preset 'huge'"),
    "unknown preset of a demo": ("demo --preset huge --out {p}/new", "unknown preset 'huge'"),
    "unknown explorer": ("collect four-rooms --explorer cat --out {p}/new", "'cat'"),
    "unknown task": ("zero-shot {p}/run --task fly", "unknown task 'fly'"),
    "unknown task of a player": ("compose {p}/run --task fly --out {p}/new", "unknown task 'fly'"),
    "unknown method": ("zero-shot {p}/run --task goal --method magic", "unknown method 'magic'"),
    "not a dataset": ("data info {p}/run", "no episodes"),
    "not a dataset to learn from": ("pretrain {p}/run --out {p}/new", "no episodes"),
    "dataset that is missing": ("data info {p}/none", "no such folder"),
    "run that is missing": ("zero-shot {p}/none --task goal", "holds no keyboard.safetensors"),
    "data of another domain": ("pretrain {p}/liar --preset smoke --out {p}/new", "holds Spec"),
    "data half written": ("pretrain {p}/half --preset smoke --out {p}/new", "is incomplete"),
    "dataset of another seed": ("collect four-rooms --seed 9 --steps 9 --out {p}/data", "seed"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(place, name):
    command, said = BAD_INPUT[name]
    (place.path / "full.txt").write_text("###\n###\n")
    (place.path / "odd.txt").write_text("...\n.?.\n")
    (place.path / "small.txt").write_text(".....\n.....\n.....\n")
    for folder, wrong in (("liar", {"domain": "cheetah"}), ("half", {"complete": False})):
        shutil.copytree(place.path / "data", place.path / folder, dirs_exist_ok=True)
        description = json.loads((place.path / folder / "dataset.json").read_text())
        (place.path / folder / "dataset.json").write_text(json.dumps(description | wrong))
    before = contents(place.path)
    outcome = lk(*command.format(p=place.path).split())
    assert outcome.code == 2
    assert len(outcome.messages) == 1, outcome.err
    assert outcome.messages[0].startswith("lk: ")
    assert said in outcome.messages[0]
    assert outcome.out == ""
    assert contents(place.path) == before
    assert not (place.path / "new").exists()


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("run/state.safetensors", "pretrain {p}/data --k 10 --preset smoke --out {p}/run"),
        ("run/basis.safetensors", "pretrain {p}/data --k 10 --preset smoke --out {p}/run"),
        ("run/config.json", "pretrain {p}/data --k 10 --preset smoke --out {p}/run"),
        ("run/keyboard.safetensors", "zero-shot {p}/run --task goal"),
        ("run/keyboard.safetensors", "compose {p}/run --task goal --out {p}/new"),
        ("player/player.safetensors", "evaluate {p}/player --task goal"),
    ],
)
def test_a_truncated_file_is_named_and_left_alone(copied, file, command):
    damaged = copied / file
    if damaged.name in ("state.safetensors", "basis.safetensors"):
        # As after a kill in the stage that the file belongs to.
        whole = (copied / "run" / "basis.safetensors").read_bytes()
        for name in ("done", "result.json", "keyboard.safetensors", "basis.safetensors"):
            (copied / "run" / name).unlink()
        damaged.write_bytes(whole)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    before = contents(copied)
    outcome = lk(*command.format(p=copied).split())
    assert outcome.code == 2
    assert len(outcome.messages) == 1, outcome.err
    assert str(damaged) in outcome.messages[0]
    assert contents(copied) == before


@pytest.mark.parametrize(
    "command",
    [
        "zero-shot {p}/run --task goal --episodes 0",
        "evaluate {p}/player --task goal --episodes -3",
        "collect four-rooms --steps 0 --out {p}/new",
        "compose {p}/run --task goal --steps 0 --preset smoke --out {p}/new",
        "compose {p}/run --task goal --t-term 0 --preset smoke --out {p}/new",
        "pretrain {p}/data --k 10 --seeds 0 --preset smoke --out {p}/new",
        "collect point-maze --steps 9 --num-envs 0 --out {p}/new",
        "export {p}/run --out {p}/run/config.json/new",
        "collect four-rooms --steps 9 --seed 99999999999999999999 --out {p}/new",
    ],
)
def test_numbers_that_make_no_sense_are_refused(copied, command):
    outcome = lk(*command.format(p=copied).split())
    assert outcome.code == 2
    assert len(outcome.messages) == 1
    assert not (copied / "new").exists()


def test_a_report_that_cannot_be_written_costs_no_run(copied):
    report = copied / "run" / "report.html"
    report.unlink()
    (report / "in the way").mkdir(parents=True)
    outcome = lk(*f"pretrain {copied}/data --k 10 --preset smoke --out {copied}/run --json".split())
    assert outcome.code == 0 and outcome.result["k"] == 10
    assert any("not its report: cannot write" in line for line in outcome.messages)


def test_damaged_physics_is_a_problem_of_a_dataset_and_not_of_the_command(tmp_path):
    lk(*f"collect cheetah --explorer babble --steps 2000 --num-envs 2 --out {tmp_path}".split())
    file = sorted((tmp_path / "buffer").iterdir())[0]
    with np.load(file) as archive:
        arrays = dict(archive)
    arrays["physics"][7] = np.nan
    np.savez(file, **arrays)
    (tmp_path / "dataset.json").unlink()
    (tmp_path / "dataset.json").write_text(json.dumps({"domain": "cheetah"}))
    result = lk("data", "info", str(tmp_path), "--json").result
    assert any("physics is not finite" in problem for problem in result["problems"])
    assert set(result["task_rewards"]) == {"run", "run_backward", "walk", "walk_backward"}


@pytest.mark.parametrize("command", ["demo --k five", "demo --kk 5", "collect four-rooms", "play?"])
def test_a_mistyped_option_is_one_line(command):
    outcome = lk(*command.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.messages) == 1


def test_the_installed_command_prints_its_version():
    done = subprocess.run([LK, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"laplacian-keyboard {laplacian_keyboard.__version__}\n"
    assert done.stderr == ""


def test_the_installed_command_shows_no_traceback(place):
    done = subprocess.run(
        [LK, "pretrain", place.path / "data", "--k", "9", "--preset", "smoke", "--out", "run"],
        capture_output=True,
        text=True,
        check=False,
        cwd=place.path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"lk: run holds a run with k = 10, not 9; [^\n]*\n", done.stderr)
