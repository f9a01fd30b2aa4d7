"""Changes of tensors that went into a call, or came out of it, after the call: nothing may follow from them.

    python tests/aliasing.py [--cases 20000] [--seed 0]

A call, looks at the state, a backward and a next step; at a moment between them one tensor is changed, in one of the
ways that PyTorch has. Then everything is bit by bit as without the change, or there is an exception. What is changed in
the new state itself counts from the next step on: as if the step began from a state of changed copies.
"""

import argparse
import ctypes
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from fastweights import FastWeights, FastWeightsCell, FastWeightsState
from fastweights.memory import kernel

SIGNALS = ("reset", "wipe", "store", "read", "integrate")
PACKED = ("batch_sizes", "sorted_indices", "unsorted_indices")
TARGETS = ("x", *PACKED, "lengths", *SIGNALS, "h", "A", "output", "new h", "new A")
MOMENTS = ("call", "first look", "second look", "step", "after the step")
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


class UnchangeableError(Exception):
    """This tensor cannot be changed in this way: bfloat16 in NumPy, say."""


# Ways to change a tensor


def _other(value: Any) -> Any:
    """Another number, of a kind that a layer takes."""
    return 1 - value if 0 <= value <= 1 and value != 0.5 else 0.25 * value + 0.375


def _write(target: Any, everywhere: bool, rng: random.Random) -> None:
    """Into a tensor or an array."""
    if not target.size if isinstance(target, np.ndarray) else not target.numel():
        raise UnchangeableError
    if everywhere:
        flags = target.dtype in (torch.bool, np.bool_)
        target[...] = ~target if flags else 1 - target
    else:
        place = tuple(rng.randrange(size) for size in target.shape)
        value = target[place].item()
        target[place] = not value if isinstance(value, bool) else _other(value)


def _array(tensor: Tensor) -> Any:
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise UnchangeableError from error


def _dlpack(tensor: Tensor) -> Any:
    try:
        array = np.from_dlpack(tensor.detach())
    except (TypeError, RuntimeError, BufferError) as error:
        raise UnchangeableError from error
    array = array.view()
    try:
        array.flags.writeable = True
    except ValueError as error:
        raise UnchangeableError from error
    return array


def _pointer(tensor: Tensor) -> Any:
    """Its memory, as a library in C sees it."""
    if not tensor.is_contiguous() or not tensor.numel():
        raise UnchangeableError
    return tensor, (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())


