"""What the README offers leaves a clone as it was: results are published on request alone."""

import json
import subprocess
from pathlib import Path

import pytest

from fastweights import cli
from fastweights.paper.reports import PROTOCOL
from fastweights.paper.retrieval import table1

ROOT = Path(__file__).parent.parent.parent
SMALL = ["--epochs", "1", "--examples", "300"]
COMMANDS = (
    ["ask", "retrieval-50", "c9k8j3f1??c"],
    ["watch", "catch-16-3", "--episodes", "1"],
    ["train", "retrieval", "--units", "5", *SMALL],
    ["reproduce", "table1", "--cells", "fast-weights/50", "--seeds", "1"],
    ["search", "table1", "--cell", "lstm/20", "--grid", "lr=1e-3", "epochs=1", "examples=300"],
    ["search", "show"],
    ["report"],
)


def changed(clone):
    words = ["git", "-C", str(clone), "status", "--porcelain"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the git repository")
def test_git_status_is_clean_after_the_readmes_commands(tmp_path, monkeypatch, capsys):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), str(clone)], check=True)
    monkeypatch.chdir(clone)
    full = table1.config
    monkeypatch.setattr(table1, "EPOCHS", {20: 1, 50: 1, 100: 1})
    monkeypatch.setattr(table1, "config", lambda *words, **more: table1.dataclasses.replace(full(*words), examples=300))
    for words in COMMANDS:
        assert cli.run(words) == 0, words
    assert changed(clone) == ""
    assert (clone / "runs" / "index.html").exists()
    printed = capsys.readouterr().out
    assert "trained here" in printed
    published = json.loads((ROOT / "results" / "table1.json").read_text())
    same = published[0].get("protocol") == PROTOCOL
    assert ("published" in printed) is same  # what is of another is not mixed in

    assert cli.run(["report", "--publish"]) == (0 if same else 2)
    if not same:
        assert changed(clone) == ""
        (clone / "results" / "table1.json").unlink()

    assert cli.run(["report", "--publish"]) == 0
    assert " M results/table1.json" in changed(clone)
