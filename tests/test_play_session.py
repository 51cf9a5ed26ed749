"""Playing a keyboard without a browser: bodies, chords, aims, players, lessons, the door."""

import json
import socket
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from laplacian_keyboard import cli, spectral
from laplacian_keyboard import player as playing
from laplacian_keyboard.baselines import td3
from laplacian_keyboard.bases import laplacian
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.envs.domains import grid_map
from laplacian_keyboard.keyboard import Keyboard, KeyboardConfig, Player, empty_params, shipped
from laplacian_keyboard.play import page as pages
from laplacian_keyboard.play.exact import Oracle
from laplacian_keyboard.play.guard import is_own
from laplacian_keyboard.play.instrument import Instrument
from laplacian_keyboard.play.lesson import Lesson, read_curve
from laplacian_keyboard.play.session import LINGER, Session
from laplacian_keyboard.successor import continuous, discrete
from laplacian_keyboard.types import Spec, UserError


def untrained(domain: str, k: int = 3) -> Keyboard:
    """A keyboard of a map that has learned nothing: behaviors all the same."""
    basis = laplacian.Config(k=k, hidden=(16,))
    if domain == "four-rooms":
        config = KeyboardConfig(
            Spec(26, num_actions=4), basis, discrete.Config(hidden=(16,)), domain
        )
        return Keyboard(config, empty_params(config))
    successor = continuous.Config(network="plain", hidden=(16,))
    config = KeyboardConfig(Spec(26, action_dim=2), basis, successor, domain)
    return Keyboard(config, empty_params(config), maze_states(domain))


def maze_states(domain: str) -> Dataset:
    """The middle of every cell of Four-Rooms, as stored states."""
    from laplacian_keyboard.envs.grid import grid_observations

    grid = grid_map("four-rooms")
    obs = grid_observations(grid)
    return Dataset(
        path=None,  # type: ignore[arg-type]
        description={"domain": domain},
        observation=obs,
        action=np.zeros((len(obs), 2), np.float32),
        reward=np.zeros(len(obs), np.float32),
        discount=np.ones(len(obs), np.float32),
        physics=grid.cells[:, ::-1] + 0.5,
        lengths=np.zeros(len(obs), int),
        num_actions=0,
    )


@pytest.fixture(scope="module")
def cheetah():
    return Instrument.load("cheetah")


@pytest.fixture(scope="module")
def rooms():
    return Instrument(untrained("four-rooms"))


def test_keys_switch_on_and_off_and_make_chords(rooms):
    session = Session(rooms)
    assert not session.w.any()
    session.press(0, 1)
    session.press(2, -1)
    np.testing.assert_array_equal(session.chord, [1, 0, -1])
    assert np.linalg.norm(session.w) == pytest.approx(np.sqrt(3))
    session.press(0, -1)
    np.testing.assert_array_equal(session.chord, [-1, 0, -1])
    session.press(0, -1)
    session.press(2, -1)
    assert not session.chord.any()
    session.set_weight(1, 0.25)
    np.testing.assert_array_equal(session.chord, [0, 0.25, 0])
    session.silence()
    assert not session.w.any()


def test_a_key_that_is_held_down_is_pressed_once(rooms, monkeypatch):
    session = Session(rooms)
    tab = SimpleNamespace(session=session, _down={})
    now = iter([10.0, 10.5, 10.53, 10.56, 10.59, 10.62, 12.0])
    monkeypatch.setattr(pages, "time", SimpleNamespace(monotonic=lambda: next(now)))
    for _ in range(6):
        pages.Page._hotkey(tab, 1, 1)  # type: ignore[arg-type]
    np.testing.assert_array_equal(session.chord, [0, 1, 0])
    pages.Page._hotkey(tab, 1, 1)  # type: ignore[arg-type]
    assert not session.chord.any()


def test_what_a_browser_may_send_is_checked(rooms):
    session = Session(rooms)
    for wrong in ([1, 2], [np.nan, 0, 0], [np.inf, 0, 0]):
        with pytest.raises(UserError):
            session.set_chord(wrong)
    for key, sign in ((3, 1), (-1, 1), (0, 2)):
        with pytest.raises(UserError):
            session.press(key, sign)
    session.set_chord([5, -7, 0.5])
    np.testing.assert_array_equal(session.chord, [1, -1, 0.5])
    session.set_speed(float("nan"))
    assert session.speed == 1.0
    session.set_speed(1e9)
    assert session.speed <= 4
    for task in ("os:system", "laplacian_keyboard.cli:main", "goal:1,1", "env", "run"):
        with pytest.raises(UserError):
            rooms.aim_at_task(task)


