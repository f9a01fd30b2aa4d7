"""Film the page while it reads a string, and photograph its parts, light and dark: the pictures in the docs.

python examples/film.py docs
"""

import io
import shutil
import sys
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from fastweights.play.server import Server

STRING = "c9k8j3f1??c"
PARTS = ("ask", "capacity", "draw", "catch", "speed")
WORDS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
MILLISECONDS = 260  # for a frame of the film; the last one stays longer
COVERAGE = Image.Quantize.MAXCOVERAGE  # no colour is lost because it is rare
HIDDEN = (
    "nav, header, .words, .ask-row, .message, #ask-stage > .row, #ask-stage > .quiet, .hundred, .sliders, .no-sliders "
    "{ display: none }"
)
ROOM = "#ask { padding: 12px 0 1px !important; border: 0 !important } .equation { margin: 0 !important }"
PAIR = ".pair { grid-template-columns: 1fr 1fr !important } .inside { grid-template-columns: 11rem 1fr !important }"


def main(folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("this needs Chromium: apt-get install chromium")
    with Server() as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=list(WORDS))
        for theme in ("light", "dark"):
            # Drawn by moments, not by the clock: every frame is the same each time.
            context = browser.new_context(
                viewport={"width": 1280, "height": 900}, reduced_motion="reduce", bypass_csp=True
            )
            page = context.new_page()
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            page.goto(server.address)
            page.wait_for_selector("html[data-ready]", state="attached")
            photograph(page, folder / "play", theme)
            film(page, folder / ("play.gif" if theme == "light" else "play-dark.gif"))
            context.close()
        server.shutdown()


def photograph(page: Page, folder: Path, theme: str) -> None:
    """A picture of each part, in a moment that shows what it is for."""
    folder.mkdir(parents=True, exist_ok=True)
    page.add_style_tag(content="nav.parts { position: static !important } main > section { padding-inline: 16px }")
    page.get_by_label("Frame of the agents").fill("8")
    page.get_by_label("Frame of the agents").blur()
    for part in PARTS:
        page.locator(f"#{part}").scroll_into_view_if_needed()
        page.wait_for_timeout(4000 if part == "capacity" else 300)  # it measures its curves there and then
        picture = Image.open(io.BytesIO(page.locator(f"#{part}").screenshot()))
        picture.convert("RGB").quantize(200, COVERAGE).save(folder / f"{part}-{theme}.png", optimize=True)


def film(page: Page, path: Path) -> None:
    """The string read from its first character to the answer."""
    page.set_viewport_size({"width": 860, "height": 1200})
    page.add_style_tag(content=f"{HIDDEN} {ROOM} {PAIR}")
    page.get_by_label("The string that is read").evaluate(f"e => e.value = '{STRING}'")
    place = page.get_by_label("Position in the string")
    frames = []
    for position in range(int(place.get_attribute("max") or 0) + 1):
        place.evaluate(f"e => {{ e.value = {position}; e.dispatchEvent(new Event('input')) }}")
        shot = page.locator("#ask").screenshot()
        frames.append(Image.open(io.BytesIO(shot)).convert("RGB"))
    palette = frames[-1].quantize(128, COVERAGE)
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [MILLISECONDS] * (len(flat) - 1) + [12 * MILLISECONDS]
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/film.py FOLDER")
    main(Path(sys.argv[1]))
