"""The fused CPU kernel: `chunked.forward` and `chunked.backward` in C++, for float32 and float64.

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

from ..chunked import Gradients, Run, Saved, project, sums_to_size, weight_gradients
from ..equations import Dynamics

ABI = 4
DTYPES = {torch.float32: "f32", torch.float64: "f64"}
LANES = {torch.float32: 8, torch.float64: 4}


# `fw_scan` of scan.h: every field is 64 bits wide, numbers first, then pointers.
_pack = struct.Struct("17q27Q").pack
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


def saved_shapes(run: Run, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns."""
    T, B, _ = run.x.shape
    H, K = run.W.shape[0], run.w.shape[-1]
    S, lanes, norm, n = dynamics.inner_steps, LANES[run.x.dtype], run.gain is not None, -(-T // K)
    start = norm and dynamics.normalize_start
    trails, norms = S + (norm if S else start), norm * S + start
    per_block = trails * T * H + norms * T + n * S * (K * (K - 1) // 2) + (n - 1) * H * H
    return (T, B, H), (0,) if n == 1 else (B, H, H), ((B + lanes - 1) // lanes, per_block * lanes)


def forward(run: Run, dynamics: Dynamics) -> Saved:
    """As `fastweights.memory.chunked.forward`."""
    hs, A, buffer = (run.x.new_empty(shape) for shape in saved_shapes(run, dynamics))
    made = (project(run), hs, A, buffer)
    _call("forward", run, dynamics, *made, *(None,) * 12)
    return Saved(hs, A, buffer)


def backward(
    grad_hs: Tensor, grad_A: Tensor | None, run: Run, saved: Saved, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    """As `fastweights.memory.chunked.backward`."""
    (T, B, H), K, n, rows = saved.hs.shape, run.w.shape[-1], run.chunks, run.active_rows()
    empty, zeros = saved.hs.new_empty, saved.hs.new_zeros
    grad_hs, grad_A = grad_hs.contiguous(), None if grad_A is None else grad_A.contiguous()
    grad_u = empty((T * B if rows is None else len(rows), H))
    like = (run.b, run.gain, run.shift, run.h0, run.A0)
    sums = [None if tensor is None else torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in like]
    weights: dict[str, Tensor] = {}
    if any(wanted[8:]):
        weights = {"w": zeros(n, B, K, K), "p": zeros(n, B, K), "left": zeros(n - 1, B, K), "p_left": zeros(n - 1, B)}
    made = (None, saved.hs, saved.A, saved.queries, grad_hs, grad_A, grad_u)
    b, gain, shift, h0, A0 = sums
    _call("backward", run, dynamics, *made, b, gain, shift, h0, A0, *(weights.values() or (None,) * 4))
    grads = weight_gradients(grad_u, run, saved.hs, wanted, rows)
    return grads._replace(b=b, gain=gain, shift=shift, h0=h0, A0=A0, **sums_to_size(run, **weights))


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


def _call(name: str, run: Run, dynamics: Dynamics, u: Tensor | None, *made: Tensor | None) -> None:
    """Call the library; u and what was `made` for it are contiguous."""
    T, B, _ = run.x.shape
    H, K = run.W.shape[0], run.w.shape[-1]
    # The library never holds on to a pointer, and this list holds on to the tensors until it returns.
    given = [None if tensor is None else tensor.contiguous() for tensor in run[3:]]
    numbers = [T, B, H, dynamics.inner_steps, K, dynamics.settling == "identity", dynamics.nonlinearity == "tanh"]
    numbers.append(dynamics.normalize_start)
    for place in range(5, 9):  # the weights of the past, which may be the same for all chunks, or all sequences
        tensor = given[place]
        if tensor is None:
            numbers += (0, 0)
        else:
            chunks, rows, *_ = tensor.shape
            numbers += (0 if chunks == 1 else tensor.stride(0), 0 if rows == 1 else tensor.stride(1))
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in (u, *given, *made)]
    arguments = _pack(*numbers, torch.get_num_threads(), *pointers)
    if getattr(STATUS.library, f"fw_{name}_{DTYPES[run.x.dtype]}")(arguments):
        raise MemoryError(f"not enough memory for {T} steps of {B} sequences with {H} units")
