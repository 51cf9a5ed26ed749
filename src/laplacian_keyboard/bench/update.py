"""Gradient steps of every learner, and what fraction of the machine's peak they reach.

The peak is the rate of a large matrix product measured in turns with the learners. Arithmetic is
counted as the multiplications and additions of matrix products in the compiled program, so work
that is computed and thrown away does not raise the fraction's worth, only its price. Layer
normalisation has no matrix products, so its cost shows as a smaller fraction: the continuous
successor learner is measured without it and, as the `cpu` preset has it, with it.

All is measured twice: on every core, as a command runs by itself, and on one core against the peak
of that core, as experiments and sweeps run their parts.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from laplacian_keyboard.baselines import forward_backward, td3
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.bench import machine, median_rates
from laplacian_keyboard.compiling import keep_threads_apart
from laplacian_keyboard.parallel import in_processes
from laplacian_keyboard.successor import continuous, discrete
from laplacian_keyboard.types import Pairs, Spec, Transition

K, OBS, ACTION, NUM_ACTIONS = 10, 17, 6, 4
SIZES = {"256x256": (256, 256), "1024x1024": (1024, 1024)}
"""Width of the two hidden layers, and batch."""
GEMM_SIZE, GEMM_COUNT = 1024, 8
TD3 = td3.Config()
FLOPS_A_TURN = 2e10
"""Arithmetic of one timed turn, so that small and large learners take about as long."""


def run() -> dict[str, Any]:
    """The figures of `measure` with all cores, and under `one_core` with one."""
    return {
        "benchmark": "update",
        "ratio": "arithmetic of the update a second over that of a large matrix product",
        **machine(),
        **measure(),
        "one_core": in_processes(measure, [()], workers=1)[0],
    }


def measure() -> dict[str, Any]:
    """Steps a second, arithmetic of a step and fraction of the peak, for each learner and size."""
    keep_threads_apart()
    learners: dict[str, dict[str, Any]] = {}
    peaks = []
    for size, (width, batch) in SIZES.items():
        contenders: dict[str, Callable[[], int]] = {"gemm": _gemm()}
        flops = {}
        for name, (step, state) in _learners(width, batch).items():
            due = 1.0 / TD3.policy_delay if name in ("player", "td3") else 1.0
            flops[name], contenders[name] = _contender(step, state, due)
        rates = median_rates(contenders, repeats=3)
        peak = rates["gemm"] * 2 * GEMM_SIZE**3
        peaks.append(peak)
        for name, count in flops.items():
            learners.setdefault(name, {})[size] = {
                "steps_per_second": round(rates[name], 2),
                "gflop_per_step": round(count / 1e9, 4),
                "fraction_of_peak": round(rates[name] * count / peak, 3),
            }
    return {"gemm_gflops": round(max(peaks) / 1e9, 1), "learners": learners}


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    found = []
    for cores, measured in ((f"{result['cores']} cores", result), ("1 core", result["one_core"])):
        found.append(f"{cores}: matrix product {measured['gemm_gflops']} GFLOP/s")
        found += [
            f"{name:<22} {size:<10} {figures['steps_per_second']:>9,.1f}/s  "
            f"{figures['gflop_per_step']:.3f} GFLOP a step  "
            f"{figures['fraction_of_peak']:.2f} of peak"
            for name, sizes in measured["learners"].items()
            for size, figures in sizes.items()
        ]
    return found


def _gemm() -> Callable[[], int]:
    a = jax.random.normal(jax.random.key(0), (GEMM_SIZE, GEMM_SIZE)) / GEMM_SIZE**0.5

    @jax.jit
    def products(a: Any) -> Any:
        return jax.lax.scan(lambda x, _: (x @ a, None), a, length=GEMM_COUNT)[0]

    def work() -> int:
        jax.block_until_ready(products(a))
        return GEMM_COUNT

    return work


def _learners(width: int, batch: int) -> dict[str, tuple[Callable[[Any, Any], Any], Any]]:
    """Each learner's step `(state, key) -> state` on a fixed batch, and its first state."""
    keys = iter(jax.random.split(jax.random.key(0), 16))
    hidden, spec = (width, width), Spec(OBS, action_dim=ACTION)
    finite, chords = Spec(OBS, num_actions=NUM_ACTIONS), Spec(OBS, action_dim=K)
    rows = jax.random.normal(next(keys), (4, batch, OBS))
    phi, w = jax.random.normal(next(keys), (2, batch, K))
    pairs = Pairs(rows[0], rows[1], rows[2:])

    def steps(action: Any) -> Transition:
        return Transition(rows[0], action, rows[2, :, 0], jnp.ones(batch), rows[1])

    move, press = jnp.tanh(rows[0, :, :ACTION]), jnp.tanh(w)
    turn = jax.random.randint(next(keys), (batch,), 0, NUM_ACTIONS)
    basis = laplacian.Config(K, hidden=hidden, batch_size=batch)
    behaviors = continuous.Config(network="plain", hidden=hidden, climb="first", layer_norm=False)
    normalised = dataclasses.replace(behaviors, layer_norm=True)
    choices, flat = discrete.Config(hidden=hidden), dataclasses.replace(TD3, hidden=hidden)
    pair = forward_backward.Config(K, hidden=hidden)
    beside = dataclasses.replace(normalised, climb="smaller")
    return {
        "laplacian": (
            lambda s, key: laplacian.update(basis, s, pairs)[0],
            laplacian.init(basis, spec, key=next(keys)),
        ),
        "successor_continuous": (
            lambda s, key: continuous.update(behaviors, s, steps(move), phi, w, key=key)[0],
            continuous.init(behaviors, spec, K, key=next(keys)),
        ),
        "successor_normalised": (
            lambda s, key: continuous.update(normalised, s, steps(move), phi, w, key=key)[0],
            continuous.init(normalised, spec, K, key=next(keys)),
        ),
        "successor_discrete": (
            lambda s, key: discrete.update(choices, s, steps(turn), phi, w, key=key)[0],
            discrete.init(choices, finite, K, key=next(keys)),
        ),
        "player": (
            lambda s, key: td3.update(flat, s, steps(press), key=key)[0],
            td3.init(flat, chords, key=next(keys)),
        ),
        "td3": (
            lambda s, key: td3.update(flat, s, steps(move), key=key)[0],
            td3.init(flat, spec, key=next(keys)),
        ),
        "forward_backward": (
            lambda s, key: forward_backward.update(pair, beside, s, steps(move), w, key=key)[0],
            forward_backward.init(pair, beside, spec, key=next(keys)),
        ),
    }


