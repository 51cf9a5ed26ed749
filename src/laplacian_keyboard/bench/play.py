"""How fast `lk play` answers: from a key in a real browser to the frame that shows the new chord,
and from a hostile formula to its refusal."""

import statistics
import time
from typing import Any

from laplacian_keyboard.bench import machine
from laplacian_keyboard.bench.hostile_formulas import hostile_formulas
from laplacian_keyboard.play.browser import open_browser
from laplacian_keyboard.play.instrument import Instrument
from laplacian_keyboard.types import UserError

PRESSES = 60
FORMULAS = 10_000
WINDOW = {"width": 640, "height": 480}

# Both clocks are the browser's. A frame is what requestAnimationFrame announces after the page has
# been told of the new chord; the body's pose comes in the same message.
WATCH = """() => {
  window.latencies = [];
  let pressed = null;
  document.addEventListener("keydown", () => { pressed = performance.now(); }, true);
  let shown = document.querySelector("[data-w]").dataset.w;
  new MutationObserver(() => {
    const now = document.querySelector("[data-w]")?.dataset.w;
    if (!now || now === shown) return;
    shown = now;
    const began = pressed;
    requestAnimationFrame(() => window.latencies.push(performance.now() - began));
  }).observe(document.body, {subtree: true, childList: true, attributes: true});
}"""


def run() -> dict[str, Any]:
    """Milliseconds from key to frame, and to refuse formulas, on the shipped cheetah."""
    instrument = Instrument.load("cheetah")
    instrument.warm_up()
    latencies = key_latencies(instrument)
    refusals = refusal_times(instrument)
    return {
        "benchmark": "play",
        **machine(),
        "drawn_by": "the processor (SwiftShader), {width} x {height}".format(**WINDOW),
        "key_to_frame_ms": spread(latencies),
        "refusal_ms": spread([ms for ms, refused in refusals if refused]),
        "formulas": {
            "given": len(refusals),
            "refused": sum(refused for _, refused in refusals),
            "answer_ms_max": round(max(ms for ms, _ in refusals), 2),
        },
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    key, refusal, formulas = result["key_to_frame_ms"], result["refusal_ms"], result["formulas"]
    return [
        f"key to frame: median {key['median']} ms, 95 % within {key['p95']} ms "
        f"({key['count']} presses)",
        f"formulas: {formulas['refused']:,} of {formulas['given']:,} refused, median "
        f"{refusal['median']} ms, slowest {refusal['max']} ms",
    ]


def spread(values: list[float]) -> dict[str, float]:
    """Median, 95th percentile and largest."""
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
        "max": round(ordered[-1], 2),
        "count": len(ordered),
    }


def key_latencies(instrument: Instrument, presses: int = PRESSES) -> list[float]:
    """Milliseconds from each key press to the first frame with the new chord."""
    from laplacian_keyboard.play.page import Stage

    stage = Stage(instrument, "cheetah", port=0)
    try:
        with open_browser() as browser:
            page = browser.new_page(viewport=WINDOW)
            page.goto(stage.address)
            page.wait_for_selector("[data-w]", timeout=60_000)
            page.wait_for_timeout(3_000)
            page.evaluate(WATCH)
            for press in range(presses):
                # An odd interval, so that presses fall anywhere between two frames.
                page.wait_for_timeout(211)
                page.keyboard.press("1234567890"[press % instrument.k % 10])
            page.wait_for_timeout(1_000)
            found = page.evaluate("window.latencies")
    finally:
        stage.close()
    if len(found) < presses // 2:
        raise UserError(f"only {len(found)} of {presses} key presses were answered")
    return [float(each) for each in found]


def refusal_times(instrument: Instrument, count: int = FORMULAS) -> list[tuple[float, bool]]:
    """Milliseconds to answer each formula, and whether it was refused."""
    found = []
    for text in hostile_formulas(tuple(instrument.quantities), count, seed=0):
        began, refused = time.perf_counter(), False
        try:
            instrument.rewards_of_formula(text)
        except UserError:
            refused = True
        found.append((1e3 * (time.perf_counter() - began), refused))
    return found
