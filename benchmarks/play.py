"""The page in a headless Chromium: bytes, time to the first answer, frames per second while a string is read.

python benchmarks/play.py
"""

import argparse
import json
import shutil
import statistics
import sys
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from fastweights.play.server import Server
from fastweights.play.site import contents

LOADS = 5
# The times between frames while a string is read at its fastest, in milliseconds.
READING = """async () => {
  const part = document.querySelector("#ask")
  const press = text => [...part.querySelectorAll("button")].find(each => each.textContent === text).click()
  part.scrollIntoView()
  const range = part.querySelector(".clock input")
  range.value = 0
  range.dispatchEvent(new Event("input"))
  press("fast")
  press("Play")
  const times = []
  await new Promise(done => {
    const frame = now => {
      times.push(now)
      range.value === range.max ? done() : requestAnimationFrame(frame)
    }
    requestAnimationFrame(frame)
  })
  return times.slice(1).map((time, i) => time - times[i])
}"""
# A step of the layer with 50 units, in milliseconds: the mean over a string, read again and again.
STEP = """async () => {
  const { loadNet } = await import("./js/nets.js")
  const net = await loadNet("retrieval-50")
  const string = "c9k8j3f1??c"
  for (let n = 0; n < 50; n++) net.logits(string)
  const start = performance.now()
  for (let n = 0; n < 200; n++) net.logits(string)
  return (performance.now() - start) / 200 / string.length
}"""


def measure(browser: Browser, address: str) -> dict[str, Any]:
    """All figures."""
    first, ready, asked = [], [], []
    for _ in range(LOADS):
        with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
            page = context.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address, wait_until="commit")
            page.wait_for_selector("#ask .answer:not(.silent)", state="attached")
            first.append(page.evaluate("performance.now()"))
            page.wait_for_selector("html[data-ready]", state="attached")
            ready.append(page.evaluate("performance.now()"))
            gaps = page.evaluate(READING)
            step = page.evaluate(STEP)
    gaps = sorted(gaps)
    return {
        "bytes": sum(path.stat().st_size for path in contents().values()),
        "files": len(contents()),
        "elsewhere": sum(not url.startswith(address) for url in asked),
        "first_answer_ms": round(statistics.median(first)),
        "all_parts_ms": round(statistics.median(ready)),
        "frames_per_second": round(1000 / statistics.fmean(gaps), 1),
        "slowest_frame_ms": round(gaps[-1], 1),
        "step_50_units_ms": round(step, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures into this file, too")
    out = parser.parse_args().out
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("this needs Chromium: apt-get install chromium")
    with Server() as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=chromium, args=words)
        figures = {**measure(browser, server.address), "browser": f"Chromium {browser.version}, headless"}
        browser.close()
        server.shutdown()
    text = json.dumps(figures, indent=2)
    print(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
