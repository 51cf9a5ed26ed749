"""The page of `lk play`: viser serves it, and draws in the browser what a `Session` does.

Every browser tab has a `Page` with a session and a thread of its own:

    hands   buttons, sliders and hotkeys change the session, and wake the thread
    thread  lets time go by, draws the body, and shows what has changed since the last frame

so that nothing is drawn from two threads, and a key is answered at once.

Hotkeys are commands of viser's palette (Ctrl+K lists them). It reports that a key went down and
no more, neither that it came up again nor that it repeats; see `Page._hotkey`. W, A, S, D, Q and E
move viser's camera and are left to it.
"""

import contextlib
import html
import json
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from laplacian_keyboard.play.instrument import Instrument
from laplacian_keyboard.play.lesson import STEPS, Lesson
from laplacian_keyboard.play.session import SPEEDS, Session
from laplacian_keyboard.types import UserError

try:
    import viser
    from viser import uplot
except ImportError as error:
    raise UserError('lk play needs viser: pip install "laplacian-keyboard[play]"') from error

from laplacian_keyboard.play.guard import LOOPBACK, own_pages_only

FRAME = 1 / 30
"""Seconds between frames."""
SLOW = 0.2
"""Seconds between updates of plots and figures."""
PLOT_SECONDS = 10.0
REPEAT = 0.1
"""A key that goes down again within so many seconds is one that is held and repeats."""
PLUS_KEYS = "1234567890"
MINUS_KEYS = "ZXCRTYUIOP"
"""The letter below each digit; Q, W and E belong to the camera, so 1, 2 and 3 have Z, X and C."""
HOTKEYS = {"Reset": "N", "Pause": "H", "Push": "B", "Silence": "M"}
LIT = "●"
FREE: str = "your own hands"
NONE: str = "none"
MAX_SAVED, MAX_NAME = 50, 40


class View(Protocol):
    """How a body is drawn."""

    def draw(self) -> None:
        """Show the session's body as it is now."""
        ...

    def controls(self) -> None:
        """Add what only this kind of world has to the panel."""
        ...

    def refresh(self) -> None:
        """Show what has changed besides the body: called a few times a second."""
        ...


class _Server(viser.ViserServer):
    """viser without its button to publish the page on the internet."""

    def request_share_url(self, verbose: bool = True) -> str | None:
        """Refuse: any tab could ask for it."""
        return None


class Stage:
    """The server: an instrument, a page for every tab, and at most one lesson."""

    def __init__(
        self,
        instrument: Instrument,
        run: str,
        *,
        host: str = "127.0.0.1",
        port: int = 8012,
        preset: str = "cpu",
        folder: str | Path = "runs",
    ):
        self.instrument, self.run, self.preset, self.folder = instrument, run, preset, Path(folder)
        self.lesson: Lesson | None = None
        self.pages: dict[int, Page] = {}
        self._lock = threading.Lock()
        _require_free(host, port)
        # viser greets on stdout, which is for results.
        with contextlib.redirect_stdout(sys.stderr), own_pages_only(host):
            self.server = _Server(host=host, port=port, label="Laplacian Keyboard", verbose=False)
        self.server.gui.configure_theme(
            show_logo=False, show_share_button=False, brand_color=(58, 90, 170)
        )
        self.server.on_client_connect(self._open)
        self.server.on_client_disconnect(self._close)

    @property
    def address(self) -> str:
        """Where to point a browser."""
        return f"http://{self.server.get_host()}:{self.server.get_port()}"

    def learn(self, task: str, steps: int) -> None:
        """Begin a lesson; one at a time."""
        with self._lock:
            if self.lesson is not None and self.lesson.running:
                raise UserError(f"a player of {self.lesson.task} is being learned: stop that first")
            if self.lesson is not None:
                self.lesson.stop()
            steps = min(max(int(steps), STEPS[0]), STEPS[1])
            place = "".join(c if c.isalnum() or c in "-_" else "-" for c in task)
            out = self.folder / f"play-{self.instrument.name}-{place}-{steps}"
            self.lesson = Lesson(self.run, task, steps, out=out, preset=self.preset)

    def close(self) -> None:
        """Stop serving, and everything that goes on behind the pages."""
        for page in list(self.pages.values()):
            page.close()
        if self.lesson is not None:
            self.lesson.stop()
        with contextlib.redirect_stdout(sys.stderr):
            self.server.stop()

    def _open(self, client: viser.ClientHandle) -> None:
        page = Page(self, client)
        with self._lock:
            self.pages[client.client_id] = page
        # The tab may have been closed while the page was built.
        if client.client_id not in self.server.get_clients():
            self._close(client)

    def _close(self, client: viser.ClientHandle) -> None:
        with self._lock:
            page = self.pages.pop(client.client_id, None)
        if page is not None:
            page.close()


