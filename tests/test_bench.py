"""Benchmarks count what they say; their timings belong to `lk bench`."""

import jax
import jax.numpy as jnp
import pytest

from laplacian_keyboard.bench import BENCHMARKS, load, load_benchmark
from laplacian_keyboard.bench.update import matmul_flops
from laplacian_keyboard.types import UserError


def flops(function, *arguments, due: float = 1.0) -> float:
    return matmul_flops(jax.make_jaxpr(function)(*arguments).jaxpr, due)


def test_matrix_products_are_counted_wherever_they_are():
    x, w = jnp.zeros((5, 7)), jnp.zeros((7, 7))
    assert flops(lambda x, w: x @ w, x, jnp.zeros((7, 3))) == 2 * 5 * 7 * 3
    assert flops(jax.vmap(lambda x, w: x @ w, (None, 0)), x, jnp.zeros((4, 7, 7))) == 4 * 490
    repeated = lambda x, w: jax.lax.scan(lambda c, _: (c @ w, None), x, length=3)[0]  # noqa: E731
    assert flops(jax.jit(repeated), x, w) == 3 * 490
    delayed = lambda x, w: jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x)  # noqa: E731
    assert flops(delayed, x, w, due=0.5) == 245
    loss = lambda w, x: jnp.sum((x @ w) ** 2)  # noqa: E731
    assert flops(jax.grad(loss), w, x) == 2 * 490, "forward, and the weights' gradient"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_loaded(name):
    module = load_benchmark(name)
    assert callable(module.run) and callable(module.lines)


def test_an_unknown_benchmark_names_the_known_ones():
    with pytest.raises(UserError, match="known benchmarks: compose"):
        load_benchmark("speed")


def test_loading_is_measured_both_ways(monkeypatch):
    for name, value in {"EPISODES": 40, "EPISODE": 50, "PRESET": "smoke", "REPEATS": 1}.items():
        monkeypatch.setattr(load, name, value)
    monkeypatch.setattr(load, "CHUNK", 5)
    monkeypatch.setattr(load, "trained_in", lambda folder, memory: {"peak": 1.0, "own": 0.5})
    result = load.run()
    assert result["transitions"] == 2000 > 3 * result["window_transitions"] > 0
    assert result["updates_per_second"].keys() == {"in_memory", "streamed"}
    assert "streamed over in memory" in load.lines(result)[-1]
