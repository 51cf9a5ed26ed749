"""Work in other processes: order, errors, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laplacian_keyboard.parallel import in_processes
from laplacian_keyboard.types import UserError


def double(x: int) -> tuple[int, int, int]:
    time.sleep(0.1 * (3 - x))
    return 2 * x, len(os.sched_getaffinity(0)), os.getpid()


def fail(x: int) -> None:
    raise UserError(f"number {x}")


def test_results_come_in_order_from_processes_with_a_core_each():
    seen: list[int] = []
    results = in_processes(double, [(0,), (1,), (2,)], done=lambda i, *_: seen.append(i))
    assert [value for value, _, _ in results] == [0, 2, 4]
    assert sorted(seen) == [0, 1, 2]
    assert all(cores == 1 for _, cores, _ in results)
    assert os.getpid() not in {pid for _, _, pid in results}


def write(mine: Path, earlier: Path | None) -> str:
    time.sleep(0.0 if earlier else 0.3)
    mine.write_text(mine.name)
    return earlier.read_text() if earlier else ""


def test_a_piece_that_comes_after_another_finds_what_that_one_left(tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    pieces = [(first, None), (second, first), (third, second)]
    assert in_processes(write, pieces, after={1: 0, 2: 1}) == ["", "first", "second"]


def test_an_error_is_the_callers():
    with pytest.raises(UserError, match="number 7"):
        in_processes(fail, [(7,)], workers=1)


PARENT = """
import os, sys, time
from laplacian_keyboard.parallel import in_processes
def wait(path):
    open(path, "w").write(str(os.getpid())); time.sleep(100)
if __name__ == "__main__":
    in_processes(wait, [(sys.argv[1],)], workers=1)
"""


def test_processes_end_with_their_parent_even_if_it_is_killed(tmp_path):
    script, mark = tmp_path / "parent.py", tmp_path / "pid"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script), str(mark)])
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.05)
    child = int(mark.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        state = _state_of(child)
        if state in (None, "Z"):
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its parent")


def _state_of(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can say where a thread runs")
def test_threads_of_products_have_a_core_each():
    code = """
import os
from pathlib import Path
from laplacian_keyboard.compiling import POOL, keep_threads_apart
keep_threads_apart()
named = [t for t in Path("/proc/self/task").iterdir() if (t / "comm").read_text().strip() == POOL]
cores = sorted(tuple(os.sched_getaffinity(int(t.name))) for t in named)
assert cores == [(core,) for core in sorted(os.sched_getaffinity(0))], cores
"""
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
