"""The fused CPU kernel: `chunked.forward` and `chunked.backward` in C++, for float32 and float64.

The library is built when the package is installed: for CPUs with AVX-512, for those with AVX2, and for any. The best
one that this CPU runs is loaded after torch, so that both use one OpenMP runtime. Without it the torch path does the
same, more slowly.
"""

import ctypes
import os
import struct
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..chunked import WEIGHTS, Gradients, Run, Saved, outer, sums_to_size, transition_gradients
from ..equations import Dynamics

ABI = 10
DTYPES = {torch.float32: "f32", torch.float64: "f64"}
NONE = (None,) * 13
LARGE = 1 << 23  # bytes
LEAST_ROWS = 6  # of a product by the library
WORTH_THREADS = 1 << 21  # multiplications
# Builds, the best first, and what torch calls the CPUs that run them.
BUILDS = {"avx512": ("AVX512",), "avx2": ("AVX2", "AVX512"), "baseline": None}


# `fw_scan` of scan.h: every field is 64 bits wide, numbers first, then pointers.
_pack = struct.Struct("18q33Q").pack
_pack_step = struct.Struct("8q2d10Q").pack  # fw_step
_pack_rows = struct.Struct("4q3Q").pack  # fw_rows
_pack_outer = struct.Struct("4q3Q").pack  # fw_outer


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
    cpu = torch.backends.cpu.get_cpu_capability()
    problem = "it was not built when the package was installed (no C++ compiler, or the build failed)"
    for build in (build for build, runs_on in BUILDS.items() if runs_on is None or cpu in runs_on):
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
            return Status(library, f"kernel ({build})", f"the best build that is here for this CPU ({cpu})")
    return Status(None, "torch", f"the kernel cannot be used: {problem}")


