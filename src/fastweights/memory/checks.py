"""Says what is wrong with an argument before any work is done: its name, what it was, what it should be."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .modes import PLAIN, autocasting, stored, watched

WEIGHTS = ("weight_ih", "bias", "weight_hh", "weight_integration", "norm_weight", "norm_bias")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def number(name: str, value: object, low: float, high: float = math.inf, *, open_ends: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    inside = low < value < high if open_ends else low <= value <= high
    if not inside or not math.isfinite(value):
        above = "" if math.isinf(high) else f" and at most {high:g}" if not open_ends else f" and below {high:g}"
        raise ValueError(f"{name} must be {'above' if open_ends else 'at least'} {low:g}{above}, got {value}")


def choice(name: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def floating(name: str, dtype: object) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"{name} must be a real floating-point torch.dtype, got {dtype!r}")


def memory(name: str, tensor: Tensor) -> None:
    """A dense tensor whose numbers are there: its storage may have been freed."""
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got one with the layout {tensor.layout}")
    if not stored(tensor) or watched() or (tensor.is_contiguous() and reaches(tensor)):
        return
    needed, room = 0, tensor.untyped_storage().nbytes()
    if tensor.numel():
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        needed = int(tensor.storage_offset() + reach) * tensor.element_size()
    if room < needed:
        raise ValueError(f"{name} must have its {needed} bytes in memory, its storage has {room}: it was freed or cut")


def reaches(value: Tensor) -> bool:
    """Whether the numbers of a contiguous tensor are within its memory, which may have been freed or cut."""
    storage = value.untyped_storage()
    end = value.storage_offset() * value.itemsize + value.nbytes
    return end <= storage.nbytes()


def fit(values: Sequence[Tensor | None], shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> bool:
    """Whether all are plain numbers on the CPU, of these shapes, each with its memory to itself, as is usual.

    Not to be asked while torch watches (`modes.watched`).
    """
    for value, shape in zip(values, shapes, strict=True):
        if value is not None and (
            type(value) not in PLAIN
            or value.dtype is not dtype
            or value.shape != shape
            or not value.is_cpu
            or value.is_neg()
            or not value.is_contiguous()
            or value.untyped_storage().nbytes() != value.nbytes
        ):
            return False
    return True


def still_there(weights: Sequence[Tensor | None]) -> None:
    """Whether the memory of the weights is. What shards them frees it, and may have missed that a backward begins."""
    for name, weight in zip(WEIGHTS, weights, strict=False):
        if weight is not None:
            memory(name, weight)


def weights(values: Sequence[Tensor | None], H: int, features: int, suffix: str) -> list[Any]:
    """`values` in the order of `WEIGHTS`, if they fit together; one number for all units becomes H of them."""
    matrices = {"weight_ih": (H, features), "weight_hh": (H, H), "weight_integration": (H, H)}
    like, found = values[2], []
    assert like is not None
    for name, value in zip(WEIGHTS, values, strict=True):
        if value is not None:
            shape = matrices.get(name, (H,))
            if value.shape != shape:
                if name in matrices or value.numel() != 1 or value.dim() > 1:
                    raise ValueError(f"{name}{suffix} must have shape {shape}, got {tuple(value.shape)}")
                value = value.expand(shape)
            if value.dtype != like.dtype or value.device != like.device or not value.is_floating_point():
                other = f"{like.dtype} on {like.device}, as weight_hh{suffix} is"
                raise ValueError(f"{name}{suffix} must be {other}; got {value.dtype} on {value.device}")
            memory(name + suffix, value)
        found.append(value)
    return found


def scalar(name: str, value: Tensor, like: Tensor) -> None:
    """A learned number, of the weights' dtype and device."""
    if value.numel() != 1 or value.dtype != like.dtype or value.device != like.device:
        got = f"shape {tuple(value.shape)}, {value.dtype} on {value.device}"
        raise ValueError(f"{name} must have one number, {like.dtype} on {like.device}, as the weights are; got {got}")
    memory(name, value)