def _by_pointer(view: Any, everywhere: bool, rng: random.Random) -> None:
    tensor, memory = view
    size = tensor.itemsize
    for place in range(len(memory) // size) if everywhere else [rng.randrange(len(memory) // size)]:
        # The lowest bits of a flag; of other numbers a byte that counts.
        at = place * size + (0 if not tensor.is_floating_point() else size - 1)
        memory[at] ^= 1 if not tensor.is_floating_point() else 0x80
        if tensor.is_floating_point():
            memory[at - 1] ^= 0x10


def _by_storage(tensor: Tensor, everywhere: bool, rng: random.Random) -> None:
    storage = tensor.untyped_storage()
    if not len(storage):
        raise UnchangeableError
    if everywhere and tensor.dtype is not torch.bool:
        storage.fill_(rng.choice([0, 1, 63]))
    elif tensor.dtype is torch.bool:
        place = rng.randrange(len(storage))
        storage[place] = 1 - storage[place]
    else:
        other = torch.empty(0, dtype=tensor.dtype).set_(storage)
        _write(other, everywhere, rng)


class Way(NamedTuple):
    """A view of a tensor, taken at one moment, through which it is changed at another."""

    view: Callable[[Tensor], Any]
    early: bool  # taken before the call, or as soon as the tensor is there
    write: Callable[[Any, bool, random.Random], None] = _write


def _data(tensor: Tensor) -> Tensor:
    return tensor.data


WAYS = {
    "operation": Way(lambda tensor: tensor, False),
    "data": Way(_data, False),
    "early data": Way(_data, True),
    "numpy": Way(_array, False),
    "early numpy": Way(_array, True),
    "dlpack": Way(_dlpack, False),
    "early dlpack": Way(_dlpack, True),
    "pointer": Way(_pointer, False, _by_pointer),
    "early pointer": Way(_pointer, True, _by_pointer),
    "storage": Way(lambda tensor: tensor, False, _by_storage),
}


# What is called


class Structure(NamedTuple):
    """A module with one kind of call, which is compiled once."""

    kind: type
    backend: str
    options: tuple[tuple[str, Any], ...]
    signals: tuple[str, ...]
    carried: bool
    mode: str
    lazy: bool  # the state comes out of the graph as it is, and not its h and A


_SMALL = (("num_layers", 1),)
_LARGE = (("num_layers", 2), ("bidirectional", True), ("learn_decay", True), ("learn_rate", True))
COMPILED = [
    Structure(FastWeights, "auto", _SMALL, (), False, "grad", False),
    Structure(FastWeights, "auto", _SMALL, ("lengths", "reset", "store"), True, "grad", True),
    Structure(FastWeights, "torch", _SMALL, ("lengths", "wipe", "read"), True, "grad", False),
    Structure(FastWeights, "auto", _LARGE, ("lengths",), True, "grad", False),
    Structure(FastWeights, "torch", _LARGE, (), False, "no_grad", True),
    Structure(FastWeights, "auto", _SMALL, ("lengths",), True, "no_grad", True),
    Structure(FastWeights, "auto", _SMALL, (), True, "inference", False),
    Structure(FastWeightsCell, "auto", (), ("reset", "store"), True, "grad", False),
    Structure(FastWeightsCell, "auto", (), (), True, "no_grad", True),
    Structure(FastWeightsCell, "torch", (), (), True, "grad", True),
]
_graphs: dict[Structure, tuple[torch.nn.Module, Callable[..., Any]]] = {}


def _compiled(structure: Structure) -> tuple[torch.nn.Module, Callable[..., Any]]:
    if structure not in _graphs:
        module = structure.kind(3, 6, backend=structure.backend, **dict(structure.options))
        _roughen(module)

        def run(x: Tensor, state: Any, signals: dict[str, Tensor]) -> Any:
            output, state = _results(module(x, state, **signals))
            return (output, state) if structure.lazy else (output, state.h, state.A)

        _graphs[structure] = module, torch.compile(run, dynamic=True, backend="aot_eager")
    return _graphs[structure]


def _results(found: Any) -> tuple[Any, FastWeightsState]:
    return (None, found) if isinstance(found, FastWeightsState) else found


@torch.no_grad()
def _roughen(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))


