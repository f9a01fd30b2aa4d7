"""Runs for autograd, and as operators that torch.compile takes as they are, by the kernel or by its torch twin."""

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad

from . import chunked, kernel
from .chunked import WEIGHTS, Gradients, Run, Saved, differentiable
from .equations import Dynamics

TENSORS, GRADIENTS, SAVED = len(Run._fields), len(Gradients._fields), len(Saved._fields)


def transformed() -> bool:
    """Whether torch is to see every operation, for a transform of `torch.func` or derivatives in forward mode."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def run_through(run: Run, dynamics: Dynamics, fused: bool) -> tuple[Tensor, Tensor | None]:
    """`hs` and `A` of `Saved`, ready to be differentiated by whatever asks for it."""
    if transformed():
        return differentiable(run, dynamics)
    if type(run.x) is not Tensor or torch.compiler.is_compiling():  # a tensor without memory of its own, say
        hs, A, *_ = forward_op(*run, *dynamics, fused)
        return hs, A
    if torch.is_grad_enabled():
        # An argument costs time: the weights of the past, whose gradients are seldom wanted, go together.
        count = GRADIENTS if run.w.requires_grad or run.p.requires_grad else WEIGHTS
        return RunFunction.apply(run, dynamics, fused, *run[:count])  # type: ignore[no-untyped-call, no-any-return]
    saved = (kernel if fused else chunked).forward(run, dynamics)
    return saved.hs, saved.A


class RunFunction(torch.autograd.Function):
    """A run with its hand-written backward, and `differentiable` for the derivatives of that."""

    @staticmethod
    def forward(ctx: Any, run: Run, dynamics: Dynamics, fused: bool, *tensors: Any) -> Any:
        saved = (kernel if fused else chunked).forward(run, dynamics)
        ctx.rest, ctx.dynamics, ctx.fused = run[len(tensors) :], dynamics, fused
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *saved)
        return saved.hs, saved.A

    @staticmethod
    def backward(ctx: Any, grad_hs: Tensor | None, grad_A: Tensor | None) -> Any:
        tensors, count = ctx.saved_tensors, TENSORS - len(ctx.rest)
        run, saved = Run(*tensors[:count], *ctx.rest), Saved(*tensors[count:])
        wanted = ctx.needs_input_grad[3:] + (False,) * (GRADIENTS - count)  # of all that a run has gradients for
        if torch.is_grad_enabled():  # create_graph: these gradients will be differentiated in turn
            grads = _differentiable_backward(grad_hs, grad_A, run, ctx.dynamics, wanted)
        else:
            grad_hs = torch.zeros_like(saved.hs) if grad_hs is None else grad_hs
            backward = kernel.backward if ctx.fused else chunked.backward
            grads = backward(grad_hs, grad_A, run, saved, ctx.dynamics, wanted)
        return None, None, None, *[grad if need else None for grad, need in zip(grads[:count], wanted, strict=False)]


def _differentiable_backward(
    grad_hs: Tensor | None, grad_A: Tensor | None, run: Run, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    # Aliases, so that the gradient of W, say, stops here and leaves out what h0 owes to W.
    aliases: Any = [None if tensor is None else tensor.view_as(tensor) for tensor in run]
    results = differentiable(Run(*aliases), dynamics)
    given = [(result, grad) for result, grad in zip(results, (grad_hs, grad_A), strict=True) if grad is not None]
    places = [place for place, want in enumerate(wanted) if want]
    found = torch.autograd.grad(
        [result for result, _ in given],  # type: ignore[arg-type]
        [aliases[place] for place in places],
        [grad for _, grad in given],
        create_graph=True,
        allow_unused=True,
    )
    grads: list[Tensor | None] = [None] * GRADIENTS
    for place, grad in zip(places, found, strict=True):
        grads[place] = grad
    return Gradients(*grads)


@torch.library.custom_op("fastweights::run", mutates_args=())
def forward_op(
    x: Tensor,
    C: Tensor,
    b: Tensor | None,
    W: Tensor,
    W_int: Tensor | None,
    gain: Tensor | None,
    shift: Tensor | None,
    h0: Tensor | None,
    A0: Tensor | None,
    w: Tensor,
    p: Tensor,
    left: Tensor | None,
    p_left: Tensor | None,
    keep: Tensor | None,
    integrate: Tensor | None,
    steps: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
    fused: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    run = Run(x, C, b, W, W_int, gain, shift, h0, A0, w, p, left, p_left, keep, integrate, steps)
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    saved = (kernel if fused else chunked).forward(run, dynamics)
    return tuple(saved.hs.new_empty(0) if tensor is None else tensor for tensor in saved)


def _setup_op_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    ctx.options = inputs[TENSORS:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:TENSORS], *output)


def _op_backward(ctx: Any, grad_hs: Tensor | None, grad_A: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[:GRADIENTS]
    if grad_hs is None:
        grad_hs = torch.zeros_like(tensors[TENSORS])
    if grad_A is not None and grad_A.dim() == 1:  # an operator has to return something where there is no A
        grad_A = None
    saved, run = tensors[TENSORS:], tensors[:TENSORS]
    grads = backward_op(grad_hs, grad_A, *saved, *run, *ctx.options, list(wanted))
    rest = (None,) * (TENSORS - GRADIENTS + len(ctx.options))
    return *(grad if need else None for grad, need in zip(grads, wanted, strict=True)), *rest


@forward_op.register_fake
def _(*args: Any) -> Any:
    run, dynamics, fused = Run(*args[:TENSORS]), Dynamics(*args[TENSORS:-1]), args[-1]
    shapes = (kernel if fused else chunked).saved_shapes(run, dynamics)
    return tuple(run.x.new_empty(shape) for shape in (*shapes, *((0,),) * (SAVED - len(shapes))))


@torch.library.custom_op("fastweights::run_backward", mutates_args=())
def backward_op(
    grad_hs: Tensor,
    grad_A: Tensor | None,
    hs: Tensor,
    A: Tensor,
    queries: Tensor,
    normals: Tensor,
    scales: Tensor,
    matrices: Tensor,
    x: Tensor,
    C: Tensor,
    b: Tensor | None,
    W: Tensor,
    W_int: Tensor | None,
    gain: Tensor | None,
    shift: Tensor | None,
    h0: Tensor | None,
    A0: Tensor | None,
    w: Tensor,
    p: Tensor,
    left: Tensor | None,
    p_left: Tensor | None,
    keep: Tensor | None,
    integrate: Tensor | None,
    steps: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
    fused: bool,
    wanted: list[bool],
) -> list[Tensor]:
    run = Run(x, C, b, W, W_int, gain, shift, h0, A0, w, p, left, p_left, keep, integrate, steps)
    saved = Saved(hs, A, queries, normals, scales, matrices)
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    backward = kernel.backward if fused else chunked.backward
    grads = backward(grad_hs, grad_A, run, saved, dynamics, tuple(wanted))
    return [
        grad if needed and grad is not None else hs.new_empty(0) for grad, needed in zip(grads, wanted, strict=True)
    ]


@backward_op.register_fake
def _(grad_hs: Tensor, grad_A: Tensor | None, *others: Any) -> Any:
    run, wanted = others[SAVED : SAVED + GRADIENTS], others[-1]
    shapes = [tensor.shape if needed else (0,) for tensor, needed in zip(run, wanted, strict=True)]
    return [grad_hs.new_empty(shape) for shape in shapes]


forward_op.register_autograd(_op_backward, setup_context=_setup_op_context)
