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

from ..base.files import (
    BadFileError,
    checksum,
    read_json,
    read_lines,
    read_tensors,
    seal,
    unseal,
    write_json,
    write_tensors,
    write_text,
)


class RunError(Exception):
    """A run folder that cannot be used as asked; the message says why, and what to do."""


class RunFolder:
    """`config.json`, `metrics.jsonl`, `last.safetensors`, `best.safetensors` and, when finished, `result.json`.

    Whatever is there is whole. The position in the training is inside `last.safetensors`, so that weights and
    position are of the same moment.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._entries: int | None = None  # that metrics.jsonl has, as the result says

    def __fspath__(self) -> str:
        return str(self.path)

    @contextmanager
    def opened(self, settings: Mapping[str, Any], command: str, device: str = "cpu") -> Iterator[None]:
        """Held for this process alone, for a run with these settings: new, or the one that was begun here.

        The device is recorded, and is no setting: a run that was begun on one can go on on another.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"another process is training in {self.path}: wait for it or stop it") from None
            config = self.path / "config.json"
            if config.exists():
                self._compare(self.config["settings"], settings)
            else:
                write_json(config, seal({"settings": settings, "command": command, **versions(), "device": device}))
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
        """What `config.json` says: settings, command, versions, the device that the run was begun on."""
        path = self._there("config.json")
        config = unseal(read_json(path), path)
        if not isinstance(config.get("settings"), dict):
            raise BadFileError(f"{path} has no settings, it is of another program: choose another folder")
        return config

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out; None while it is not finished."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        result = unseal(read_json(path), path)
        of, self._entries = result.pop("of", None), result.pop("entries", None)
        if of != self._identity("result.json"):
            raise BadFileError(f"{path} is of another run: put it back, or delete it")
        return result

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry per epoch."""
        path = self.path / "metrics.jsonl"
        entries = read_lines(path)
        if [entry.get("epoch") for entry in entries] != list(range(1, len(entries) + 1)):
            raise BadFileError(f"{path} lacks lines, or has some twice: delete the folder to start again")
        if self.result is not None and len(entries) != self._entries:
            raise BadFileError(f"{path} has {len(entries)} of {self._entries} lines: put it back, or delete the folder")
        return entries

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The weights of the best epoch, and which it was."""
        return self._read("best.safetensors")

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._write("best.safetensors", weights, facts)

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Where to go on; None at the beginning."""
        return self._read("last.safetensors") if (self.path / "last.safetensors").exists() else None

    def save_checkpoint(self, tensors: Mapping[str, Tensor], position: Mapping[str, Any]) -> None:
        self._write("last.safetensors", tensors, position)

    def add_metrics(self, entry: Mapping[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(seal(entry)) + "\n")

    def keep_metrics(self, epochs: int) -> None:
        """Forget what was measured after this many epochs: it is about to be measured again."""
        path = self.path / "metrics.jsonl"
        kept = self.metrics[:epochs]
        if len(kept) < epochs:
            raise BadFileError(f"{path} has {len(kept)} of {epochs} epochs: delete the folder to start again")
        if path.exists():
            write_text(path, "".join(json.dumps(seal(entry)) + "\n" for entry in kept))

    def tensorboard(self, step: int) -> Any:
        """A writer of TensorBoard's events, for what comes after this step: it is about to be measured again."""
        from torch.utils.tensorboard import SummaryWriter  # which is slow to load

        return SummaryWriter(self.path, purge_step=step + 1 if step else None)

    def finish(self, result: Mapping[str, Any]) -> None:
        more = {"entries": len(self.metrics), "of": self._identity("result.json")}
        write_json(self.path / "result.json", seal({**result, **more}))

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self._there(name)
        tensors, facts = read_tensors(path)
        if facts.pop("of", None) != self._identity(name):
            raise BadFileError(f"{path} is of another run, or another file of this one: put it back, or delete it")
        return tensors, facts

    def _write(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        write_tensors(self.path / name, tensors, {**facts, "of": self._identity(name)})

    def _identity(self, name: str) -> list[str]:
        """What a file of this run has in it, and no other."""
        return [name, checksum(self.config["settings"])]

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
