"""Most of the suite's time is XLA compiling: workers, and processes they start, share what they
compile, and a second run finds it all. What they compile runs for moments, so it is not optimised
as hard as it could be."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

MAPPINGS = Path("/proc/self/maps")
MANY_MAPPINGS = 30_000


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs() -> Iterator[None]:
    """Linux allows a process 65,530 mappings of memory. Compiled programs take some each, those of
    seventy tests 10,000, and XLA crashes where it is refused one: a worker that runs most of the
    suite, because the other is held up, gets there."""
    yield
    if MAPPINGS.exists() and len(MAPPINGS.read_bytes().splitlines()) > MANY_MAPPINGS:
        import jax

        jax.clear_caches()
