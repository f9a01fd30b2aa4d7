"""`export`: a trained net for use elsewhere, as an ONNX program of one step, or as weights with their settings."""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from ..base.files import BadFileError, write_bytes
from ..models.steps import Step
from ..paper.catch import run as agents
from ..paper.glimpses import run as glimpses
from ..paper.retrieval import run as retrieval
from ..tasks import retrieval as strings
from ..training.runs import RunFolder
from .options import Run, run_folder

COUNT = 100  # inputs to compare on
NEAR = 1e-3  # of the largest number: float32, over as many steps as an input has
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Answers = Callable[..., tuple[Tensor, Tensor, Tensor]]  # as `Step`


def export(run: tyro.conf.Positional[Run], *, onnx: File = None, safetensors: File = None) -> int:
    """Write a trained net for use elsewhere: `export RUN --onnx FILE`, one step, (x, h, A) → (answer, h, A).

    Before it says that it is done, the file is run beside the net on 100 inputs.

    Args:
        run: A run folder, or a net that comes with the package, such as retrieval-50; with a core of fast weights.
        onnx: Where the ONNX program goes, a .onnx file. It needs nothing of this package.
        safetensors: Where the weights go, with their settings, a .safetensors file.
    """
    for name, file in (("--onnx", onnx), ("--safetensors", safetensors)):
        if file is not None and file.suffix != f".{name[2:]}":
            raise ValueError(f"{name} must end in .{name[2:]}, got {str(file)!r}")
    if onnx is None and safetensors is None:
        raise ValueError("there must be --onnx FILE or --safetensors FILE, or both")
    folder = run_folder(run)
    net, x = _net(folder)
    try:
        step = Step(net).eval()
    except ValueError as error:
        settings = folder.config["settings"]
        core = settings.get("core", settings.get("model"))
        raise ValueError(f"RUN must be a net with a core of fast weights; that of {run} is {core}") from error
    facts = {}
    for name, value in _facts(folder, step, x).items():
        facts[name] = value if isinstance(value, str) else json.dumps(value)
    for file, write in ((onnx, _write_onnx), (safetensors, _write_safetensors)):
        if file is not None:
            try:
                far = _difference(net, x, write(step, x, facts, file), step.units)
            except BadFileError:
                file.unlink()
                raise
            print(f"written: {file} (on {COUNT} inputs it differs by at most {far:.1e} from the net)")
    return 0


def _net(folder: RunFolder) -> tuple[Any, Tensor]:
    """The net of a run, and inputs for it: (T, B, …)."""
    task, generator = folder.config["settings"].get("task"), torch.Generator().manual_seed(0)
    if task == retrieval.TASK:
        settings = retrieval.load_config(folder)
        tokens, _ = strings.sample(COUNT, pairs=settings.pairs, separators=settings.separators, generator=generator)
        return retrieval.load_net(folder), tokens.t()
    if task == agents.TASK:
        pixels = agents.load_config(folder).size ** 2
        return agents.load_net(folder), (torch.rand(16, COUNT, pixels, generator=generator) < 0.01).float()
    looking = glimpses.load_net(folder)
    if looking.schedule is None:
        return looking.net, torch.empty(0)
    side = 4 * glimpses.load_config(folder).images.patch
    return looking.net.eval(), looking.eval().look(torch.randint(0, 256, (COUNT, side, side), generator=generator))


def _facts(folder: RunFolder, step: Step, x: Tensor) -> dict[str, Any]:
    """What goes into the file beside the numbers."""
    settings = folder.config["settings"]
    meaning = {
        retrieval.TASK: "x (batch,) int64: a character, by its place in the alphabet",
        agents.TASK: "x (batch, pixels) float32: a screen, row by row",
        glimpses.TASK: "x (batch, pixels) float32: a glimpse; t () int64: its number, from 0",
    }[settings["task"]]
    facts = {
        "task": settings["task"],
        "inputs": f"{meaning}; h (batch, units) and A (batch, units, units) float32: zeros at the beginning",
        "outputs": "answer (batch, classes) float32: logits; new_h, new_A: for the next step",
        "units": step.units,
        "steps": len(x),
        "settings": settings,
        "fastweights": version("fastweights"),
    }
    return {**facts, "alphabet": strings.ALPHABET} if settings["task"] == retrieval.TASK else facts


@torch.no_grad()
def _difference(net: Any, x: Tensor, written: Answers, units: int) -> float:
    """The largest, of what a file says and what the net says, whole sequences at a time. An error if it is much."""
    h, A = torch.zeros(COUNT, units), torch.zeros(COUNT, units, units)
    answer = torch.empty(0)
    for t, now in enumerate(x):
        answer, h, A = written(now, h, A, torch.tensor(t))
    if hasattr(net, "policy"):
        output, state = net.core(net.see(x))
        expected = net.policy(output[-1])
    elif hasattr(net, "control_signals"):
        expected, state = net(x), None
    else:
        expected, state = net(x.t()), net.core(net.inputs(x.t()))[1]
    pairs = [(answer, expected), *([] if state is None else [(h, state.h[0]), (A, state.A[0])])]
    far = max(float((one - other).abs().max()) for one, other in pairs)
    if not far <= NEAR * max(1.0, *(float(other.abs().max()) for _, other in pairs)):
        raise BadFileError(f"what was written differs from the net by {far:.1e}: it is deleted again")
    return far


def _write_onnx(step: Step, x: Tensor, facts: Mapping[str, str], path: Path) -> Answers:
    """The program, as it is in the file."""
    import onnxruntime  # type: ignore[import-untyped]
    import onnxscript  # noqa: F401 - torch's exporter needs it

    batch = torch.export.Dim("batch", min=1)
    state = torch.zeros(2, step.units), torch.zeros(2, step.units, step.units)
    names, given, sizes = ["x", "h", "A"], [x[0, :2], *state], [{0: batch}] * 3
    if facts["task"] == glimpses.TASK:
        names, given, sizes = [*names, "t"], [*given, torch.tensor(0)], [*sizes, {}]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, at itself
        program = torch.onnx.export(
            step,
            tuple(given),
            input_names=names,
            output_names=["answer", "new_h", "new_A"],
            dynamic_shapes=tuple(sizes),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update(facts)
    model = program.model_proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options)
    write_bytes(path, model)

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=False)}
        answer, h, A = map(torch.from_numpy, session.run(None, inputs))
        return answer, h, A

    return run


def _write_safetensors(step: Step, x: Tensor, facts: Mapping[str, str], path: Path) -> Answers:
    """A step with the weights that are in the file."""
    import safetensors.torch

    weights = {name: value.contiguous() for name, value in step.net.state_dict().items()}
    write_bytes(path, safetensors.torch.save(weights, dict(facts)))
    again = copy.deepcopy(step)
    for parameter in again.parameters():
        torch.nn.init.zeros_(parameter)
    again.net.load_state_dict(safetensors.torch.load_file(path))
    return Step(again.net).eval()
