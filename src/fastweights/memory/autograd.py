"""Chunks for autograd, and as operators that torch.compile takes as they are, by the kernel or by its torch twin."""

from typing import Any

import torch
from torch import Tensor

from . import chunk as twin
from . import kernel
from .chunk import Chunk, Saved, differentiable
from .equations import Dynamics

TENSORS = len(Chunk._fields)
GRADIENTS = TENSORS - 2  # none for keep and steps


def forward(chunk: Chunk, dynamics: Dynamics, fused: bool) -> Saved:
    return kernel.forward(chunk, dynamics) if fused else twin.forward(chunk, dynamics)


def run(chunk: Chunk, dynamics: Dynamics, fused: bool) -> Tensor:
    """The hidden states of a chunk (K, B, H), ready to be differentiated by whatever asks for it."""
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return differentiable(chunk, dynamics)
    options = (*dynamics, fused)
    hs: Tensor
    if torch.compiler.is_compiling() or type(chunk.u) is not Tensor:  # a tensor without memory of its own, say
        hs = forward_op(*chunk, *options)[0]
    elif torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in chunk):
        hs = ChunkFunction.apply(*chunk, *options)  # type: ignore[no-untyped-call]
    else:
        hs = forward(chunk, dynamics, fused).hs
    return hs


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.dynamics, ctx.fused, ctx.traced = Dynamics(*inputs[TENSORS:-1]), inputs[-1], False
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:TENSORS], *output)


def _backward(ctx: Any, grad_hs: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    chunk, saved = Chunk(*ctx.saved_tensors[:TENSORS]), Saved(*ctx.saved_tensors[TENSORS:])
    rest = (None,) * 7  # keep, steps and the options
    weights = ctx.needs_input_grad[Chunk._fields.index("w")] or ctx.needs_input_grad[Chunk._fields.index("p")]
    if grad_hs is None:
        return (None,) * GRADIENTS + rest
    if ctx.traced:
        grads = backward_op(grad_hs, *saved, *chunk, *ctx.dynamics, ctx.fused, weights)
    elif torch.is_grad_enabled():  # create_graph: these gradients will be differentiated in turn
        return *_differentiable_backward(ctx, grad_hs, chunk), *rest
    else:
        backward = kernel.backward if ctx.fused else twin.backward
        grads = backward(grad_hs, chunk, saved, ctx.dynamics, weights)
    wanted = ctx.needs_input_grad[:GRADIENTS]
    return *(grad if needed else None for needed, grad in zip(wanted, grads, strict=True)), *rest


def _differentiable_backward(ctx: Any, grad_hs: Tensor, chunk: Chunk) -> list[Tensor | None]:
    # Aliases, so that the gradient of W, say, stops here and leaves out what h0 owes to W.
    aliases: Any = [None if tensor is None else tensor.view_as(tensor) for tensor in chunk]
    hs = differentiable(Chunk(*aliases), ctx.dynamics)
    wanted = [i for i in range(GRADIENTS) if ctx.needs_input_grad[i]]
    found = torch.autograd.grad(hs, [aliases[i] for i in wanted], grad_hs, create_graph=True, allow_unused=True)
    grads: list[Tensor | None] = [None] * GRADIENTS
    for i, grad in zip(wanted, found, strict=True):
        grads[i] = grad
    return grads


class ChunkFunction(torch.autograd.Function):
    """A chunk with its hand-written backward, and `differentiable` for the derivatives of that."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        saved = forward(Chunk(*args[:TENSORS]), Dynamics(*args[TENSORS:-1]), args[-1])
        _setup_context(ctx, args, saved)
        return saved.hs

    backward = staticmethod(_backward)


@torch.library.custom_op("fastweights::chunk", mutates_args=())
def forward_op(
    u: Tensor,
    W: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    h0: Tensor | None,
    A0: Tensor | None,
    w: Tensor,
    p: Tensor,
    keep: Tensor | None,
    steps: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
    fused: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    return forward(Chunk(u, W, gain, shift, h0, A0, w, p, keep, steps), dynamics, fused)


def _setup_op_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    _setup_context(ctx, inputs, output)
    ctx.traced = True


@forward_op.register_fake
def _(*args: Any) -> Any:
    chunk, dynamics = Chunk(*args[:TENSORS]), Dynamics(*args[TENSORS:-1])
    shapes = kernel.saved_shapes(chunk, dynamics) if args[-1] else twin.saved_shapes(chunk, dynamics)
    return tuple(chunk.u.new_empty(shape) for shape in shapes)


@torch.library.custom_op("fastweights::chunk_backward", mutates_args=())
def backward_op(
    grad_hs: Tensor,
    hs: Tensor,
    queries: Tensor,
    normals: Tensor,
    scales: Tensor,
    u: Tensor,
    W: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    h0: Tensor | None,
    A0: Tensor | None,
    w: Tensor,
    p: Tensor,
    keep: Tensor | None,
    steps: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
    fused: bool,
    weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    chunk, saved = Chunk(u, W, gain, shift, h0, A0, w, p, keep, steps), Saved(hs, queries, normals, scales)
    return (kernel.backward if fused else twin.backward)(grad_hs, chunk, saved, dynamics, weights)


@backward_op.register_fake
def _(grad_hs: Tensor, *others: Any) -> Any:
    chunk, weights = Chunk(*others[4 : 4 + TENSORS]), others[-1]
    shapes: list[Any] = [0 if tensor is None else tensor.shape for tensor in chunk[:GRADIENTS]]
    if not weights:
        shapes[6:] = 0, 0
    return tuple(grad_hs.new_empty(shape) for shape in shapes)


forward_op.register_autograd(_backward, setup_context=_setup_op_context)
