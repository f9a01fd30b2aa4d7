"""Files are whole or not there."""

import errno
import json
import os

import flips
import pytest
import torch

from fastweights.base import files


def test_json_both_ways(tmp_path):
    path = tmp_path / "new" / "value.json"
    files.write_json(path, {"λ": [0.9, None]})
    assert files.read_json(path) == {"λ": [0.9, None]}


def test_tensors_and_facts_both_ways(tmp_path):
    tensors = {"a": torch.randn(3, 2, dtype=torch.float64).t(), "b": torch.arange(4, dtype=torch.uint8)}
    files.write_tensors(tmp_path / "x", tensors, {"epoch": 3})
    read, facts = files.read_tensors(tmp_path / "x")
    assert facts == {"epoch": 3}
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "value.json"
    files.write_json(path, 1)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"value\.json could not be written \(No space left on device\)"):
        files.write_json(path, 2)
    assert files.read_json(path) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]


@pytest.mark.parametrize("cut", [0, 5, 100])
def test_a_damaged_file_is_named(tmp_path, cut):
    path = tmp_path / "last.safetensors"
    files.write_tensors(path, {"a": torch.ones(100)}, {})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(files.BadFileError, match=r"last\.safetensors is damaged.*delete it"):
        files.read_tensors(path)


def test_tensors_of_another_program_are_refused(tmp_path):
    import safetensors.torch

    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "x")
    with pytest.raises(files.BadFileError, match="of another program"):
        files.read_tensors(tmp_path / "x")


def test_half_a_line_at_the_end_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(files.seal({"epoch": epoch})) for epoch in (1, 2)]
    for cut in range(len(lines[1])):
        path.write_text(f"{lines[0]}\n{lines[1][:cut]}")
        assert files.read_lines(path) == [{"epoch": 1}]
    path.write_text(f"{lines[0]}\n{lines[1]} ")
    with pytest.raises(files.BadFileError, match=r"metrics\.jsonl is damaged: its last line is whole, but not its end"):
        files.read_lines(path)
    path.write_text("nonsense\n")
    with pytest.raises(files.BadFileError, match=r"metrics\.jsonl has a line that is not JSON"):
        files.read_lines(path)


def test_what_is_sealed_is_what_it_was(tmp_path):
    sealed = files.seal({"error": 0.25, "seeds": (1, 2)})
    assert files.unseal(sealed, tmp_path) == {"error": 0.25, "seeds": [1, 2]}
    with pytest.raises(files.BadFileError, match="is damaged"):
        files.unseal({**sealed, "error": 0.24}, tmp_path)
    for other in ({}, [], {"error": 0.25}):
        with pytest.raises(files.BadFileError, match="has no checksum"):
            files.unseal(other, tmp_path)


def test_altered_bytes_are_noticed(tmp_path):
    outcomes = flips.run(60, 0, tmp_path, commands=2)
    assert not [what for what in outcomes if what.startswith("WRONG")], outcomes


def test_bad_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(files.BadFileError, match=r"config\.json is not JSON"):
        files.read_json(tmp_path / "config.json")
