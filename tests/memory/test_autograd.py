"""Gradients, many at once: as one at a time."""

import pytest
import torch

from fastweights import FastWeights, FastWeightsCell

CASES = pytest.mark.parametrize(
    ("kind", "chunk_size", "signalled"),
    [(FastWeights, None, False), (FastWeights, 2, True), (FastWeightsCell, None, False), (FastWeightsCell, None, True)],
)
BACKENDS = pytest.mark.parametrize("backend", ["auto", "torch"])


def a_case(kind, chunk_size, signalled, backend):
    """A function of all that has gradients, and those."""
    module = kind(3, 4, backend=backend, learn_decay=signalled, learn_rate=signalled, dtype=torch.float64)
    module._chunk_size = chunk_size
    steps, rows = ((5,), (1,)) if kind is FastWeights else ((), ())
    x, h, A = (torch.randn(shape, dtype=torch.float64) for shape in ((*steps, 2, 3), (*rows, 2, 4), (*rows, 2, 4, 4)))
    signals = {}
    if signalled:
        read, store = torch.rand(2, *steps, 2, dtype=torch.float64).unbind()
        signals = {"reset": torch.rand(*steps, 2) < 0.3, "read": read, "store": store}

    def run(x, h, A, *_):
        results = module(x, (h, A), **signals)
        output, state = results if kind is FastWeights else (results.h, results)
        return torch.cat([part.flatten() for part in (output, state.h, state.A)])

    return run, [tensor.requires_grad_() for tensor in (x, h, A)], list(module.parameters())


@BACKENDS
@CASES
def test_many_gradients_at_once_are_those_of_one_at_a_time(kind, chunk_size, signalled, backend):
    run, inputs, parameters = a_case(kind, chunk_size, signalled, backend)
    leaves = inputs + parameters
    output = run(*inputs)
    directions = torch.eye(len(output), dtype=torch.float64)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    many = torch.autograd.grad(output, leaves, directions, is_grads_batched=True, **options)
    each = zip(*(torch.autograd.grad(output, leaves, direction, **options) for direction in directions), strict=True)
    for ours, theirs in zip(many, each, strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs), rtol=0, atol=1e-10)
    assert many[0].any()


@BACKENDS
@CASES
def test_jacobians(kind, chunk_size, signalled, backend):
    run, inputs, _ = a_case(kind, chunk_size, signalled, backend)
    expected = torch.autograd.functional.jacobian(run, tuple(inputs))
    for strategy in ("reverse-mode", "forward-mode"):
        found = torch.autograd.functional.jacobian(run, tuple(inputs), vectorize=True, strategy=strategy)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@BACKENDS
@CASES
def test_gradcheck_of_batched_gradients(kind, chunk_size, signalled, backend):
    run, inputs, parameters = a_case(kind, chunk_size, signalled, backend)
    assert torch.autograd.gradcheck(run, (*inputs, *parameters), check_batched_grad=True)


@BACKENDS
def test_weights_that_are_freed_before_the_backward_are_an_error(backend):
    layer = FastWeights(3, 64, backend=backend)
    output, _ = layer(torch.randn(5, 4, 3))
    layer.weight_hh_l0.data.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="weight_hh must have its 16384 bytes in memory, its storage has 0"):
        output.sum().backward()
