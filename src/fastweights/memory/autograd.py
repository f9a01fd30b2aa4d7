"""Runs for autograd, and as operators that torch.compile takes as they are, by the kernel or by its torch twin."""

from typing import Any

import torch
from torch import Tensor

from . import checks, chunked, kernel, triton
from .chunked import differentiable
from .equations import Dynamics
from .modes import PLAIN, batched, compiled, transformed, watched
from .run import WEIGHTS, Gradients, Run, Saved

TENSORS, GRADIENTS, SAVED = len(Run._fields), len(Gradients._fields), len(Saved._fields)
RESULTS = 3  # of what is saved: hs, states and A
H0 = Run._fields.index("h0")  # the first that is not x and not a weight


def run_through(run: Run, dynamics: Dynamics, fused: bool, for_backward: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """`hs`, `states` and `A` of `Saved`, ready to be differentiated by whatever asks for it, if it is `for_backward`.

    Args:
        fused: by the kernel, where it can be used; the weights are known to fit.
    """
    if compiled():
        hs, states, A, *_ = forward_op(*run, *dynamics, fused, for_backward)
        return hs, states, A
    if watched():
        return _watched_run(run, dynamics)
    fused = (
        fused and _code(True, run.x).covers((run.x, *run[H0:-1])) and (run.steps is None or type(run.steps) in PLAIN)
    )
    if not (fused or all(tensor is None or type(tensor) in PLAIN for tensor in run)):
        return _watched_run(run, dynamics)
    if for_backward:
        # An argument costs time: the weights of the past, whose gradients are seldom wanted, go together.
        count = GRADIENTS if run.w.requires_grad or run.p.requires_grad else WEIGHTS
        return RunFunction.apply(run, dynamics, fused, *run[:count])[:RESULTS]  # type: ignore[no-untyped-call, no-any-return]
    saved = _code(fused, run.x).forward(run, dynamics, False)
    return saved.hs, saved.states, saved.A


def _code(fused: bool, x: Tensor) -> Any:
    """What computes on the device of x."""
    return chunked if not fused else triton if triton.takes(x) else kernel


def _watched_run(run: Run, dynamics: Dynamics) -> tuple[Tensor, Tensor, Tensor | None]:
    hs, last = differentiable(run, dynamics)
    return hs, hs.clone(), last


def snapshot(tensor: Tensor) -> Tensor:
    """A copy that a backward can rely on, whatever becomes of the original; gradients flow through it."""
    # A compiler may do without a `clone` that it sees.
    return snapshot_op(tensor) if compiled() else tensor.clone()


class RunFunction(torch.autograd.Function):
    """A run with its hand-written backward, and `differentiable` for the derivatives of that."""

    @staticmethod
    def forward(ctx: Any, run: Run, dynamics: Dynamics, fused: bool, *tensors: Any) -> Any:
        saved = _code(fused, run.x).forward(run, dynamics, True)
        hs, states, A, x, *others = saved
        if x is None and run.x.is_inference():  # which cannot be saved for a backward
            x = run.x.clone()
        ctx.rest, ctx.dynamics, ctx.fused = run[len(tensors) :], dynamics, fused
        ctx.digest = kernel.digest(run.x.contiguous()) if x is None else None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(run.x if x is None else x, *tensors[1:], states, A, *others)
        # A copy of x is a result, so that derivatives of the gradients know that it is x.
        return hs, states, A, x

    @staticmethod
    def backward(
        ctx: Any, grad_hs: Tensor | None, grad_states: Tensor | None, grad_A: Tensor | None, grad_copy: Tensor | None
    ) -> Any:
        saved_tensors, count = ctx.saved_tensors, TENSORS - len(ctx.rest)
        (x, *tensors), (states, A, *others) = saved_tensors[:count], saved_tensors[count:]
        if ctx.digest is not None:
            x = x.contiguous()
            if kernel.digest(x) != ctx.digest:
                raise RuntimeError(
                    "x was written to, past autograd (by .data, NumPy or the like), between the call of the layer and "
                    "its backward, which needs x as it was: write to a copy, or after the backward"
                )
        run, saved = Run(x, *tensors, *ctx.rest), Saved(states, states, A, x, *others)
        wanted = ctx.needs_input_grad[3:] + (False,) * (GRADIENTS - count)  # of all that a run has gradients for
        grad_hs = _sum(grad_hs, grad_states)
        many = (grad_hs is not None and batched(grad_hs)) or (grad_A is not None and batched(grad_A))
        if many or torch.is_grad_enabled() or transformed():  # many at once, or such as will be differentiated in turn
            grads = _differentiable_backward(grad_hs, grad_A, run, ctx.dynamics, wanted)
        else:
            code = _code(ctx.fused, x)
            if code is not kernel:  # which looks for itself
                checks.still_there(run[1:H0])
            grad_hs = torch.zeros_like(states) if grad_hs is None else grad_hs
            grads = code.backward(grad_hs, grad_A, run, saved, ctx.dynamics, wanted)
        found = [grad if need else None for grad, need in zip(grads[:count], wanted, strict=False)]
        return None, None, None, _sum(found[0], grad_copy) if wanted[0] else None, *found[1:]


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _differentiable_backward(
    grad_hs: Tensor | None, grad_A: Tensor | None, run: Run, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases, so that the gradient of W, say, stops here and leaves out what h0 owes to W.
        aliases: Any = [None if tensor is None else tensor.view_as(tensor) for tensor in run]
        results = differentiable(Run(*aliases), dynamics)
    given = [(result, grad) for result, grad in zip(results, (grad_hs, grad_A), strict=True) if grad is not None]
    places = [place for place, want in enumerate(wanted) if want]
    if not given:
        return Gradients()
    found = torch.autograd.grad(
        [result for result, _ in given],  # type: ignore[arg-type]
        [aliases[place] for place in places],
        [grad for _, grad in given],
        create_graph=create_graph,
        allow_unused=True,
    )
    grads: list[Tensor | None] = [None] * GRADIENTS
    for place, grad in zip(places, found, strict=True):
        grads[place] = grad
    return Gradients(*grads)


@torch.library.custom_op("fastweights::snapshot", mutates_args=())
def snapshot_op(tensor: Tensor) -> Tensor:
    return tensor.clone()


snapshot_op.register_fake(torch.empty_like)
snapshot_op.register_autograd(lambda ctx, grad: grad)


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
    reset: Tensor | None,
    integrate: Tensor | None,
    steps: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
    fused: bool,
    for_backward: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    run = Run(x, C, b, W, W_int, gain, shift, h0, A0, w, p, left, p_left, keep, reset, integrate, steps)
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    backend = _computes(fused, run)
    saved = backend.forward(run, dynamics, for_backward, **({"compiled": True} if backend is kernel else {}))
    if for_backward and saved.x is None:
        saved = saved._replace(x=run.x.clone())
    if backend is kernel:  # an operator's results are memory of their own
        saved = saved._replace(states=saved.states.clone())
    return tuple(saved.hs.new_empty(0) if tensor is None else tensor for tensor in saved)


def _computes(fused: bool, run: Run) -> Any:
    code = _code(fused, run.x)
    if fused and not code.covers(run[:-1]):
        raise ValueError("compiled for plain float32 or float64 tensors on one device, called with others")
    return code


def _setup_op_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[RESULTS:])
    ctx.options = inputs[TENSORS:-1]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[1:TENSORS], *output[1:])  # not the caller's x and hs, which have copies


