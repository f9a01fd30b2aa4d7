"""Files that are there whole or not at all: JSON, JSON lines, and tensors with facts about them."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor


class BadFileError(Exception):
    """A file that cannot be read for what it should be; the message says which, and what to do."""


def write_bytes(path: Path, content: bytes) -> None:
    """Into a file beside `path` first, which then takes its place: at no moment is there half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise OSError(
            error.errno, f"{path} could not be written ({error.strerror}); what was there is still there"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path} is not JSON ({error}): delete it to start again") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; the last one, if it was cut off, is left out."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise BadFileError(f"{path} has a line that is not JSON ({error}): delete it to start again") from error
    return lines


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: object) -> None:
    """Tensors, and facts about them as JSON, in one safetensors file."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(contiguous, {"facts": json.dumps(facts)})
    write_bytes(path, content)


def read_tensors(path: Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], Any]:
    """What `write_tensors` wrote: the tensors and the facts."""
    try:
        with safetensors.safe_open(path, "pt", device=str(device)) as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise BadFileError(f"{path} is damaged or of another program ({error}): delete it to start again") from error
