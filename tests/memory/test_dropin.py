"""What code for nn.LSTM, nn.RNN, data loaders and agents does with a layer and its state."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fastweights import FastWeights, FastWeightsCell, FastWeightsState

KINDS = pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])


def call(module, x, *args, **keywords):
    """A call of a layer or a cell, as its state."""
    found = module(x, *args, **keywords)
    return found if isinstance(found, FastWeightsState) else found[1]


def a_call(kind):
    return kind(3, 5), torch.randn(*(7,) * (kind is FastWeights), 4, 3)


def assert_equal(a, b):
    assert torch.equal(a.h, b.h)
    assert torch.equal(a.A, b.A)


@KINDS
@pytest.mark.parametrize("grad", [True, False])
def test_a_state_goes_in_as_a_pair_and_by_the_name_of_nn_rnn(kind, grad):
    module, x = a_call(kind)
    with torch.set_grad_enabled(grad):
        start = call(module, x).detach()
        expected = call(module, x, start)
        for given in (tuple(start), list(start), (start[0], start[1])):
            assert_equal(call(module, x, given), expected)
            assert_equal(call(module, x, hx=given), expected)
            assert_equal(call(module, x, state=given), expected)
        assert_equal(call(module, x, hx=None), call(module, x))
        with pytest.raises(TypeError, match="state and hx are the same argument"):
            call(module, x, start, hx=start)


@KINDS
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (torch.zeros(1, 4, 5), TypeError, r"state must be a FastWeightsState\(h, A\), a pair.*got Tensor"),
        ((torch.zeros(1, 4, 5),), TypeError, "state must be .*, got tuple"),
        ((torch.zeros(1, 4, 5), torch.zeros(1, 4, 5)), ValueError, "A must have the shape of h"),  # that of an LSTM
        ((torch.zeros(1, 4, 5), None), TypeError, "A must be a tensor, got NoneType"),
        ((torch.zeros(1, 2, 5), torch.zeros(1, 2, 5, 5)), ValueError, "state must have h of shape"),
        ({"h": torch.zeros(1, 4, 5)}, TypeError, "got dict"),
    ],
)
def test_what_is_no_state_is_named(kind, given, error, message):
    module, x = a_call(kind)
    with pytest.raises(error, match=message):
        module(x, given)


@KINDS
def test_a_trace_takes_them_too(kind):
    if kind is FastWeightsCell:
        pytest.skip("a cell has no trace")
    module, x = a_call(kind)
    start = call(module, x).detach()
    for part, expected in zip(module.trace(x, hx=tuple(start)), module.trace(x, start), strict=True):
        assert torch.equal(part, expected)


@KINDS
def test_a_state_is_a_pair(kind):
    state = call(*a_call(kind))
    h, A = state
    assert len(state) == 2
    assert state[0] is h is state[-2]
    assert state[1] is A is state[-1]
    with pytest.raises(IndexError):
        state[2]
    assert state.dtype == torch.float32
    assert state.device == torch.device("cpu")
    assert_equal(state.cpu(), state)
    assert_equal(type(state)(*(part.detach() for part in state)), state.detach())


def test_a_clone_has_memory_and_a_graph():
    layer, x = a_call(FastWeights)
    state = call(layer, x)
    clone = state.clone()
    grads = [torch.autograd.grad(each.A.sum(), layer.weight_ih_l0, retain_graph=True)[0] for each in (state, clone)]
    assert torch.equal(*grads)
    with torch.no_grad():
        clone.h.zero_()
        clone.A.zero_()
    assert state.h.any()
    assert state.A.any()


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"dtype": torch.float64}])
def test_the_initial_state_of_a_layer_is_what_none_means(options):
    layer = FastWeights(3, 5, **options)
    x = torch.randn(7, 4, 3, dtype=layer.weight_hh_l0.dtype)
    start = layer.initial_state(4)
    rows = len(layer.all_weights)
    assert start.h.shape == (rows, 4, 5)
    assert start.A.shape == (rows, 4, 5, 5)
    assert start.dtype == x.dtype
    torch.testing.assert_close(layer(x, start)[0], layer(x)[0])
    torch.testing.assert_close(layer(x[:, 0], layer.initial_state())[0], layer(x[:, 0])[0])
    with pytest.raises(TypeError, match="batch_size must be an int, got 2.0"):
        layer.initial_state(2.0)
    with pytest.raises(ValueError, match="batch_size must be at least 0, got -1"):
        layer.initial_state(-1)


def test_the_initial_state_of_a_cell_is_what_none_means():
    cell, x = a_call(FastWeightsCell)
    torch.testing.assert_close(list(cell(x, cell.initial_state(4))), list(cell(x)))
    torch.testing.assert_close(list(cell(x[0], cell.initial_state())), list(cell(x[0])))
    assert cell.to("meta").initial_state(2).device.type == "meta"


# Episodes


@KINDS
@pytest.mark.parametrize("envs", [4, 5])  # 5: as many as units, where a mask could mean either
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("trailing", [(), (1,)])
def test_where_chooses_sequences(kind, envs, dtype, trailing):
    x = torch.randn(*(1,) * (kind is FastWeights), envs, 3)
    module = kind(3, 5)
    state, other = call(module, x).detach(), call(module, 2 * x).detach()
    keep = torch.tensor([True, False, True, True, False][:envs])
    mask = keep.to(dtype).reshape(-1, *trailing)
    zeroed, mixed = state.where(mask), state.where(mask, other)
    for number, kept in enumerate(keep):
        place = (0, number) if kind is FastWeights else (number,)
        for part, from_zero, from_other, beside in zip(state, zeroed, mixed, other, strict=True):
            assert torch.equal(from_zero[place], part[place] if kept else torch.zeros_like(part[place]))
            assert torch.equal(from_other[place], part[place] if kept else beside[place])


def test_where_stops_what_is_not_a_number():
    state = FastWeightsState(torch.full((1, 2, 5), torch.nan), torch.full((1, 2, 5, 5), torch.inf))
    for part in state.where(torch.tensor([False, False])):
        assert not part.any()


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((torch.ones(5),), ValueError, r"condition must have shape \(4,\), one per sequence; got \(5,\)"),
        ((torch.ones(1, 4, 1),), ValueError, r"condition must have shape \(4,\)"),
        (([True] * 4,), TypeError, "condition must be a tensor, got list"),
        ((torch.ones(4), (torch.ones(1), torch.ones(1, 1))), TypeError, "other must be a FastWeightsState"),
        ((torch.ones(4), FastWeights(3, 5).initial_state(3)), ValueError, r"other must have h of shape \(1, 4, 5\)"),
    ],
)
def test_where_says_what_is_wrong(args, error, message):
    with pytest.raises(error, match=message):
        FastWeights(3, 5).initial_state(4).where(*args)


@KINDS
@pytest.mark.parametrize("name", ["reset", "wipe", "integrate"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("trailing", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_dones_of_any_dtype(kind, name, dtype, trailing, backend):
    module, x = kind(3, 5, integration=True, backend=backend), a_call(kind)[1]
    start, flags = call(module, x).detach(), torch.rand(x.shape[:-1]) < 0.4
    expected = call(module, x, start, **{name: flags})
    given = flags.to(dtype)
    assert_equal(call(module, x, start, **{name: given.unsqueeze(-1) if trailing else given}), expected)


@pytest.mark.parametrize("shape", [(4, 1), (4, 7, 1), (4, 7)])
def test_dones_of_torchrl_are_batch_first(shape):
    layer, x = FastWeights(3, 5, batch_first=True), torch.randn(4, 7, 3)
    dones = torch.rand(4, 7) < 0.3
    if shape == (4, 1):  # not one per sequence: one per step is (1, 7)
        with pytest.raises(ValueError, match=r"reset must have shape \(4, 7\)"):
            layer(x, reset=dones[:, :1])
        return
    assert torch.equal(layer(x, reset=dones.reshape(shape))[0], layer(x, reset=dones)[0])


def test_flags_that_are_neither_are_named():
    layer, x = a_call(FastWeights)
    with pytest.raises(ValueError, match="reset must be 0 or 1, got 0.0 to 2.0"):
        layer(x, reset=torch.arange(28).reshape(7, 4) % 3)


def test_an_agent_in_the_manner_of_sb3_contrib():
    """States of (h, A) for each environment in turn, masked by hand where an episode starts."""
    layer, envs = FastWeights(3, 5), 5  # as many as units

    features, starts = torch.randn(7 * envs, 3), (torch.rand(7, envs) < 0.3).float()
    states, outputs = (layer.initial_state(envs),), []
    for x, start in zip(features.reshape(7, envs, 3), starts, strict=True):
        output, state = layer(x.unsqueeze(0), states[0].where(start == 0))
        outputs.append(output)
        states = (state,)
    expected, last = layer(features.reshape(7, envs, 3), reset=starts)
    torch.testing.assert_close(torch.cat(outputs), expected)
    torch.testing.assert_close(list(states[0]), list(last))
    one = tuple(part[:, 2:3] for part in states[0])  # of one environment, as buffers cut it out
    x = torch.randn(1, envs, 3)
    torch.testing.assert_close(layer(x[:, 2:3], one)[0], layer(x, states[0])[0][:, 2:3])
    chosen = states[0].index_select(torch.tensor([2]))
    assert_equal(chosen, FastWeightsState(*one))


# Data loaders and files


class Streams(Dataset):
    """Sequences with the states that they start from."""

    def __init__(self, layer, x):
        self.x = x
        self.states = [layer(one)[1].detach() for one in x]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return self.x[place], self.states[place]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_loader_makes_a_batch_of_states(workers, num_layers):
    layer = FastWeights(3, 5, num_layers, batch_first=True)
    data = Streams(layer, torch.randn(4, 7, 3))
    loader = DataLoader(data, batch_size=4, num_workers=workers, multiprocessing_context="fork" if workers else None)
    ((x, state),) = loader
    assert isinstance(state, FastWeightsState)
    assert state.A.shape == (num_layers, 4, 5, 5)
    for number in range(4):
        alone = layer(data.x[number], data.states[number])[0]
        torch.testing.assert_close(layer(x, state)[0][number], alone)


@KINDS
def test_a_saved_state_is_read_in_another_process_as_weights_only(kind, tmp_path):
    module, x = a_call(kind)
    state = call(module, x)
    torch.save({"state": state.detach(), "module": module.state_dict()}, tmp_path / "saved.pt")
    torch.save({"x": x, "expected": tuple(part.detach() for part in call(module, x, state))}, tmp_path / "beside.pt")
    code = f"""
import torch
import fastweights
saved = torch.load(r"{tmp_path}/saved.pt", weights_only=True)
beside = torch.load(r"{tmp_path}/beside.pt", weights_only=True)
module = fastweights.{kind.__name__}(3, 5)
module.load_state_dict(saved["module"])
found = module(beside["x"], saved["state"])
found = found if isinstance(found, fastweights.FastWeightsState) else found[1]
torch.testing.assert_close(tuple(found), beside["expected"])
print(saved["state"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(state)


# Of the layer


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"bias": False}])
def test_all_weights_are_those_of_nn_rnn(options):
    layer, rnn = (kind(3, 5, **options) for kind in (FastWeights, nn.RNN))
    ours, theirs = layer.all_weights, rnn.all_weights
    assert len(ours) == len(theirs)
    for row, beside in zip(ours, theirs, strict=True):
        assert [w.shape for w in row[:2]] == [w.shape for w in beside[:2]]  # then the rest, in the order of parameters
    flat = [parameter for row in ours for parameter in row]
    assert len(flat) == len(list(layer.parameters()))
    assert all(a is b for a, b in zip(flat, layer.parameters(), strict=True))


@KINDS
def test_flatten_parameters_is_there(kind):
    assert kind(3, 5).flatten_parameters() is None


def test_lengths_as_a_list():
    layer, x = a_call(FastWeights)
    lengths = [7, 2, 0, 3]
    for given in (lengths, tuple(lengths), torch.tensor(lengths, dtype=torch.int32)):
        output, state = layer(x, lengths=given)
        expected, last = layer(x, lengths=torch.tensor(lengths))
        assert torch.equal(output, expected)
        assert_equal(state, last)
    for wrong in ([7, 2.0, 0, 3], [True] * 4, "7203", [7, None, 0, 3]):
        with pytest.raises(TypeError, match="lengths must be a tensor or a list of integers"):
            layer(x, lengths=wrong)
    with pytest.raises(ValueError, match=r"lengths must have shape \(4,\), one per sequence; got \(2,\)"):
        layer(x, lengths=[1, 2])
    with pytest.raises(ValueError, match="lengths must be from 0 to 7 .*, got -1 to 8"):
        layer(x, lengths=[8, -1, 0, 0])


