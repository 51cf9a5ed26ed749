"""Pieces of work on a Ray cluster, in processes of their own on all of its nodes.

A piece runs in the folder of the driver, which all nodes share. One that is lost with its process
or node is begun again, on whatever node has room; what it left in its run folder is continued.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from laplacian_keyboard.parallel import ONE_THREAD, After, Done, able_to_begin, nothing, spreading
from laplacian_keyboard.types import UserError

SECONDS_TO_CONNECT = 10.0


@contextmanager
def on_cluster(
    address: str, *, cpus: int = 1, gpus: float = 0.0, retries: int = 3
) -> Iterator[None]:
    """What is spread inside the block runs on the Ray cluster at `address` (or `auto`), with so
    many CPUs and GPUs a piece. A piece that is lost is repeated `retries` times; one that raises
    is not."""
    ray = _connect(address)
    try:
        _warn_if_nothing_fits(ray, cpus, gpus)
        with spreading(partial(_in_tasks, ray, cpus=cpus, gpus=gpus, retries=retries)):
            yield
    finally:
        ray.shutdown()  # ends the pieces that still run


def _connect(address: str) -> Any:
    """The package `ray`, connected."""
    try:
        import ray
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError as error:
        raise UserError(
            "Ray is not installed; install it with: pip install 'laplacian-keyboard[cluster]'"
        ) from error
    try:
        # Ray itself tries for minutes to reach a cluster that is not there.
        place = canonicalize_bootstrap_address(address) or ""
        host, port = place.rsplit(":", 1)
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except (OSError, ValueError) as error:
        raise UserError(f"no Ray cluster at {address}; start one with: ray start --head") from error
    try:
        ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"cannot join the Ray cluster at {address}: {why}") from error
    return ray


def _warn_if_nothing_fits(ray: Any, cpus: int, gpus: float) -> None:
    """A cluster that grows on demand may still get such a node, so this is no error."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        print(
            f"no node of the cluster has {cpus} CPUs and {gpus:g} GPUs; waiting for one",
            file=sys.stderr,
        )


def _in_tasks(
    ray: Any,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    *,
    cpus: int,
    gpus: float,
    retries: int,
    after: After,
    done: Done = nothing,
) -> list[Any]:
    """`parallel.in_processes` with tasks of a cluster. The pieces that are lost for good are
    reported when all others have ended."""
    task = ray.remote(
        num_cpus=cpus,
        num_gpus=gpus,
        max_retries=retries,
        max_calls=1,  # a process for each piece, whose locks and memory go with it
        runtime_env={"env_vars": ONE_THREAD if cpus == 1 else {}},
    )(_piece)
    here = (str(Path.cwd()), sys.argv)
    pending: dict[Any, int] = {}

    def begin(ended: int | None) -> None:
        for i in able_to_begin(len(arguments), after, ended):
            pending[task.remote(*here, function, arguments[i])] = i

    begin(None)
    results: dict[int, Any] = {}
    lost: list[Exception] = []
    while pending:
        (first, *_), _ = ray.wait(list(pending))
        index = pending.pop(first)
        try:
            node, results[index] = ray.get(first)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ray.exceptions.RayError):  # the piece could not begin
                raise UserError(
                    f"{_first_line(error.cause)}; do all nodes have the same laplacian-keyboard?"
                ) from error
            raise error.cause from None
        except ray.exceptions.RayError as error:
            lost.append(error)
        else:
            done(index, results[index], _name(ray, node))
            begin(index)
    if lost:
        raise UserError(
            f"{len(lost)} of {len(arguments)} pieces were lost with their processes or nodes, "
            f"and {retries} times again: {_first_line(lost[0])}"
        )
    return [results[i] for i in range(len(arguments))]


def _piece(
    folder: str, command: list[str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """Run on a node, as part of the driver's command: the node's id, and the result."""
    import ray

    sys.argv = command
    try:
        os.chdir(folder)
    except OSError as error:
        raise UserError(
            f"there is no {folder} on {socket.gethostname()}: start from a folder that is on a "
            "file system which all nodes share"
        ) from error
    return ray.get_runtime_context().get_node_id(), function(*arguments)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _name(ray: Any, node_id: str) -> str:
    """What people call a node: its address, or the name it was started with."""
    names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
    return names.get(node_id, node_id[:8])
