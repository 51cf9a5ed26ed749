"""A player that learns in the background: `lk compose` in a process of its own.

The process is the ordinary command, so what it learns is an ordinary run folder: it can be stopped
and continued, here or on the command line, and evaluated like any other.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from laplacian_keyboard.checkpoint import read_json
from laplacian_keyboard.keyboard import PLAYER_FILE, Player
from laplacian_keyboard.types import UserError

STEPS = (100, 1_000_000)
"""The fewest and the most environment steps of a lesson."""
NICENESS = 10
"""How far the lesson stands back for the bodies that are played meanwhile."""
_COMMAND = (sys.executable, "-c", "from laplacian_keyboard.cli import main; main()")


class Lesson:
    """One run of `lk compose`."""

    def __init__(self, run: str, task: str, steps: int, *, out: str | Path, preset: str = "cpu"):
        self.task = task
        self.steps = min(max(int(steps), STEPS[0]), STEPS[1])
        self.out = Path(out)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        self._last_words = ""
        words = ["compose", run, "--task", task, "--steps", str(self.steps)]
        words += ["--out", str(self.out), "--preset", preset]
        self._process = subprocess.Popen(
            [*_COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._words,
        )
        with contextlib.suppress(AttributeError, OSError):  # not every system has priorities
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)

    @property
    def running(self) -> bool:
        """Whether it is still learning."""
        return self._process.poll() is None

    @property
    def finished(self) -> bool:
        """Whether it has learned all it should, so that there is a player."""
        return self._process.poll() == 0 and (self.out / PLAYER_FILE).exists()

    def stop(self) -> None:
        """End the process; the folder can be continued."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._listen()

    def curve(self) -> tuple[list[float], list[float]]:
        """Steps as logged, and mean returns, as far as they are known."""
        return read_curve(self.out)

    def zero_shot(self) -> float | None:
        """The return of the single chord, once it is known."""
        if not (self.out / "result.json").exists():
            return None
        found = read_json(self.out / "result.json").get("zero_shot") or {}
        return found.get("return_mean")

    def player(self) -> Player:
        """What was learned."""
        if not self.finished:
            raise UserError("the lesson is not over")
        return Player.load(self.out)

    def complaint(self) -> str:
        """The last line it wrote before it failed; empty if it did not."""
        if self.running or self.finished or self._process.returncode < 0:
            return ""
        self._listen()
        return self._last_words or f"exit code {self._process.returncode}"

    def _listen(self) -> None:
        """Keep the last line of what it wrote, once it has ended."""
        if not self._words.closed:
            self._words.seek(0)
            lines = self._words.read().decode(errors="replace").strip().splitlines()
            self._last_words = lines[-1][:300] if lines else ""
            self._words.close()


def read_curve(folder: Path) -> tuple[list[float], list[float]]:
    """Steps and mean returns in a run's metrics: those of evaluations, or of the episodes learned
    from where there are none yet."""
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [], []
    found: dict[str, tuple[list[float], list[float]]] = {}
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may still be on its way
            entry: dict[str, Any] = json.loads(line)
            for name in ("player/evaluation", "player/return"):
                if entry.get("stage") == "player" and name in entry:
                    steps, returns = found.setdefault(name, ([], []))
                    steps.append(float(entry["step"]))
                    returns.append(_mean(entry[name]))
    return found.get("player/evaluation") or found.get("player/return") or ([], [])


def _mean(value: Any) -> float:
    """The mean of numbers in lists in lists."""
    if isinstance(value, list):
        means = [_mean(each) for each in value]
        return sum(means) / max(len(means), 1)
    return float(value)
