"""A real browser without a screen: for the tests, the screenshots and `lk bench play`."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from laplacian_keyboard.types import UserError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a graphics card the page is drawn by the processor.
FLAGS = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")


def find_chromium() -> str:
    """The browser to drive: the program that CHROMIUM names, or one on the path."""
    named = os.environ.get("CHROMIUM", "")
    for name in (named,) if named else NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise UserError(
        "no Chromium found: install it (Debian and Ubuntu: apt-get install chromium), or set "
        "CHROMIUM to its program"
    )


@contextmanager
def open_browser() -> Iterator[Any]:
    """Playwright's browser object for Chromium, closed at the end."""
    program = find_chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise UserError("driving a browser needs Playwright: pip install playwright") from error

    # Chromium's sandbox refuses to run for root, as in a container.
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    flags = [*FLAGS, "--no-sandbox"] if is_root else list(FLAGS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=flags)
        try:
            yield browser
        finally:
            browser.close()


def text_field(page: Any, label: str) -> Any:
    """The text field with a label; viser does not link the two."""
    return page.get_by_text(label, exact=True).first.locator("xpath=following::input[1]")
