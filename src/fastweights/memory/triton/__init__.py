"""The fused GPU kernels: `chunked.forward` and `chunked.backward` in Triton, for CUDA and ROCm; float32 and float64.

One launch for all steps of a pass: a program takes a sequence from its first step to its last, beside as many others
as the GPU has room for. Products of all steps at once, with C and for the gradients of weights, are torch's. Triton
comes with torch for these GPUs; where it is missing, the torch path does the same, more slowly.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..equations import EPS, Dynamics
from ..modes import PLAIN, full_precision
from ..run import WEIGHTS, Gradients, Run, Saved, outer, saved_shapes, sums_to_size, transition_gradients
from ..weights import Controls, weigh
from .tiles import tiles

__all__ = ["AVAILABLE", "MISSING", "backward", "covers", "forward", "saved_shapes", "status", "step", "takes"]
AVAILABLE = importlib.util.find_spec("triton") is not None
MISSING = "the package triton, which comes with torch for CUDA and ROCm, is not installed"
DTYPES = (torch.float32, torch.float64)
MATRIX = Run._fields.index("A0")
ON_CPU = False  # for tests, by Triton's interpreter


def status(device: torch.device) -> tuple[str, str]:
    """What computes on a device other than the CPU, and why."""
    if device.type != "cuda":
        return "torch", f"there is no fused code for {device.type}"
    if not AVAILABLE:
        return "torch", MISSING
    name = f"triton ({'CUDA' if torch.version.hip is None else 'ROCm'})"
    version = f"triton {importlib.metadata.version('triton')} is installed"
    return name, version if torch.cuda.is_available() else f"{version}; but torch finds no GPU here"


def takes(x: Tensor) -> bool:
    """Whether these kernels are what computes on the device of x."""
    return AVAILABLE and (x.is_cuda or ON_CPU)


def covers(tensors: Sequence[Tensor | None]) -> bool:
    """Whether the kernels compute with these: numbers on one GPU, all of one dtype that they have."""
    like = tensors[0]
    if like is None or not takes(like) or like.dtype not in DTYPES:
        return False
    dtype, device = like.dtype, like.device
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in PLAIN or tensor.dtype is not dtype or tensor.device != device or tensor.is_neg()
        ):
            return False
    return True


def forward(run: Run, dynamics: Dynamics, for_backward: bool) -> Saved:
    """As `fastweights.memory.chunked.forward`."""
    x, run = run.masked(), _plain(run)
    _, _, last, _, *kept = saved_shapes(run, dynamics)
    u = F.linear(x, run.C, run.b)
    A = None if last == (0,) else u.new_empty(last)
    states, queries, normals, scales, matrices = (None,) * 5
    if for_backward:
        states = torch.empty_like(u)
        queries, normals, scales, matrices = (u.new_empty(shape) for shape in kept)
    hs = _forward(run, u, dynamics, run.chunks, (states, A, matrices, queries, normals, scales))
    if not for_backward:
        return Saved(hs, hs[run.steps_of(run.chunks - 1)].clone(), A)
    assert states is not None
    return Saved(hs, states, A, x.clone() if x is run.x else x, queries, normals, scales, matrices)


def step(
    x: Tensor,
    weights: Sequence[Tensor | None],
    state: Any,
    shapes: Sequence[tuple[int, ...]],
    dynamics: Dynamics,
    decay: float,
    rate: float,
) -> tuple[Tensor, Tensor] | None:
    """The h and A after a step of x (…, I) without signals, in one launch; None where something does not fit.

    Args:
        weights: C, b, W, gain, shift, of these `shapes`.
        state: with h and A; None: zero.
    """
    (H, features), batch = shapes[0], x.shape[:-1]
    fits = all(value is None or value.shape == shape for value, shape in zip(weights, shapes, strict=True))
    if not fits or x.shape[-1] != features or not x.numel():
        return None
    h, A = (None, None) if state is None else (state.h, state.A)
    if not covers((x, *weights, h, A)) or (h is not None and h.shape != (*batch, H)):
        return None
    x = x.reshape(1, -1, features)
    B = x.shape[1]
    C, b, W, gain, shift = weights
    assert C is not None
    assert W is not None
    h0, A0 = None if h is None else h.reshape(B, H), None if A is None else A.reshape(B, H, H)
    _, _, w_left, p_left = past = weigh(1, 1, decay, rate, Controls(), x)
    rest = (*past[:2], w_left[:, :, -1], p_left[:, :, -1], None, None, None, None)
    run = _plain(Run(x, C, b, W, None, gain, shift, h0, A0, *rest))
    after = x.new_empty(B, H, H)
    with full_precision(x.device):
        u = F.linear(x, C, b)
    hs = _forward(run, u, dynamics, 2, (None, after, None, None, None, None))
    return hs.view(*batch, H), after.view(*batch, H, H)


def _forward(run: Run, u: Tensor, dynamics: Dynamics, n: int, made: Sequence[Tensor | None]) -> Tensor:
    """The hidden states of n chunks, given u = C x + b; also makes all that is to be `made`."""
    _, _, _, W, W_int, gain, shift, h0, A0, w, p, left, p_left, keep, _, integrate, lengths = run
    slow = _turned(W), _turned(W_int), gain, shift, h0, A0
    given = u, *slow, w, p, left, p_left, keep, _since(run), integrate, lengths
    hs = torch.empty_like(u)
    options = EPS, *_options(dynamics), A0 is not None
    _launch(False, u, (*given, hs, *made), _numbers(run, n, dynamics), options)
    return hs


def backward(
    grad_hs: Tensor, grad_A: Tensor | None, run: Run, saved: Saved, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    """As `fastweights.memory.chunked.backward`."""
    run = _plain(run)
    _, C, b, W, W_int, gain, _, h0, A0, w, p, left, p_left, keep, _, integrate, lengths = run
    _, hs, A, x, queries, normals, scales, matrices = saved
    assert x is not None
    assert queries is not None
    (T, B, H), K, n = hs.shape, run.w.shape[-1], run.chunks
    zeros, learned = hs.new_zeros, any(wanted[WEIGHTS:])
    of_matrix, both, asked = None, None, None
    if A0 is not None and (learned or wanted[MATRIX]):
        of_matrix = zeros(B, H, H) if grad_A is None else grad_A.clone(memory_format=torch.contiguous_format)
    if A is not None:
        both = zeros(B, H, H) if grad_A is None else (grad_A + grad_A.transpose(1, 2)).contiguous()
        asked = hs.new_empty(K, B, H)
    weights: dict[str, Tensor] = {}
    if learned:
        weights = {"w": zeros(n, B, K, K), "p": zeros(n, B, K), "left": zeros(n - 1, B, K), "p_left": zeros(n - 1, B)}
    grad_u, grad_sums, vectors = torch.empty_like(hs), torch.empty_like(queries), hs.new_empty(3, B, H)
    grad_h0 = None if h0 is None else torch.empty_like(hs[0])
    given = grad_hs.contiguous(), W, W_int, gain, A0, w, p, left, p_left, keep, _since(run), integrate, lengths
    saved_too = hs, A, matrices, queries, normals, scales
    made = grad_u, grad_sums, vectors, grad_h0, of_matrix, both, asked, *(weights.values() or (None,) * 4)
    _launch(True, hs, (*given, *saved_too, *made), _numbers(run, n, dynamics), _options(dynamics))
    # The rest is matrix products over all steps at once.
    rows = grad_u.view(-1, H)
    grad_W, grad_W_int = transition_gradients(rows, keep, integrate, h0, B, hs.view(-1, H)[: (T - 1) * B])
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


@functools.cache
def _kernels() -> tuple[Any, Any]:
    from .kernel_backward import backward_kernel  # needs triton
    from .kernel_forward import forward_kernel

    return forward_kernel, backward_kernel


def _launch(backward: bool, like: Tensor, tensors: Any, numbers: tuple[int, ...], options: Any) -> None:
    """Run one of the kernels on every sequence of `like` (T, B, H)."""
    _, B, H = like.shape
    if B:
        width, rows, launch = tiles(H, like.dtype, backward, torch.version.hip is not None)
        kernel = _kernels()[backward]
        with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
            kernel[B,](*tensors, *numbers, *options, H, width, rows, **launch)


def _numbers(run: Run, n: int, dynamics: Dynamics) -> tuple[int, ...]:
    """What both kernels are told, from T to the distances between weights of the past: 0 where they are shared."""
    (T, B, _), K = run.x.shape, run.w.shape[-1]
    numbers = [T, B, K, n, dynamics.inner_steps]
    for weights in (run.w, run.p, run.left, run.p_left):
        for place in (0, 1):
            numbers.append(0 if weights is None or weights.shape[place] == 1 else weights.stride(place))
    return tuple(numbers)


def _options(dynamics: Dynamics) -> tuple[bool, ...]:
    _, settling, nonlinearity, normalize_start = dynamics
    return settling == "identity", nonlinearity == "tanh", normalize_start


def _plain(run: Run) -> Run:
    """With every tensor as it would lie in memory by itself."""
    return Run(*(None if tensor is None else tensor.contiguous() for tensor in run))  # type: ignore[arg-type]


def _since(run: Run) -> Tensor | None:
    """The last step up to each one before which A was zeroed, or -1: (T, B)."""
    if run.reset is None:
        return None
    steps = torch.arange(run.x.shape[0], device=run.reset.device, dtype=torch.int32).unsqueeze(1)
    return torch.where(run.reset > 0, steps, -1).cummax(0).values


def _turned(matrix: Tensor | None) -> Tensor | None:
    return None if matrix is None else matrix.transpose(-2, -1).contiguous()
