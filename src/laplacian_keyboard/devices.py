"""Several devices in a line: seeds, or the batches of one seed, are split over it; the rest is on
every device. Where the data lies says which devices there are."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "line"


def line_of_devices(count: int) -> Mesh | None:
    """The most devices that share `count` things evenly; None if that is one device."""
    devices = jax.devices()
    size = max(n for n in range(1, len(devices) + 1) if count % n == 0)
    return Mesh(np.array(devices[:size]), (AXIS,)) if size > 1 else None


def split(line: Mesh) -> NamedSharding:
    """The first axis split over the line."""
    return NamedSharding(line, PartitionSpec(AXIS))


def everywhere(line: Mesh | None) -> NamedSharding | None:
    """A copy on every device; None, where JAX puts things by itself, if there is no line."""
    return None if line is None else NamedSharding(line, PartitionSpec())


def line_of(data: Any) -> Mesh | None:
    """The line of devices that arrays lie on, if they do."""
    for leaf in jax.tree.leaves(data):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            assert isinstance(sharding.mesh, Mesh)
            return sharding.mesh
    return None