STATUS = _load()
AVAILABLE = STATUS.library is not None
PATH = Path(STATUS.library._name) if AVAILABLE else None
VECTOR = STATUS.library.fw_vector_bytes() if AVAILABLE else 0  # of one number for each of some sequences, its lanes
LANES = {dtype: VECTOR // dtype.itemsize for dtype in DTYPES}
_functions: dict[tuple[str, torch.dtype], Any] = {}
_steps: dict[torch.dtype, Any] = {}
if AVAILABLE:
    STATUS.library.fw_count.restype = ctypes.c_int64
    for dtype, suffix in DTYPES.items():
        for name in ("forward", "backward", "outer"):
            _functions[name, dtype] = getattr(STATUS.library, f"fw_{name}_{suffix}")
        _steps[dtype] = getattr(STATUS.library, f"fw_step_{suffix}")


class Backend(NamedTuple):
    """What computes the layers on CPU tensors, "kernel (…)" or "torch", and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def backend() -> Backend:
    """What `backend="auto"` means on this machine.

    >>> print(backend())  # doctest: +SKIP
    kernel (avx2): the best build that is here for this CPU (AVX2)
    """
    return Backend(STATUS.name, STATUS.reason)


def covers(like: Tensor) -> bool:
    """Whether the kernel computes with tensors such as this."""
    return like.is_cpu and AVAILABLE and like.dtype in DTYPES


def saved_shapes(run: Run, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns; (0,): nothing."""
    T, B, _ = run.x.shape
    H, K = run.W.shape[0], run.w.shape[-1]
    S, lanes, norm, n = dynamics.inner_steps, LANES[run.x.dtype], run.gain is not None, -(-T // K)
    start = norm and dynamics.normalize_start
    last = T - (n - 1) * K
    pairs = (n - 1) * (K * (K - 1) // 2) + last * (last - 1) // 2
    trails, norms = S + (norm if S else start), norm * S + start
    bands = -(-H // 4)
    matrix = 8 * bands * (bands + 1) if run.A0 is None else H * H  # a symmetric one, or any
    per_block = trails * T * H + norms * T + S * pairs + (n - 1) * matrix
    return (T, B, H), (0,) if n == 1 else (B, H, H), ((B + lanes - 1) // lanes, per_block * lanes)


class _Rows:
    """The steps that count, of sequences with these lengths; the others are never looked at."""

    def __init__(self, T: int, lengths: Tensor) -> None:
        self.lengths = lengths.contiguous()
        self.T, self.B, self.at = T, lengths.shape[0], self.lengths.data_ptr()

    def count(self, first: int = 0) -> int:
        """How many there are from step `first` on."""
        return int(STATUS.library.fw_count(_pack_rows(self.T, self.B, first, 0, self.at, 0, 0)))

    def pack(self, tensor: Tensor, count: int, first: int = 0) -> Tensor:
        """The rows (count, n) that count of a tensor (T - first, B, n) that starts at step `first`."""
        packed = tensor.new_empty(count, tensor.shape[-1])
        self._call(STATUS.library.fw_pack, first, tensor.contiguous(), packed)
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """(T, B, n) with zeros between."""
        tensor = packed.new_empty(self.T, self.B, packed.shape[-1])
        self._call(STATUS.library.fw_unpack, 0, packed, tensor)
        return tensor

    def _call(self, function: Any, first: int, source: Tensor, target: Tensor) -> None:
        size = source.shape[-1] * source.element_size()
        function(_pack_rows(self.T, self.B, first, size, self.at, source.data_ptr(), target.data_ptr()))


def _empty(like: Tensor, *shape: int) -> Tensor:
    """Uninitialised; in large pages if it is large, since a page's first touch costs more than what is done with it."""
    tensor = like.new_empty(shape)
    if tensor.nbytes >= LARGE:
        STATUS.library.fw_in_large_pages(ctypes.c_uint64(tensor.data_ptr()), ctypes.c_uint64(tensor.nbytes))
    return tensor


def _product(a: Tensor, b: Tensor, *shape: int) -> Tensor:
    """A @ b in this shape, for a of two dimensions or more."""
    product = _empty(a, *shape)
    torch.mm(a.reshape(-1, a.shape[-1]), b, out=product.view(-1, shape[-1]))
    return product


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """The product aᵀ b of a (rows, M) and b (rows, N), faster than torch.mm is at it: `Outer` in scan.cpp."""
    (rows, M), N = a.shape, b.shape[1]
    if M < LEAST_ROWS or N < LANES[a.dtype]:
        return outer(a, b)
    threads = torch.get_num_threads() if rows * M * N >= WORTH_THREADS else 1
    a, b, product = a.contiguous(), b.contiguous(), a.new_empty(M, N)
    pointers = [tensor.data_ptr() for tensor in (a, b, product)]
    if _functions["outer", a.dtype](_pack_outer(rows, M, N, threads, *pointers)):
        raise MemoryError(f"not enough memory for gradients of {M} × {N} weights")
    return product


def _fuses(x: Tensor) -> bool:
    """Whether the kernel takes the products with C upon itself: only with few empty lanes is it good at them."""
    B = x.shape[1]
    return -B % LANES[x.dtype] <= B // 8


def forward(run: Run, dynamics: Dynamics) -> Saved:
    """As `fastweights.memory.chunked.forward`."""
    x, (all_hs, last, kept), inputs, u = run.x, saved_shapes(run, dynamics), None, None
    if _fuses(x):
        inputs, hs = x.contiguous(), _empty(x, *all_hs)
    elif run.steps is None:
        u = hs = _product(x, run.C.t(), *all_hs)  # a step's states take the place of what went into it
    else:
        rows = _Rows(x.shape[0], run.steps)
        packed = rows.pack(x, rows.count())
        u, hs = _product(packed, run.C.t(), len(packed), all_hs[-1]), _empty(x, *all_hs)
    buffer, A = _empty(x, *kept), None if last == (0,) else x.new_empty(last)
    _call("forward", run, dynamics, (inputs, u, hs, A, buffer, *NONE))
    return Saved(hs, A, buffer)


def backward(
    grad_hs: Tensor, grad_A: Tensor | None, run: Run, saved: Saved, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    """As `fastweights.memory.chunked.backward`."""
    x, C, b, _, _, gain, _, h0, A0, *_ = run
    hs, (T, B, H), rows = saved.hs, saved.hs.shape, None if run.steps is None else _Rows(x.shape[0], run.steps)
    count = T * B if rows is None else rows.count()
    empty, zeros = hs.new_empty, hs.new_zeros
    grad_hs = grad_hs if grad_hs.is_contiguous() else _empty(hs, T, B, H).copy_(grad_hs)
    grad_A = None if grad_A is None else grad_A.contiguous()
    grad_u = _empty(hs, count, H)
    grad_b = None if b is None else empty(H)
    grad_gain, grad_shift = (None, None) if gain is None else (empty(H), empty(H))
    grad_h0, grad_A0 = None if h0 is None else empty(B, H), None if A0 is None else empty(B, H, H)
    weights: dict[str, Tensor] = {}
    if any(wanted[WEIGHTS:]):
        n, K = run.chunks, run.w.shape[-1]
        weights = {"w": zeros(n, B, K, K), "p": zeros(n, B, K), "left": zeros(n - 1, B, K), "p_left": zeros(n - 1, B)}
    grad_x = _empty(x, *x.shape) if wanted[0] and _fuses(x) else None
    sums = (grad_b, grad_gain, grad_shift, grad_h0, grad_A0)
    made = (None, None, hs, saved.A, saved.queries, grad_hs, grad_A, grad_x, grad_u, *sums)
    _call("backward", run, dynamics, (*made, *(weights.values() or NONE[:4])))
    # The rest is matrix products over all steps at once.
    before, first = hs[: T - 1], B
    if wanted[0] and grad_x is None:
        grad_x = _product(grad_u, C, *x.shape) if rows is None else rows.unpack(_product(grad_u, C, count, C.shape[1]))
    masks: list[Tensor | None] = [run.keep, run.integrate]
    if rows is not None:
        later = rows.count(1)
        x, before, first = rows.pack(x, count), rows.pack(before, later, 1), count - later
        masks = [None if mask is None else rows.pack(mask.unsqueeze(-1), count) for mask in masks]
        h0 = None if h0 is None else _Rows(1, rows.lengths).pack(h0.unsqueeze(0), first)
    grad_W, grad_W_int = transition_gradients(grad_u, masks[0], masks[1], h0, first, before.reshape(-1, H), _outer)
    return Gradients(
        grad_x,
        _outer(grad_u, x.reshape(-1, x.shape[-1])),
        grad_b,
        grad_W,
        grad_W_int,
        grad_gain,
        grad_shift,
        grad_h0,
        grad_A0,
        **sums_to_size(run, **weights),
    )


def step(given: list[Tensor | None], inner_steps: int, *numbers: float) -> tuple[Tensor, Tensor]:
    """One step, given x (…, I), C, b, W, gain, shift, h and A (None: zero): the new h and A.

    `numbers` are the rest of the dynamics, λ and η.
    """
    # Contiguous copies, where there are any, live in this list until the library returns.
    given = [tensor if tensor is None else tensor.contiguous() for tensor in given]
    x, C, _, _, _, _, h, A = given
    assert x is not None
    assert C is not None
    H, features = C.shape
    B = x.numel() // features
    if h is None or A is None:
        new_h, new_A = x.new_empty((*x.shape[:-1], H)), x.new_empty((*x.shape[:-1], H, H))
    else:
        new_h, new_A = torch.empty_like(h), torch.empty_like(A)
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in (*given, new_h, new_A)]
    if _steps[x.dtype](_pack_step(B, features, H, inner_steps, torch.get_num_threads(), *numbers, *pointers)):
        raise MemoryError(f"not enough memory for a step of {B} sequences with {H} units")
    return new_h, new_A


def _call(name: str, run: Run, dynamics: Dynamics, made: tuple[Tensor | None, ...]) -> None:
    """Call the library; what was `made` for it, x first if it is needed, is contiguous."""
    T, B, features = run.x.shape
    inner_steps, settling, nonlinearity, normalize_start = dynamics
    # The library never holds on to a pointer, and this list holds on to the tensors until it returns.
    given = [None if tensor is None else tensor.contiguous() for tensor in run[1:]]
    strides = [0] * 8  # of the weights of the past, which are the same for all chunks, or all sequences, or not
    for place, tensor in enumerate(given[WEIGHTS - 1 : WEIGHTS + 3]):
        if tensor is not None:
            shape = tensor.shape
            if shape[0] > 1:
                strides[2 * place] = tensor.stride(0)
            if shape[1] > 1:
                strides[2 * place + 1] = tensor.stride(1)
    arguments = _pack(
        T,
        B,
        features,
        run.W.shape[0],
        inner_steps,
        run.w.shape[-1],
        settling == "identity",
        nonlinearity == "tanh",
        normalize_start,
        *strides,
        torch.get_num_threads(),
        *[0 if tensor is None else tensor.data_ptr() for tensor in (made[0], *given, *made[1:])],
    )
    if _functions[name, run.x.dtype](arguments):
        raise MemoryError(f"not enough memory for {T} steps of {B} sequences with {run.W.shape[0]} units")
