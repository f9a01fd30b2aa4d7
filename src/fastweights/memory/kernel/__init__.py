"""The fused CPU kernel: `chunk.forward` and `chunk.backward` in C++, for float32 and float64.

The library is built when the package is installed, once for modern CPUs and once for any; the better one that this CPU
runs is loaded after torch, so that both use one OpenMP runtime. Without it the torch
path does the same, more slowly.
"""

import ctypes
import os
import struct
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..chunk import Chunk, Gradients, Saved, products
from ..equations import Dynamics

ABI = 3
DTYPES = {torch.float32: "f32", torch.float64: "f64"}
LANES = {torch.float32: 16, torch.float64: 8}


# `fw_chunk` of scan.h: every field is 64 bits wide, numbers first, then pointers.
_pack = struct.Struct("10q20Q").pack
_pack_step = struct.Struct("6q2d10Q").pack  # fw_step


class Status(NamedTuple):
    """Whether the kernel can be used, which build of it, and why (not)."""

    library: Any
    name: str
    reason: str


def _load() -> Status:
    chosen = os.environ.get("FASTWEIGHTS_KERNEL")  # "off", or a folder with another build
    if chosen == "off":
        return Status(None, "torch", "the environment variable FASTWEIGHTS_KERNEL is 'off'")
    # An editable install keeps what it built beside the other installed packages.
    installed = Path(sysconfig.get_path("platlib"), "fastweights", "memory", "kernel")
    places = [Path(chosen)] if chosen else [Path(__file__).parent, installed]
    modern = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    problem = "it was not built when the package was installed (no C++ compiler, or the build failed)"
    for build in ("modern", "baseline") if modern else ("baseline",):
        for path in (place / f"libfastweights_{build}.so" for place in places):
            if not path.exists():
                continue
            try:
                library = ctypes.CDLL(str(path))
                if library.fw_abi() != ABI:
                    problem = f"{path} is of another version of the package: install it again"
                    continue
            except (OSError, AttributeError) as error:
                problem = f"{path} cannot be loaded: {error}"
                continue
            why = "this CPU has AVX2" if build == "modern" else "this CPU has no AVX2, or the build for it is missing"
            return Status(library, f"kernel ({build})", why)
    return Status(None, "torch", f"the kernel cannot be used: {problem}")


STATUS = _load()
AVAILABLE = STATUS.library is not None
_steps = {dtype: getattr(STATUS.library, f"fw_step_{name}") for dtype, name in DTYPES.items()} if AVAILABLE else {}


class Backend(NamedTuple):
    """What computes the layers on CPU tensors, "kernel (…)" or "torch", and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def backend() -> Backend:
    """What `backend="auto"` means on this machine.

    >>> print(backend())  # doctest: +SKIP
    kernel (modern): this CPU has AVX2
    """
    return Backend(STATUS.name, STATUS.reason)


def covers(like: Tensor) -> bool:
    """Whether the kernel computes with tensors such as this."""
    return like.device.type == "cpu" and like.dtype in DTYPES and AVAILABLE


def saved_shapes(chunk: Chunk, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns."""
    K, B, H = chunk.u.shape
    S, lanes, norm = dynamics.inner_steps, LANES[chunk.u.dtype], chunk.gain is not None
    start = norm and dynamics.normalize_start
    trails, norms = S + (norm if S else start), norm * S + start
    queries = (0,) if chunk.A0 is None else (S, K, B, H)
    per_block = (trails * K * H + norms * K + S * (K * (K - 1) // 2)) * lanes
    return (K, B, H), queries, ((B + lanes - 1) // lanes, per_block), (0,)


def forward(chunk: Chunk, dynamics: Dynamics) -> Saved:
    """As `fastweights.memory.chunk.forward`."""
    hs, queries, buffer, nothing = (chunk.u.new_empty(shape) for shape in saved_shapes(chunk, dynamics))
    asked = 0 if chunk.A0 is None else queries.data_ptr()
    _call("forward", chunk, dynamics, hs.data_ptr(), buffer.data_ptr(), asked, 0, 0, 0, 0, 0, 0, 0)
    return Saved(hs, queries, buffer, nothing)


def backward(grad_hs: Tensor, chunk: Chunk, saved: Saved, dynamics: Dynamics, weights: bool) -> Gradients:
    """As `fastweights.memory.chunk.backward`."""
    K, B, H = chunk.u.shape
    hs, queries, buffer, _ = saved
    empty = hs.new_empty
    grad_hs = grad_hs.contiguous()
    grad_u, grad_h0 = empty((K, B, H)), empty(0 if chunk.h0 is None else (B, H))
    grad_gain, grad_shift = (empty(0 if chunk.gain is None else H) for _ in range(2))
    grad_w = hs.new_zeros(B, K, K) if weights else empty(0)
    grad_sums = empty(queries.shape)
    tensors = (grad_hs, grad_u, grad_h0, grad_gain, grad_shift, grad_w, grad_sums)
    pointers = (tensor.data_ptr() for tensor in tensors)  # 0 where there is nothing to write
    _call("backward", chunk, dynamics, hs.data_ptr(), buffer.data_ptr(), 0, *pointers)
    grad_W, grad_A0, grad_p = products(chunk, hs, queries, grad_u, grad_sums, weights)
    if weights:
        grad_w = grad_w.sum_to_size(chunk.w.shape)
    return grad_u, grad_W, grad_gain, grad_shift, grad_h0, grad_A0, grad_w, grad_p


def step(
    x: Tensor,
    C: Tensor,
    b: Tensor | None,
    W: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    h: Tensor | None,
    A: Tensor | None,
    *numbers: float,
) -> tuple[Tensor, Tensor]:
    """One step of one sequence, x (I,) or (1, I), from h and A or None for zero: the new h and A.

    `numbers` are the dynamics, λ and η.
    """
    H, features = C.shape
    shape, dtype = (*x.shape[:-1], H), x.dtype
    new_h, new_A = torch.empty(shape, dtype=dtype), torch.empty((*shape, H), dtype=dtype)
    # Contiguous copies, where there are any, live in this list until the library returns.
    given = [None if tensor is None else tensor.contiguous() for tensor in (x, C, b, W, gain, shift, h, A)]
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in given]
    if _steps[dtype](_pack_step(features, H, *numbers, *pointers, new_h.data_ptr(), new_A.data_ptr())):
        raise MemoryError(f"not enough memory for a step with {H} units")
    return new_h, new_A


def _call(name: str, chunk: Chunk, dynamics: Dynamics, *others: int) -> None:
    """Call the library; `others` point to contiguous tensors that were made for it."""
    K, B, H = chunk.u.shape
    # The library never holds on to a pointer, and this list holds on to the tensors until it returns.
    given = [None if tensor is None else tensor.contiguous() for tensor in chunk]
    w, p = chunk.w, chunk.p
    given[6] = w = w if w.stride()[1:] == (K, 1) else w.contiguous()
    given[7] = p = p if p.stride(1) == 1 else p.contiguous()
    arguments = _pack(
        K,
        B,
        H,
        dynamics.inner_steps,
        dynamics.settling == "identity",
        dynamics.nonlinearity == "tanh",
        dynamics.normalize_start,
        0 if w.shape[0] == 1 else w.stride(0),
        0 if p.shape[0] == 1 else p.stride(0),
        torch.get_num_threads(),
        *[0 if tensor is None else tensor.data_ptr() for tensor in given],
        *others,
    )
    if getattr(STATUS.library, f"fw_{name}_{DTYPES[chunk.u.dtype]}")(arguments):
        raise MemoryError(f"not enough memory for {K} steps of {B} sequences with {H} units")
