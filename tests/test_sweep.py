"""`lk sweep`: the product of settings, idempotent; real runs in real processes."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from test_cli import lk

from laplacian_keyboard import sweep as sweeping
from laplacian_keyboard.sweep import Job, read_sweep, run_job
from laplacian_keyboard.types import UserError

GRID = """
out = "{out}"
[grid]
k = [1, 2]
seed = [0]
goal = ["goal:1,1", "goal:9,9"]
[[run]]
name = "keyboard-k{{k}}-{{seed}}"
command = "pretrain {data} --k {{k}} --seed {{seed}} --preset smoke"
[[run]]
name = "players/k{{k}}-{{seed}}-{{goal}}"
command = "compose {{out}}/keyboard-k{{k}}-{{seed}} --task {{goal}} --preset smoke --steps 64"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "grid.toml"
    path.write_text(text)
    return path


def test_a_run_for_each_combination_of_what_its_name_mentions(tmp_path):
    sweep = read_sweep(write(tmp_path, GRID.format(out="here", data="data")))
    first, second = sweep.stages
    assert [job.name for job in first] == ["keyboard-k1-0", "keyboard-k2-0"]
    assert first[1].arguments == (
        *("pretrain", "data", "--k", "2", "--seed", "0", "--preset", "smoke"),
        *("--out", "here/keyboard-k2-0"),
    )
    assert len(second) == 4 and second[3].arguments[1:4] == (
        *("here/keyboard-k2-0", "--task", "goal:9,9"),
    )


def test_a_setting_is_one_word_of_its_command(tmp_path):
    text = GRID.format(out="my runs", data="data").replace("goal:1,1", "my tasks:far")
    job = read_sweep(write(tmp_path, text)).stages[1][0]
    assert job.arguments[1:4] == ("my runs/keyboard-k1-0", "--task", "my tasks:far")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('out = "here"', "out = 3"), "out must name a folder"),
        (("seed = [0]", "seed = 0"), "a list of values"),
        (("seed = [0]", "speed = [0]"), r"\{seed\} is not in \[grid\]"),
        (("keyboard-k{k}-{seed}", "keyboard-{seed}"), "not in the name"),
        (("keyboard-k{k}-{seed}", "{k.__class__}{seed}"), "in braces"),
        (("keyboard-k{k}-{seed}", "../{k}{seed}"), "leads out of"),
        (("keyboard-k{k}-{seed}", "{k"), "expected '}'"),
        (("[[run]]\nname", "[[walk]]\nname"), "unknown walk"),
        (('out = "here"', "out ="), "not valid TOML"),
        (("k = [1, 2]", "k = [1, 1]"), "two runs are named"),
        (("--k {k}", "'--k {k}"), "No closing quotation"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, change, message):
    text = GRID.format(out="here", data="data").replace(*change)
    with pytest.raises(UserError, match=message):
        read_sweep(write(tmp_path, text))


COLLECT = """
out = "{out}"
[grid]
domain = ["four-rooms", "nowhere"]
seed = [0, 1]
[[run]]
name = "{{domain}}-{{seed}}"
command = "collect {{domain}} --steps 2000 --seed {{seed}}"
"""


def test_a_sweep_runs_everything_once_and_reports_failures(tmp_path):
    out = tmp_path / "out"
    path = write(tmp_path, COLLECT.format(out=out))
    outcome = lk("sweep", path, "--workers", 1, "--json")
    assert outcome.code == 2 and "2 of 4 runs are not finished" in outcome.messages[-1]
    result = json.loads((out / "sweep.json").read_text())["runs"]
    assert result["four-rooms-0"] == result["four-rooms-1"] == "finished"
    assert result["nowhere-0"].startswith("lk: unknown domain 'nowhere'")
    assert (out / "four-rooms-0" / "dataset.json").exists()
    assert "unknown domain" in (out / "nowhere-1.log").read_text()


def test_what_is_finished_is_not_repeated(tmp_path, monkeypatch):
    out = tmp_path / "out"
    path = write(tmp_path, COLLECT.format(out=out).replace(', "nowhere"', ""))
    for seed in (0, 1):
        (out / f"four-rooms-{seed}").mkdir(parents=True)
    (out / "four-rooms-0" / "done").touch()
    (out / "four-rooms-1" / "dataset.json").write_text('{"complete": true}')
    begun: list[int] = []
    monkeypatch.setattr(
        sweeping, "spread", lambda title, function, jobs: begun.append(len(jobs)) or []
    )
    assert lk("sweep", path, "--json").result["failed"] == 0
    assert begun == [0]
    assert lk("sweep", path, "--dry-run").out.count("done ") == 2


def test_a_job_that_fails_says_why(tmp_path):
    job = Job("x", ("pretrain", "nowhere", "--out", str(tmp_path / "x")), str(tmp_path / "x"))
    assert "nowhere" in run_job(job)
    assert "nowhere" in (tmp_path / "x.log").read_text()


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_do_not_work_on_one_run(tmp_path, monkeypatch):
    path = write(tmp_path, COLLECT.format(out=tmp_path / "out"))
    job = read_sweep(path).jobs[0]
    (tmp_path / "out").mkdir()
    log = Path(f"{job.folder}.log")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, log], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin is not None and other.stdout is not None
    with other:
        other.stdout.readline()
        monkeypatch.setattr(sweeping, "PATIENCE", 0.3)
        assert run_job(job) == "another process is working on four-rooms-0"
        monkeypatch.setattr(sweeping, "PATIENCE", 60.0)
        threading.Timer(0.5, other.kill).start()
        assert run_job(job) == "" and job.is_done
    before = log.read_text()
    assert run_job(job) == "" and log.read_text() == before


def test_a_run_whose_folder_is_not_here_is_not_finished(tmp_path, monkeypatch):
    path = write(tmp_path, COLLECT.format(out=tmp_path / "out").replace(', "nowhere"', ""))
    monkeypatch.setattr(sweeping, "spread", lambda title, function, jobs: ["" for _ in jobs])
    outcome = lk("sweep", path)
    assert outcome.code == 2 and "do all nodes share its file system?" in outcome.out
