"""The hand-written backward of the torch path and of the kernel, and the operators made of them."""

import pytest
import torch
from reference import random_run
from torch.utils._python_dispatch import TorchDispatchMode

from fastweights.memory import autograd, chunked, kernel
from fastweights.memory.chunked import Run
from fastweights.memory.equations import Dynamics

FUSED = [False, True] if kernel.AVAILABLE else [False]
DYNAMICS = [Dynamics(), Dynamics(0), Dynamics(3, "identity", "tanh", True), Dynamics(2, normalize_start=True)]


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": False, "bias": False, "integrated": False},
        {"before": False, "start": False},
        {"steps": True},
        {"parted": True},
    ],
)
@pytest.mark.parametrize("K", [7, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("fused", FUSED)
def test_backward_equals_autograd(dynamics, options, K, shared, fused):
    run = random_run(7, 11, 4, 5, K, shared=shared, **options)
    for tensor in run:
        if tensor is not None and tensor.is_floating_point():
            tensor.requires_grad_()
    hs, A = chunked.differentiable(run, dynamics)
    grad_hs, grad_A = torch.randn_like(hs), None if A is None else torch.randn_like(A)
    results, grads = ([hs], [grad_hs]) if A is None else ([hs, A], [grad_hs, grad_A])
    leaves = [tensor for tensor in run[: autograd.GRADIENTS] if tensor is not None]
    expected = torch.autograd.grad(results, leaves, grads, allow_unused=True)
    with torch.no_grad():
        twin = kernel if fused else chunked
        saved = twin.forward(run, dynamics, True)
        found = twin.backward(grad_hs, grad_A, run, saved, dynamics, (True,) * autograd.GRADIENTS)
    torch.testing.assert_close(saved.hs, hs)
    if A is not None:
        torch.testing.assert_close(saved.A, A)
    actual = [grad for grad, tensor in zip(found, run, strict=False) if tensor is not None]
    for ours, theirs, leaf in zip(actual, expected, leaves, strict=True):
        theirs = torch.zeros_like(leaf) if theirs is None else theirs
        seen = torch.tril(torch.ones_like(leaf), -1) if leaf is run.w else torch.ones_like(leaf)
        if leaf is run.p_left and run.steps is not None:
            continue  # what is left of A past every end is constant: its gradient is nobody's business
        torch.testing.assert_close(ours * seen, theirs * seen, rtol=1e-9, atol=1e-10)


def detached_of(run):
    return Run(*(None if tensor is None else tensor.detach() for tensor in run))


@pytest.mark.parametrize(
    "options", [{}, {"norm": False, "before": False, "bias": False, "integrated": False}, {"shared": True}]
)
@pytest.mark.parametrize("K", [3, 2])
@pytest.mark.parametrize("fused", FUSED)
def test_operators_pass_opcheck(options, K, fused):
    run = random_run(3, 2, 4, 4, K, **options)
    count = autograd.GRADIENTS
    learned = Run(*(None if tensor is None else tensor.requires_grad_() for tensor in run[:count]), *run[count:])
    torch.library.opcheck(autograd.forward_op, (*learned, 2, "sustained", "tanh", False, fused, True))
    torch.library.opcheck(autograd.forward_op, (*detached_of(learned), 2, "sustained", "tanh", False, fused, False))
    detached = detached_of(run)
    hs, *saved = autograd.forward_op(*detached, 2, "sustained", "tanh", False, fused, True)
    grad_A = None if K == 3 else torch.randn_like(saved[1])
    for some in (True, False):
        wanted = [
            tensor is not None and (some or n < chunked.WEIGHTS) for n, tensor in enumerate(run[: autograd.GRADIENTS])
        ]
        args = (torch.randn_like(hs), grad_A, *saved, *detached[1:], 2, "sustained", "tanh", False, fused, wanted)
        torch.library.opcheck(autograd.backward_op, args)


class Operations(TorchDispatchMode):
    """Counts them; those that only look at memory in another way, too."""

    names: list[str]

    def __enter__(self):
        self.names = []
        return super().__enter__()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.append(operation._schema.name)
        return operation(*args, **(kwargs or {}))


def operations(T, dynamics):
    """Of a forward and a backward of T steps."""
    options = {"before": False, "start": False, "wiped": False, "integrated": False, "shared": True}
    run, wanted = random_run(T, 2, 3, 4, T, **options), [True] * chunked.WEIGHTS + [False] * 4
    with torch.no_grad(), Operations() as forward:
        saved = chunked.forward(run, dynamics, True)
    with torch.no_grad(), Operations() as backward:
        chunked.backward(saved.hs, None, run, saved, dynamics, tuple(wanted))
    return forward.names, backward.names


@pytest.mark.parametrize("dynamics", DYNAMICS[:1] + [Dynamics(1, "identity", "tanh", True)])
def test_a_step_is_few_operations(dynamics):
    few, many = operations(10, dynamics), operations(30, dynamics)
    forward, backward = ((len(b) - len(a)) / 20 for a, b in zip(few, many, strict=True))
    assert forward <= 20
    assert backward <= 35
    waits = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero"}
    assert not waits & {name for names in many for name in names}
    print(forward, backward)
