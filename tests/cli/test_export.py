"""`export`: files that do what the net does, elsewhere."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastweights import pretrained
from fastweights.base.files import BadFileError
from fastweights.cli import run
from fastweights.models.glimpses import GlimpseNet, GlimpseSignals
from fastweights.models.retrieval import RetrievalNet
from fastweights.models.steps import Step
from fastweights.tasks import retrieval

exporting = importlib.import_module("fastweights.cli.export")  # the name in `cli` is that of the verb
PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "export.md"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("exported")
    words = ["--onnx", str(folder / "retrieval.onnx"), "--safetensors", str(folder / "retrieval.safetensors")]
    assert run(["export", "retrieval-50", *words]) == 0
    return folder


def test_the_page_says_how_to_run_the_program(files):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    code = "import sys; sys.modules['torch'] = sys.modules['fastweights'] = None\n" + code  # it needs neither
    done = subprocess.run([sys.executable, "-c", code], cwd=files, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["9"], done.stderr


@pytest.mark.skipif(
    "ONNXRUNTIME_HOME" not in os.environ, reason="ONNXRUNTIME_HOME has no release of onnxruntime for C++"
)
def test_the_page_says_how_to_run_the_program_in_cpp(files):
    home = Path(os.environ["ONNXRUNTIME_HOME"])
    (files / "ask.cpp").write_text(re.search(r"```cpp\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])
    words = ["-std=c++17", "ask.cpp", f"-I{home}/include", f"-L{home}/lib", "-lonnxruntime", f"-Wl,-rpath,{home}/lib"]
    subprocess.run(["c++", *words, "-o", "ask"], cwd=files, check=True)
    done = subprocess.run([files / "ask"], cwd=files, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9"]


def test_the_program_says_what_it_is(files):
    runtime = pytest.importorskip("onnxruntime")
    about = runtime.InferenceSession(files / "retrieval.onnx").get_modelmeta().custom_metadata_map
    assert about["task"] == "retrieval"
    assert about["units"] == "50"
    assert json.loads(about["settings"])["decay"] == 0.9


def test_weights_are_those_of_the_net(files):
    safetensors = pytest.importorskip("safetensors.torch")
    net, found = pretrained("retrieval-50"), safetensors.load_file(files / "retrieval.safetensors")
    assert found.keys() == net.state_dict().keys()
    for name, value in net.state_dict().items():
        assert torch.equal(found[name], value)


def test_a_file_that_differs_is_no_success():
    net = RetrievalNet("fast-weights", 8, characters=37, answers=10).eval()
    x = retrieval.sample(exporting.COUNT)[0].t()
    step = Step(net).eval()
    assert exporting._difference(net, x, step, 8) < 1e-4

    def wrong(*inputs):
        answer, h, A = step(*inputs)
        return answer, 1.01 * h, A

    with pytest.raises(BadFileError, match="differs from the net by"):
        exporting._difference(net, x, wrong, 8)


def test_a_bad_file_does_not_stay(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exporting, "NEAR", 0.0)
    assert run(["export", "retrieval-50", "--safetensors", str(tmp_path / "net.safetensors")]) == 1
    assert "it is deleted again" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_glimpses_have_a_number(tmp_path):
    """Which says what is stored, reset, read and integrated."""
    pytest.importorskip("onnxscript")
    flags = [torch.rand(5) < 0.5 for _ in range(3)]
    net = GlimpseNet("fast-weights", 8, pixels=4, signals=GlimpseSignals(*flags, torch.rand(5, 6)), classes=3).eval()
    with torch.no_grad():
        net.core.weight_hh_l0.uniform_(-0.5, 0.5)
        net.core.weight_integration_l0.uniform_(-0.5, 0.5)
    x, step = torch.rand(5, exporting.COUNT, 4), Step(net).eval()
    written = exporting._write_onnx(step, x, {"task": "glimpses"}, tmp_path / "glimpses.onnx")
    assert exporting._difference(net, x, written, 8) < 1e-4
    with pytest.raises(BadFileError):
        exporting._difference(net, x, lambda x, h, A, t: written(x, h, A, 4 - t), 8)


def test_an_agent_is_exported(tmp_path, capsys):
    pytest.importorskip("onnxscript")
    assert run(["export", "catch-16-3", "--onnx", str(tmp_path / "agent.onnx")]) == 0
    assert "on 100 inputs it differs by at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["retrieval-50"], "there must be --onnx FILE or --safetensors FILE, or both"),
        (["retrieval-50", "--onnx", "net.pt"], "--onnx must end in .onnx, got 'net.pt'"),
        (["retrieval-50", "--safetensors", "net"], "--safetensors must end in .safetensors, got 'net'"),
        (["catch-16-3-lstm", "--onnx", "x.onnx"], "RUN must be a net with a core of fast weights; that of .* is lstm"),
        (["retrieval-5", "--onnx", "x.onnx"], "RUN must be a run folder, .*did you mean retrieval-50?"),
    ],
)
def test_what_cannot_be_exported(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["export", *words]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []
