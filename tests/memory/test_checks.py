"""Bad input gets an exception that names the argument, what it was and what it should be, before any work is done."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from fastweights import FastWeights, FastWeightsCell, FastWeightsState
from fastweights.memory import autograd

CONSTRUCTOR = [
    ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
    ({"hidden_size": -2}, ValueError, "hidden_size must be at least 1, got -2"),
    ({"hidden_size": 2.5}, TypeError, r"hidden_size must be an int, got 2.5 \(float\)"),
    ({"num_layers": 0}, ValueError, "num_layers must be at least 1, got 0"),
    ({"inner_steps": -1}, ValueError, "inner_steps must be at least 0, got -1"),
    ({"inner_steps": True}, TypeError, r"inner_steps must be an int, got True \(bool\)"),
    ({"decay": math.nan}, ValueError, "decay must be at least 0 and at most 1, got nan"),
    ({"decay": 1.01}, ValueError, "decay must be at least 0 and at most 1, got 1.01"),
    ({"decay": -0.1}, ValueError, "decay must be at least 0 and at most 1, got -0.1"),
    ({"decay": "0.9"}, TypeError, r"decay must be a number, got '0.9' \(str\)"),
    ({"decay": 1, "learn_decay": True}, ValueError, "decay must be above 0 and below 1, got 1"),
    ({"rate": -0.5}, ValueError, "rate must be at least 0, got -0.5"),
    ({"rate": math.inf}, ValueError, "rate must be at least 0.*got inf"),
    ({"rate": math.nan}, ValueError, "rate must be at least 0.*got nan"),
    ({"rate": 0, "learn_rate": True}, ValueError, "rate must be above 0, got 0"),
    ({"settling": "method 2"}, ValueError, "settling must be one of 'sustained', 'identity'; got 'method 2'"),
    ({"nonlinearity": "gelu"}, ValueError, "nonlinearity must be one of 'relu', 'tanh'; got 'gelu'"),
    ({"backend": "cuda"}, ValueError, "backend must be one of .*; got 'cuda'"),
    ({"dropout": 1.5}, ValueError, "dropout must be at least 0 and at most 1, got 1.5"),
    ({"dtype": torch.int32}, TypeError, "dtype must be a real floating-point torch.dtype, got torch.int32"),
    ({"dtype": torch.complex64}, TypeError, "dtype must be a real floating-point torch.dtype, got torch.complex64"),
]


@pytest.mark.parametrize(("options", "error", "message"), CONSTRUCTOR)
def test_constructor(options, error, message):
    with pytest.raises(error, match=message):
        FastWeights(**{"input_size": 3, "hidden_size": 5} | options)


X = torch.randn(4, 2, 3)


def state(*shape, **options):
    return FastWeightsState(torch.zeros(*shape, **options), torch.zeros(*shape, shape[-1], **options))


CALL = [
    ((torch.randn(4, 2, 6),), {}, ValueError, r"x must have 3 features \(input_size\).*got 6"),
    ((torch.randn(4, 2, 3, 1),), {}, ValueError, r"x must have 2 or 3 dimensions, got shape \(4, 2, 3, 1\)"),
    (([[1.0, 2, 3]],), {}, TypeError, "x must be a tensor, got list"),
    ((X.double(),), {}, TypeError, "x must be torch.float32, as the weights are; got torch.float64"),
    ((X.long(),), {}, TypeError, "x must be torch.float32, as the weights are; got torch.int64"),
    ((X.to("meta"),), {}, ValueError, "x must be on cpu, where the weights are; got meta"),
    ((X, state(1, 3, 5)), {}, ValueError, r"state must have h of shape \(1, 2, 5\), got \(1, 3, 5\)"),
    ((X, state(1, 2, 6)), {}, ValueError, r"state must have h of shape \(1, 2, 5\), got \(1, 2, 6\)"),
    ((X, state(1, 5)), {}, ValueError, r"state must have h of shape \(1, 2, 5\), got \(1, 5\)"),
    ((X, state(1, 2, 5, dtype=torch.float64)), {}, ValueError, "state must be torch.float32 on cpu.*float64"),
    ((X, state(1, 2, 5, device="meta")), {}, ValueError, "state must be torch.float32 on cpu.*meta"),
    ((X, torch.zeros(1, 2, 5)), {}, TypeError, r"state must be a FastWeightsState\(h, A\), a pair.*got Tensor"),
    ((X,), {"lengths": torch.tensor([5, 1])}, ValueError, "lengths must be from 0 to 4 .*got 1 to 5"),
    ((X,), {"lengths": torch.tensor([-1, 4])}, ValueError, "lengths must be from 0 to 4 .*got -1 to 4"),
    ((X,), {"lengths": torch.tensor([1.0, 4.0])}, TypeError, "lengths must be a tensor or a list of integers.*float32"),
    ((X,), {"lengths": [1, 4.0]}, TypeError, "lengths must be a tensor or a list of integers, got list"),
    ((X,), {"lengths": [1, 5]}, ValueError, "lengths must be from 0 to 4 .*got 1 to 5"),
    ((X,), {"lengths": torch.tensor([1, 2, 3])}, ValueError, r"lengths must have shape \(2,\).*got \(3,\)"),
    (
        (X,),
        {"lengths": torch.ones(2, device="meta").long()},
        ValueError,
        "lengths must be on cpu, where x is; got meta",
    ),
    ((X,), {"reset": torch.full((4, 2), 0.5)}, ValueError, "reset must be 0 or 1, got 0.5 to 0.5"),
    ((X,), {"reset": torch.zeros(4, 2, dtype=torch.complex64)}, TypeError, "reset must be bool, integer or floating"),
    ((X,), {"wipe": torch.zeros(2, 4).bool()}, ValueError, r"wipe must have shape \(4, 2\).*got \(2, 4\)"),
    ((X,), {"store": torch.zeros(1, 2)}, ValueError, r"store must have .* or \(4, 1\), one per step; got \(1, 2\)"),
    ((X,), {"wipe": True}, TypeError, "wipe must be a tensor, got bool"),
    ((X,), {"integrate": torch.zeros(4, 2).bool()}, ValueError, "integrate must be None: this layer was made without"),
    ((X,), {"store": torch.full((4, 2), 1.5)}, ValueError, "store must be from 0 to 1, got 1.5 to 1.5"),
    ((X,), {"store": torch.full((4, 2), math.nan)}, ValueError, "store must be from 0 to 1, got nan to nan"),
    ((X,), {"read": torch.full((4, 2), -1.0)}, ValueError, "read must be from 0 to 1, got -1.0 to -1.0"),
    ((X,), {"read": torch.ones(4, 2).long()}, TypeError, "read must be floating-point or bool, got torch.int64"),
    ((X,), {"read": torch.ones(4, 2, device="meta")}, ValueError, "read must be on cpu, where x is; got meta"),
    (
        (pack_sequence([X[:, 0]]),),
        {"lengths": torch.tensor([4])},
        ValueError,
        "lengths must be None when x is a Packed",
    ),
    ((pack_sequence([torch.randn(4, 6)]),), {}, ValueError, "x must have 3 features"),
]


@pytest.mark.parametrize(("args", "signals", "error", "message"), CALL)
def test_call(args, signals, error, message, monkeypatch):
    layer = FastWeights(3, 5)
    monkeypatch.setattr(autograd, "run_through", lambda *_: pytest.fail("work was done before the check"))
    for run in (layer, layer.trace):
        with pytest.raises(error, match=message):
            run(*args, **signals)


def test_integrate_is_checked_like_the_other_flags():
    with pytest.raises(ValueError, match="integrate must be 0 or 1, got 2.0 to 2.0"):
        FastWeights(3, 5, integration=True)(X, integrate=torch.full((4, 2), 2))
    with pytest.raises(ValueError, match="integrate must be None: this layer was made without integration=True"):
        FastWeightsCell(3, 5)(X[0], integrate=torch.zeros(2).bool())


def test_batch_first_signals_follow_x():
    layer = FastWeights(3, 5, batch_first=True)
    with pytest.raises(ValueError, match=r"reset must have shape \(2, 4\), .* or \(1, 4\), one per step; got \(4, 2\)"):
        layer(X.transpose(0, 1), reset=torch.zeros(4, 2, dtype=torch.bool))


def test_a_packed_sequence_with_indices_that_were_freed_whatever_its_sizes_are():
    packed = pack_sequence([torch.randn(2, 3), torch.randn(1, 3)])
    with FakeTensorMode():
        sizes = torch.empty(2, dtype=torch.int64)
    freed = torch.arange(2)
    freed.untyped_storage().resize_(0)
    x = PackedSequence(packed.data, sizes, torch.arange(2), freed)
    with pytest.raises(ValueError, match="x.unsorted_indices must have its 16 bytes in memory"):
        FastWeights(3, 4)(x)
