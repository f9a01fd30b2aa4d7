"""Whatever is mistyped ends in one line and the exit code 2; help and names are found."""

import subprocess
import sys
import warnings

import pytest
import torch
import tyro

import fastweights
from fastweights import cli
from fastweights.cli.options import run_folder
from fastweights.cli.parse import CONFIG


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian retrieval", "no such command: trian; did you mean train?"),
        ("train retreival", "no such command: train retreival; did you mean retrieval?"),
        ("wacth x", "no such command: wacth; did you mean watch?"),
        ("xyz", "no such command: xyz; there are train, search, reproduce"),
        ("train retrieval --units -5", "units must be at least 1, got -5"),
        ("train retrieval --lr -1", "lr must be above 0 and finite, got -1.0"),
        ("train retrieval --units x", "--units must be a whole number; got 'x'"),
        ("train retrieval --lr x", "--lr must be a number; got 'x'"),
        ("train retrieval --threads 0", "threads must be at least 1, got 0"),
        ("train retrieval --checkpoint-seconds nan", "checkpoint_seconds must be at least 0, got nan"),
        ("train glimpses --seed 4294967296", "seed must be at most 4294967295, got 4294967296"),
        ("train catch --decay 2", "decay must be at least 0 and at most 1, got 2.0"),
        ("train retrieval --lr", "--lr must have a value"),
        ("train retrieval --core lsmt", "'fast-weights'; got 'lsmt'; did you mean lstm?"),
        ("train retrieval --unit 5", "there is no such argument: --unit; did you mean --units?"),
        ("--versoin", "no such command: --versoin; did you mean --version?"),
        ("reproduce ablations", "there must be one of glimpses, catch: Whose"),
        ("reproduce ablations catch --changes RMSprop", "got 'RMSprop'; did you mean RMSProp?"),
        ("reproduce claims --claims maps", "got 'maps'; did you mean map?"),
        ("search table1 --cell lstm/20 --grid lrr=1", "there is no hyperparameter 'lrr'; there are batch, "),
        ("watch catch-16-3 --seed -1", "seed must be at least 0, got -1"),
        ("ask catch-16-3 c9??c", "catch-16-3 is one of catch: fastweights watch catch-16-3"),
        ("faces import multipie nowhere", "PATH must be there to be read; there is no nowhere"),
        ("ask", "there must be a RUN: A run folder"),
        ("faces import fer", "there must be a PATH"),
        ("ask retrieval-50", "strings must be at least one"),
        ("ask retrieval-51 c9??c", "got 'retrieval-51': there is none; did you mean retrieval-50?"),
        ("evaluate nowhere", "RUN must be a run folder, or a net of the package (catch-16-3, "),
        ("evaluate .", "got '.': it has no config.json"),
        ("watch retrieval-50", "retrieval-50 is a net of retrieval: fastweights evaluate retrieval-50"),
        ("reproduce table1 --cells fast-weigths/20", "got 'fast-weigths/20'; did you mean fast-weights/20?"),
        ("reproduce table1 --seeds 0", "seeds must be at least 1, got 0"),
        ("look glimpses --out x.foo", "--out must end in .png or .svg, the formats there are; got 'x.foo'"),
        ("faces look fer --out x", "--out must end in .png or .svg, the formats there are; got 'x'"),
        ("train retrieval --device gpu", "--device must be one of 'cpu', 'cuda', 'mps', 'auto'; got 'gpu'"),
        ("reproduce table1 --gpus 2", "gpus must go with the device 'cuda', got 2 with the device 'cpu'"),
        ("train catch --gpus 2", "gpus must go with the device 'cuda', got 2 with the device 'cpu'"),
        ("completion csh", "must be one of 'bash', 'zsh', 'fish'; got 'csh'"),
    ],
)
def test_what_is_mistyped_is_said_in_one_line(line, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(line.split()) == 2
    out, said = capsys.readouterr()
    assert message in said
    assert said.startswith("fastweights: ")
    assert said.count("\n") == 1
    assert out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "line",
    [
        "train retrieval",
        "train glimpses",
        "train catch",
        *(f"reproduce {table}" for table in ("table1", "claims", "table2", "ablations catch", "table3", "catch")),
        *(f"search {table}" for table in ("table1", "claims", "table2", "table3", "catch")),
        "evaluate retrieval-50",
        "ask retrieval-50 c9??c",
        "watch catch-16-3",
    ],
)
def test_a_device_that_is_not_here_is_said_in_one_line(line, tmp_path, monkeypatch, capsys):
    test_what_is_mistyped_is_said_in_one_line(
        f"{line} --device cuda", "device must be one that is here, ", tmp_path, monkeypatch, capsys
    )


def test_groups_list_their_verbs(capsys):
    assert cli.run(["train", "--help"]) == 0
    asked = capsys.readouterr().out
    assert cli.run(["train"]) == 2
    assert capsys.readouterr().err == asked
    assert [line.split()[:2] for line in asked.splitlines() if line.startswith("  train")] == [
        ["train", "retrieval"],
        ["train", "glimpses"],
        ["train", "catch"],
    ]
    assert cli.run(["--help"]) == 0
    everything = capsys.readouterr().out
    assert cli.run(["help", "train"]) == 0
    assert capsys.readouterr().out == asked
    assert all(f"  {verb} " in everything for verb in cli.VERBS)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_said_in_one_line(error, monkeypatch, capsys):
    def report():
        raise error

    monkeypatch.setitem(cli.VERBS, "report", report)
    assert cli.run(["report"]) == 1
    assert capsys.readouterr().err.startswith("fastweights: there is not enough memory for this: ")


def test_to_look_for_studies_makes_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["search", "show"]) == 1
    assert "there are no studies yet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_version_is_said_without_loading_torch():
    code = "import sys; sys.argv[1:] = ['--version']; from fastweights.__main__ import main\n"
    code += "try: main()\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"fastweights {fastweights.__version__}\n0 False\n"


def test_torch_alone_gets_a_friendly_line():
    code = "import sys; sys.modules['tyro'] = None; sys.argv[1:] = ['report']; from fastweights.__main__ import main\n"
    code += "main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ("fastweights: this needs tyro, which is not installed: pip install 'fastweights[paper]'\n")


def arguments():
    for name, function in cli.VERBS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parser = tyro.extras.get_parser(function, config=CONFIG)
        for action in parser._actions:
            if action.dest not in ("help", "==SUPPRESS=="):
                yield name, action


def test_help_texts_are_sentences():
    for name, action in arguments():
        where, text = f"{name} {action.option_strings or action.metavar}: {action.help}", str(action.help)
        sentence = text.partition(" (default: ")[0].partition(" (required)")[0].strip()
        assert sentence[:1].isupper() or not sentence[:1].isalpha(), where
        assert sentence.endswith("."), where
        assert len(sentence.split()) > 2, where
        assert "(default: )" not in text, where
        assert "None" not in f"{text} {action.metavar or ''}", where
    for name, function in cli.VERBS.items():
        assert function.__doc__.splitlines()[0].endswith((".", ":", "`.")), name


def test_nets_of_the_package_are_runs(capsys):
    assert run_folder("retrieval-50").config["settings"]["task"] == "retrieval"
    assert cli.run(["ask", "retrieval-50", "c9k8j3f1??c"]) == 0
    assert "9" in capsys.readouterr().out
    assert cli.run(["evaluate", "retrieval-50"]) == 0
    assert "test: 20000 strings, error 0." in capsys.readouterr().out
