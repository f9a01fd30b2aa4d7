"""Programs without this package, or with one operator of it: torch.export, ONNX, traces."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fastweights import FastWeights, FastWeightsCell, FastWeightsState

T, B = torch.export.Dim("T", min=1), torch.export.Dim("B", min=1)
OPTIONS = [
    {},
    {"inner_steps": 2, "settling": "identity", "nonlinearity": "tanh", "bias": False},
    {"layer_norm": False, "nonlinearity": "tanh", "rate": 0.1, "backend": "torch"},
    {"learn_decay": True, "learn_rate": True, "normalize_start": True},
]
STRICT = pytest.mark.parametrize("strict", [False, True])
SIGNALS = ("reset", "wipe", "store", "read", "integrate")


class Signalled(nn.Module):
    """All signals, by position: exporters name the shapes of what is given by keyword in many ways."""

    def __init__(self, core):
        super().__init__()
        self.core = core

    def forward(self, x, state, signals, lengths=None):
        given = dict(zip(SIGNALS, signals, strict=True))
        return self.core(x, state, **given) if lengths is None else self.core(x, state, lengths=lengths, **given)


class Plain(nn.Module):
    """Tensors in, tensors out."""

    def __init__(self, core):
        super().__init__()
        self.core = core

    def forward(self, x, h, A):
        results = self.core(x, (h, A))
        return tuple(results) if isinstance(self.core, FastWeightsCell) else (results[0], *results[1])


def make(kind, *sizes, dtype=torch.float32, **options):
    module = kind(*sizes, dtype=dtype, **options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "weight_hh" in name or "integration" in name:
                parameter.uniform_(-0.1, 0.1)
    return module.eval()


def state_for(module, batch):
    like = module.initial_state(batch)
    return FastWeightsState(torch.rand_like(like.h), torch.rand_like(like.A) / 4)


def inputs(module, steps, batch, signalled=False, state=True):
    """Of so many steps (a cell: of one) and sequences, and the names of their sizes."""
    cell = isinstance(module, FastWeightsCell)
    shape, sizes, rows = ((batch,), {0: B}, {0: B}) if cell else ((steps, batch), {0: T, 1: B}, {1: B})
    dtype = next(module.parameters()).dtype
    given, names = [torch.randn(*shape, module.input_size, dtype=dtype)], [sizes]
    if state or signalled:
        given, names = [*given, state_for(module, batch)], [*names, [rows, rows]]
    if signalled:
        flags = [torch.rand(shape) < 0.2 for _ in range(3)]
        given.append((flags[0], flags[1], torch.rand(shape), torch.rand(shape), flags[2]))
        names.append((sizes,) * 5)
        if not cell:
            given.append(torch.randint(0, steps + 1, (batch,)))
            names.append({0: B})
    return tuple(given), tuple(names)


def tensors(results):
    return pytree.tree_leaves(results)


def assert_same(ours, theirs, near=1e-5):
    ours, theirs = tensors(ours), tensors(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=near * max(1.0, other.abs().max().item()))


# --- torch.export


@pytest.mark.parametrize(("options", "strict"), [*((options, False) for options in OPTIONS), (OPTIONS[-1], True)])
@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_one_program_for_every_number_of_steps_and_sequences(kind, options, strict):
    module = make(kind, 3, 5, **options)
    given, names = inputs(module, 7, 4)
    program = torch.export.export(module, given, dynamic_shapes=names, strict=strict).module()
    for steps, batch in ((7, 4), (2, 1), (1, 3), (200, 2)):
        case, _ = inputs(module, steps, batch)
        ours, theirs = program(*case), module(*case)
        state = ours if kind is FastWeightsCell else ours[1]
        assert isinstance(state, FastWeightsState)
        assert_same(ours, theirs)
        leaves = [dict(which.named_parameters()) for which in (program, module)]
        gradients = [
            torch.autograd.grad(sum(each.square().sum() for each in tensors(results)), list(named.values()))
            for results, named in zip((ours, theirs), leaves, strict=True)
        ]
        for name, one in zip(leaves[0], gradients[0], strict=True):
            other = gradients[1][list(leaves[1]).index(name)]
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@STRICT
@pytest.mark.parametrize(
    "module",
    [
        Signalled(make(FastWeights, 3, 5, 2, bidirectional=True, integration=True)),
        Signalled(make(FastWeightsCell, 3, 5, integration=True)),
    ],
    ids=["layer", "cell"],
)
def test_signals_and_lengths(module, strict):
    given, names = inputs(module.core, 7, 4, signalled=True)
    program = torch.export.export(module, given, dynamic_shapes=names, strict=strict).module()
    for steps, batch in ((7, 4), (2, 1), (90, 3)):
        case, _ = inputs(module.core, steps, batch, signalled=True)
        assert_same(program(*case), module(*case))


@STRICT
@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_without_a_state(kind, strict, tmp_path):
    module = make(kind, 3, 5)
    given, names = inputs(module, 7, 4, state=False)
    program = torch.export.export(module, given, dynamic_shapes=names, strict=strict)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for steps, batch in ((7, 4), (100, 3)):
        case, _ = inputs(module, steps, batch, state=False)
        assert_same(loaded(*case), module(*case))
        assert_same(program.module()(*case), module(*case))


def test_a_layer_is_one_operator_and_a_cell_is_plain_operations():
    for kind, own in ((FastWeights, ["fastweights::sequence"]), (FastWeightsCell, [])):
        module = make(kind, 3, 5)
        given, names = inputs(module, 7, 4)
        program = torch.export.export(module, given, dynamic_shapes=names)
        targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
        called = [target.name() for target in targets if isinstance(target, torch._ops.OpOverload)]
        assert [name for name in called if not name.startswith("aten::")] == own


def test_the_state_is_that_of_the_call_whatever_is_done_to_the_rest():
    module = make(FastWeights, 3, 5)
    given, names = inputs(module, 7, 4)
    program = torch.export.export(module, given, dynamic_shapes=names).module()
    expected = module(*given)[1].clone()
    with torch.no_grad():
        output, state = program(*given)
        for tensor in (output, *tensors(given)):
            tensor.zero_()
    assert_same(state, expected)


def test_operators_are_what_they_say():
    layer = make(FastWeights, 3, 5, learn_decay=True, dtype=torch.float64)
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    decay = layer.decay_logit_l0.sigmoid().squeeze().detach().requires_grad_()
    slow = layer.weight_ih_l0, layer.bias_l0, layer.weight_hh_l0, None, layer.norm_weight_l0, layer.norm_bias_l0
    arguments = (x, *slow, None, None, decay, *(None,) * 7, 1.0, 0.5, 1, "sustained", "relu", False, True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.fastweights.sequence.default, arguments, test_utils=checks)


# --- ONNX


def exported(module, given, names, path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, at itself and at names given twice
        torch.onnx.export(module, given, path, dynamic_shapes=names, dynamo=True, verbose=False)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options)

    def run(*case):
        named = zip((each.name for each in session.get_inputs()), tensors(case), strict=True)
        return [torch.from_numpy(result) for result in session.run(None, {name: t.numpy() for name, t in named})]

    return run


# Over a thousand steps the rounding of float32 grows, there and here. That the numbers are the same is seen in float64,
# as well as the ε of the layer norm allows, which torch writes in float32.
NEAR = pytest.mark.parametrize(("dtype", "near", "most"), [(torch.float32, 1e-5, 20), (torch.float64, 1e-6, 1000)])


@pytest.mark.parametrize(
    ("options", "dtype", "near", "most"),
    [
        *((options, torch.float32, 1e-5, 20) for options in OPTIONS),
        *((options, torch.float64, 1e-6, 1000) for options in (OPTIONS[0], OPTIONS[-1])),
    ],
)
def test_a_cell_in_onnxruntime_streams_as_it_does_here(options, dtype, near, most, tmp_path):
    cell = make(FastWeightsCell, 3, 20, dtype=dtype, **options)
    given, names = inputs(cell, 1, 4)
    run = exported(cell, given, names, tmp_path / "cell.onnx")
    for steps, batch in ((2, 1), (most, 3)):
        state = there = state_for(cell, batch)
        with torch.no_grad():
            for x in torch.randn(steps, batch, 3, dtype=dtype):
                there = FastWeightsState(*run(x, there))
                state = cell(x, state)
                assert_same(there, state, near)


@NEAR
@pytest.mark.parametrize("options", [OPTIONS[-1], {"num_layers": 2, "bidirectional": True}])
def test_a_layer_in_onnxruntime_with_any_number_of_steps(options, dtype, near, most, tmp_path):
    layer = make(FastWeights, 3, 20, dtype=dtype, **options)
    given, names = inputs(layer, 7, 4)
    run = exported(layer, given, names, tmp_path / "layer.onnx")
    with torch.no_grad():
        for steps, batch in ((7, 4), (1, 1), (most, 2)):
            case, _ = inputs(layer, steps, batch)
            assert_same(run(*case), layer(*case), near)


def test_signals_and_lengths_in_onnxruntime(tmp_path):
    for kind, options in ((FastWeights, {"bidirectional": True}), (FastWeightsCell, {})):
        module = Signalled(make(kind, 3, 5, integration=True, **options))
        given, names = inputs(module.core, 7, 4, signalled=True)
        run = exported(module, given, names, tmp_path / f"{kind.__name__}.onnx")
        with torch.no_grad():
            for steps, batch in ((7, 4), (2, 2), (50, 3)):
                case, _ = inputs(module.core, steps, batch, signalled=True)
                assert_same(run(*case), module(*case))


# --- traces


@pytest.mark.filterwarnings("ignore")  # torch.jit is old, and its tracer warns at every look at a size
@pytest.mark.parametrize("grad", [True, False])
def test_traces_are_right_or_refused(grad):
    with torch.set_grad_enabled(grad):
        cell, layer = make(FastWeightsCell, 3, 5), make(FastWeights, 3, 5, 2)
        traced = torch.jit.trace(Plain(cell), (torch.randn(4, 3), *state_for(cell, 4)))
        for batch in (4, 1, 7):
            x, state = torch.randn(batch, 3), state_for(cell, batch)
            assert_same(traced(x, *state), cell(x, state))
        traced = torch.jit.trace(Plain(layer), (torch.randn(6, 4, 3), *state_for(layer, 4)))
        for batch in (4, 1, 7):
            x, state = torch.randn(6, batch, 3), state_for(layer, batch)
            assert_same(traced(x, *state), layer(x, state))
        for steps in (1, 5, 7):
            with pytest.raises(RuntimeError, match=f"Expected 6 elements in a list but found {steps}"):
                traced(torch.randn(steps, 4, 3), *state_for(layer, 4))
        with pytest.raises(RuntimeError, match="got value of type FastWeightsState"):
            torch.jit.trace(cell, (torch.randn(4, 3),))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_the_old_exporter(kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    module, path = make(kind, 3, 5), tmp_path / "old.onnx"
    (x, state), _ = inputs(module, 6, 4)
    with torch.no_grad():
        torch.onnx.export(Plain(module), (x, *state), path, dynamo=False, input_names=["x", "h", "A"])
        session = runtime.InferenceSession(path)
        found = session.run(None, {"x": x.numpy(), "h": state.h.numpy(), "A": state.A.numpy()})
        assert_same([torch.from_numpy(each) for each in found], module(x, state))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [nn.Sequential, lambda module: module])
@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_scripts_are_refused(kind, wrap):
    with pytest.raises(
        NotImplementedError, match=rf"torch\.jit\.script cannot compile {kind.__name__}: use torch\.export"
    ):
        torch.jit.script(wrap(kind(3, 5)))