def _op_backward(
    ctx: Any, grad_hs: Tensor | None, grad_states: Tensor | None, grad_A: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    run, saved, wanted = ctx.saved_tensors[: TENSORS - 1], ctx.saved_tensors[TENSORS - 1 :], ctx.needs_input_grad
    grad = _sum(grad_hs, grad_states)
    if grad is None:
        grad = torch.zeros_like(saved[0])
    if grad_A is not None and grad_A.dim() == 1:  # an operator has to return something where there is no A
        grad_A = None
    grads = backward_op(grad, grad_A, *saved, *run, *ctx.options, list(wanted[:GRADIENTS]))
    rest = (None,) * (len(wanted) - GRADIENTS)
    return *(grad if need else None for grad, need in zip(grads, wanted, strict=False)), *rest


@forward_op.register_fake
def _(*args: Any) -> Any:
    run, dynamics = Run(*args[:TENSORS]), Dynamics(*args[TENSORS:-2])
    fused, for_backward = args[-2:]
    shapes = _code(fused, run.x).saved_shapes(run, dynamics)
    if not for_backward:
        (T, B, H), last = shapes[0], run.x.shape[0] - (run.chunks - 1) * run.w.shape[-1]
        shapes = (T, B, H), (last, B, H), shapes[2]
    return tuple(run.x.new_empty(shape) for shape in (*shapes, *((0,),) * (SAVED - len(shapes))))


@torch.library.custom_op("fastweights::run_backward", mutates_args=())
def backward_op(
    grad_hs: Tensor,
    grad_A: Tensor | None,
    states: Tensor,
    A: Tensor,
    x: Tensor,
    queries: Tensor,
    normals: Tensor,
    scales: Tensor,
    matrices: Tensor,
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
    reset: Tensor | None,
    integrate: Tensor | None,
    steps: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
    fused: bool,
    wanted: list[bool],
) -> list[Tensor]:
    run = Run(x, C, b, W, W_int, gain, shift, h0, A0, w, p, left, p_left, keep, reset, integrate, steps)
    saved = Saved(states, states, A, x, queries, normals, scales, matrices)
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    grads = _computes(fused, run).backward(grad_hs, grad_A, run, saved, dynamics, tuple(wanted))
    given = [
        grad if needed and grad is not None else states.new_empty(0) for grad, needed in zip(grads, wanted, strict=True)
    ]
    # An operator's results are memory of their own.
    return [grad if grad.untyped_storage().nbytes() == grad.nbytes else grad.clone() for grad in given]


@backward_op.register_fake
def _(grad_hs: Tensor, grad_A: Tensor | None, *others: Any) -> Any:
    run, wanted = (others[2], *others[SAVED - 1 : SAVED + GRADIENTS - 2]), others[-1]
    shapes = [tensor.shape if needed else (0,) for tensor, needed in zip(run, wanted, strict=True)]
    return [grad_hs.new_empty(shape) for shape in shapes]


forward_op.register_autograd(_op_backward, setup_context=_setup_op_context)
