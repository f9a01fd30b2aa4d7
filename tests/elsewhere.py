"""A device for tests where there is no other: it calls itself "meta", but its tensors have numbers.

Each is computed on the CPU, in a tensor that only the mode sees. As on a GPU, tensors of two devices do not mix, and
dropout draws from a generator of the device's own. Whatever goes from here to there or back is counted.
"""

import sys
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from fastweights.training import devices

NAME = "cuda"  # by which commands know it
DEVICE = torch.device("meta")
HERE = torch.device("cpu")
aten = torch.ops.aten


class There(torch.Tensor):
    """A tensor on the device."""

    @staticmethod
    def __new__(cls, numbers):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        made.numbers = numbers
        return made

    def __repr__(self, **options):
        return f"There({self.numbers})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} outside of `with Elsewhere()`")


class Elsewhere(TorchDispatchMode):
    """The device, while it is there.

    Attributes:
        crossed: how often something was "sent" there, or "fetched" from there, for which the device is waited for.
    """

    def __init__(self):
        super().__init__()
        self.crossed = Counter()
        self.generator = torch.Generator()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        there = [each for each in tensors if isinstance(each, There)]
        to = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if not there and to != DEVICE:
            return function(*args, **kwargs)
        if function is aten._local_scalar_dense.default:
            self.crossed["fetched"] += 1
            return function(args[0].numbers)
        if to is not None:
            kwargs["device"] = HERE
        inner_args, inner_kwargs = tree_map(_numbers, (args, kwargs))
        if function in (aten._to_copy.default, aten.copy_.default):
            copies = function is aten.copy_.default
            source, target = args[1 if copies else 0].device, args[0].device if copies else to or args[0].device
            if source != target:
                self.crossed["sent" if target == DEVICE else "fetched"] += 1
            found = function(*inner_args, **inner_kwargs)
            return args[0] if copies else There(found) if target == DEVICE else found
        for each in tensors:
            if not isinstance(each, There) and each.dim():
                raise RuntimeError(
                    f"{function}: all tensors must be on one device, one {tuple(each.shape)} is on the CPU"
                )
        takes = {argument.name for argument in function._schema.arguments}
        if "generator" in takes and inner_kwargs.get("generator") is None:
            inner_kwargs["generator"] = self.generator
        changed = {id(each.numbers): each for each in there}

        def outer(value):
            if not isinstance(value, torch.Tensor):
                return value
            return changed[id(value)] if id(value) in changed else There(value)

        return tree_map(outer, function(*inner_args, **inner_kwargs))


def _numbers(value):
    return value.numbers if isinstance(value, There) else value


@contextmanager
def elsewhere(patch):
    """The device, by the name `NAME`, for all of fastweights."""
    device, find, make_generator = Elsewhere(), devices.find, devices.make_generator
    optimizers = sys.modules["torch.optim.optimizer"]
    seed, fused = torch.manual_seed, optimizers._get_fused_kernels_supported_devices

    def manual_seed(number):
        device.generator.manual_seed(number)
        return seed(number)

    module = SimpleNamespace(get_rng_state=device.generator.get_state, set_rng_state=device.generator.set_state)
    patch.setattr(torch, "get_device_module", lambda device: module)
    patch.setattr(torch, "manual_seed", manual_seed)
    patch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: [*fused(), DEVICE.type])
    patch.setattr(devices, "find", lambda name: DEVICE if name == NAME else find(name))
    patch.setattr(devices, "make_generator", lambda device, seed: make_generator(HERE, seed))
    with device:
        yield device
