"""The hand-written backward and the registered operators."""

import pytest
import torch

from fastweights.memory import chunk
from fastweights.memory.equations import Dynamics


def random_chunk(K, B, H, *, norm=True, before=True, shared=False, wiped=True):
    def random(*shape):
        return (torch.rand(shape, dtype=torch.float64) - 0.3).requires_grad_()

    rows = 1 if shared else B
    return chunk.Chunk(
        u=random(K, B, H),
        W=random(H, H),
        gain=random(H) if norm else None,
        shift=random(H) if norm else None,
        h0=random(B, H),
        A0=random(B, H, H) if before else None,
        w=torch.tril(torch.rand(rows, K, K, dtype=torch.float64), -1).requires_grad_(),
        p=random(rows, K),
        keep=(torch.rand(K, B) > 0.2).double() if wiped else None,
    )


DYNAMICS = [Dynamics(), Dynamics(0), Dynamics(3, "identity", "tanh", True), Dynamics(2, normalize_start=True)]


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_backward_equals_autograd(dynamics, norm, before, shared):
    stretch = random_chunk(4, 3, 5, norm=norm, before=before, shared=shared)
    leaves = [tensor for tensor in stretch if tensor is not None and tensor.requires_grad]
    hs = chunk.differentiable(stretch, dynamics)
    grad_hs = torch.randn_like(hs)
    expected = torch.autograd.grad(hs, leaves, grad_hs, allow_unused=True)
    with torch.no_grad():
        saved = chunk.forward(stretch, dynamics)
        grads = chunk.backward(grad_hs, stretch, saved, dynamics)
    torch.testing.assert_close(saved.hs, hs)
    actual = [grad for grad, tensor in zip(grads, stretch[:8], strict=True) if tensor is not None]
    for ours, theirs, leaf in zip(actual, expected, leaves, strict=True):
        theirs = torch.zeros_like(leaf) if theirs is None else theirs
        mask = torch.ones_like(leaf) if leaf is not stretch.w else torch.tril(torch.ones_like(leaf), -1)
        torch.testing.assert_close(ours * mask, theirs * mask, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"norm": False, "before": False, "wiped": False}, {"shared": True}])
def test_operators_pass_opcheck(options):
    stretch = random_chunk(3, 2, 4, **options)
    torch.library.opcheck(chunk.forward_op, (*stretch, 2, "sustained", "tanh", False))
    detached = chunk.Chunk(*(None if tensor is None else tensor.detach() for tensor in stretch))
    saved = chunk.forward(detached, Dynamics(2, nonlinearity="tanh"))
    args = (torch.randn_like(saved.hs), *saved, *detached, 2, "sustained", "tanh", False)
    torch.library.opcheck(chunk.backward_op, args)
