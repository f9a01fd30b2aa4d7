"""Interrupts real commands at random moments, and sees to it that nothing is lost: `make interrupts COUNT=300`.

Each command is first run undisturbed. Then it is run again and again: a signal or two come at a moment drawn uniformly
from the time that it takes, its imports included, and the same command is started anew, until it finishes before the
signal; its numbers are then compared with the undisturbed ones.

Before Python runs a line of ours, the signals are Python's to handle: these are counted apart.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SMALL = ["--pairs", "1", "--examples", "3000", "--epochs", "6"]
COMMANDS = {
    "train": ["train", "retrieval", "--units", "10", *SMALL, "--out", "runs/one"],
    "reproduce": ["reproduce", "table1", "--cells", "fast-weights/20", "lstm/20", "--seeds", "2"],
    "search": [
        *("search", "table1", "--cell", "fast-weights/20", "--grid", "lr=1e-3,3e-3", "clip=0.5,5"),
        *("pairs=1", "examples=1500", "epochs=4"),
    ],
}
SECONDS = 5.0  # in which a command is to end
WORD = "fastweights: stopped"


@dataclass
class Reference:
    """What a command comes to that nobody disturbs."""

    seconds: float
    weights: dict[str, bytes]
    numbers: dict[str, object]


def start(name: str, folder: Path) -> subprocess.Popen:
    """The command in a session of its own, where it heeds interrupts, also if whoever tests it does not."""
    command = [sys.executable, str(Path(__file__).with_name("small.py")), *COMMANDS[name]]
    with (folder / "stderr").open("wb") as said:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def measured(folder: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    """The best weights of all runs, and their results but for the time that they took."""
    weights = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("best.safetensors")}
    numbers = {}
    for path in folder.rglob("result.json"):
        found = json.loads(path.read_text())
        numbers[str(path.relative_to(folder))] = {
            name: value for name, value in found.items() if name not in ("seconds", "sha256")
        }
    return weights, numbers


def undisturbed(name: str, place: Path) -> Reference:
    """The reference, run in a folder of its own."""
    folder = place / f"{name}-undisturbed"
    folder.mkdir()
    begun = time.monotonic()
    code = start(name, folder).wait()
    seconds = time.monotonic() - begun
    if code:
        raise RuntimeError(f"{name} failed undisturbed: {(folder / 'stderr').read_text()}")
    found = Reference(seconds, *measured(folder))
    assert found.weights
    assert found.numbers
    return found


def handles(process: subprocess.Popen, number: int, mask: str = "SigCgt") -> bool:
    """Whether a process has a handler for a signal, or ignores it (`SigIgn`)."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return False
    line = next((line for line in status.splitlines() if line.startswith(mask)), "SigCgt: 0")
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def interrupt(name: str, folder: Path, moment: float, signals: int, pause: float, number: signal.Signals) -> str:
    """Start the command and send signals; what came of it: "stopped", "finished" before them, or what is wrong."""
    process = start(name, folder)
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        pass
    else:
        said = (folder / "stderr").read_text()
        return "finished" if process.returncode == 0 else f"WRONG: failed without a signal: {said}"
    # Python has a handler for SIGINT from the start; one for SIGTERM is ours.
    ours, over = handles(process, signal.SIGTERM), handles(process, signal.SIGINT, "SigIgn")

    def send() -> None:
        with contextlib.suppress(ProcessLookupError):  # a terminal sends SIGINT to all, `kill` SIGTERM to one
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)

    send()
    sent = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(pause if signals == 2 else SECONDS)
    if signals == 2 and process.returncode is None:
        send()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
    took = time.monotonic() - sent
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"WRONG: swallowed: it still ran after {took:.1f} s"
    said, code = (folder / "stderr").read_text(), process.returncode
    if not ours and not over:
        return f"before our first line: code {code}, {'a traceback' if 'Traceback' in said else 'no traceback'}"
    if over:
        return "over" if code == 0 else f"WRONG: it was over, and exited with {code}"
    words = [line for line in said.splitlines() if line.startswith("fastweights: ")]
    if code == 0 and not words and took < 1:
        return "over"  # it was between our last check and the end
    if code != 130 or "Traceback" in said or len(words) != 1 or not words[0].startswith(WORD):
        return f"WRONG: code {code} after {took:.1f} s, it said: {said}"
    if took > SECONDS:
        return f"WRONG: it took {took:.1f} s"
    return "stopped"


def run(count: int, seed: int, place: Path, commands: list[str], tell=print) -> collections.Counter:
    """Interrupt commands so many times; how often what came of it, "WRONG…" being what must not be."""
    chance, outcomes = random.Random(seed), collections.Counter()
    references = {name: undisturbed(name, place) for name in commands}
    tell("undisturbed: " + ", ".join(f"{name} {each.seconds:.1f} s" for name, each in references.items()))
    sent, chains, sent_to = 0, 0, dict.fromkeys(commands, 0)
    while sent < count:
        name = min(commands, key=lambda command: sent_to[command])
        folder = place / f"{name}-{chains}"
        folder.mkdir()
        chains += 1
        while True:
            moment = chance.uniform(0, references[name].seconds)
            number = chance.choice((signal.SIGINT, signal.SIGTERM))
            signals, pause = 1 + sent % 2, chance.uniform(0, 0.5)
            what = interrupt(name, folder, moment, signals, pause, number)
            if what == "finished":
                break
            sent += 1
            sent_to[name] += 1
            outcomes[what] += 1
            tell(f"{sent:4} {name}: {signals} x {number.name} at {moment:.2f} s: {what}")
            if sent >= count:
                process = start(name, folder)
                if process.wait():
                    outcomes[f"WRONG: does not go on: {(folder / 'stderr').read_text()}"] += 1
                break
        weights, numbers = measured(folder)
        same = (weights, numbers) == (references[name].weights, references[name].numbers)
        outcomes["finished with the undisturbed numbers" if same else "WRONG: other numbers"] += 1
        if same:
            shutil.rmtree(folder)
    return outcomes


def main() -> None:
    """Interrupt as often as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="interrupts in all")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS), help="some of them")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="interrupts-"))
    outcomes = run(given.count, given.seed, place, given.commands)
    for what, times in outcomes.most_common():
        print(f"{times:5} {what}")
    wrong = any(what.startswith("WRONG") for what in outcomes)
    if not wrong:
        shutil.rmtree(place)
    sys.exit(f"see {place}" if wrong else 0)


if __name__ == "__main__":
    main()