UNUSUAL = {
    "inner_steps": 2,
    "decay": 0.9,
    "rate": 0.25,
    "layer_norm": False,
    "normalize_start": True,
    "settling": "identity",
    "nonlinearity": "tanh",
    "integration": True,
    "bias": False,
    "learn_decay": True,
    "learn_rate": True,
    "backend": "torch",
}


@pytest.mark.parametrize(("option", "value"), UNUSUAL.items())
@KINDS
def test_repr_shows_each_option_that_is_not_the_default(kind, option, value):
    name = kind.__name__
    assert repr(kind(3, 5)) == f"{name}(3, 5)"
    assert repr(kind(3, 5, **{option: value})) == f"{name}(3, 5, {option}={value!r})"


def test_repr_of_a_layer_is_the_call_that_makes_it():
    layer = FastWeights(3, 5, 2, **UNUSUAL, batch_first=True, dropout=0.5, bidirectional=True)
    again = eval(repr(layer))
    assert repr(again) == repr(layer)
    assert {name: p.shape for name, p in again.named_parameters()} == {n: p.shape for n, p in layer.named_parameters()}
    for option, value in {**UNUSUAL, "num_layers": 2, "batch_first": True, "dropout": 0.5}.items():
        assert f"{option}={value!r}" in repr(layer)