def test_time_goes_by(cheetah):
    session = Session(cheetah)
    assert session.body.seconds == pytest.approx(0.01)
    assert session.advance(0.1001) == 10
    assert session.advance(0.004) == 0
    assert session.advance(0.007) == 1
    assert session.advance(0.0, at_least=1) == 1
    session.set_speed(2.0)
    assert session.advance(0.0501) in (10, 11)
    assert session.advance(100.0) == 50
    session.pause(True)
    assert session.advance(1.0, at_least=1) == 0


def test_bodies_are_ones_own_and_answer(cheetah):
    one, other = Session(cheetah, seed=1), Session(cheetah, seed=1)
    before = other.body.pose().copy()
    np.testing.assert_array_equal(one.body.pose(), before)
    one.press(5, 1)
    one.advance(0.3)
    np.testing.assert_array_equal(other.body.pose(), before)
    assert np.abs(one.body.pose() - before).max() > 0.05
    velocity = other.body.quantities()["speed"]
    other.push()
    assert abs(other.body.quantities()["speed"] - velocity) > 0.01
    other.reset()
    assert len(other.trail) == 1 and np.isfinite(other.body.pose()).all()


def test_an_aim_is_played_and_counted(cheetah):
    session = Session(cheetah)
    aim = cheetah.aim_at_task("walk")
    session.pursue(aim)
    assert np.abs(session.chord).max() == 1.0
    np.testing.assert_allclose(session.w, aim.w, rtol=1e-5)
    session.advance(0.2)
    assert len(session.rewards) == 20
    assert all(0 <= reward <= 1 for _, reward in session.rewards)
    assert 0 < aim.inside < 1


def test_a_formula_is_worth_what_the_task_of_that_formula_is(cheetah):
    named, written = cheetah.aim_at_task("walk"), cheetah.aim_at_formula("ramp(speed, 0, 2)")
    np.testing.assert_allclose(written.w, named.w, atol=1e-3)
    assert written.inside == pytest.approx(named.inside, abs=1e-3)
    np.testing.assert_allclose(
        named.w, np.asarray(cheetah.keyboard.infer_task("walk").w), atol=1e-2
    )
    for text in ("1 / (height - height)", "speed * 1e300 * 1e300", "speed - speed", "weight"):
        with pytest.raises(UserError):
            cheetah.aim_at_formula(text)


@pytest.mark.parametrize("domain", ["four-rooms", "point-maze"])
def test_cells_of_a_map_can_be_painted(domain):
    instrument = Instrument(untrained(domain))
    aim = instrument.aim_at_cells({7: 1.0})
    rewards = instrument.rewards_of_cells(aim)
    assert rewards[7] == 1 and rewards.sum() == 1
    row, column = grid_map("four-rooms").cells[7]
    assert aim.task == f"goal:{row},{column}"
    assert instrument.aim_at_cells({7: 1.0, 9: -1.0}).task is None
    assert instrument.aim_at_task("goal").task == "goal"
    session = Session(instrument)
    session.pursue(aim)
    session.advance(2.0)
    assert session.time > 0 and len(session.trail) > 1


def test_an_attempt_begins_anew_at_the_goal(rooms):
    session = Session(rooms)
    session.pursue(rooms.aim_at_cells(dict.fromkeys(range(104), 1.0) | {0: -1.0}))
    for _ in range(LINGER + 1):
        session.advance(0.0, at_least=1)
    before = session.trail[-1]
    session.advance(0.0, at_least=1)
    assert len(session.trail) == 2 or not np.array_equal(session.trail[-1], before)


def test_exact_values_keep_within_their_bounds(rooms):
    grid = grid_map("four-rooms")
    oracle = Oracle(grid, 3, 0.9)
    rewards = np.zeros(grid.num_states)
    rewards[30] = 1.0
    best = spectral.greedy_policy(
        grid.next_states(), rewards, spectral.value_iteration(grid.next_states(), rewards, 0.9), 0.9
    )
    values = oracle.values(rewards, best)
    np.testing.assert_allclose(values.chord, values.optimal, atol=1e-4)
    up = oracle.values(rewards, np.zeros(grid.num_states, int))
    assert (up.chord <= up.optimal + 1e-6).all() and up.chord.mean() < up.optimal.mean()
    assert 0 < values.tight <= values.theorem


