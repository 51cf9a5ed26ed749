"""Progress on the terminal: a bar with rate and time left, plain lines where there is no terminal.

Everything goes to stderr; stdout is for results.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

SECONDS_BETWEEN_LINES = 5.0
HEADLINES = (
    "success",
    "evaluation",
    "return",
    "cells_visited",
    "orthonormality_error",
    "value_error",
)
"""Metrics worth showing beside a bar, the first that is there."""


class Bar(Protocol):
    """Something that is told about steps done, and what to show beside them."""

    def __call__(
        self, done: int, metrics: Mapping[str, float] | None = None, *, note: str = ""
    ) -> None: ...


def silent(done: int, metrics: Mapping[str, float] | None = None, *, note: str = "") -> None:
    """A bar that shows nothing."""


@contextmanager
def progress(title: str, total: int, *, quiet: bool = False) -> Iterator[Bar]:
    """A bar for `total` steps; call it with the number of steps done so far."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _rich_bar(title, total) as bar:
            yield bar
    else:
        yield _Lines(title, total)


@contextmanager
def _rich_bar(title: str, total: int) -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(title, total=total, rate="", note="")
        clock = _Clock()

        def bar(done: int, metrics: Mapping[str, float] | None = None, *, note: str = "") -> None:
            note = note or _note(metrics)
            display.update(task, completed=done, rate=clock.rate(done), note=note)

        yield bar


class _Lines:
    def __init__(self, title: str, total: int):
        self.title, self.total = title, total
        self.clock = _Clock()
        self.last = 0.0

    def __call__(
        self, done: int, metrics: Mapping[str, float] | None = None, *, note: str = ""
    ) -> None:
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES and done < self.total:
            return
        self.last = now
        count = f"{self.title}: {done:,}/{self.total:,}"
        parts = (count, self.clock.rate(done), note or _note(metrics))
        print("  ".join(part for part in parts if part), file=sys.stderr, flush=True)


class _Clock:
    """Steps a second since the first call, which may come after compilation or a resume; seconds
    a step where these are long."""

    def __init__(self):
        self.start: tuple[float, int] | None = None

    def rate(self, done: int) -> str:
        now = time.monotonic()
        if self.start is None:
            self.start = (now, done)
        elapsed, steps = now - self.start[0], done - self.start[1]
        if not (elapsed > 0 and steps > 0):
            return ""
        return f"{steps / elapsed:,.0f}/s" if steps > elapsed else f"{elapsed / steps:,.0f} s each"


def _note(metrics: Mapping[str, float] | None) -> str:
    """The most telling figure, in words."""
    short = {name.split("/")[-1]: value for name, value in (metrics or {}).items()}
    for name in HEADLINES:
        if name in short:
            return f"{name.replace('_', ' ')} {short[name]:.4g}"
    return ""
