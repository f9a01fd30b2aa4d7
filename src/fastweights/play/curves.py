"""The curves of the page, from the published results: python -m fastweights.play.curves results

Writes `page/curves.json`: what part 5 shows, and no more, rounded to what can be seen.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..base.files import read_json, write_text
from .site import PAGE

FILE = PAGE / "curves.json"
UNITS = 50  # of the entries of Table 1 whose curves are published


def extract(results: Path) -> list[dict[str, Any]]:
    """The figures, each with a line for every model and seed."""
    table1, catch = read_json(results / "table1.json"), read_json(results / "catch.json")
    shown = [entry for entry in table1 if entry["units"] == UNITS and entry["recipe"] == "tuned"]
    figures = [
        {
            "name": "Retrieval",
            "x": {"name": "updates", "log": False},
            "y": {"name": "validation error, %", "log": True},
            "about": f"Associative retrieval with {UNITS} units, Table 1. An error of 0 is drawn at the bottom.",
            "lines": [line for entry in shown for line in _of_table(entry)],
        }
    ]
    for size, visible in sorted({tuple(entry["variant"]) for entry in catch}):
        entries = [entry for entry in catch if entry["variant"] == [size, visible]]
        figures.append(
            {
                "name": f"Catch {size}, {visible}",
                "x": {"name": "frames", "log": False},
                "y": {"name": "return", "log": False},
                "about": f"Catch on {size} × {size} pixels, dark after {visible} frames: the return, between −1 and 1.",
                "lines": [line for entry in entries for line in _of_catch(entry)],
            }
        )
    return figures


def _of_table(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for seed in entry["seeds"]:
        if curves := seed.get("curves"):
            points = zip(curves["updates"], curves["validation_error"], strict=True)
            yield _line(entry["model"], seed["seed"], [(x, 100 * y) for x, y in points])


def _of_catch(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for seed in entry["seeds"]:
        if curve := seed.get("curve"):
            yield _line(entry["core"], seed["seed"], list(zip(curve["frames"], curve["return"], strict=True)))


def _line(model: str, seed: int, points: list[tuple[float, float]]) -> dict[str, Any]:
    return {"model": model, "seed": seed, "points": [[x, float(f"{y:.4g}")] for x, y in points]}


def as_text(figures: list[dict[str, Any]]) -> str:
    """As JSON, a line of text for each line of a figure: small, and changes can be read."""
    text = json.dumps(figures, ensure_ascii=False, separators=(",", ":"))
    return text.replace('{"model"', '\n{"model"').replace('{"name":"', '\n{"name":"') + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fastweights.play.curves RESULTS")
    write_text(FILE, as_text(extract(Path(sys.argv[1]))))
    print(f"written: {FILE}, {FILE.stat().st_size:,} bytes")
