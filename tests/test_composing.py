"""Players in host environments: real MuJoCo, episodes of any length, interruption."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import laplacian_keyboard as lk
from laplacian_keyboard import composing, host_loop, player, seeds
from laplacian_keyboard.checkpoint import RunFolder
from laplacian_keyboard.data.labels import relabel
from laplacian_keyboard.envs.dmc import DmcVectorEnv
from laplacian_keyboard.envs.domains import make_vector_env
from laplacian_keyboard.envs.host import make_host, spec_of
from laplacian_keyboard.flat import FlatAgent, FlatConfig, table_of, train_flat
from laplacian_keyboard.gather import gather
from laplacian_keyboard.host_loop import Curve, Stretches, Table, learn_players
from laplacian_keyboard.keyboard import Keyboard, Player
from laplacian_keyboard.parallel import spreading
from laplacian_keyboard.presets import settings
from laplacian_keyboard.types import Transition, UserError

K = 2
CONFIG = settings("smoke", K, discrete=False).player


@pytest.fixture(scope="module")
def keyboard(tmp_path_factory) -> Keyboard:
    folder = tmp_path_factory.mktemp("data") / "cheetah"
    gather(
        lambda count: make_vector_env("cheetah", None, count),
        folder,
        domain="cheetah",
        explorer="random",
        steps=2_000,
        preset="smoke",
        num_envs=2,
        quiet=True,
    )
    return lk.pretrain(lk.load_dataset(folder), k=K, preset="smoke", seed=0)


def learn(keyboard: Keyboard, tasks: list[str], out: Path | None = None, **options: Any):
    run = None if out is None else RunFolder(out, {"kind": "test"})
    actors, curves = learn_players(
        Table(CONFIG, keyboard.config),
        keyboard.params,
        DmcVectorEnv("cheetah", tasks, len(tasks)),
        keys=jax.random.split(jax.random.key(0), len(tasks)),
        steps=options.pop("steps", 600),
        evaluate_in=DmcVectorEnv("cheetah", tasks, len(tasks), episode_length=50),
        run=run,
        every=300,
        **options,
    )
    return [Player(keyboard, CONFIG, actor) for actor in actors], curves


def same_bits(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def test_a_continuous_keyboard_acts_saves_and_infers(keyboard, tmp_path):
    obs = keyboard.states.observation[:7]
    action = keyboard.act(obs, np.ones(K))
    assert action.shape == (7, 6) and np.abs(action).max() <= 1.0
    assert keyboard.psi(obs, np.ones(K)).shape == (7, K)
    keyboard.save(tmp_path / "whole")
    loaded = lk.load(tmp_path / "whole")
    assert isinstance(loaded, Keyboard) and loaded.config == keyboard.config
    assert same_bits(loaded.params, keyboard.params)
    w = keyboard.infer_task("walk").w
    np.testing.assert_allclose(loaded.infer_task("walk").w, w, atol=1e-4)
    np.testing.assert_allclose(
        keyboard.infer(keyboard.states.observation, relabel(keyboard.states, "walk")), w, atol=1e-6
    )
    with pytest.raises(UserError, match="task"):
        keyboard.infer_task("fly")


def test_tasks_of_a_shipped_robot_are_inferred_from_their_smooth_part():
    shipped = Keyboard.load("cheetah")
    smooth, plain = shipped.infer_task("walk"), shipped.infer_task("walk", "least-squares")
    assert shipped.config.inference_method == "smooth"
    ratio = np.asarray(smooth.w) / np.asarray(plain.w)
    np.testing.assert_allclose(ratio / ratio[0], np.arange(1, shipped.k + 1) ** -0.75, rtol=1e-3)


def test_a_small_keyboard_plays_nearly_the_same_and_says_what_it_lacks(keyboard, tmp_path):
    keyboard.save(tmp_path, small=True)
    small = Keyboard.load(tmp_path)
    obs = keyboard.states.observation[:7]
    np.testing.assert_allclose(small.act(obs, np.ones(K)), keyboard.act(obs, np.ones(K)), atol=2e-2)
    with pytest.raises(UserError, match="without psi"):
        small.psi(obs, np.ones(K))
    assert small.infer_task("walk").w.shape == (K,)


def test_players_side_by_side_learn_log_and_are_evaluated(keyboard, tmp_path):
    players, curves = learn(keyboard, ["walk", "run"], tmp_path / "run")
    assert len(players) == 2 and [curve.steps for curve in curves] == [[0, 300, 600]] * 2
    assert all(len(episodes) == 10 for curve in curves for episodes in curve.returns)
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert np.shape(lines[-1]["player/evaluation"]) == (2, 10)
    assert np.shape(lines[-1]["player/critic_loss"]) == (2,)
    assert not same_bits(players[0].actor, players[1].actor)
    players[0].save(tmp_path / "player")
    loaded = lk.load(tmp_path / "player")
    assert isinstance(loaded, Player)
    obs = keyboard.states.observation[:3]
    np.testing.assert_array_equal(loaded.choose(obs), players[0].choose(obs))


def test_an_interrupted_player_ends_as_if_it_had_not_been(keyboard, tmp_path):
    whole, curves = learn(keyboard, ["walk"], tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop_after_first(*arguments: Any, **options: Any):
        if arguments[5] >= 300:
            raise Stop
        return real(*arguments, **options)

    real = host_loop.play_and_learn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_loop, "play_and_learn", stop_after_first)
        with pytest.raises(Stop):
            learn(keyboard, ["walk"], tmp_path / "broken")
    again, curves_again = learn(keyboard, ["walk"], tmp_path / "broken")
    assert same_bits(whole[0].actor, again[0].actor)
    assert curves == curves_again
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "broken")]
    assert logs[0] == logs[1]


def test_a_player_that_diverges_names_the_quantity_and_the_step(keyboard, tmp_path):
    def poisoned(*arguments: Any, **options: Any):
        players, metrics = real(*arguments, **options)
        bad = jax.tree.map(lambda x: x * np.nan if x.dtype == np.float32 else x, players)
        return bad, metrics

    real = host_loop.learn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_loop, "learn", poisoned)
        patch.setattr(host_loop, "calls_of", host_loop.Calls)
        with pytest.raises(UserError, match=r"chord is nan .* between steps 0 and .* kept in"):
            learn(keyboard, ["walk"], tmp_path / "run")


def test_stretches_are_cut_by_the_end_of_an_episode():
    config = player.Config(t_term=3, gamma=0.5)
    stretches = Stretches(config, 2)
    inputs, u = np.zeros((2, 1), np.float32), np.zeros((2, K), np.float32)
    no, seen = np.zeros(2, bool), np.zeros((2, 1), np.float32)
    stretches.begin(inputs, u, u)
    stretches.add(np.array([1.0, 1.0]), no, no, seen)
    stretches.add(np.array([1.0, 1.0]), np.array([False, True]), np.array([False, True]), seen + 7)
    np.testing.assert_array_equal(stretches.left, [1, 0])
    stretches.begin(inputs + 5, u, u)
    stretches.add(np.array([1.0, 4.0]), no, no, seen)
    ended, kept = stretches.collect(2)
    np.testing.assert_array_equal(kept, [[False, False, True], [False, True, False]])
    ended = Transition(*ended)
    np.testing.assert_allclose(ended.reward[kept], [1.75, 1.5])
    np.testing.assert_allclose(ended.discount[kept], [0.125, 0.0])
    np.testing.assert_array_equal(ended.next_obs[1, 1], [7.0])
    np.testing.assert_array_equal(stretches.start, [[0.0], [5.0]])


def test_chords_are_chosen_for_the_observation_at_hand(monkeypatch):
    """Also where episodes of seven steps cut stretches of five, and players no longer choose at
    the same time."""
    env = DmcVectorEnv("cheetah", ["run", "walk"], 2, episode_length=7)
    step, reset, now = env.step, env.reset, {}

    class Watched(Stretches):
        def begin(self, inputs: np.ndarray, u: np.ndarray, w: np.ndarray) -> None:
            choosing = self.left == 0
            np.testing.assert_array_equal(inputs[choosing], now["obs"][choosing])
            chosen.append(choosing)
            super().begin(inputs, u, w)

    def remember(result: tuple[Any, ...]) -> tuple[Any, ...]:
        now["obs"] = np.array(result[0], np.float32)
        return result

    chosen: list[np.ndarray] = []
    monkeypatch.setattr(env, "step", lambda action: remember(step(action)))
    monkeypatch.setattr(env, "reset", lambda **options: remember(reset(**options)))
    monkeypatch.setattr(host_loop, "Stretches", Watched)
    config = player.Config(t_term=5, warmup=20, capacity=100, td3=CONFIG.td3)
    table = table_of(FlatConfig(spec_of(env), config))
    learn_players(table, None, env, keys=jax.random.split(jax.random.key(0), 2), steps=60)
    assert len(chosen) > 12  # a stretch a choice would be twelve


def test_several_seeds_are_shared_out_and_each_is_a_run_of_its_own(keyboard, tmp_path, monkeypatch):
    keyboard.save(tmp_path / "keyboard")

    def in_this_process(function, arguments, **_):
        return [function(*each) for each in arguments]

    def compose() -> np.ndarray:
        with spreading(in_this_process):
            return seeds.compose_all(
                tmp_path / "keyboard",
                task="walk",
                seeds=[3, 4, 5],
                out=tmp_path / "players",
                steps=300,
                preset="smoke",
            )

    monkeypatch.setattr(seeds, "own_cores", lambda: [0, 1])
    returns = compose()
    assert returns.shape == (3, 10)
    folders = [tmp_path / "players" / f"seed-{seed}" for seed in (3, 4, 5)]
    loaded = [lk.load(folder) for folder in folders]
    assert all(isinstance(player, Player) for player in loaded)
    assert not same_bits(loaded[0].actor, loaded[2].actor)
    described = [json.loads((path / "config.json").read_text())["settings"] for path in folders]
    assert [each.pop("seed") for each in described] == [3, 4, 5]
    assert described[0] == described[1] == described[2], "one curve with an interval in lk report"
    together = json.loads((tmp_path / "players" / "result.json").read_text())
    np.testing.assert_allclose(together["return_of_each"], returns.mean(axis=1))
    assert (tmp_path / "players" / "done").exists(), "so that a sweep does not run it again"
    monkeypatch.setattr(composing, "learn_players", None)  # what is finished is not repeated
    np.testing.assert_array_equal(compose(), returns)
    monkeypatch.setattr(seeds, "own_cores", lambda: [0, 1, 2])
    np.testing.assert_array_equal(compose(), returns)


def test_the_area_is_the_mean_height_of_the_curve():
    curve = Curve([0, 10, 30], [[0.0, 2.0], [3.0], [3.0]])
    np.testing.assert_allclose(curve.area, (10 * 2.0 + 20 * 3.0) / 30)


def test_composing_takes_single_and_vector_environments_of_the_users_own(tmp_path):
    data = tmp_path / "pendulum"
    gather(
        lambda count: make_host("Pendulum-v1", count),
        data,
        domain="gym:Pendulum-v1",
        explorer="random",
        steps=800,
        num_envs=2,
        quiet=True,
    )
    keyboard = lk.pretrain(lk.load_dataset(data), k=K, preset="smoke")
    single = lk.compose(keyboard, gymnasium.make("Pendulum-v1"), steps=220, preset="smoke")
    obs = np.zeros(3, np.float32)
    assert np.asarray(single.act(obs)).shape == (1,)
    with pytest.raises(UserError, match="SAME_STEP"):
        lk.compose(keyboard, SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2), steps=20)
    with pytest.raises(UserError, match="trained for"):
        lk.compose(keyboard, make_vector_env("cheetah", "run", 1), steps=20, preset="smoke")


def test_a_flat_agent_learns_in_the_players_loop_saves_and_resumes(tmp_path):
    env, evaluate_in = make_vector_env("cheetah", "run", 1), make_vector_env("cheetah", "run", 2)
    learned = train_flat(
        env, steps=200, preset="smoke", evaluate_in=evaluate_in, out=tmp_path, domain="cheetah"
    )
    loaded = FlatAgent.load(tmp_path)
    assert loaded.config == learned.config and same_bits(loaded.actor, learned.actor)
    again = train_flat(env, steps=200, preset="smoke", out=tmp_path, domain="cheetah")
    assert same_bits(again.actor, learned.actor)
    obs = np.zeros((3, 17), np.float32)
    np.testing.assert_array_equal(loaded.act(obs), learned.act(obs))
    assert loaded.act(obs).shape == (3, 6)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["curve"]["steps"] == [0, 200] and np.shape(result["curve"]["returns"]) == (2, 10)


def test_flat_td3_refuses_discrete_actions_and_unknown_presets():
    with pytest.raises(UserError, match="continuous actions"):
        train_flat(make_vector_env("four-rooms", "goal", 1))
    with pytest.raises(UserError, match="known: smoke, cleanrl, exorl"):
        train_flat(make_vector_env("point-maze", "goal", 1), preset="cpu")
