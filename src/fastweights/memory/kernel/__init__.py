"""The fused CPU kernel: `chunk.forward` and `chunk.backward` in C++, for float32 and float64.

The library is built when the package is installed, once for modern CPUs and once for any; the better one that this CPU
runs is loaded when the layer first needs it, after torch, so that both use one OpenMP runtime. Without it the torch
path does the same, more slowly.
"""

import ctypes
import functools
import os
import platform
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..chunk import Chunk, Gradients, Saved, products
from ..equations import Dynamics

ABI = 1
DTYPES = {torch.float32: "f32", torch.float64: "f64"}
LANES = {torch.float32: 16, torch.float64: 8}


class _Chunk(ctypes.Structure):
    """`fw_chunk` of scan.h."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("K", "B", "H", "S", "identity", "use_tanh", "normalize_start")]
        + [(name, ctypes.c_int64) for name in ("w_stride", "p_stride", "threads")]
        + [(name, ctypes.c_void_p) for name in ("u", "W", "gain", "shift", "h0", "A0", "w", "p", "keep", "steps")]
        + [(name, ctypes.c_void_p) for name in ("hs", "saved", "queries", "grad_hs", "grad_u", "grad_h0")]
        + [(name, ctypes.c_void_p) for name in ("grad_norm", "grad_w", "grad_sums")]
    )


class Status(NamedTuple):
    """Whether the kernel can be used, which build of it, and why (not)."""

    library: Any
    name: str
    reason: str


@functools.cache
def status() -> Status:
    """Load the library, once."""
    if os.environ.get("FASTWEIGHTS_KERNEL") == "off":
        return Status(None, "torch", "the environment variable FASTWEIGHTS_KERNEL is 'off'")
    here = Path(__file__).parent
    # An editable install keeps what it built beside the other installed packages.
    places = [here, Path(sysconfig.get_path("platlib"), "fastweights", "memory", "kernel")]
    modern = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")
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
            why = "this CPU has all it was built for" if build == "modern" else "this CPU has no AVX2"
            return Status(library, f"kernel ({build})", why)
    return Status(None, "torch", f"the kernel cannot be used: {problem}")


def covers(like: Tensor) -> bool:
    """Whether the kernel computes with tensors such as this."""
    return like.device.type == "cpu" and like.dtype in DTYPES and status().library is not None


def saved_shapes(chunk: Chunk, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns."""
    K, B, H = chunk.u.shape
    S, lanes = dynamics.inner_steps, LANES[chunk.u.dtype]
    norms = 0 if chunk.gain is None else S + dynamics.normalize_start
    queries = (0,) if chunk.A0 is None else (S, K, B, H)
    return (K, B, H), queries, ((B + lanes - 1) // lanes, K * (H * (1 + S + norms) + norms) * lanes), (0,)


def forward(chunk: Chunk, dynamics: Dynamics) -> Saved:
    """As `fastweights.memory.chunk.forward`."""
    hs, queries, buffer, nothing = (chunk.u.new_empty(shape) for shape in saved_shapes(chunk, dynamics))
    outputs = {"hs": hs, "saved": buffer, "queries": None if chunk.A0 is None else queries}
    _call("forward", chunk, dynamics, outputs)
    return Saved(hs, queries, buffer, nothing)


def backward(grad_hs: Tensor, chunk: Chunk, saved: Saved, dynamics: Dynamics, weights: bool) -> Gradients:
    """As `fastweights.memory.chunk.backward`."""
    (K, B, H), A0 = chunk.u.shape, chunk.A0
    hs, queries, buffer, nothing = saved
    grad_u, grad_h0 = torch.empty_like(hs), hs.new_empty(B, H)
    grad_norm = hs.new_empty(len(buffer), 2, H) if chunk.gain is not None else None
    grad_w = hs.new_zeros(B, K, K) if weights else None
    grad_sums = None if A0 is None else torch.empty_like(queries)
    outputs = {"saved": buffer, "grad_hs": grad_hs.contiguous(), "grad_u": grad_u, "grad_h0": grad_h0}
    _call("backward", chunk, dynamics, outputs | {"grad_norm": grad_norm, "grad_w": grad_w, "grad_sums": grad_sums})
    grad_W, grad_A0, grad_p = products(chunk, hs, queries, grad_u, nothing if grad_sums is None else grad_sums, weights)
    grad_gain, grad_shift = hs.new_empty(0), hs.new_empty(0)
    if grad_norm is not None:
        grad_gain, grad_shift = grad_norm.sum(0).clone().unbind(0)
        grad_gain, grad_shift = grad_gain.clone(), grad_shift.clone()
    new_w = hs.new_empty(0) if grad_w is None else grad_w.sum_to_size(chunk.w.shape)
    return grad_u, grad_W, grad_gain, grad_shift, grad_h0, grad_A0, new_w, grad_p


def _call(name: str, chunk: Chunk, dynamics: Dynamics, outputs: dict[str, Tensor | None]) -> None:
    K, B, H = chunk.u.shape
    w, p = chunk.w, chunk.p
    if w.stride()[1:] != (K, 1):
        w = w.contiguous()
    if p.stride(1) != 1:
        p = p.contiguous()
    # These live until the call returns; the library never holds on to a pointer.
    tensors = {field: tensor for field, tensor in chunk._asdict().items() if tensor is not None}
    tensors = {field: tensor.contiguous() for field, tensor in tensors.items()} | {"w": w, "p": p}
    tensors |= {field: tensor for field, tensor in outputs.items() if tensor is not None}
    arguments = _Chunk(
        K=K,
        B=B,
        H=H,
        S=dynamics.inner_steps,
        identity=dynamics.settling == "identity",
        use_tanh=dynamics.nonlinearity == "tanh",
        normalize_start=dynamics.normalize_start,
        w_stride=0 if w.shape[0] == 1 else w.stride(0),
        p_stride=0 if p.shape[0] == 1 else p.stride(0),
        threads=torch.get_num_threads(),
        **{field: tensor.data_ptr() for field, tensor in tensors.items()},
    )
    function = getattr(status().library, f"fw_{name}_{DTYPES[chunk.u.dtype]}")
    if function(ctypes.byref(arguments)):
        raise MemoryError(f"not enough memory for {K} steps of {B} sequences with {H} units")
