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

from .. import checks, triton
from ..equations import Dynamics
from ..modes import PLAIN
from ..products import product
from ..run import WEIGHTS, Gradients, Run, Saved, outer, sums_to_size, transition_gradients

# What torch.compile asks before it uses a graph again.
TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)

ABI = 14
DTYPES = {torch.float32: "f32", torch.float64: "f64"}
NONE = (0,) * 15
H0 = Run._fields.index("h0")  # the first that is not x and not a weight
LARGE = 1 << 23  # bytes
LEAST_ROWS = 6  # of a product by the library
WORTH_THREADS = 1 << 21  # multiplications
# Builds, the best first, and what torch calls the CPUs that run them.
BUILDS = {"avx512": ("AVX512",), "avx2": ("AVX2", "AVX512"), "baseline": None}


# `fw_scan` of scan.h: every field is 64 bits wide, numbers first, then pointers.
_pack = struct.Struct("19q36Q").pack
_pack_step = struct.Struct("8q2d5Q").pack  # fw_step: what steps have in common
_pack_states = struct.Struct("5Qq3Q").pack  # and the rest of it
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
            reason = f"the best build that is here for this CPU ({cpu})"
            if not library.fw_has_threads():
                reason += "; it uses one thread, as its compiler had no OpenMP that it could share with torch"
            return Status(library, f"kernel ({build})", reason)
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
    """What computes the layers, "kernel (…)", "triton (…)" or "torch", and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def backend(device: str | torch.device = "cpu") -> Backend:
    """What `backend="auto"` means on this machine for tensors on a device.

    >>> print(backend())  # doctest: +SKIP
    kernel (avx2): the best build that is here for this CPU (AVX2)
    """
    device = torch.device(device)
    return Backend(STATUS.name, STATUS.reason) if device.type == "cpu" else Backend(*triton.status(device))


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


def lanes_of(run: Run, threads: int | None = None) -> int:
    """How the kernel arranges its work: so many sequences to a vector, or, for few sequences, 1: vectors of units.

    Vectors may be half as long as the CPU's, for few sequences or idle threads; the numbers are the same, to the bit.
    Sequences one by one are another matter, so that is not for the number of threads to decide.

    Args:
        threads: None for a compiled graph, which is the same for any number of them, and of steps.
    """
    (T, B, _), H, most = run.x.shape, run.W.shape[0], LANES[run.x.dtype]
    # In tenths of what a sequence costs in a full block of 16, measured: docs/speed.md.
    block, half, single = 160, 100, (22 if H < 32 else 18 if H < 48 else 13 if H <= 112 else 12) * 16 // most
    blocks, halves = -(-B // most), -(-2 * B // most)
    if single * B < min(block * blocks, half * halves):
        return 1
    if threads is None:
        threads = 1
    elif run.A0 is not None and H >= 48 and T <= 32:  # to put a large A into lanes takes longer than some steps
        return 1
    return most // 2 if half * -(-halves // threads) < block * -(-blocks // threads) else most


def saved_shapes(run: Run, dynamics: Dynamics, threads: int | None = None) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns for a backward to come; (0,): nothing."""
    T, B, features = run.x.shape
    H, K = run.W.shape[0], run.w.shape[-1]
    S, lanes, norm, n = dynamics.inner_steps, lanes_of(run, threads), run.gain is not None, -(-T // K)
    start = norm and dynamics.normalize_start
    last = T - (n - 1) * K
    pairs = (n - 1) * (K * (K - 1) // 2) + last * (last - 1) // 2
    trails, norms = S + (norm if S else start), norm * S + start
    if lanes == 1:
        vector = LANES[run.x.dtype]
        width = -(-H // vector) * vector
        numbers = (trails * T + (n - 1) * H) * width + norms * T + S * pairs
        per_sequence = -(-numbers // vector) * vector
    else:
        bands = -(-H // 4)
        matrix = 8 * bands * (bands + 1) if run.A0 is None else H * H
        per_sequence = trails * T * H + norms * T + S * pairs + (n - 1) * matrix
    kept = (-(-B // lanes), lanes, per_sequence)
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


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """The product aᵀ b of a (rows, M) and b (rows, N), faster than torch.mm is at it: `Outer` in products.h."""
    (rows, M), N = a.shape, b.shape[1]
    if M < LEAST_ROWS or N < LANES[a.dtype]:
        return outer(a, b)
    threads = torch.get_num_threads() if rows * M * N >= WORTH_THREADS else 1
    a, b, sums = a.contiguous(), b.contiguous(), a.new_empty(M, N)
    if _functions["outer", a.dtype](_pack_outer(rows, M, N, threads, a.data_ptr(), _address(b), sums.data_ptr())):
        raise MemoryError(f"not enough memory for gradients of {M} × {N} weights")
    return sums


def _fuses(x: Tensor, lanes: int) -> bool:
    """Whether the kernel takes the products with C upon itself: only with few empty lanes is it good at them.

    Shorter vectors are no reason, or the number of threads would matter to the numbers.
    """
    B = x.shape[1]
    return lanes > 1 and -B % LANES[x.dtype] <= B // 8


def forward(run: Run, dynamics: Dynamics, for_backward: bool, compiled: bool = False) -> Saved:
    """As `fastweights.memory.chunked.forward`; what is `compiled` has the same shapes for any number of threads."""
    threads = None if compiled else torch.get_num_threads()
    x, (all_hs, _, last, _, kept), inputs, u = run.x.contiguous(), saved_shapes(run, dynamics, threads), 0, None
    lanes = kept[1]
    if _fuses(x, lanes):
        inputs, hs = _address(x), _empty(x, *all_hs)
    elif run.steps is None:
        u = hs = product(x, run.C.t())  # a step's states take the place of what went into it
    else:
        rows = _Rows(x.shape[0], run.steps)
        packed = rows.pack(x, rows.count())
        u, hs = product(packed, run.C.t()), _empty(x, *all_hs)
    buffer, A = _empty(x, *kept) if for_backward else None, None if last == (0,) else x.new_empty(last)
    if compiled and buffer is not None:
        buffer.zero_()  # it has gaps, and an operator's results are the same for the same arguments
    made = hs.data_ptr(), 0 if A is None else A.data_ptr(), 0 if buffer is None else buffer.data_ptr()
    _call("forward", run, dynamics, lanes, (*made, *NONE), inputs, 0 if u is None else u.data_ptr())
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
    grad_h0 = None if h0 is None else empty(B, H)
    grad_A0 = None if A0 is None or not wanted[H0 + 1] else empty(B, H, H)
    weights: dict[str, Tensor] = {}
    if any(wanted[WEIGHTS:]):
        n, K = run.chunks, run.w.shape[-1]
        weights = {"w": zeros(n, B, K, K), "p": zeros(n, B, K), "left": zeros(n - 1, B, K), "p_left": zeros(n - 1, B)}
    assert saved.queries is not None
    lanes = saved.queries.shape[1]
    grad_x = _empty(x, *x.shape) if wanted[0] and _fuses(x, lanes) else None
    # The library does the products over all steps, too, where nothing is to be left out of them.
    enough = H >= LEAST_ROWS and min(H, x.shape[-1]) >= LANES[x.dtype]
    grad_C, grad_W, grad_W_int, inputs = None, None, None, 0
    if enough and rows is None and run.keep is run.integrate is h0 is None:
        x = x.contiguous()
        grad_C, grad_W, inputs = empty(H, x.shape[-1]), empty(H, H), _address(x)
    made = (saved.A, saved.queries, grad_hs, grad_A, grad_x, grad_u, grad_b, grad_gain, grad_shift, grad_h0, grad_A0)
    made = (*made, *(weights.values() or (None,) * 4), grad_C, grad_W)
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in made]
    _call("backward", run, dynamics, lanes, (_address(hs), *pointers), inputs)
    # The rest is matrix products over all steps at once.
    if wanted[0] and grad_x is None:
        grad_x = product(grad_u, C)
        grad_x = grad_x.view(x.shape) if rows is None else rows.unpack(grad_x)
    if grad_C is None:
        before, first = hs[: T - 1], B
        masks: list[Tensor | None] = [run.keep, run.integrate]
        if rows is not None:
            later = rows.count(1)
            x, before, first = rows.pack(x, count), rows.pack(before, later, 1), count - later
            masks = [None if mask is None else rows.pack(mask.unsqueeze(-1), count) for mask in masks]
            h0 = None if h0 is None else _Rows(1, rows.lengths).pack(h0.unsqueeze(0), first)
        grad_W, grad_W_int = transition_gradients(grad_u, masks[0], masks[1], h0, first, before.reshape(-1, H), _outer)
        grad_C = _outer(grad_u, x.reshape(-1, x.shape[-1]))
    return Gradients(
        grad_x,
        grad_C,
        grad_b,
        grad_W,
        grad_W_int,
        grad_gain,
        grad_shift,
        grad_h0,
        grad_A0,
        **(sums_to_size(run, **weights) if weights else {}),
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
        present = [tensor for tensor in weights if tensor is not None]
        where = [tensor.data_ptr() for tensor in present]
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
        present = [tensor for tensor in weights if tensor is not None]
        where, numbers = [tensor.data_ptr() for tensor in present], (torch.get_num_threads(), *numbers)
        if h is not None and A is not None and self._are_known([x, h, A, *present], where, numbers):
            new_h, new_A = torch.empty_like(h), torch.empty_like(A)
            states = _pack_states(
                x.data_ptr(), h.data_ptr(), A.data_ptr(), new_h.data_ptr(), new_A.data_ptr(), 0, 0, 0, 0
            )
        elif self._fit(x, weights, h, A):
            self._known.forget()  # `_constant` is of this call
            self._constant = self._pack(x, weights, numbers)
            if h is not None and A is not None and x.is_contiguous():
                self._known.remember([x, h, A, *present], where)
                self._bytes, self._numbers = (h.nbytes, A.nbytes), numbers
            *batch, _ = x.shape
            x, H = x.contiguous(), self.shapes[0][0]
            new_h, new_A = x.new_empty((*batch, H)), x.new_empty((*batch, H, H))
            states = _pack_states(*map(_at, (x, h, A, new_h, new_A)), 0, 0, 0, 0)
        else:
            return None
        if _steps[x.dtype](self._constant + states):
            raise MemoryError(f"not enough memory for an A of shape {tuple(new_A.shape)}")
        return new_h, new_A

    def after(
        self, past: Tensor, h: Tensor | None, x: Tensor, weights: Sequence[Tensor | None], seen: Tensor, *numbers: float
    ) -> Tensor:
        """All states since A was zero, (T + 1, B, H), after a step of x (B, I) from h, with those before it (T, B, H).

        Everything is known to fit. `seen` (T,) is how the step sees the states; `numbers` are the dynamics.
        """
        T, B, H = past.shape
        past, x, seen, h = past.contiguous(), x.contiguous(), seen.contiguous(), None if h is None else h.contiguous()
        states = past.new_empty(T + 1, B, H)
        constant = self._pack(x, weights, (torch.get_num_threads(), *numbers, 0.0, 0.0))
        places = _pack_states(x.data_ptr(), _at(h), 0, 0, 0, T, past.data_ptr(), seen.data_ptr(), states.data_ptr())
        if _steps[x.dtype](constant + places):
            raise MemoryError(f"not enough memory for a step of {B} sequences")
        return states

    def _pack(self, x: Tensor, weights: Sequence[Tensor | None], numbers: tuple[float, ...]) -> bytes:
        (H, features), (threads, S, *others) = self.shapes[0], numbers
        return _pack_step(x.numel() // features, features, H, S, threads, *others, *_addresses(weights))

    def _are_known(self, tensors: list[Tensor], where: list[int], numbers: Any) -> bool:
        x, h, A, *_ = tensors
        return (
            numbers == self._numbers
            and self._known.are(tensors, where)
            and checks.reaches(x)
            and (h.untyped_storage().nbytes(), A.untyped_storage().nbytes()) == self._bytes
        )

    def _fit(self, x: Tensor, weights: Sequence[Tensor | None], h: Tensor | None, A: Tensor | None) -> bool:
        (H, features), (*batch, last) = self.shapes[0], x.shape
        if last != features or not covers((x,)) or not checks.fit(weights, self.shapes, x.dtype):
            return False
        checks.memory("x", x)
        return checks.fit((h, A), ((*batch, H), (*batch, H, H)), x.dtype)


def _call(name: str, run: Run, dynamics: Dynamics, lanes: int, made: tuple[int, ...], x: int, u: int = 0) -> None:
    """Call the library, given the addresses of x and u, if they are needed, and of what was made for the call."""
    T, B, features = run.x.shape
    inner_steps, settling, nonlinearity, normalize_start = dynamics
    # The library never holds on to a pointer, and this list holds on to the tensors until it returns.
    given, pointers, gone = [], [], False
    for tensor in run[1:]:
        if tensor is None:
            pointers.append(0)
            continue
        tensor = tensor.contiguous()
        given.append(tensor)
        pointers.append(place := tensor.data_ptr())
        gone = gone or place == 0
    if gone:  # empty, or freed
        checks.still_there(run[1:H0])
    strides = [0] * 8  # of the weights of the past, which are the same for all chunks, or all sequences, or not
    for place, tensor in enumerate(run[WEIGHTS : WEIGHTS + 4]):
        if tensor is not None and (tensor.shape[0] > 1 or tensor.shape[1] > 1):
            n, sequences, *rest = tensor.shape
            size = math.prod(rest)
            strides[2 * place] = sequences * size if n > 1 else 0
            strides[2 * place + 1] = size if sequences > 1 else 0
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
        lanes,
        x,
        *pointers,
        u,
        *made,
    )
    if _functions[name, run.x.dtype](arguments):
        raise MemoryError(f"not enough memory for {T} steps of {B} sequences with {run.W.shape[0]} units")
