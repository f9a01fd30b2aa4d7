"""The fused GPU kernels: `chunked.forward` and `chunked.backward` in Triton, for CUDA and ROCm; float32 and float64.

One launch for all steps of a pass: a program takes a sequence from its first step to its last, beside as many others
as the GPU has room for. Products of all steps at once, with C and for the gradients of weights, are torch's. Triton
comes with torch for these GPUs; where it is missing, the torch path does the same, more slowly.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..chunked import WEIGHTS, Gradients, Run, Saved, outer, saved_shapes, sums_to_size, transition_gradients
from ..equations import EPS, Dynamics
from ..modes import PLAIN
from .tiles import tiles

AVAILABLE = importlib.util.find_spec("triton") is not None
DTYPES = (torch.float32, torch.float64)
MATRIX = Run._fields.index("A0")
ON_CPU = False  # for tests, by Triton's interpreter

__all__ = ["AVAILABLE", "backward", "covers", "forward", "saved_shapes", "step", "takes"]


def takes(x: Tensor) -> bool:
    """Whether these kernels are what computes on the device of x."""
    return AVAILABLE and (x.is_cuda or ON_CPU)


def covers(tensors: Sequence[Tensor | None]) -> bool:
    """Whether the kernels compute with these: numbers on one GPU, all of one dtype that they have."""
    first = tensors[0]
    if first is None or not takes(first) or first.dtype not in DTYPES:
        return False
    return all(
        tensor is None
        or (type(tensor) in PLAIN and tensor.dtype is first.dtype and tensor.device == first.device)
        for tensor in tensors
    )


@functools.cache
def _kernels() -> tuple[Any, Any]:
    from .kernel_backward import backward_kernel  # needs triton
    from .kernel_forward import forward_kernel

    return forward_kernel, backward_kernel


def _launch(kernel: Any, like: Tensor, given: Any, made: Any, numbers: tuple[int, ...], options: Any) -> None:
    """Run a kernel on every sequence of `like` (T, B, H)."""
    _, B, H = like.shape
    if B:
        width, rows, warps = tiles(H, like.dtype)
        with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
            kernel[B,](*given, *made, *numbers, *options, H, width, rows, num_warps=warps, num_stages=1)


def _options(dynamics: Dynamics) -> tuple[bool, ...]:
    _, settling, nonlinearity, normalize_start = dynamics
    return settling == "identity", nonlinearity == "tanh", normalize_start


def _numbers(run: Run, n: int, dynamics: Dynamics) -> tuple[int, ...]:
    """What both kernels are told, from T to the distances between weights of the past: 0 where they are shared."""
    (T, B, _), K = run.x.shape, run.w.shape[-1]
    numbers = [T, B, K, n, dynamics.inner_steps]
    for weights in (run.w, run.p, run.left, run.p_left):
        shared = weights is None, weights is None
        if weights is not None:
            shared = weights.shape[0] == 1, weights.shape[1] == 1
        numbers += [0 if same else weights.stride(place) for place, same in enumerate(shared)]
    return tuple(numbers)


def _plain(run: Run) -> Run:
    """With every tensor as it would lie in memory by itself."""
    return Run(*(None if tensor is None else tensor.contiguous() for tensor in run))


def _since(run: Run) -> Tensor | None:
    """The last step up to each one before which A was zeroed, or -1: (T, B)."""
    if run.reset is None:
        return None
    steps = torch.arange(run.x.shape[0], device=run.reset.device, dtype=torch.int32).unsqueeze(1)
    return torch.where(run.reset > 0, steps, -1).cummax(0).values


def _turned(A: Tensor | None) -> Tensor | None:
    return None if A is None else A.transpose(-2, -1).contiguous()


def forward(run: Run, dynamics: Dynamics, for_backward: bool) -> Saved:
    """As `fastweights.memory.chunked.forward`."""
    x, run = run.masked(), _plain(run)
    hs_like, _, last, _, *kept = saved_shapes(run, dynamics)
    u = F.linear(x, run.C, run.b)
    hs = torch.empty_like(u)
    A = None if last == (0,) else u.new_empty(last)
    states, made = None, [None] * 4
    if for_backward:
        states = torch.empty_like(u)
        queries, normals, scales, matrices = (u.new_empty(shape) for shape in kept)
        made = [matrices, queries, normals, scales]
    _forward(run, dynamics, run.chunks, u, hs, states, A, made)
    # The kernel multiplies by transposed matrices. Without A0 all A are symmetric.
    A = A if run.A0 is None else _turned(A)
    if not for_backward:
        return Saved(hs, hs[run.steps_of(run.chunks - 1)].clone(), A)
    return Saved(hs, states, A, x.clone() if x is run.x else x, queries, normals, scales, matrices)


def _forward(
    run: Run,
    dynamics: Dynamics,
    n: int,
    u: Tensor,
    hs: Tensor,
    states: Tensor | None,
    A: Tensor | None,
    made: Sequence[Tensor | None],
) -> None:
    _, _, _, W, W_int, gain, shift, h0, A0, w, p, left, p_left, keep, _, integrate, lengths = run
    slow = _turned(W), _turned(W_int), gain, shift, h0, _turned(A0)
    signals = keep, _since(run), integrate, lengths
    given = u, *slow, w, p, left, p_left, *signals
    _launch(_kernels()[0], u, given, (hs, states, A, *made), _numbers(run, n, dynamics), (EPS, *_options(dynamics)))


def backward(
    grad_hs: Tensor, grad_A: Tensor | None, run: Run, saved: Saved, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    """As `fastweights.memory.chunked.backward`."""
    run = _plain(run)
    _, C, b, W, W_int, gain, _, h0, A0, w, p, left, p_left, keep, _, integrate, lengths = run
    _, hs, A, x, queries, normals, scales, matrices = saved
    assert x is not None
    (T, B, H), K, n = hs.shape, run.w.shape[-1], run.chunks
    zeros, learned = hs.new_zeros, any(wanted[WEIGHTS:])
    of_matrix, both, asked = None, None, None
    if A0 is not None and (learned or wanted[MATRIX]):
        of_matrix = zeros(B, H, H) if grad_A is None else grad_A.clone(memory_format=torch.contiguous_format)
    if A is not None:
        both = zeros(B, H, H) if grad_A is None else grad_A + grad_A.transpose(1, 2)
        asked = hs.new_empty(K, B, H)
    weights: dict[str, Tensor] = {}
    if learned:
        weights = {"w": zeros(n, B, K, K), "p": zeros(n, B, K), "left": zeros(n - 1, B, K), "p_left": zeros(n - 1, B)}
    grad_u, grad_sums, vectors = torch.empty_like(hs), torch.empty_like(queries), hs.new_empty(3, B, H)
    grad_h0 = None if h0 is None else torch.empty_like(hs[0])
    matrices = matrices if A0 is None else _turned(matrices)
    given = grad_hs.contiguous(), W, W_int, gain, A0, w, p, left, p_left, keep, _since(run), integrate, lengths
    saved_too = hs, A, matrices, queries, normals, scales
    made = grad_u, grad_sums, vectors, grad_h0, of_matrix, both, asked, *(weights.values() or (None,) * 4)
    _launch(_kernels()[1], hs, (*given, *saved_too), made, _numbers(run, n, dynamics), _options(dynamics))
    # The rest is matrix products over all steps at once.
    rows = grad_u.view(-1, H)
    grad_W, grad_W_int = transition_gradients(rows, keep, integrate, h0, B, hs[: T - 1].reshape(-1, H))
    grad_b, grad_gain, grad_shift = vectors.sum(1) if gain is not None else (vectors[0].sum(0), None, None)
    return Gradients(
        x=(rows @ C).view(x.shape) if wanted[0] else None,
        C=outer(rows, x.flatten(0, 1)),
        b=None if b is None else grad_b,
        W=grad_W,
        W_int=grad_W_int,
        gain=grad_gain,
        shift=grad_shift,
        h0=grad_h0,
        A0=of_matrix,
        **sums_to_size(run, **weights),
    )