def inputs(x: object, sizes: Collection[int], features: int, like: Tensor) -> None:
    """`x` is a tensor with one of `sizes` dimensions, that many features, and of the weights' dtype and device."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.dim() not in sizes:
        raise ValueError(f"x must have {' or '.join(map(str, sizes))} dimensions, got shape {tuple(x.shape)}")
    if x.shape[-1] != features:
        raise ValueError(f"x must have {features} features (input_size) in its last dimension, got {x.shape[-1]}")
    if x.device != like.device:
        raise ValueError(f"x must be on {like.device}, where the weights are; got {x.device}")
    if x.dtype != like.dtype and not _autocasts(x, like):
        raise TypeError(f"x must be {like.dtype}, as the weights are; got {x.dtype}")
    memory("x", x)


def packed(x: PackedSequence, features: int, like: Tensor) -> None:
    """A `PackedSequence` whose parts fit together, with data as of `inputs`."""
    inputs(x.data, (2,), features, like)
    sizes, *orders = x[1:]
    if not isinstance(sizes, Tensor) or sizes.dim() != 1 or sizes.dtype != torch.int64 or not sizes.is_cpu:
        raise ValueError("x must have batch_sizes of dimension 1, int64, on the CPU")
    memory("x.batch_sizes", sizes)
    named = list(zip(("sorted_indices", "unsorted_indices"), orders, strict=True))
    for name, order in named:
        if order is not None:
            if not isinstance(order, Tensor):
                raise TypeError(f"x must have {name} that are a tensor or None, got {type(order).__name__}")
            memory(f"x.{name}", order)
    if not _readable(sizes):
        return
    counts = sizes.tolist()
    if not counts or min(counts) < 1 or sorted(counts, reverse=True) != counts or sum(counts) != x.data.shape[0]:
        raise ValueError(f"x must have batch_sizes that fall, and add up to its {x.data.shape[0]} steps; got {counts}")
    for name, order in named:
        if order is not None and (order.dtype != torch.int64 or sorted(order.tolist()) != list(range(counts[0]))):
            raise ValueError(f"x must have {name} that order its {counts[0]} sequences, got {order.tolist()}")


def _autocasts(x: Tensor, like: Tensor) -> bool:
    small = (torch.float16, torch.bfloat16, torch.float32)
    return autocasting(like.device) and x.dtype in small and like.dtype in small


def state(value: Any, shape: tuple[int, ...], like: Tensor) -> None:
    """A state whose `h` has this shape, of the weights' dtype and device."""
    for name, part, wanted in (("h", value.h, shape), ("A", value.A, (*shape, shape[-1]))):
        if not isinstance(part, Tensor):
            raise TypeError(f"state must have a tensor {name}, got {type(part).__name__}")
        if part.shape != wanted:
            raise ValueError(f"state must have {name} of shape {wanted}, got {tuple(part.shape)}")
        if part.dtype != like.dtype or part.device != like.device:
            raise ValueError(
                f"state must be {like.dtype} on {like.device}, as the weights are; got {part.dtype} on {part.device}"
            )
        memory(f"state.{name}", part)


def lengths(value: object, T: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Integers from 0 to `T`, in `shape`, (B,), or () for a single sequence, as a tensor."""
    if isinstance(value, list | tuple) and all(type(each) is int for each in value):
        value = torch.tensor(value, device=device, dtype=torch.int64)
    if not isinstance(value, Tensor) or value.dtype not in INTEGERS:
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"lengths must be a tensor or a list of integers, got {kind}")
    if value.shape != shape:
        raise ValueError(f"lengths must have shape {shape}, one per sequence; got {tuple(value.shape)}")
    if value.device != device:
        raise ValueError(f"lengths must be on {device}, where x is; got {value.device}")
    memory("lengths", value)
    if _readable(value) and value.numel():
        low, high = map(int, value.aminmax())
        if low < 0 or high > T:
            raise ValueError(f"lengths must be from 0 to {T} (the steps of x), got {low} to {high}")
    return value


def control(
    name: str, value: object, shape: tuple[int, ...], device: torch.device, *, flags: bool, batch: int | None = None
) -> Tensor:
    """A per-step signal: 0 and 1, or bool, for flags (reset, wipe, integrate); from 0 to 1 for store and read.

    The dimension `batch` of its shape may be 1, for all sequences, and there may be another 1 after the last. Flags
    are returned as bool, without that.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if not (value.dtype == torch.bool or value.is_floating_point() or (flags and value.dtype in INTEGERS)):
        kinds = "bool, integer or floating-point" if flags else "floating-point or bool"
        raise TypeError(f"{name} must be {kinds}, got {value.dtype}")
    for_all = tuple(1 if place == batch else size for place, size in enumerate(shape))
    if value.dim() == len(shape) + 1 and value.shape[-1] == 1:
        value = value.squeeze(-1)
    if value.shape not in (shape, for_all):
        either = "" if batch is None else f" or {for_all}, one per step"
        raise ValueError(f"{name} must have shape {shape}, one per step and sequence{either}; got {tuple(value.shape)}")
    if value.device != device:
        raise ValueError(f"{name} must be on {device}, where x is; got {value.device}")
    memory(name, value)
    if value.dtype != torch.bool and value.numel() and _readable(value):
        fits = (value == 0) | (value == 1) if flags else (value >= 0) & (value <= 1)
        if not fits.all():
            low, high = float(value.min()), float(value.max())
            raise ValueError(f"{name} must be {'0 or 1' if flags else 'from 0 to 1'}, got {low} to {high}")
    return value != 0 if flags else value


def integrate(value: object, possible: bool) -> None:
    """A signal that only a layer with an integration matrix has a use for."""
    if value is not None and not possible:
        raise ValueError("integrate must be None: this layer was made without integration=True")


def _readable(value: Tensor) -> bool:
    """Whether looking at the numbers is possible, not while tracing or inside vmap, and no GPU has to be waited for."""
    return not watched() and value.is_cpu and type(value) in PLAIN
