"""The hand-written backward of the torch path and of the kernel, and the operators made of them."""

import pytest
import torch

from fastweights.memory import autograd, chunk, kernel
from fastweights.memory.equations import Dynamics


def random_chunk(K, B, H, *, norm=True, before=True, shared=False, wiped=True):
    def random(*shape):
        return (0.4 * torch.rand(shape, dtype=torch.float64) - 0.1).requires_grad_()

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
        steps=None,
    )


FUSED = [False, True] if kernel.AVAILABLE else [False]


DYNAMICS = [Dynamics(), Dynamics(0), Dynamics(3, "identity", "tanh", True), Dynamics(2, normalize_start=True)]


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("fused", FUSED)
def test_backward_equals_autograd(dynamics, norm, before, shared, fused):
    stretch = random_chunk(7, 11, 5, norm=norm, before=before, shared=shared)
    leaves = [tensor for tensor in stretch if tensor is not None and tensor.requires_grad]
    hs = chunk.differentiable(stretch, dynamics)
    grad_hs = torch.randn_like(hs)
    expected = torch.autograd.grad(hs, leaves, grad_hs, allow_unused=True)
    with torch.no_grad():
        twin = kernel if fused else chunk
        saved = twin.forward(stretch, dynamics)
        grads = twin.backward(grad_hs, stretch, saved, dynamics, weights=True)
    torch.testing.assert_close(saved.hs, hs)
    actual = [grad for grad, tensor in zip(grads, stretch[:8], strict=True) if tensor is not None]
    for ours, theirs, leaf in zip(actual, expected, leaves, strict=True):
        theirs = torch.zeros_like(leaf) if theirs is None else theirs
        mask = torch.ones_like(leaf) if leaf is not stretch.w else torch.tril(torch.ones_like(leaf), -1)
        torch.testing.assert_close(ours * mask, theirs * mask, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"norm": False, "before": False, "wiped": False}, {"shared": True}])
@pytest.mark.parametrize("fused", FUSED)
def test_operators_pass_opcheck(options, fused):
    stretch = random_chunk(3, 2, 4, **options)
    torch.library.opcheck(autograd.forward_op, (*stretch, 2, "sustained", "tanh", False, fused))
    detached = chunk.Chunk(*(None if tensor is None else tensor.detach() for tensor in stretch))
    saved = autograd.forward(detached, Dynamics(2, nonlinearity="tanh"), fused)
    for weights in (True, False):
        args = (torch.randn_like(saved.hs), *saved, *detached, 2, "sustained", "tanh", False, fused, weights)
        torch.library.opcheck(autograd.backward_op, args)
