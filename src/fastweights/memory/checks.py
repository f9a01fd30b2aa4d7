"""Says what is wrong with an argument before any work is done: its name, what it was, what it should be."""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from .state import FastWeightsState, autocasting


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


def floating(name: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and not dtype.is_floating_point:
        raise TypeError(f"{name} must be a real floating-point dtype, got {dtype}")


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


def _autocasts(x: Tensor, like: Tensor) -> bool:
    small = (torch.float16, torch.bfloat16, torch.float32)
    return autocasting(like.device) and x.dtype in small and like.dtype in small


def state(value: object, shape: tuple[int, ...], like: Tensor) -> None:
    """A state whose `h` has this shape, of the weights' dtype and device."""
    if not isinstance(value, FastWeightsState):
        raise TypeError(f"state must be a FastWeightsState(h, A) or None, got {type(value).__name__}")
    if value.h.shape != shape:
        raise ValueError(f"state must have h of shape {shape}, got {tuple(value.h.shape)}")
    if value.h.dtype != like.dtype or value.h.device != like.device:
        raise ValueError(
            f"state must be {like.dtype} on {like.device}, as the weights are; got {value.h.dtype} on {value.h.device}"
        )


def lengths(value: object, T: int, shape: tuple[int, ...], device: torch.device) -> None:
    """Integers from 0 to `T`, in `shape`: (B,), or () for a single sequence."""
    if not isinstance(value, Tensor):
        raise TypeError(f"lengths must be a tensor of integers, got {type(value).__name__}")
    if value.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise TypeError(f"lengths must be a tensor of integers, got {value.dtype}")
    if value.shape != shape:
        raise ValueError(f"lengths must have shape {shape}, one per sequence; got {tuple(value.shape)}")
    if value.device != device:
        raise ValueError(f"lengths must be on {device}, where x is; got {value.device}")
    if _readable(value) and value.numel():
        low, high = map(int, value.aminmax())
        if low < 0 or high > T:
            raise ValueError(f"lengths must be from 0 to {T} (the steps of x), got {low} to {high}")


def control(
    name: str, value: object, shape: tuple[int, ...], device: torch.device, *, flags: bool, batch: int | None = None
) -> None:
    """A per-step signal: bool for flags (reset, wipe, integrate), bool or a number in [0, 1] for amounts (store, read).

    The dimension `batch` of its shape may be 1, for all sequences.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dtype != torch.bool and (flags or not value.is_floating_point()):
        raise TypeError(f"{name} must be {'bool' if flags else 'floating-point or bool'}, got {value.dtype}")
    for_all = tuple(1 if place == batch else size for place, size in enumerate(shape))
    if value.shape not in (shape, for_all):
        either = "" if batch is None else f" or {for_all}, one per step"
        raise ValueError(f"{name} must have shape {shape}, one per step and sequence{either}; got {tuple(value.shape)}")
    if value.device != device:
        raise ValueError(f"{name} must be on {device}, where x is; got {value.device}")
    if not flags and value.dtype != torch.bool and _readable(value) and not ((value >= 0) & (value <= 1)).all():
        raise ValueError(f"{name} must be from 0 to 1, got {float(value.min())} to {float(value.max())}")


def integrate(value: object, possible: bool) -> None:
    """A signal that only a layer with an integration matrix has a use for."""
    if value is not None and not possible:
        raise ValueError("integrate must be None: this layer was made without integration=True")


def _readable(value: Tensor) -> bool:
    """Whether looking at the numbers is possible: not while tracing, inside vmap, or without data."""
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return not transformed and value.device.type != "meta"
