"""Alters single bytes of a run's files at random, and sees to it that each is noticed: `make flips COUNT=1000`.

A run is trained and left unfinished, another one is finished. Then, over and over, one byte of one of their files, or
of the weights that come with the package, becomes another one. Reading it has to end in an error of one line that names
the file, or in the very same values.
"""

import argparse
import collections
import contextlib
import io
import random
import shutil
import sys
import tempfile
from pathlib import Path

import torch

from fastweights import cli
from fastweights.base import interrupts
from fastweights.base.files import BadFileError
from fastweights.models import pretrained
from fastweights.paper.retrieval.run import Retrieval
from fastweights.paper.run import train
from fastweights.training.runs import RunFolder
from fastweights.training.supervised import Recipe

READERS = {
    "config.json": lambda folder: folder.config,
    "metrics.jsonl": lambda folder: folder.metrics,
    "result.json": lambda folder: folder.result,
    "best.safetensors": lambda folder: folder.best(),
    "last.safetensors": lambda folder: folder.checkpoint(),
}


def same(one, other):
    """Whether two things that were read are the same, to the last bit."""
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def stop_after_two(progress):
    if progress.epoch == 2:
        raise interrupts.Interrupted


def targets(place):
    """Files to alter, each with how it is read."""
    config = Retrieval(units=8, pairs=1, examples=500, training=Recipe(epochs=3))
    found = []
    train(config, place / "finished", "fastweights train retrieval", test=False)
    with contextlib.suppress(interrupts.Interrupted):
        train(config, place / "unfinished", "fastweights train retrieval", test=False, report=stop_after_two)
    for name in pretrained.NAMES:
        shutil.copytree(pretrained.FOLDER / name, place / name)
    for name in ("finished", "unfinished", *pretrained.NAMES):
        for file, reader in READERS.items():
            if (place / name / file).exists():
                found.append((place / name / file, lambda reader=reader, name=name: reader(RunFolder(place / name))))
    return found


def says(words):
    """The exit code of a command, and what it says on its standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        return cli.run(words), said.getvalue()


def run(count, seed, place, commands=10):
    """Alter so many bytes; how often what came of it, by file. Some are read by a command, too."""
    chance, outcomes = random.Random(seed), collections.Counter()
    files = targets(place)
    values = [read() for _, read in files]
    for _ in range(count):
        which = chance.randrange(len(files))
        path, read = files[which]
        content = path.read_bytes()
        at = chance.randrange(len(content))
        altered = bytes([content[at] ^ chance.randrange(1, 256)])
        path.write_bytes(content[:at] + altered + content[at + 1 :])
        try:
            what = "harmless" if same(read(), values[which]) else f"WRONG: taken, byte {at} {altered!r}"
        except BadFileError as error:
            named = str(path) in str(error) and "\n" not in str(error)
            what = "detected" if named else f"WRONG: it is not said in one line what is wrong: {error}"
        except Exception as error:
            what = f"WRONG: {type(error).__name__}: {error}"
        if what == "detected" and path.name in ("config.json", "best.safetensors") and commands > 0:
            commands -= 1
            code, said = says(["evaluate", str(path.parent)])
            if code != 1 or said.count("\n") != 1 or str(path) not in said:
                what = f"WRONG: evaluate exits with {code} and says {said}"
        outcomes[f"{what}: {path.name}"] += 1
        path.write_bytes(content)
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="bytes to alter")
    parser.add_argument("--seed", type=int, default=0, help="of which bytes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        outcomes = run(given.count, given.seed, Path(place))
    for what, times in sorted(outcomes.items()):
        print(f"{times:5} {what}")
    sys.exit(any(what.startswith("WRONG") for what in outcomes))


if __name__ == "__main__":
    main()
