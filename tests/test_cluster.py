"""`lk sweep --ray`: a real cluster of two nodes on this machine, of which nodes and drivers die."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_cli import LK, contents, lk

from laplacian_keyboard.cluster import on_cluster
from laplacian_keyboard.parallel import in_processes, spread, spreading
from laplacian_keyboard.sweep import Job, read_sweep, run_sweep
from laplacian_keyboard.types import UserError

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
    # Else Ray takes this machine's outer address where it is told 127.0.0.1.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
os.environ.update(SETTINGS)  # here, since Ray reads them when it is imported, by whichever test

SWEEP = """
out = "out"
[grid]
seed = {seeds}
[[run]]
name = "{{seed}}"
command = "collect four-rooms --steps 2000 --seed {{seed}}"
"""
NODE: dict[str, Any] = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}

# Ray's processes are forked from this one, in which JAX runs, and at once execute something else.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with one node, `first`."""
    with pytest.MonkeyPatch.context() as patch:
        # Where processes of the nodes find the functions of this file.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        from ray.cluster_utils import Cluster

        head = {**NODE, "node_name": "first", "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    """Twelve runs made in processes of this machine."""
    folder = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with spreading(partial(in_processes, workers=2)):
            assert run_sweep(read_sweep(write(folder, 12)))["failed"] == 0
    return folder / "out"


def write(folder: Path, runs: int) -> Path:
    path = folder / "grid.toml"
    path.write_text(SWEEP.format(seeds=list(range(runs))))
    return path


def finished(out: Path) -> list[str]:
    folders = [path for path in out.glob("*") if path.is_dir()]
    return [path.name for path in folders if Job(path.name, (), str(path)).is_done]


def begun_by(node: Any, out: Path) -> list[str]:
    """Runs whose logs are open in processes of a node."""
    raylet = node.all_processes["raylet"][0].process.pid
    names = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) == raylet:
                names += [fd.readlink() for fd in (process / "fd").iterdir()]
        except OSError:
            continue  # it has ended
    return [path.stem for path in names if path.parent == out and path.suffix == ".log"]


def wait_until(condition: Callable[[], Any], seconds: float = 600) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.02)


def test_runs_of_a_killed_node_are_repeated_on_the_other(cluster, local, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, killed = tmp_path / "out", []
    second = cluster.add_node(**NODE, node_name="second")

    def kill_in_the_middle() -> None:
        wait_until(lambda: len(finished(out)) >= 3 and begun_by(second, out))
        killed.extend(begun_by(second, out))
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    outcome = lk("sweep", write(tmp_path, 12), "--ray", cluster.address, "--json")
    killer.join()
    assert outcome.result["runs"] == {str(seed): "finished" for seed in range(12)}
    assert killed
    last = outcome.err.splitlines()[-1]
    assert last.startswith("runs: 12/12") and "first: " in last and "second: " in last
    for seed in range(12):
        assert contents(out / str(seed)) == contents(local / str(seed))


def test_a_killed_driver_loses_and_repeats_nothing(cluster, local, tmp_path):
    out = tmp_path / "out"
    command = [LK, "sweep", write(tmp_path, 4), "--ray", cluster.address]
    driver = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_until(lambda: finished(out) and begun_by(cluster.head_node, out))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = {name: stamps(out / name) for name in finished(out)}
    assert 1 <= len(before) < 4
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert again.stdout.count("finished before") >= len(before)
    assert before == {name: stamps(out / name) for name in before}
    for seed in range(4):
        assert contents(out / str(seed)) == contents(local / str(seed))


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file."""
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.rglob("*")}


def test_folder_and_errors_of_a_piece_are_the_drivers(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with on_cluster(cluster.address):
        assert spread("pieces", where, [(1,)]) == [(1, str(tmp_path), sys.argv, "1")]
        with pytest.raises(UserError, match=r"^number 7$"):
            spread("pieces", fail, [(7,)])
        assert spread("pieces", after_that, [(0.3,), (0.0,)], after={1: 0}) == [False, True]
        Path("ended").unlink()
        tmp_path.rmdir()
        monkeypatch.setattr(Path, "cwd", lambda: tmp_path)
        with pytest.raises(UserError, match="which all nodes share"):
            spread("pieces", where, [(1,)])


def where(x: int) -> tuple[int, str, list[str], str]:
    return x, str(Path.cwd()), sys.argv, os.environ["OMP_NUM_THREADS"]


def after_that(seconds: float) -> bool:
    time.sleep(seconds)
    had_ended = Path("ended").exists()
    Path("ended").touch()
    return had_ended


def fail(x: int) -> None:
    raise UserError(f"number {x}")


def test_a_process_that_always_dies_is_reported_after_the_others(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        on_cluster(cluster.address, retries=1),
        pytest.raises(UserError, match=r"1 of 2 pieces were lost .* and 1 times again"),
    ):
        spread("pieces", die, [(tmp_path / "deaths",), (None,)])
    assert (tmp_path / "deaths").read_text() == "xx"


def die(mark: Path | None) -> None:
    if mark is not None:
        with mark.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "auto", "local"])
def test_no_cluster_is_one_line_before_ray_begins_to_wait(address, tmp_path, monkeypatch):
    import ray

    def wait_for_minutes(**options: Any) -> None:
        raise AssertionError(f"Ray was asked to join {options}")

    monkeypatch.setattr(ray, "init", wait_for_minutes)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray._private.services, "find_gcs_addresses", lambda: set())
    monkeypatch.setattr(ray._private.services, "find_bootstrap_address", lambda _: None)
    outcome = lk("sweep", write(tmp_path, 1), "--ray", address)
    assert outcome.code == 2
    assert outcome.messages == [
        f"lk: no Ray cluster at {address}; start one with: ray start --head"
    ]


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = lk("sweep", write(tmp_path, 1), "--ray", "auto")
    assert outcome.code == 2 and "pip install 'laplacian-keyboard[cluster]'" in outcome.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cpus", 2), "--cpus is for a cluster; use it with --ray"),
        (("--gpus", 0), "--gpus is for a cluster"),
        (("--ray", "auto", "--workers", 2), "--workers is for this machine"),
        (("--ray", "auto", "--cpus", 0), "--cpus must be at least 1, not 0"),
        (("--ray", "auto", "--retries", -1), "--retries must be at least 0, not -1"),
        (("--workers", 0), "--workers must be at least 1, not 0"),
    ],
)
def test_wrong_options_are_one_line(options, message, tmp_path):
    outcome = lk("sweep", write(tmp_path, 1), *options)
    assert outcome.code == 2 and len(outcome.messages) == 1 and message in outcome.messages[0]
    if "--workers" not in options:
        assert message in lk("reproduce", "bases", *options).messages[0]
