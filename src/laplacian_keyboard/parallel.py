"""Pieces of work in processes of their own, one core each.

The networks of the `cpu` presets are too small to share among cores: two processes with a core
each finish more than one process with two. `spread` runs pieces in such processes of
this machine, or wherever `spreading` says.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from laplacian_keyboard.compiling import run_where_called
from laplacian_keyboard.log import progress

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "OMP_NUM_THREADS": "1",
}
Done: TypeAlias = Callable[[int, Any, str], None]
"""Told of each result: its index, itself, and the node it comes from ('' for this machine)."""
After: TypeAlias = Mapping[int, int]
"""Pieces that begin only when another has ended, by their indices; that one comes before them."""


def own_cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def nothing(index: int, result: Any, node: str) -> None:
    """Told of a result, does nothing."""


def able_to_begin(count: int, after: After, ended: int | None = None) -> list[int]:
    """Of `count` pieces those that were waiting for one that has `ended`; None: for nothing."""
    return [i for i in range(count) if after.get(i) == ended]


def in_processes(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    *,
    after: After | None = None,
    workers: int | None = None,
    done: Done = nothing,
) -> list[Any]:
    """`[function(*a) for a in arguments]`, in `workers` processes (default: one a core).

    `done` is called as results arrive. An exception of one is raised when it arrives, and the
    processes end. They also end when this process does, however it ends.
    """
    cores = own_cores()
    workers = min(workers or len(cores), len(arguments)) or 1
    results: dict[int, Any] = {}
    context = multiprocessing.get_context("spawn")
    places = context.SimpleQueue()
    for i in range(workers):
        places.put(cores[i % len(cores)])
    with (
        environment(ONE_THREAD),
        ProcessPoolExecutor(workers, context, _settle, (places, os.getpid())) as pool,
    ):
        under_way: dict[Future[Any], int] = {}

        def begin(ended: int | None) -> None:
            for i in able_to_begin(len(arguments), after or {}, ended):
                under_way[pool.submit(function, *arguments[i])] = i

        try:
            begin(None)
            while under_way:
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    index = under_way.pop(future)
                    results[index] = future.result()
                    done(index, results[index], "")
                    begin(index)
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[i] for i in range(len(arguments))]


_where: ContextVar[Callable[..., list[Any]]] = ContextVar("where", default=in_processes)


@contextmanager
def spreading(run: Callable[..., list[Any]]) -> Iterator[None]:
    """Inside the block, `spread` calls `run(function, arguments, after=..., done=...)`."""
    token = _where.set(run)
    try:
        yield
    finally:
        _where.reset(token)


def spread(
    title: str,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    *,
    after: After | None = None,
) -> list[Any]:
    """`[function(*a) for a in arguments]` in processes of this machine, or where `spreading` says,
    with a bar that counts the finished of each node. Pieces are independent, but for those that
    come `after` another."""
    if not arguments:
        return []
    finished: Counter[str] = Counter()

    def done(index: int, result: Any, node: str) -> None:
        finished[node] += 1
        nodes = [f"{name}: {count}" for name, count in sorted(finished.items()) if name]
        bar(finished.total(), note=", ".join(nodes))

    with progress(title, len(arguments)) as bar:
        bar(0)
        return _where.get()(function, arguments, after=after or {}, done=done)


def _settle(places: Any, parent: int) -> None:
    """Take a core, where the system can be asked for one, and arrange to die with the parent."""
    core = places.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    run_where_called()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends us
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