def _contender(step: Any, state: Any, due: float) -> tuple[float, Callable[[], int]]:
    """Arithmetic of a step, and a turn of as many steps as fill it."""
    flops = matmul_flops(jax.make_jaxpr(step)(state, jax.random.key(0)).jaxpr, due)
    count = max(2, round(FLOPS_A_TURN / flops))
    many = jax.jit(partial(_repeat, step, count))

    def work() -> int:
        jax.block_until_ready(many(state, jax.random.key(0)))
        return count

    return flops, work


def _repeat(step: Any, count: int, state: Any, key: Any) -> Any:
    keys = jax.random.split(key, count)
    return jax.lax.scan(lambda s, k: (step(s, k), None), state, keys)[0]


def matmul_flops(program: Any, due: float = 1.0) -> float:
    """Multiplications and additions of the matrix products in a jaxpr and in what it calls. What
    is done only sometimes, such as TD3's delayed actor step, counts for the fraction `due`."""
    total = 0.0
    for equation in program.eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted)
            total += 2.0 * inner * equation.outvars[0].aval.size
        elif name == "cond":
            total += due * max(matmul_flops(one.jaxpr, due) for one in parameters["branches"])
        else:
            repeats = parameters["length"] if name == "scan" else 1
            for value in parameters.values():
                called = getattr(value, "jaxpr", value)
                if hasattr(called, "eqns"):
                    total += repeats * matmul_flops(called, due)
    return total
