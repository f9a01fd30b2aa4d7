"""Files that are there whole or not at all: JSON, JSON lines, and tensors with facts about them.

What is sealed has a checksum of its content in it: a byte that is not what it was does not go unnoticed.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from . import interrupts

# In the header of a safetensors file, last of the facts, which are a string; in one whose checksum is being computed.
_CHECKSUM = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"}"')
_UNKNOWN = "0" * 64


class BadFileError(Exception):
    """A file that cannot be read for what it should be; the message says which, and what to do."""


def write_bytes(path: Path, content: bytes) -> None:
    """Into a file beside `path` first, which then takes its place: at no moment is there half a file."""
    with interrupts.deferred():
        _write_bytes(path, content)


def _write_bytes(path: Path, content: bytes) -> None:
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
    except ValueError as error:
        raise BadFileError(f"{path} is not JSON ({error}): delete it to start again") from error


def checksum(value: object) -> str:
    """Of a value that JSON can hold, however it is written down."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """With the checksum of all else as its last entry."""
    plain = json.loads(json.dumps(value))
    return {**plain, "sha256": checksum(plain)}


def unseal(value: object, path: Path) -> dict[str, Any]:
    """What was sealed, without its checksum. Errors name the file."""
    if not isinstance(value, dict) or "sha256" not in value:
        raise BadFileError(f"{path} has no checksum, it is damaged or of another program: delete it to start again")
    content = {name: each for name, each in value.items() if name != "sha256"}
    if value["sha256"] != checksum(content):
        raise BadFileError(f"{path} is damaged: it is not what its checksum says; delete it to start again")
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What is in a file of sealed JSON lines; the last one, if it was cut off, is left out."""
    if not path.exists():
        return []
    *whole, last = path.read_bytes().split(b"\n")
    found = [_read_line(line, path) for line in whole]
    try:
        _read_line(last[:-1], path)
    except BadFileError:
        return found
    raise BadFileError(f"{path} is damaged: its last line is whole, but not its end; delete it to start again")


def _read_line(line: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadFileError(f"{path} has a line that is not JSON ({error}): delete it to start again") from error
    return unseal(value, path)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors, and facts about them as JSON, in one safetensors file with the SHA-256 of all of it in its header."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    # One string, for safetensors writes several in any order, and the same content is to be the same bytes.
    content = safetensors.torch.save(contiguous, {"facts": json.dumps({**facts, "sha256": _UNKNOWN})})
    start, end = _checksum_in(content, path)
    write_bytes(path, content[:start] + hashlib.sha256(content).hexdigest().encode() + content[end:])


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote: the tensors and the facts."""
    content = path.read_bytes()
    start, end = _checksum_in(content, path)
    found = hashlib.sha256(content[:start] + _UNKNOWN.encode() + content[end:]).hexdigest()
    if content[start:end] != found.encode():
        raise BadFileError(f"{path} is damaged: it is not what its checksum says; delete it to start again")
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    facts = json.loads(header["__metadata__"]["facts"])
    del facts["sha256"]
    return safetensors.torch.load(content), facts


def _checksum_in(content: bytes, path: Path) -> tuple[int, int]:
    """Where it is."""
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    found = list(_CHECKSUM.finditer(header))
    if not found:
        raise BadFileError(f"{path} is damaged or of another program (it has no checksum): delete it to start again")
    return found[-1].span(1)
