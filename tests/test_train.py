"""The training loop: determinism, interruption, divergence, compilation, seeds."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard import log, train
from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.train import fit, run_chunk, step_key
from laplacian_keyboard.types import UserError

NUM_STEPS = 40


@dataclass(frozen=True)
class Descend:
    """Noisy gradient steps on a quadratic, and a word that mixes in the bits of every key."""

    rate: float = 0.1
    bad_step: int = -1
    """The metric is NaN there."""

    def __call__(self, state: Any, data: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        noise = jax.random.normal(key, state["x"].shape)
        x = state["x"] - self.rate * (state["x"] - data + noise)
        bits = state["bits"] * 31 + jax.random.bits(key)
        loss = jnp.mean(jnp.square(x)) + jnp.where(state["step"] == self.bad_step, jnp.nan, 0.0)
        return {"x": x, "bits": bits, "step": state["step"] + 1}, {"test/loss": loss}


@dataclass(frozen=True)
class OverSeeds:
    """The same for states and keys with a leading axis."""

    update: Descend

    def __call__(self, state: Any, data: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        return jax.vmap(self.update, in_axes=(0, None, 0))(state, data, key)


class Interrupted(Exception):
    """What a test raises in the place of a crash."""


def start() -> dict[str, Any]:
    return {"x": jnp.ones(3), "bits": jnp.uint32(0), "step": jnp.int32(0)}


def learn(update: Descend | None = None, **options: Any) -> dict[str, Any]:
    defaults = {"num_steps": NUM_STEPS, "chunk": 8, "key": jax.random.key(1), "stage": "test"}
    return fit(update or Descend(), start(), jnp.arange(3.0), **(defaults | options))


def after(chunks: int) -> Callable[[Any], dict[str, float]]:
    """An evaluation that is interrupted when called once more."""
    calls = iter(range(chunks))

    def evaluate(state: Any) -> dict[str, float]:
        if next(calls, None) is None:
            raise Interrupted
        return {}

    return evaluate


def logged_steps(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def bitwise_equal(one: Any, other: Any) -> bool:
    return jax.tree.all(
        jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), *map(_host, (one, other)))
    )


def _host(state: Any) -> Any:
    return jax.tree.map(np.asarray, state)


def test_the_same_call_gives_the_same_bits():
    assert bitwise_equal(learn(), learn())


def test_another_key_gives_another_result():
    assert not bitwise_equal(learn(), learn(key=jax.random.key(2)))


def test_the_size_of_chunks_does_not_change_the_keys():
    assert learn(chunk=8)["bits"] == learn(chunk=7)["bits"] == learn(chunk=NUM_STEPS)["bits"]


def test_step_t_uses_the_key_folded_with_t():
    key, bits = jax.random.key(1), jnp.uint32(0)
    for t in range(NUM_STEPS):
        bits = bits * 31 + jax.random.bits(jax.random.fold_in(key, t))
    assert learn()["bits"] == bits


@pytest.mark.parametrize("seconds", [0.0, 1e6])
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(tmp_path, monkeypatch, seconds, chunks):
    monkeypatch.setattr(train, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    run = RunFolder(tmp_path / "run", {})
    with pytest.raises(Interrupted):
        learn(run=run, evaluate=after(chunks))
    resumed = learn(run=run)
    assert bitwise_equal(resumed, learn())
    assert logged_steps(run.path) == [8, 16, 24, 32, 40]


def test_a_checkpoint_is_where_the_next_call_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    run = RunFolder(tmp_path, {})
    with pytest.raises(Interrupted):
        learn(run=run, evaluate=after(3))
    assert run.stage() == ("test", 24)


def test_a_finished_stage_is_not_trained_again(tmp_path):
    run = RunFolder(tmp_path, {})
    first = learn(run=run)
    again = learn(run=run, evaluate=after(0))
    assert bitwise_equal(first, again)
    assert logged_steps(tmp_path) == [8, 16, 24, 32, 40]


def test_every_chunk_logs_the_mean_of_its_metrics_and_the_evaluation(tmp_path):
    learn(run=RunFolder(tmp_path, {}), num_steps=4, chunk=2, evaluate=lambda state: {"score": 2.0})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses, state = [], start()
    for t in range(4):
        state, metrics = Descend()(state, jnp.arange(3.0), jax.random.fold_in(jax.random.key(1), t))
        losses.append(float(metrics["test/loss"]))
    assert [line["score"] for line in lines] == [2.0, 2.0]
    found = [line["test/loss"] for line in lines]
    np.testing.assert_allclose(found, np.reshape(losses, (2, 2)).mean(axis=1), rtol=1e-5)


def test_divergence_stops_with_stage_quantity_and_step_and_keeps_the_last_good_state(tmp_path):
    run = RunFolder(tmp_path, {})
    with pytest.raises(UserError) as error:
        learn(Descend(bad_step=19), run=run)
    message = str(error.value)
    for part in ("test/loss is nan", "stage test", "between steps 16 and 24", str(tmp_path)):
        assert part in message
    assert "\n" not in message
    found = run.load_state("test", start())
    assert found is not None
    assert found[1] == 16
    assert bitwise_equal(found[0], learn(num_steps=16))
    assert logged_steps(tmp_path) == [8, 16]


def test_equal_updates_share_a_compilation():
    learn(Descend(0.25))
    size = run_chunk._cache_size()
    learn(Descend(0.25), key=jax.random.key(5))
    assert run_chunk._cache_size() == size
    learn(Descend(0.125))
    assert run_chunk._cache_size() == size + 1


def test_keys_of_several_seeds_give_metrics_of_each(tmp_path):
    keys = jnp.stack([jax.random.key(1), jax.random.key(2)])
    states = jax.tree.map(lambda x: jnp.stack([x, x]), start())
    run = RunFolder(tmp_path, {})
    state = fit(
        OverSeeds(Descend()),
        states,
        jnp.arange(3.0),
        num_steps=NUM_STEPS,
        chunk=8,
        key=keys,
        stage="test",
        run=run,
    )
    for i, key in enumerate(keys):
        alone = learn(key=key)
        assert state["bits"][i] == alone["bits"]
        np.testing.assert_allclose(state["x"][i], alone["x"], rtol=1e-5)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert len(line["test/loss"]) == 2
    assert jax.random.bits(step_key(keys, 3)[1]) == jax.random.bits(jax.random.fold_in(keys[1], 3))


def test_divergence_of_one_seed_is_seen(tmp_path):
    states = jax.tree.map(lambda x: jnp.stack([x, x]), start())
    states["step"] = jnp.array([0, 100])
    with pytest.raises(UserError, match="test/loss is nan"):
        fit(
            OverSeeds(Descend(bad_step=103)),
            states,
            jnp.arange(3.0),
            num_steps=8,
            key=jnp.stack([jax.random.key(1), jax.random.key(2)]),
            stage="test",
        )


def test_progress_without_a_terminal_is_lines_with_a_pace_one_can_read(capsys, monkeypatch):
    now = iter([10.0, 10.0, 20.0, 20.0, 50.0, 50.0])
    monkeypatch.setattr(log.time, "monotonic", lambda: next(now))
    with log.progress("updates", 40) as bar:
        bar(0)
        bar(30)
    with log.progress("keyboards", 1) as bar:
        bar(1)
    assert capsys.readouterr().err.splitlines() == [
        "updates: 0/40",
        "updates: 30/40  3/s",
        "keyboards: 1/1",
    ]
    clock = log._Clock()
    now = iter([0.0, 1700.0])
    assert [clock.rate(0), clock.rate(2)] == ["", "850 s each"]