class Case:
    """A call, its arguments, and what is changed when and how, all by one seed."""

    def __init__(
        self,
        seed: int,
        targets: Sequence[str] = TARGETS,
        ways: Sequence[str] = tuple(WAYS),
        compiled: float = 0.15,
        structures: Sequence[Structure] = COMPILED,
    ) -> None:
        self.rng = rng = random.Random(seed)
        torch.manual_seed(seed)
        self.seed = seed
        structure = rng.choice(structures) if rng.random() < compiled else None
        self.wide = structure is None and rng.random() < 0.05
        self.function: Callable[..., Any] | None = None
        self.mode = structure.mode if structure else rng.choice(["grad", "grad", "no_grad", "inference"])
        if structure:
            self.module, self.function = _compiled(structure)
            self.dtype = torch.float32
        else:
            self.module = self._module()
        self.layer = isinstance(self.module, FastWeights)
        self.masters = self._arguments(structure)
        self.looks = rng.choice([("h", "A"), ("A", "h"), ("h", "A"), ("h",), ("A",), ()])
        self.through_time = rng.random() < 0.5  # the backward comes after the next step, and goes through it
        self.next_x = torch.randn(*self.next_shape, self.module.input_size, dtype=self.dtype)
        self.way = rng.choice(ways)
        self.everywhere = rng.random() < 0.6
        self.writes = rng.randrange(1 << 30)
        present = [t for t in targets if t in self.masters or t in ("new h", "new A") or (t == "output" and self.layer)]
        self.target = rng.choice(present) if present else None
        self.moment = rng.choice(MOMENTS)

    def _module(self) -> torch.nn.Module:
        rng = self.rng
        self.dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.float64, torch.bfloat16])
        options: dict[str, Any] = {
            "inner_steps": rng.choice([0, 1, 1, 2]),
            "layer_norm": rng.random() < 0.8,
            "normalize_start": rng.random() < 0.3,
            "nonlinearity": rng.choice(["relu", "tanh"]),
            "settling": rng.choice(["sustained", "identity"]),
            "integration": rng.random() < 0.2,
            "bias": rng.random() < 0.8,
            "backend": rng.choice(["auto", "auto", "torch"]),
            "dtype": self.dtype,
        }
        if not self.wide:
            options |= {"learn_decay": rng.random() < 0.2, "learn_rate": rng.random() < 0.2}
        sizes = rng.randint(1, 5), 64 if self.wide else rng.choice([1, 3, 8, 17])
        kind: type = rng.choice([FastWeights, FastWeights, FastWeightsCell])
        if kind is FastWeights and not self.wide:
            options |= {
                "batch_first": rng.random() < 0.3,
                "bidirectional": rng.random() < 0.25,
                "num_layers": rng.choice([1, 1, 2]),
            }
        module = kind(*sizes, **options)
        _roughen(module)
        if kind is FastWeights and rng.random() < 0.4:
            module._chunk_size = rng.randint(2, 4)
        return module

    def _arguments(self, structure: Structure | None) -> dict[str, Tensor]:
        """By name, as they are before the call; every run makes copies of them."""
        rng, module, dtype, layer = self.rng, self.module, self.dtype, self.layer
        batch: tuple[int, ...] = rng.choice([(), (1,), (3,), (3,), (9,)])
        T = rng.choice([1, 1, 2, 5, 9])
        if structure:
            batch, T = (rng.randint(2, 5),), rng.randint(2, 9)
        elif self.wide:
            batch, T = (64,), 1
        first = layer and module.batch_first and bool(batch)
        steps = (batch if first else ()) + ((T,) if layer else ()) + (() if first else batch)
        self.next_shape = tuple(1 if layer and place == int(first) else size for place, size in enumerate(steps))
        found = {"x": torch.randn(*steps, module.input_size, dtype=dtype)}
        rows = (len(module._suffixes),) if layer else ()
        if structure.carried if structure else rng.random() < 0.6:
            shape = (*rows, *batch, module.hidden_size)
            found |= {"h": torch.rand(shape, dtype=dtype), "A": torch.rand(*shape, shape[-1], dtype=dtype)}
        for name in SIGNALS:
            wanted = name in structure.signals if structure else not self.wide and rng.random() < 0.2
            if wanted and (name != "integrate" or module.integration):
                flags = torch.rand(steps) < 0.4
                found[name] = flags if name not in ("store", "read") else torch.rand(steps, dtype=dtype)
        self.packed = False
        if "lengths" in structure.signals if structure else layer and not self.wide and rng.random() < 0.4:
            lengths = torch.randint(1, T + 1, batch)
            if batch and not structure and rng.random() < 0.5 and not any(name in found for name in SIGNALS):
                self.packed = True
                packed = pack_padded_sequence(found["x"], lengths, first, enforce_sorted=False)
                found |= dict(zip(("x", *PACKED), packed, strict=True))
            else:
                found["lengths"] = lengths
        self.learned = structure is not None or rng.random() < 0.5  # gradients of what goes in are wanted, too
        self.layout = "plain" if structure else rng.choice(["plain", "plain", "plain", "stepped", "part", "inference"])
        self.pair = structure is not None or rng.random() < 0.5  # the state goes in as (h, A)
        self.went_before = not structure and not self.packed and not self.wide and "h" in found and rng.random() < 0.3
        return found

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        if self.layout == "inference":
            with torch.inference_mode():
                return tensor.clone()
        if self.layout == "stepped" and name in ("x", "h", "A", "store", "read"):
            tensor = torch.stack((tensor, tensor), -1)[..., 0]
        elif self.layout == "part":
            tensor = torch.cat((tensor.flatten(), tensor.flatten()))[tensor.numel() :].view(tensor.shape)
        else:
            tensor = tensor.clone()
        if self.learned and self.mode == "grad" and tensor.is_floating_point():
            tensor.requires_grad_()
        return tensor

    # A run

    def run(self, change: str) -> dict[str, Tensor]:
        """What came of it. `change`: "none", "in place", or "copies": of the new state, to go on from."""
        self.changed = False
        with MODES[self.mode]():
            return self._run(change)

    def _run(self, change: str) -> dict[str, Tensor]:
        tensors = {name: self._copy(name, tensor) for name, tensor in self.masters.items()}
        leaves = [t for t in (*tensors.values(), *self.module.parameters()) if t.requires_grad]
        self.views: dict[str, Any] = {}
        if change == "in place":
            for name, tensor in tensors.items():
                self._look_early(name, tensor)
        output, state = self._call(tensors)
        if output is not None:
            data = output.data if isinstance(output, PackedSequence) else output
            tensors["output"] = data
            if change == "in place":
                self._look_early("output", data)
        found: dict[str, Tensor] = {}
        if output is not None:
            found["output"] = data.clone()

        def look(name: str) -> None:
            if "new " + name not in found:
                part = getattr(state, name)
                found["new " + name] = part.clone()
                if change == "in place":
                    self._look_early("new " + name, part)

        def now(moment: str) -> None:
            nonlocal state
            if moment != self.moment or change == "none" or self.target is None:
                return
            if not self.target.startswith("new "):
                self._change(tensors[self.target])
                return
            name = self.target.removeprefix("new ")
            look(name)
            if change == "in place":
                self._change(getattr(state, name))
            else:
                parts = {"h": state.h.clone(), "A": state.A.clone()}
                self._change(parts[name])
                state = FastWeightsState(**parts)

        def backward() -> None:
            if self.mode == "grad" and any(part.requires_grad for part in found.values()):
                loss = sum(part.float().square().sum() for part in found.values() if part.requires_grad)
                for leaf, grad in enumerate(torch.autograd.grad(loss, leaves, allow_unused=True)):
                    if grad is not None:
                        found[f"gradient {leaf}"] = grad

        if self.target is not None and self.target.startswith("new "):
            wanted = self.target.removeprefix("new ")
        else:
            wanted = None
        now("call")
        for place, name in enumerate((*self.looks, None, None)[:2]):
            if name is not None:
                look(name)
            now(MOMENTS[1 + place])
        if not self.through_time:
            backward()
        now("step")
        next_output, next_state = _results(self.module(self.next_x.clone(), state))
        now("after the step")
        if next_output is not None:
            found["next output"] = next_output.clone()
        found |= {"next h": next_state.h.clone(), "next A": next_state.A.clone()}
        if self.through_time:
            backward()
        for name in ("h", "A"):
            if name != wanted:
                look(name)
        return {name: part.detach() for name, part in found.items()}

    def _call(self, tensors: dict[str, Tensor]) -> tuple[Any, FastWeightsState]:
        x: Any = tensors["x"]
        if self.packed:
            x = PackedSequence(x, *(tensors[name] for name in PACKED))
        state: Any = None
        if "h" in tensors:
            state = (tensors["h"], tensors["A"]) if self.pair else FastWeightsState(tensors["h"], tensors["A"])
        if self.went_before:  # and what went in is a state that another call has left
            _, state = _results(self.module(self.next_x.clone(), state))
            tensors |= {"h": state.h, "A": state.A}
        signals = {name: tensors[name] for name in (*SIGNALS, "lengths") if name in tensors}
        if self.function is None:
            return _results(self.module(x, state, **signals))
        output, *rest = self.function(x, state, signals)
        return output, rest[0] if len(rest) == 1 else FastWeightsState.made_of(*rest)

    def _look_early(self, name: str, tensor: Tensor) -> None:
        way = WAYS[self.way]
        if name == self.target and way.early:
            self.views[name] = way.view(tensor)

    def _change(self, tensor: Tensor) -> None:
        way = WAYS[self.way]
        rng = random.Random(self.writes)
        mode: AbstractContextManager[Any] = torch.inference_mode() if tensor.is_inference() else torch.no_grad()
        with mode:
            view = self.views.get(self.target or "")
            try:
                if view is None:
                    view = way.view(tensor)
                way.write(view, self.everywhere, rng)
            except (RuntimeError, ValueError, TypeError) as error:
                raise UnchangeableError(str(error)) from error
        self.changed = True

    def __str__(self) -> str:
        call = f"{self.module}, {self.dtype}, {self.mode}, {'compiled' if self.function else 'eager'}, {self.layout}"
        state = f"{'carried' if 'h' in self.masters else 'no'} state, looks at {self.looks}"
        return f"{call}, {state}: {self.target} by {self.way} ({self.moment}), through time {self.through_time}"


