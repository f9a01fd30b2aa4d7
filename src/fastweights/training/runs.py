"""A run folder: one training run's settings, measurements, checkpoint, best weights and result."""

import fcntl
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .files import read_json, read_lines, read_tensors, write_json, write_tensors, write_text


class RunError(Exception):
    """A run folder that cannot be used as asked; the message says why, and what to do."""


class RunFolder:
    """`config.json`, `metrics.jsonl`, `last.safetensors`, `best.safetensors` and, when finished, `result.json`.

    Whatever is there is whole. The position in the training is inside `last.safetensors`, so that weights and
    position are of the same moment.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    @contextmanager
    def opened(self, settings: Mapping[str, Any], command: str) -> Iterator[None]:
        """Held for this process alone, for a run with these settings: new, or the one that was begun here."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"another process is training in {self.path}: wait for it or stop it") from None
            config = self.path / "config.json"
            if config.exists():
                self._compare(read_json(config)["settings"], settings)
            else:
                write_json(config, {"settings": settings, "command": command, **versions()})
            yield

    def held(self) -> bool:
        """Whether a process is training here."""
        lock = self.path / ".lock"
        if not lock.exists():
            return False
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _compare(self, there: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        settings = json.loads(json.dumps(settings))
        differing = sorted(key for key in {*there, *settings} if there.get(key) != settings.get(key))
        if differing:
            what = ", ".join(f"{key} was {there.get(key)!r} and is now {settings.get(key)!r}" for key in differing)
            raise RunError(f"{self.path} holds another run ({what}): choose another folder, or delete this one")

    @property
    def config(self) -> dict[str, Any]:
        """What `config.json` says: settings, command, versions."""
        return dict(read_json(self._there("config.json")))

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out; None while it is not finished."""
        path = self.path / "result.json"
        return dict(read_json(path)) if path.exists() else None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry per epoch."""
        return read_lines(self.path / "metrics.jsonl")

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The weights of the best epoch, and which it was."""
        return read_tensors(self._there("best.safetensors"))

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        write_tensors(self.path / "best.safetensors", weights, facts)

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Where to go on; None at the beginning."""
        path = self.path / "last.safetensors"
        return read_tensors(path) if path.exists() else None

    def save_checkpoint(self, tensors: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        write_tensors(self.path / "last.safetensors", tensors, position)

    def add_metrics(self, entry: Mapping[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def keep_metrics(self, epochs: int) -> None:
        """Forget what was measured after this many epochs: it is about to be measured again."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            kept = [entry for entry in self.metrics if entry["epoch"] <= epochs]
            write_text(path, "".join(json.dumps(entry) + "\n" for entry in kept))

    def tensorboard(self, step: int) -> Any:
        """A writer of TensorBoard's events, for what comes after this step: it is about to be measured again."""
        from torch.utils.tensorboard import SummaryWriter  # which is slow to load

        return SummaryWriter(self.path, purge_step=step + 1 if step else None)

    def finish(self, result: Mapping[str, Any]) -> None:
        write_json(self.path / "result.json", result)

    def _there(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            raise FileNotFoundError(f"{self.path} is not the folder of a run that got this far: it has no {name}")
        return path


def without_passwords(text: str) -> str:
    """A text with URLs in it, for others to read.

    >>> without_passwords("--storage postgresql://us:secret@host/studies")
    '--storage postgresql://us:***@host/studies'
    """
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {
        "fastweights": importlib.metadata.version("fastweights"),
        "commit": commit,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
