"""How programs are compiled and run: what a command compiles is kept on disk, for the next command
and for worker processes."""

import functools
import hashlib
import os
import platform
from pathlib import Path

import jax

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
THREADS = "PJRT_NPROC"
POOL = "tf_XLAEigen"
"""What XLA calls its threads for products."""


def keep_compilations() -> None:
    """Keep what takes a second to compile under the user's cache folder. JAX's own variable
    decides instead where it is set; set but empty it keeps nothing."""
    if VARIABLE in os.environ:
        return
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "laplacian-keyboard" / f"xla-{_processor()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written to is no reason to stop
    if os.access(folder, os.W_OK):
        os.environ[VARIABLE] = str(folder)  # for worker processes
        jax.config.update("jax_compilation_cache_dir", str(folder))


def run_where_called() -> None:
    """Run the CPU's programs in the thread that calls them. JAX's own takes 50 microseconds to
    wake, twice as long as a behavior takes to act. To be called before anything is computed."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)


@functools.cache
def keep_threads_apart() -> None:
    """Give each of XLA's threads for products a core of its own, where there are as many of both.
    Woken for work that is over in microseconds, two of them otherwise settle on one core in some
    processes and stay there: updates of small networks then gain nothing from the second core."""
    if not hasattr(os, "sched_setaffinity") or jax.default_backend() != "cpu":
        return
    tasks, cores = Path("/proc/self/task"), sorted(os.sched_getaffinity(0))
    if not tasks.exists():
        return
    found = [int(task.name) for task in tasks.iterdir() if _name_of_thread(task) == POOL]
    if len(found) == len(cores):
        for thread, core in zip(sorted(found), cores, strict=True):
            os.sched_setaffinity(thread, {core})


def _name_of_thread(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""


def use_one_thread() -> None:
    """Give XLA one thread for products on the CPU, unless the user has said how many. The networks
    of players are too small to share, and whoever steps environments beside them wants the other
    cores. To be called before anything is computed."""
    os.environ.setdefault(THREADS, "1")


def _processor() -> str:
    """What compiled code depends on and XLA does not check: the processor's abilities."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()}{flags}".encode()).hexdigest()[:12]
