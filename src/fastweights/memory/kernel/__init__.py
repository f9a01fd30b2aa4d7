"""The fused CPU kernel: `chunked.forward` and `chunked.backward` in C++, for float32 and float64.

The library is built when the package is installed: for CPUs with AVX-512, for those with AVX2, and for any. The best
one that this CPU runs is loaded after torch, so that both use one OpenMP runtime. Without it the torch path does the
same, more slowly.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..chunked import WEIGHTS, Gradients, Run, Saved, outer, sums_to_size, transition_gradients
from ..equations import Dynamics
from ..modes import PLAIN
from ..products import product

# What torch.compile asks before it uses a graph again.
TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)

ABI = 11
DTYPES = {torch.float32: "f32", torch.float64: "f64"}
NONE = (0,) * 13
LARGE = 1 << 23  # bytes
LEAST_ROWS = 6  # of a product by the library
WORTH_THREADS = 1 << 21  # multiplications
# Builds, the best first, and what torch calls the CPUs that run them.
BUILDS = {"avx512": ("AVX512",), "avx2": ("AVX2", "AVX512"), "baseline": None}


# `fw_scan` of scan.h: every field is 64 bits wide, numbers first, then pointers.
_pack = struct.Struct("18q34Q").pack
_pack_step = struct.Struct("8q2d5Q").pack  # fw_step: what steps have in common
_pack_states = struct.Struct("5Q").pack  # and the rest of it
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
    if sys.platform == "win32":
        problem = "there is none for Windows"
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
    STATUS.library.fw_digest.restype = ctypes.c_uint64
    STATUS.library.fw_digest.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
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


_warned = False


def warn_once() -> None:
    """Say that the kernel is missing, and what to do about it, the first time that it could have been used."""
    global _warned
    if _warned or torch.compiler.is_compiling() or os.environ.get("FASTWEIGHTS_KERNEL") == "off":
        return
    _warned = True
    have = "install a C++ compiler (GCC 9 or newer, or clang 11 or newer) and the package again"
    warnings.warn(
        f"FastWeights runs without its fused kernel, several times slower: {STATUS.reason}. To have it, "
        f"{'use Linux, in WSL say' if sys.platform == 'win32' else have}; to do without it and this warning, "
        'say backend="torch" or set FASTWEIGHTS_KERNEL=off.',
        stacklevel=2,
    )


# A clone that is made when one of the two is written to, by whatever way; many never are.
_lazy_clone: Callable[[Tensor], Tensor] = getattr(torch, "_lazy_clone", Tensor.clone)
_memory: Callable[[Tensor], int] | None = getattr(torch._C, "_data_address", None)


def _address(tensor: Tensor) -> int:
    """Where to read a tensor's numbers: `data_ptr`, from where one may write, makes a lazy clone a real one."""
    return tensor.data_ptr() if _memory is None else _memory(tensor) + int(tensor.storage_offset()) * tensor.itemsize


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def digest(x: Tensor) -> int:
    """Of the numbers in a contiguous tensor: another one if they have changed."""
    return int(STATUS.library.fw_digest(_address(x), x.nbytes))


def covers(tensors: Sequence[Tensor | None]) -> bool:
    """Whether the kernel computes with these: numbers in the CPU's memory, all of one dtype that it has."""
    first = tensors[0]
    if not AVAILABLE or first is None or (dtype := first.dtype) not in DTYPES:
        return False
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in PLAIN or tensor.dtype is not dtype or not tensor.is_cpu or tensor.is_neg()
        ):
            return False
    return True


