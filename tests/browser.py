"""A browser for tests of pages: the system's Chromium, started once, that reaches nothing but this machine."""

import contextlib
import shutil
import threading
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

from fastweights.play.server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REASON = "needs Chromium: apt-get install chromium"
OFFLINE = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OFFLINE))
        yield browser
        browser.close()


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of the page, served."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server.address
        server.shutdown()
