"""The pictures of docs/play.md and the README: `python docs/screenshots.py [cheetah|four-rooms]...`

Needs the extra `dev` and Chromium. Four-Rooms is what `lk demo` leaves in lk-demo; NAME=FOLDER for
another run.
"""

import io
import sys
from pathlib import Path

from PIL import Image

from laplacian_keyboard.play.browser import open_browser, text_field
from laplacian_keyboard.play.instrument import Instrument
from laplacian_keyboard.play.page import Stage

IMAGES = Path(__file__).parent / "images"
WINDOW = {"width": 1280, "height": 800}
MAX_BYTES = 300_000


def cheetah(page) -> None:
    """A written reward, played for a while."""
    page.get_by_role("checkbox", name="Shadows").click()
    text_field(page, "Reward").fill("ramp(speed, 0, 2) * upright")
    page.get_by_role("button", name="Play this reward").click()
    page.wait_for_selector("[data-notice]")
    page.wait_for_timeout(12_000)


def four_rooms(page) -> None:
    """A reward painted in the lower left room."""
    page.mouse.click(530, 390)
    page.wait_for_selector("[data-notice]")
    page.wait_for_timeout(4_000)


SCENES = {"cheetah": cheetah, "four-rooms": four_rooms}


def shoot(name: str, run: str) -> None:
    """One picture, as small as it may be."""
    instrument = Instrument.load(run)
    instrument.warm_up()
    stage = Stage(instrument, run, port=0)
    try:
        with open_browser() as browser:
            page = browser.new_page(viewport=WINDOW)
            page.set_default_timeout(120_000)
            page.goto(stage.address)
            page.wait_for_selector("[data-w]")
            # viser says that the processor draws, which in a picture is nobody's business.
            page.locator(".mantine-Notification-closeButton").first.click()
            SCENES[name](page)
            picture = Image.open(io.BytesIO(page.screenshot()))
    finally:
        stage.close()
    path = IMAGES / f"play-{name}.png"
    picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES, f"{path} is too large"
    print(path)


if __name__ == "__main__":
    runs = {"cheetah": "cheetah", "four-rooms": "lk-demo"}
    for given in sys.argv[1:] or runs:
        scene, _, folder = given.partition("=")
        shoot(scene, folder or runs[scene])