def test_the_player_plays_until_a_key_is_pressed(rooms):
    session = Session(rooms)
    with pytest.raises(UserError, match="no player"):
        session.let_player(True)
    config = playing.Config(t_term=3, td3=td3.Config(hidden=(8,)))
    actor = playing.init(config, Spec(26, num_actions=4), 3, key=jax.random.key(0)).actor.params
    instrument = Instrument(rooms.keyboard, Player(rooms.keyboard, config, actor))
    session = Session(instrument)
    session.let_player(True)
    version = session.version
    session.advance(0.0, at_least=7)
    assert session.version - version == 3  # chosen at steps 0, 3 and 6
    assert np.linalg.norm(session.w) == pytest.approx(np.sqrt(3), rel=1e-5)
    assert session.player is not instrument.player
    session.press(0, 1)
    assert session.player is None


def test_the_learning_curve_is_read_while_it_is_written(tmp_path):
    assert read_curve(tmp_path) == ([], [])
    entries = [{"stage": "player", "step": s, "player/return": s / 10} for s in (10, 20)]
    text = "\n".join(map(json.dumps, entries)) + '\n{"stage": "pla'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert read_curve(tmp_path) == ([10, 20], [1, 2])
    entry = {"stage": "player", "step": 30, "player/evaluation": [[1.0, 3.0]], "player/return": 9}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(entry), encoding="utf-8")
    assert read_curve(tmp_path) == ([30], [2])


def test_a_lesson_that_fails_says_why(tmp_path):
    lesson = Lesson(str(tmp_path / "nothing"), "goal", 100, out=tmp_path / "out")
    try:
        lesson._process.wait(timeout=600)
        assert not lesson.finished and "holds no keyboard" in lesson.complaint()
    finally:
        lesson.stop()


def test_a_busy_port_and_odd_ones_are_clear_mistakes(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as stop:
            cli.main(["play", "cheetah", "--port", str(port)])
    assert stop.value.code == 2
    message = capsys.readouterr().err.strip()
    assert message.count("\n") == 0 and str(port) in message and "--port" in message
    for arguments, part in (
        (["--port", "99999"], "65535"),
        (["--host", "no such host"], "no such host"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["play", "cheetah", *arguments])
        assert part in capsys.readouterr().err


def test_pages_of_others_are_kept_out():
    stage = pages.Stage(Instrument(untrained("four-rooms")), "four-rooms", port=0)
    port = stage.server.get_port()
    own = f"127.0.0.1:{port}"
    version = f"viser-v{pages.viser.__version__}"

    def come_in(origin: str | None, host: str = own) -> None:
        sock = socket.create_connection(("127.0.0.1", port))
        connect(f"ws://{host}", sock=sock, origin=origin, subprotocols=[version]).close()

    try:
        come_in(f"http://{own}")
        come_in(None)
        for origin, host in (
            ("http://elsewhere.example", own),
            (f"http://127.0.0.1:{port + 1}", own),
            ("null", own),
            (f"http://elsewhere.example:{port}", f"elsewhere.example:{port}"),
        ):
            with pytest.raises(InvalidStatus, match="403"):
                come_in(origin, host)
    finally:
        stage.close()


def test_a_server_for_others_is_asked_by_any_name_of_its_own():
    name, elsewhere = ["robots.lab:8012"], "http://elsewhere.example"
    assert is_own(name, ["http://robots.lab:8012"], loopback=False)
    assert not is_own(name, ["http://robots.lab:8012"], loopback=True)
    assert not is_own(name, [elsewhere], loopback=False)
    assert not is_own(name, ["http://robots.lab:8012", elsewhere], loopback=False)
    assert not is_own(["localhost:8012", *name], [], loopback=True)
    assert not is_own(["[::1"], [], loopback=True)
    assert is_own(["[::1]:8012"], [], loopback=True)


def test_without_the_extra_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "viser", None)
    monkeypatch.delitem(sys.modules, "laplacian_keyboard.play.page")
    with pytest.raises(SystemExit) as stop:
        cli.main(["play", "cheetah"])
    assert stop.value.code == 2
    assert 'pip install "laplacian-keyboard[play]"' in capsys.readouterr().err


def test_without_a_name_the_shipped_keyboards_are_offered(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    assert cli._choose_shipped() == shipped()[0]
    offered = capsys.readouterr().out
    assert all(name in offered for name in shipped())


def test_worlds_that_cannot_be_shown_are_named():
    keyboard = untrained("four-rooms")
    object.__setattr__(keyboard.config, "domain", "gym:CartPole-v1")
    with pytest.raises(UserError, match="lk play shows"):
        Session(Instrument(keyboard))
