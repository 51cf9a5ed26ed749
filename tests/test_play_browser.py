"""The page of `lk play` in a real browser: Chromium without a screen, driven by Playwright."""

import contextlib
import time

import numpy as np
import pytest
from test_play_session import untrained

from laplacian_keyboard.play.browser import open_browser, text_field
from laplacian_keyboard.play.instrument import Instrument
from laplacian_keyboard.play.page import Stage

# A tab that is closed may miss the last frame; lk play ignores that as well.
pytestmark = pytest.mark.filterwarnings("ignore:Queued a .* on a closed connection")

WINDOW = {"width": 1000, "height": 700}
CELL = (398, 166)
"""Where the cell in row 3, column 3 of Four-Rooms is in that window."""
PATIENCE = 120.0
"""Seconds for something to happen: a busy machine draws slowly."""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as found:
        yield found


@contextlib.contextmanager
def serving(instrument, name, **settings):
    stage = Stage(instrument, name, port=0, **settings)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture(scope="module")
def robots():
    with serving(Instrument.load("cheetah"), "cheetah") as stage:
        yield stage


@pytest.fixture(scope="module")
def maps():
    with serving(Instrument(untrained("four-rooms")), "four-rooms") as stage:
        yield stage


@contextlib.contextmanager
def tab(browser, stage):
    """A browser tab with the page, and the server's side of it."""
    before = set(stage.pages)
    page = browser.new_page(viewport=WINDOW)
    page.set_default_timeout(PATIENCE * 1e3)
    try:
        page.goto(stage.address)
        page.wait_for_selector("[data-w]")
        eventually(lambda: set(stage.pages) - before)
        (new,) = set(stage.pages) - before
        yield page, stage.pages[new]
    finally:
        page.close()


def eventually(happens, patience=PATIENCE):
    """Wait for something to become true; the value it has then."""
    end = time.monotonic() + patience
    while not (found := happens()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)
    return found


def chord(page):
    """The chord that the page shows."""
    return np.array(page.locator("[data-w]").get_attribute("data-w").split(), float)


def notice(page):
    found = page.locator("[data-notice]")
    return found.inner_text() if found.count() else ""


def test_keys_formulas_and_refusals(browser, robots):
    with tab(browser, robots) as (page, served):
        # The page is there, the body is drawn, and nothing is played.
        assert "Laplacian Keyboard" in page.locator("body").inner_text()
        assert not chord(page).any()
        canvas = page.locator("canvas").first
        assert len(set(canvas.screenshot())) > 100

        # A key changes w and the pose.
        pose = served.session.body.pose().copy()
        page.keyboard.press("6")
        eventually(lambda: chord(page)[5] > 0)
        page.keyboard.press("z")
        eventually(lambda: chord(page)[0] < 0)
        np.testing.assert_allclose(chord(page), served.session.w, atol=1e-3)
        eventually(lambda: np.abs(served.session.body.pose() - pose).max() > 0.1)
        # So does a click, which switches the same key off again.
        page.get_by_role("button", name="+e₆ (6)").click()
        eventually(lambda: chord(page)[5] == 0)

        # Pausing stops the body; the hotkey goes to the same switch as the button.
        page.keyboard.press("h")
        eventually(lambda: served.session.paused)
        page.get_by_role("button", name="Pause").click()
        eventually(lambda: not served.session.paused)

        # A formula is accepted, and the plot moves.
        before = plotted(page)
        text_field(page, "Reward").fill("ramp(speed, 0, -2) * upright")
        page.get_by_role("button", name="Play this reward").click()
        eventually(lambda: "in the span" in notice(page))
        eventually(lambda: len(served.session.rewards) > 20)
        eventually(lambda: plotted(page) != before)
        played = chord(page)
        assert np.abs(played).min() > 0

        # A hostile one is refused, and what is played goes on.
        text_field(page, "Reward").fill("__import__('os').system('true')")
        page.get_by_role("button", name="Play this reward").click()
        eventually(lambda: "no meaning" in notice(page))
        np.testing.assert_array_equal(chord(page), played)


def plotted(page):
    """The reward plot, as pixels."""
    return page.locator(".uplot canvas").first.evaluate("canvas => canvas.toDataURL()")


def test_every_tab_has_a_body_that_ends_with_it(browser, robots):
    with tab(browser, robots) as (one, served), tab(browser, robots) as (_, other):
        one.keyboard.press("4")
        eventually(lambda: served.session.chord[3] == 1)
        assert not other.session.chord.any()
        assert served.session.body is not other.session.body
        threads = [served._thread, other._thread]
        assert all(thread.is_alive() for thread in threads)
    eventually(lambda: not robots.pages)
    eventually(lambda: not any(thread.is_alive() for thread in threads))


def test_a_click_on_the_map_changes_the_policy(browser, maps):
    with tab(browser, maps) as (page, served):
        assert not chord(page).any()
        before = page.locator("canvas").first.screenshot()
        page.mouse.click(*CELL)
        aim = eventually(lambda: served.session.aim)
        eventually(lambda: chord(page).any())
        assert aim.task == "goal:3,3"
        eventually(lambda: "optimal" in page.locator("[data-values]").inner_text())
        eventually(lambda: page.locator("canvas").first.screenshot() != before)
        # The same cell again takes the reward away.
        page.mouse.click(*CELL)
        eventually(lambda: served.session.aim is None)
        eventually(lambda: not chord(page).any())


def test_a_player_is_learned_in_the_page_and_plays(browser, tmp_path):
    keyboard = Instrument.load("point-maze")
    with (
        serving(keyboard, "point-maze", preset="smoke", folder=tmp_path) as stage,
        tab(browser, stage) as (page, served),
    ):
        page.mouse.click(*CELL)
        eventually(lambda: served.session.aim)
        assert served._player.disabled
        page.set_viewport_size({"width": 1400, "height": 1000})  # the keys hide nothing
        page.get_by_text("Learn a player here").click()
        steps = text_field(page, "Steps")
        steps.fill("500")
        steps.press("Enter")
        # A lesson stands back for what is drawn, and here both share a processor.
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Start").click()
        eventually(lambda: "finished" in told(page), patience=5 * PATIENCE)
        page.get_by_role("button", name="Pause").click()
        assert "return" in told(page) and "one chord" in told(page)
        eventually(lambda: not served._player.disabled)
        # What it has learned plays: the chord changes with no hand on the keys.
        page.get_by_label("Let the player play").check()
        eventually(lambda: served.session.player is not None)
        first = chord(page)
        eventually(lambda: np.abs(chord(page) - first).max() > 0.01)


def told(page):
    """What the page says of the lesson."""
    found = page.locator("[data-lesson]")
    return found.inner_text() if found.count() else ""
