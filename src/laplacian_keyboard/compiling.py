"""How programs are compiled and run: what a command compiles is kept on disk, for the next command
and for worker processes."""

import hashlib
import os
import platform
from pathlib import Path

import jax

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
THREADS = "PJRT_NPROC"


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