def _parted(found: dict[str, Tensor], expected: dict[str, Tensor], near: float) -> str:
    """What is different, and by how much; "": nothing."""
    if found.keys() != expected.keys():
        return f"{sorted(found.keys() ^ expected.keys())} are there or not"
    for name, part in found.items():
        other = expected[name]
        same = torch.equal(part, other) or (
            torch.allclose(part.double(), other.double(), near, near, equal_nan=True)
            if near
            else torch.equal(part.isnan(), other.isnan()) and torch.equal(part.nan_to_num(), other.nan_to_num())
        )
        if not same:
            return f"{name} by {(part.double() - other.double()).abs().max():.2g}"
    return ""


NEAR = {torch.float64: 1e-8, torch.float32: 1e-2, torch.bfloat16: 0.1}


def one(case: Case) -> tuple[str, str]:
    """What became of it, and what is different."""
    if case.target is None:
        return "nothing to change", ""
    own = case.target.startswith("new ")
    # A state of copies is perhaps read in the other form of the equations.
    near = NEAR[case.dtype] if own and case.moment != "after the step" else 0.0
    try:
        expected = case.run("copies" if own else "none")
        found = case.run("in place")
    except UnchangeableError:
        return "cannot be changed so", ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}", ""
    difference = _parted(found, expected, near)
    return ("different" if difference else "the same"), difference


def run(
    first: int, count: int, report: Callable[[int, Counter[str]], None] | None = None, **kinds: Any
) -> Counter[str]:
    """What became of so many cases; those that are different are printed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 100  # for all structures are calls of one function
    total: Counter[str] = Counter()
    for seed in range(first, first + count):
        case = Case(seed, **kinds)
        became, difference = one(case)
        total[became] += 1
        if difference:
            print(f"seed {seed}: {difference}: {case}", file=sys.stderr, flush=True)
        if report is not None:
            report(seed + 1 - first, total)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(kernel.backend())
    start = time.monotonic()

    def report(done: int, total: Counter[str]) -> None:
        if done % 500 == 0 or done == args.cases:
            left = (time.monotonic() - start) / done * (args.cases - done)
            print(f"{done} of {args.cases} cases, {left:.0f} s left, {dict(total.most_common())}", flush=True)

    sys.exit(bool(run(args.seed, args.cases, report)["different"]))


if __name__ == "__main__":
    main()
