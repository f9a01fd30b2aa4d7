"""What torch is doing at the moment: transforms, traces and modes that have to see every operation; autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack
from torch.autograd import forward_ad

PLAIN = {Tensor, nn.Parameter}  # types of tensors that are nothing but numbers in memory


def stored(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are in a storage of its own, unlike those of fake and distributed ones."""
    return type(tensor) in PLAIN or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__


def transformed() -> bool:
    """Whether a transform of `torch.func`, or a derivative in forward mode, is under way."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def batched(tensor: Tensor) -> bool:
    """Whether it is many tensors at once, as `torch.autograd.grad(…, is_grads_batched=True)` makes them."""
    return not torch._C._has_storage(tensor)


def compiled() -> bool:
    """Whether torch.compile, which takes operators as they are, traces what it will call; not torch.export."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting() and not transformed()


def exporting() -> bool:
    """Whether what happens is recorded, for use without this code: by torch.export, torch.onnx.export or jit.trace."""
    return torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None


def watched() -> bool:
    """Whether torch is to see every operation, so that nothing may be computed, or kept, behind its back.

    While it compiles or traces, inside a transform, and in a mode such as that of fake tensors.
    """
    # As `transformed`, spelt out: every call asks.
    return (
        torch.compiler.is_compiling()
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack() > 0
        or _get_tracing_state() is not None
    )


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for this kind of device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


_nothing = nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, where it is on: the recurrence and its memory keep the dtype of the weights."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else _nothing
