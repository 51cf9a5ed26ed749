"""One person at the keyboard: a body, the chord that is held, and who is playing.

    session.press(0, +1)        switch the key +e_1 on or off
    session.pursue(aim)         play an aim's zero-shot chord, and count its reward
    session.let_player(True)    hand over to the player
    session.advance(0.04)       let 40 ms go by

Nothing here knows of a browser. Methods may be called from different threads.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from laplacian_keyboard.keyboard import Player, behave
from laplacian_keyboard.play.bodies import Body, make_body, named_quantities
from laplacian_keyboard.play.instrument import Aim, Instrument
from laplacian_keyboard.types import UserError

MAX_STEPS = 50
"""Steps of one call to `advance`: a machine that is too slow plays slowly, and answers."""
SPEEDS = (0.1, 4.0)
HISTORY = 1_000
"""Steps of rewards and of the trail that are kept."""
LINGER = 5
"""Steps a body stays at a goal of a map before it starts anew."""

Array = NDArray[np.float64]

# `Keyboard.act` without its checks: one call a step.
_behave = jax.jit(behave, static_argnums=0)


class Session:
    """A body and the hands on its keyboard."""

    def __init__(self, instrument: Instrument, seed: int = 0):
        self.instrument = instrument
        self.lock = threading.RLock()
        self._rng = np.random.default_rng(seed)
        self.body: Body = make_body(instrument.domain, self._rng)
        self.chord: Array = np.zeros(instrument.k)
        """The weights that are held, as keys and sliders show them: each in [-1, 1]."""
        self.aim: Aim | None = None
        self.player: Player | None = None
        self.paused = False
        self.speed = 1.0
        self.time = 0.0
        """Simulated seconds since the beginning."""
        self.version = 0
        """Counts changes of what is played, for a page that draws only what is new."""
        self.moves = 0
        """Counts changes of the body's pose."""
        self.rewards: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        """(time, reward) of the last steps with an aim."""
        self.trail: deque[Array] = deque(maxlen=HISTORY)
        self._owed = 0.0
        self._begin()

    @property
    def w(self) -> Array:
        """The chord that sounds now: of length sqrt(k), or zero where nothing is played."""
        chord = self.chord if self.player is None else np.asarray(self.player.w, np.float64)
        length = float(np.linalg.norm(chord))
        return chord * (np.sqrt(len(chord)) / length) if length > 0 else chord

    def press(self, key: int, sign: int) -> None:
        """Switch the key `sign * e_key` on, or off if it is on. It replaces its opposite."""
        with self.lock:
            if not 0 <= key < len(self.chord) or sign not in (-1, 1):
                raise UserError(f"there is no key {sign * (key + 1)}")
            is_on = np.sign(self.chord[key]) == sign
            self.set_weight(key, 0.0 if is_on else float(sign))

    def set_weight(self, key: int, weight: float) -> None:
        """Hold a key with a weight in [-1, 1]."""
        with self.lock:
            chord = self.chord.copy()
            chord[key] = weight
            self.set_chord(chord)

    def set_chord(self, chord: Sequence[float] | Array) -> None:
        """Hold these weights: take over from a player."""
        chord = np.asarray(chord, np.float64)
        if chord.shape != (self.instrument.k,) or not np.isfinite(chord).all():
            raise UserError(f"a chord is {self.instrument.k} finite numbers")
        with self.lock:
            self.chord = np.clip(chord, -1.0, 1.0)
            self.player = None
            self.version += 1

    def silence(self) -> None:
        """Let go of all keys; the body does nothing of its own."""
        self.set_chord(np.zeros(self.instrument.k))

    def pursue(self, aim: Aim) -> None:
        """Play the zero-shot chord of an aim, and count its reward from now on."""
        with self.lock:
            self.aim = aim
            self.rewards.clear()
            self.set_chord(aim.w / max(float(np.abs(aim.w).max()), 1e-12))

    def let_player(self, plays: bool) -> None:
        """Let the player choose the chords, or stop it."""
        with self.lock:
            self.player = self.instrument.new_player() if plays else None
            if plays and self.player is None:
                raise UserError("there is no player yet: compose one, or learn one here")
            self.version += 1

    def pause(self, paused: bool) -> None:
        """Stop time, or let it go on."""
        self.paused = bool(paused)

    def set_speed(self, speed: float) -> None:
        """Simulated seconds in a second."""
        if np.isfinite(speed):
            self.speed = float(np.clip(speed, *SPEEDS))

    def reset(self) -> None:
        """A fresh state of the body; the chord is kept."""
        with self.lock:
            self.body.reset(self._rng)
            self._begin()

    def push(self) -> None:
        """A random shove."""
        with self.lock:
            self.body.push(self._rng)
            self.moves += 1

    def quantities(self) -> dict[str, Any]:
        """What rewards are made of, now."""
        with self.lock:
            return named_quantities(self.instrument.domain, self.body.quantities())

    def advance(self, seconds: float, *, at_least: int = 0) -> int:
        """Let time go by; the number of control steps made."""
        with self.lock:
            if self.paused:
                return 0
            self._owed += seconds * self.speed / self.body.seconds
            steps = min(max(int(self._owed), at_least), MAX_STEPS)
            self._owed = min(max(self._owed - steps, 0.0), 1.0)
            for _ in range(steps):
                self._step()
            return steps

    def _begin(self) -> None:
        self._steps, self._left = 0, -1
        self.moves += 1
        self.trail.clear()
        self.trail.append(np.array(self.body.pose()))
        if self.player is not None:
            self.player.reset()

    def _step(self) -> None:
        patience = None if self.aim is None else self.body.patience
        if self._left == 0 or (patience is not None and self._steps >= patience):
            self.reset()
        if self._left < 0:
            self._move()
        else:
            self._left -= 1
        self.time += self.body.seconds
        self._steps += 1
        self.moves += 1
        if self.aim is not None:
            reward = float(self.aim.reward(self.quantities()))
            if np.isfinite(reward):
                self.rewards.append((self.time, reward))
            if self.body.patience is not None and reward > 0 and self._left < 0:
                self._left = LINGER

    def _move(self) -> None:
        action = None
        if self.player is not None:
            before = self.player.w
            action = self.player.act(self.body.observe())
            self.version += before is not self.player.w
        elif self.chord.any():
            keyboard = self.instrument.keyboard
            action = _behave(keyboard.config, keyboard.params, self.body.observe(), self.w)
        try:
            self.body.advance(action)
        except RuntimeError:  # the simulation diverged, as after a hard push
            self.reset()
        self.trail.append(np.array(self.body.pose()))
