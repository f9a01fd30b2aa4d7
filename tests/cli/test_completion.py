"""Shells complete verbs, options and what may follow them."""

import shutil
import subprocess

import pytest

from fastweights import cli

CASES = [
    (
        "",
        [
            *("train", "search", "reproduce", "faces", "look", "watch", "evaluate", "ask", "play", "export"),
            *("report", "completion"),
        ],
    ),
    ("tr", ["train"]),
    ("train ", ["retrieval", "glimpses", "catch"]),
    ("train retrieval --embed", ["--embedding-range"]),
    ("train retrieval --core l", ["lstm"]),
    ("reproduce table1 --cells fast", ["fast-weights/20", "fast-weights/50", "fast-weights/100"]),
    ("evaluate retr", ["retrieval-20", "retrieval-20-lstm", "retrieval-50", "retrieval-50-lstm"]),
    ("evaluate retrieval-50 --split ", ["train", "validation", "test"]),
    ("faces import f", ["facekit", "fer"]),
    ("completion ", ["bash", "zsh", "fish"]),
    ("train retrieval --out som", ["some-folder"]),
]


def script(shell, capsys):
    assert cli.run(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(command, folder):
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return {line.split("\t")[0].rstrip("/") for line in done.stdout.splitlines()}


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@needs("bash")
@pytest.mark.parametrize(("line", "words"), [*CASES, ("reproduce table1 --cells lstm/20 lstm/5", ["lstm/50"])])
def test_bash(line, words, tmp_path, capsys):
    (tmp_path / "some-folder").mkdir()
    typed = " ".join(f"'{word}'" for word in f"fastweights {line}".split(" "))
    ask = f"COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _fastweights\n"
    ask += "printf '%s\\n' \"${COMPREPLY[@]}\""
    found = offered(["bash", "-c", f"compopt() {{ :; }}\n{script('bash', capsys)}\n{ask}"], tmp_path)
    assert found >= set(words)
    assert len(found) <= len(words) + 2  # --help and --version


@needs("fish")
@pytest.mark.parametrize(("line", "words"), CASES)
def test_fish(line, words, tmp_path, capsys):
    (tmp_path / "some-folder").mkdir()
    (tmp_path / "complete.fish").write_text(script("fish", capsys))
    found = offered(["fish", "--no-config", "-c", f"source complete.fish; complete -C 'fastweights {line}'"], tmp_path)
    assert found >= set(words)


@needs("zsh")
def test_zsh_reads_it(tmp_path, capsys):
    (tmp_path / "complete.zsh").write_text(script("zsh", capsys))
    ask = "autoload -U compinit; compinit -u -D; source ./complete.zsh; "
    ask += "whence -w _fastweights; print $_comps[fastweights]"
    done = subprocess.run(["zsh", "-f", "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith("_fastweights: function\n_bash_complete")