def saved_shapes(run: Run, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns for a backward to come; (0,): nothing."""
    T, B, features = run.x.shape
    H, K = run.W.shape[0], run.w.shape[-1]
    S, lanes, norm, n = dynamics.inner_steps, LANES[run.x.dtype], run.gain is not None, -(-T // K)
    start = norm and dynamics.normalize_start
    last = T - (n - 1) * K
    pairs = (n - 1) * (K * (K - 1) // 2) + last * (last - 1) // 2
    trails, norms = S + (norm if S else start), norm * S + start
    bands = -(-H // 4)
    matrix = 8 * bands * (bands + 1) if run.A0 is None else H * H
    per_block = trails * T * H + norms * T + S * pairs + (n - 1) * matrix
    kept = ((B + lanes - 1) // lanes, per_block * lanes)
    return (T, B, H), (T, B, H), (0,) if n == 1 else (B, H, H), (T, B, features), kept


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
        function(_pack_rows(self.T, self.B, first, size, self.at, _address(source), target.data_ptr()))


def _empty(like: Tensor, *shape: int) -> Tensor:
    """Uninitialised; in large pages if it is large, since a page's first touch costs more than what is done with it."""
    tensor = like.new_empty(shape)
    if tensor.nbytes >= LARGE:
        STATUS.library.fw_in_large_pages(ctypes.c_uint64(tensor.data_ptr()), ctypes.c_uint64(tensor.nbytes))
    return tensor


def _product(a: Tensor, b: Tensor, *shape: int) -> Tensor:
    """A @ b in this shape, for a of two dimensions or more."""
    return product(a.reshape(-1, a.shape[-1]), b).view(shape)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """The product aᵀ b of a (rows, M) and b (rows, N), faster than torch.mm is at it: `Outer` in scan.cpp."""
    (rows, M), N = a.shape, b.shape[1]
    if M < LEAST_ROWS or N < LANES[a.dtype]:
        return outer(a, b)
    threads = torch.get_num_threads() if rows * M * N >= WORTH_THREADS else 1
    a, b, sums = a.contiguous(), b.contiguous(), a.new_empty(M, N)
    if _functions["outer", a.dtype](_pack_outer(rows, M, N, threads, a.data_ptr(), _address(b), sums.data_ptr())):
        raise MemoryError(f"not enough memory for gradients of {M} × {N} weights")
    return sums


def _fuses(x: Tensor) -> bool:
    """Whether the kernel takes the products with C upon itself: only with few empty lanes is it good at them."""
    B = x.shape[1]
    return -B % LANES[x.dtype] <= B // 8


def forward(run: Run, dynamics: Dynamics, for_backward: bool) -> Saved:
    """As `fastweights.memory.chunked.forward`."""
    x, (all_hs, _, last, _, kept), inputs, u = run.x.contiguous(), saved_shapes(run, dynamics), 0, None
    if _fuses(x):
        inputs, hs = _address(x), _empty(x, *all_hs)
    elif run.steps is None:
        u = hs = _product(x, run.C.t(), *all_hs)  # a step's states take the place of what went into it
    else:
        rows = _Rows(x.shape[0], run.steps)
        packed = rows.pack(x, rows.count())
        u, hs = _product(packed, run.C.t(), len(packed), all_hs[-1]), _empty(x, *all_hs)
    buffer, A = _empty(x, *kept), None if last == (0,) else x.new_empty(last)
    _call("forward", run, dynamics, (inputs, _at(u), _at(hs), _at(A), _at(buffer), *NONE))
    if for_backward:
        return Saved(hs, _lazy_clone(hs), A, None, buffer)
    return Saved(hs, _lazy_clone(hs) if A is None else hs[run.steps_of(run.chunks - 1)].clone(), A)


def backward(
    grad_hs: Tensor, grad_A: Tensor | None, run: Run, saved: Saved, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    """As `fastweights.memory.chunked.backward`."""
    x, C, b, _, _, gain, _, h0, A0, *_ = run
    hs, (T, B, H), rows = saved.states, saved.states.shape, None if run.steps is None else _Rows(x.shape[0], run.steps)
    count = T * B if rows is None else rows.count()
    empty, zeros = hs.new_empty, hs.new_zeros
    plain = grad_hs.is_contiguous() and not grad_hs.is_neg()
    grad_hs = grad_hs if plain else _empty(hs, T, B, H).copy_(grad_hs)
    grad_A = None if grad_A is None else grad_A.resolve_neg().contiguous()
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
    made = (saved.A, saved.queries, grad_hs, grad_A, grad_x, grad_u, *sums, *(weights.values() or (None,) * 4))
    _call("backward", run, dynamics, (0, 0, _address(hs), *map(_at, made)))
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


class Known:
    """Tensors that were found to fit, to know their like again.

    Python takes longer to look at a net's tensors one by one than the library to compute a step. So types, shapes,
    strides, dtypes and bits are compared at once, by what torch.compile asks before it uses a graph again; and where
    the weights are, since memory that was cut or freed is elsewhere.
    """

    def __init__(self) -> None:
        self._guards: Any = None
        self._where: list[int] = []
        self._inference = False

    def are(self, tensors: list[Tensor], where: list[int]) -> bool:
        return bool(
            where == self._where
            and self._guards.check(*tensors)
            and torch.is_inference_mode_enabled() is self._inference
        )

    def remember(self, tensors: list[Tensor], where: list[int]) -> None:
        if TensorGuards is not None:
            self._guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self._where, self._inference = where, torch.is_inference_mode_enabled()

    def forget(self) -> None:
        self._where = []

    def __reduce__(self) -> tuple[type[Known], tuple[()]]:
        return Known, ()


def _addresses(weights: Sequence[Tensor | None]) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in weights]


class Fitting:
    """The weights of one net, C, b, W, gain and shift: whether the library can take them as they are."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._known = Known()

    def __call__(self, weights: Sequence[Tensor | None], dtype: torch.dtype) -> bool:
        """Not to be asked while torch watches (`modes.watched`)."""
        present, where = [tensor for tensor in weights if tensor is not None], _addresses(weights)
        if self._known.are(present, where):
            return present[0].dtype is dtype
        if fits := AVAILABLE and checks.fit(weights, self.shapes, dtype):
            self._known.remember(present, where)
        return fits


class Steps:
    """Single steps of one net."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = shapes  # of C, b, W, gain, shift
        self._known = Known()
        self._numbers: tuple[float, ...] = ()
        self._bytes = (0, 0)  # of h and A
        self._constant = b""  # of what the library is given

    def __call__(
        self, x: Tensor, weights: Sequence[Tensor | None], h: Tensor | None, A: Tensor | None, *numbers: float
    ) -> tuple[Tensor, Tensor] | None:
        """The h and A after x (…, I), from h and A (None: zero); None where something does not fit.

        `numbers` are the dynamics, λ and η. Not to be called while torch watches (`modes.watched`).
        """
        where, numbers = _addresses(weights), (torch.get_num_threads(), *numbers)
        if h is not None and A is not None and self._are_known(x, weights, h, A, where, numbers):
            new_h, new_A = torch.empty_like(h), torch.empty_like(A)
        elif self._fit(x, weights, h, A):
            *batch, features = x.shape
            H, (threads, S, *others) = self.shapes[0][0], numbers
            self._constant = _pack_step(math.prod(batch), features, H, S, threads, *others, *where)
            self._remember(x, weights, h, A, where, numbers)
            x = x.contiguous()
            new_h, new_A = x.new_empty((*batch, H)), x.new_empty((*batch, H, H))
        else:
            return None
        if _steps[x.dtype](self._constant + _pack_states(*map(_at, (x, h, A, new_h, new_A)))):
            raise MemoryError(f"not enough memory for an A of shape {tuple(new_A.shape)}")
        return new_h, new_A

    def _are_known(
        self, x: Tensor, weights: Sequence[Tensor | None], h: Tensor, A: Tensor, where: list[int], numbers: Any
    ) -> bool:
        return (
            numbers == self._numbers
            and self._known.are([x, h, A, *[tensor for tensor in weights if tensor is not None]], where)
            and checks.reaches(x)
            and (h.untyped_storage().nbytes(), A.untyped_storage().nbytes()) == self._bytes
        )

    def _fit(self, x: Tensor, weights: Sequence[Tensor | None], h: Tensor | None, A: Tensor | None) -> bool:
        (H, features), (*batch, last) = self.shapes[0], x.shape
        if last != features or not covers((x,)) or not checks.fit(weights, self.shapes, x.dtype):
            return False
        checks.memory("x", x)
        return checks.fit((h, A), ((*batch, H), (*batch, H, H)), x.dtype)

    def _remember(
        self, x: Tensor, weights: Any, h: Tensor | None, A: Tensor | None, where: list[int], numbers: Any
    ) -> None:
        self._known.forget()  # `_constant` is of this call
        if h is not None and A is not None and x.is_contiguous():
            self._known.remember([x, h, A, *[tensor for tensor in weights if tensor is not None]], where)
            self._bytes, self._numbers = (h.nbytes, A.nbytes), numbers


def _call(name: str, run: Run, dynamics: Dynamics, made: tuple[int, ...]) -> None:
    """Call the library, given the addresses of x, if that is needed, and of what was made for the call."""
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
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in given]
    if 0 in [pointer for tensor, pointer in zip(given, pointers, strict=True) if tensor is not None]:  # empty, or freed
        checks.still_there(given)
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
        made[0],
        *pointers,
        *made[1:],
    )
    if _functions[name, run.x.dtype](arguments):
        raise MemoryError(f"not enough memory for {T} steps of {B} sequences with {run.W.shape[0]} units")