class Page:
    """One browser tab."""

    def __init__(self, stage: Stage, client: viser.ClientHandle):
        self.stage, self.client, self.gui = stage, client, client.gui
        self.instrument = stage.instrument
        self.session = Session(self.instrument, seed=client.client_id)
        self._woken, self._closed = threading.Event(), threading.Event()
        self._down: dict[Any, tuple[float, bool]] = {}
        self._shown: dict[str, Any] = {}
        self._saved: dict[str, list[float]] = {}
        self.view = _view(self)
        self._build()
        self._thread = threading.Thread(target=self._run, name="lk play", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the simulation."""
        self._closed.set()
        self._woken.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def say(self, text: str, *, trouble: bool = False) -> None:
        """Tell the person something."""
        colour = "#c0392b" if trouble else "#2f7d4f"
        self._notice.content = (
            f'<div data-notice style="{_SMALL};color:{colour};font-weight:600">'
            f"{html.escape(text[:400])}</div>"
        )

    def hand(self, act: Callable[..., None]) -> Callable[[Any], None]:
        """A callback of the page: what the person cannot do is said, not raised."""

        def callback(event: Any) -> None:
            if event is not None and getattr(event, "client", self.client) is None:
                return  # set by the page itself
            try:
                act()
            except UserError as error:
                self.say(str(error), trouble=True)
            self._woken.set()

        return callback

    # What is on the page.

    def _build(self) -> None:
        gui, instrument = self.gui, self.instrument
        gui.add_html(
            f'<div style="padding:0 0.75em 0.4em"><b>{html.escape(instrument.name)}</b>'
            f' <span style="{_DIM}">{instrument.k} keys</span></div>'
        )
        self._notice = gui.add_html("")
        self._status = gui.add_html("")
        body = gui.add_button_group("Body", ("Reset", "Pause", "Push"))
        body.on_click(self.hand(lambda: self._body(body.value)))
        speed = gui.add_slider("Speed", min=SPEEDS[0], max=2.0, step=0.1, initial_value=1.0)
        speed.on_update(self.hand(lambda: self.session.set_speed(speed.value)))
        self.view.controls()
        self._build_tasks()
        self._plot = gui.add_uplot(
            (np.array([0.0, 1.0]), np.array([0.0, 0.0])),
            (uplot.Series(label="s"), uplot.Series(label="reward", stroke="#3a5aaa", width=2)),
            scales={"x": uplot.Scale(time=False), "y": uplot.Scale(auto=True)},
            legend=uplot.Legend(show=False),
            height=130,
            padding=(10, 16, 0, 0),
        )
        self._build_formula()
        self._build_lesson()
        self._build_chords()
        self._build_piano()
        for name, key in HOTKEYS.items():
            command = gui.add_command(name, hotkey=key)  # type: ignore[arg-type]
            command.on_trigger(self.hand(lambda name=name: self._body(name)))

    def _body(self, name: str) -> None:
        if name == "Reset":
            self.session.reset()
        elif name == "Pause":
            self.session.pause(not self.session.paused)
        elif name == "Push":
            self.session.push()
        elif name == "Silence":
            self.session.silence()

    def _build_tasks(self) -> None:
        tasks = self.gui.add_dropdown("Task", (FREE, *self.instrument.tasks))
        self._tasks = tasks

        def choose() -> None:
            if tasks.value == FREE:
                self.session.silence()
                self.session.aim = None
            else:
                self.pursue(self.instrument.aim_at_task(tasks.value))

        tasks.on_update(self.hand(choose))
        self._player = self.gui.add_checkbox(
            "Let the player play",
            initial_value=False,
            disabled=self.instrument.player is None,
            hint="A player chooses a new chord every few steps.",
        )
        self._player.on_update(self.hand(lambda: self.session.let_player(self._player.value)))

    def pursue(self, aim: Any) -> None:
        """Play for an aim and say how much of it the keys can express."""
        self.session.pursue(aim)
        self._tasks.value = aim.task if aim.task in self.instrument.tasks else FREE
        self.say(f"{aim.title}: {100 * aim.inside:.0f} % of this reward is in the span")

    def _build_formula(self) -> None:
        with self.gui.add_folder("Write a reward"):
            first = next(iter(self.instrument.quantities), "")
            text = self.gui.add_text("Reward", "speed * upright" if first == "speed" else first)
            play = self.gui.add_button("Play this reward")
            play.on_click(
                self.hand(lambda: self.pursue(self.instrument.aim_at_formula(text.value)))
            )
            rows = "".join(
                f"<div><code>{name}</code> {html.escape(meaning)}</div>"
                for name, meaning in self.instrument.quantities.items()
            )
            self.gui.add_html(f'<div style="{_SMALL};{_DIM}">{rows}</div>')

    def _build_lesson(self) -> None:
        with self.gui.add_folder("Learn a player here", expand_by_default=False):
            steps = self.gui.add_number("Steps", 50_000, min=STEPS[0], max=STEPS[1], step=1_000)
            start = self.gui.add_button_group("Lesson", ("Start", "Stop"))

            def teach() -> None:
                if start.value == "Stop":
                    if self.stage.lesson is not None:
                        self.stage.lesson.stop()
                    return
                aim = self.session.aim
                if aim is None or aim.task is None:
                    raise UserError("choose a task first: a player learns one of those")
                self.stage.learn(aim.task, steps.value)
                self.say(f"learning a player of {aim.task}")

            start.on_click(self.hand(teach))
            self._lesson = self.gui.add_html("")
            self._curve = self.gui.add_uplot(
                (np.array([0.0, 1.0]), np.array([0.0, 0.0])),
                (uplot.Series(label="steps"), uplot.Series(label="return", stroke="#d9822b")),
                scales={"x": uplot.Scale(time=False), "y": uplot.Scale(auto=True)},
                legend=uplot.Legend(show=False),
                height=130,
                padding=(10, 16, 0, 0),
            )

    def _build_chords(self) -> None:
        with self.gui.add_folder("Saved chords", expand_by_default=False):
            saved: viser.GuiDropdownHandle[str] = self.gui.add_dropdown("Chord", [str(NONE)])
            name = self.gui.add_text("Name", "")
            actions = self.gui.add_button_group("", ("Save", "Forget"))

            def keep() -> None:
                with self.session.lock:
                    if actions.value == "Forget":
                        self._saved.pop(saved.value, None)
                    else:
                        chosen = name.value.strip()[:MAX_NAME]
                        if not chosen or len(self._saved) >= MAX_SAVED:
                            raise UserError("give the chord a name, and keep fewer than 50")
                        self._saved[chosen] = self.session.w.round(4).tolist()
                saved.options = (NONE, *self._saved)
                self.client.local_storage.set_item(self._storage, json.dumps(self._saved))

            def recall() -> None:
                if (found := self._saved.get(saved.value)) is not None:
                    self.session.set_chord(np.array(found) / max(np.abs(found).max(), 1e-12))

            actions.on_click(self.hand(keep))
            saved.on_update(self.hand(recall))
            self._recall = saved
        with self.gui.add_folder("Weights", expand_by_default=False):
            self._sliders = [
                self.gui.add_slider(f"e_{i + 1}", min=-1.0, max=1.0, step=0.01, initial_value=0.0)
                for i in range(self.instrument.k)
            ]
            for i, slider in enumerate(self._sliders):
                weigh = lambda i=i, slider=slider: self.session.set_weight(i, slider.value)  # noqa: E731
                slider.on_update(self.hand(weigh))

    @property
    def _storage(self) -> str:
        """Where the browser keeps the chords of this keyboard."""
        return f"laplacian-keyboard:{self.instrument.name}:{self.instrument.k}"

    def _load_saved(self) -> None:
        """What the browser has kept from an earlier visit; whatever is odd is left out."""
        with contextlib.suppress(RuntimeError, TimeoutError, ValueError, AttributeError):
            found = json.loads(self.client.local_storage.get_item(self._storage, timeout=2) or "{}")
            for name, w in list(found.items())[:MAX_SAVED]:
                chord = np.asarray(w, np.float64)
                if chord.shape == (self.instrument.k,) and np.isfinite(chord).all():
                    self._saved.setdefault(str(name)[:MAX_NAME], chord.tolist())
            if self._saved:
                self._recall.options = (NONE, *self._saved)

    def _build_piano(self) -> None:
        k = self.instrument.k
        panel = self.gui.add_panel()
        with panel.add_tab("Keys"):
            self._bars = self.gui.add_html("")
            self._rows = {}
            for sign, mark, hotkeys in ((1, "+", PLUS_KEYS), (-1, "-", MINUS_KEYS)):
                names = [_key_name(mark, i, hotkeys) for i in range(k)]
                row = self.gui.add_button_group(mark, names)
                row.on_click(self.hand(lambda row=row, sign=sign: self._click(row.value, sign)))
                self._rows[sign] = row, names
                for i in range(min(k, len(hotkeys))):
                    command = self.gui.add_command(names[i], hotkey=hotkeys[i])  # type: ignore[arg-type]
                    command.on_trigger(self.hand(lambda i=i, sign=sign: self._hotkey(i, sign)))
        panel.float(x=15, y=-15, width=min(130 + 68 * k, 900))

    def _click(self, label: str, sign: int) -> None:
        _, names = self._rows[sign]
        name = label.removeprefix(f"{LIT} ")
        if name in names:
            self.session.press(names.index(name), sign)

    def _hotkey(self, key: int, sign: int) -> None:
        """A key that is held down reports again after half a second and then every few hundredths:
        the first report is one press, and what the second did is taken back by the third."""
        now = time.monotonic()
        last, taken_back = self._down.get((key, sign), (-1.0, False))
        repeats = now - last < REPEAT
        if not (repeats and taken_back):
            self.session.press(key, sign)
        self._down[key, sign] = now, repeats

    # The thread.

    def _run(self) -> None:
        threading.Thread(target=self._load_saved, daemon=True).start()
        last, slow = time.monotonic(), 0.0
        while not self._closed.is_set():
            woken = self._woken.is_set()
            self._woken.clear()
            now = time.monotonic()
            self.session.advance(now - last, at_least=int(woken))
            last = now
            with self.client.atomic():
                if self._is_new("pose", self.session.moves):
                    self.view.draw()
                self._show_chord()
                if now - slow > SLOW:
                    slow = now
                    self._show_figures()
                    self._show_lesson()
                    self.view.refresh()
            self.client.flush()
            self._woken.wait(max(0.0, FRAME - (time.monotonic() - now)))

    def _show_chord(self) -> None:
        if not self._is_new("chord", self.session.version):
            return
        session = self.session
        self._bars.content = bars(session.w, player=session.player is not None)
        for sign, (row, names) in self._rows.items():
            labels = tuple(
                f"{LIT} {name}" if sign * weight > 0 else name
                for name, weight in zip(names, session.chord, strict=True)
            )
            if labels != row.options:
                row.options = labels
        for slider, weight in zip(self._sliders, session.chord, strict=True):
            slider.value = float(weight)
        self._player.value = session.player is not None

    def _show_figures(self) -> None:
        session = self.session
        named = [f"{name} {float(x):.2f}" for name, x in session.quantities().items()]
        aim = session.aim
        recent = list(session.rewards)
        if aim is not None and recent:
            rewards = [reward for _, reward in recent]
            named.append(f"<b>reward {rewards[-1]:.3f}</b> (mean {np.mean(rewards):.3f})")
            times = np.array([time for time, _ in recent])
            seen = times >= times[-1] - PLOT_SECONDS
            self._plot.data = (times[seen], np.array(rewards)[seen])
        elif aim is None and self._is_new("plot", None):
            self._plot.data = (np.array([0.0, 1.0]), np.array([0.0, 0.0]))
        if aim is not None:
            self._shown.pop("plot", None)
        paused = " · paused" if session.paused else ""
        self._status.content = (
            f'<div data-time="{session.time:.2f}" style="{_SMALL}">{session.time:.1f} s{paused}'
            f'<br/><span style="{_DIM}">{" · ".join(named)}</span></div>'
        )

    def _show_lesson(self) -> None:
        lesson = self.stage.lesson
        if lesson is None:
            return
        steps, returns = lesson.curve()
        if self._is_new("curve", (id(lesson), len(steps))) and len(steps) > 1:
            self._curve.data = (np.array(steps), np.array(returns))
        state = "learning" if lesson.running else "finished" if lesson.finished else "stopped"
        if not self._is_new("lesson", (id(lesson), state, len(steps))):
            return
        text = f"{lesson.task}: {state}"
        if returns:
            text += f", return {returns[-1]:.4g}"
        if (zero_shot := lesson.zero_shot()) is not None:
            text += f" (one chord: {zero_shot:.4g})"
        if complaint := lesson.complaint():
            text += f"; {complaint}"
        self._lesson.content = f'<div data-lesson style="{_SMALL}">{html.escape(text)}</div>'
        if lesson.finished:
            self.instrument.player, self.instrument.player_task = lesson.player(), lesson.task
        self._player.disabled = self.instrument.player is None

    def _is_new(self, name: str, value: Any) -> bool:
        """Whether a value differs from the one last shown under that name."""
        if name in self._shown and self._shown[name] == value:
            return False
        self._shown[name] = value
        return True


_SMALL = "padding:0 0.9em 0.4em;font-size:0.85em;line-height:1.4"
_DIM = "opacity:0.65"


def bars(w: np.ndarray, *, player: bool = False) -> str:
    """The chord as a picture: a bar up or down for every key."""
    k, width, half = len(w), 60, 34.0
    largest = max(float(np.abs(w).max()), 1e-9)
    colour = "#d9822b" if player else "#3a5aaa"
    parts = [
        f'<line x1="0" x2="{k * width}" y1="{half}" y2="{half}" stroke="currentColor" '
        'stroke-opacity="0.35"/>'
    ]
    for i, value in enumerate(w):
        height = half * abs(float(value)) / largest * 0.9
        top = half - height if value > 0 else half
        parts.append(
            f'<rect x="{i * width + 12}" y="{top:.1f}" width="{width - 24}" '
            f'height="{height:.1f}" rx="3" fill="{colour}"/>'
            f'<text x="{i * width + width / 2}" y="{2 * half + 14}" text-anchor="middle" '
            f'font-size="13" fill="currentColor" opacity="0.75">{value:+.2f}</text>'
        )
    played = " ".join(f"{value:.3f}" for value in w)
    return (
        f'<div data-w="{played}" style="padding:6px 9px 3px 117px">'
        f'<svg viewBox="0 0 {k * width} {2 * half + 20}" style="width:100%;display:block">'
        f"{''.join(parts)}</svg></div>"
    )


def _key_name(mark: str, key: int, hotkeys: str) -> str:
    number = str(key + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    return f"{mark}e{number}" + (f" ({hotkeys[key]})" if key < len(hotkeys) else "")


def _view(page: Page) -> View:
    if page.instrument.map is not None:
        from laplacian_keyboard.play.map_view import MapView

        return MapView(page)
    from laplacian_keyboard.play.robot_view import RobotView

    return RobotView(page)


def _require_free(host: str, port: int) -> None:
    """viser would take the next port; people and scripts expect the one they asked for."""
    if not 0 <= port < 2**16:
        raise UserError(f"--port must lie between 0 and 65535, not {port}")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port"
        ) from error


def serve(run: str, *, host: str = "127.0.0.1", port: int = 8012, preset: str = "cpu") -> None:
    """Serve the page of a keyboard until interrupted."""
    _require_free(host, port)
    instrument = Instrument.load(run)
    # A world that cannot be shown is a mistake now, and not in the browser; and what a key needs
    # is compiled before somebody waits for it.
    rehearsal = Session(instrument)
    rehearsal.press(0, 1)
    rehearsal.advance(0.0, at_least=1)
    if host not in LOOPBACK:
        print(
            f"lk: warning: everybody who can reach {host}:{port} can play and start lessons; "
            "there is no password",
            file=sys.stderr,
        )
    stage = Stage(instrument, run, host=host, port=port, preset=preset)
    # A frame that is on its way when its tab is closed is nobody's trouble.
    warnings.filterwarnings("ignore", message="Queued a .* on a closed connection")
    try:
        instrument.warm_up()
        print(f"playing {instrument.name}: open {stage.address} (Ctrl+C ends)", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        stage.close()
