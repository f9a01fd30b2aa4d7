"""Calls of layer, cell and state with arguments that do not fit: exceptions are fine, crashes and garbage are not.

    python tests/malformed.py [--calls 100000] [--seed 0]

Every call starts out right; then up to three of its tensors (weights and states included) are made wrong in dtype,
shape, rank, strides, device, storage, type or values. A call that is taken must give what the torch path gives.
"""

import argparse
import random
import subprocess
import sys
import time
import warnings
from collections import Counter

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils import _pytree as pytree

from fastweights import FastWeights, FastWeightsCell, FastWeightsState
from fastweights.memory import checks, kernel

DTYPES = [
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
JUNK = [None, 3, -1.5, "x", [1, 2], (1, 2), {}, object(), [[1.0]], float("nan")]


class Subclass(Tensor):
    """A tensor by another name."""


def _resize(tensor: Tensor, room: int) -> Tensor:
    own = tensor.detach().clone()
    own.untyped_storage().resize_(min(room, own.untyped_storage().nbytes()))
    return own


def _fake(tensor: Tensor) -> Tensor:
    with FakeTensorMode():
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def _shape(tensor: Tensor, rng: random.Random) -> Tensor:
    shape = list(tensor.shape)
    change = rng.choice(["drop", "add", "more", "less", "none", "one", "turn", "permute"])
    if not shape or change == "add":
        shape.insert(rng.randint(0, len(shape)), rng.choice([1, 1, 2, 3]))
    else:
        place = rng.randrange(len(shape))
        if change == "drop":
            shape.pop(place)
        elif change in ("more", "less", "none", "one"):
            shape[place] = {
                "more": shape[place] + rng.choice([1, 5]),
                "less": max(0, shape[place] - 1),
                "none": 0,
                "one": 1,
            }[change]
        elif change == "turn":
            shape.reverse()
        else:
            rng.shuffle(shape)
    return torch.rand(shape).to(tensor.dtype)


def _strides(tensor: Tensor, rng: random.Random) -> Tensor:
    way = rng.choice(["expanded", "transposed", "offset", "stepped", "overlapping", "flipped"])
    if way == "expanded":
        return tensor[(slice(0, 1),) * tensor.dim()].expand(tensor.shape) if tensor.numel() else tensor
    if way == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if way == "offset":
        return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)
    if way == "stepped":
        return torch.stack((tensor, tensor), -1)[..., 0]
    if way == "overlapping" and tensor.numel():
        return tensor.contiguous().as_strided(tensor.shape, tuple(rng.choice([0, 1]) for _ in tensor.shape))
    return tensor.flip(0) if tensor.dim() else tensor


def _values(tensor: Tensor, rng: random.Random) -> Tensor:
    own = tensor.detach().clone()
    if own.numel():
        wild = (
            [float("nan"), float("inf"), -1.0, 1e30, 2.0, 1e300]
            if own.is_floating_point()
            else [-1, 100, 2**31 - 1, -(2**31)]
        )
        own.flatten()[rng.randrange(own.numel())] = (
            rng.choice(wild) if own.dtype not in (torch.bool, torch.uint8) else 1
        )
    return own


def spoil(value: object, rng: random.Random) -> object:
    """The same, wrong in one way."""
    if not isinstance(value, Tensor):
        return rng.choice(JUNK)
    try:
        checks.memory("value", value)
    except (ValueError, RuntimeError, NotImplementedError):  # torch's own operations crash on memory that was cut
        return value
    ways = {
        "junk": lambda: rng.choice(JUNK),
        "numpy": lambda: value.detach().numpy(),
        "dtype": lambda: value.detach().to(rng.choice(DTYPES)),
        "shape": lambda: _shape(value, rng),
        "strides": lambda: _strides(value.detach(), rng),
        "meta": lambda: value.detach().to("meta"),
        "freed": lambda: _resize(value, 0),
        "cut": lambda: _resize(value, rng.randrange(max(1, value.nbytes))),
        "subclass": lambda: value.detach().as_subclass(Subclass),
        "fake": lambda: _fake(value),
        "negative": lambda: torch._neg_view(value.detach()),
        "conjugate": lambda: torch.complex(value.detach().float(), value.detach().float()).conj(),
        "imaginary": lambda: torch.complex(value.detach().float(), value.detach().float()).conj().imag,
        "sparse": lambda: value if value.is_meta else value.detach().to_sparse(),  # torch crashes
        "nested": lambda: value if value.is_meta else torch.nested.nested_tensor([value.detach()]),
        "values": lambda: _values(value, rng),
        "inference": lambda: _inference(value),
        "parameter": lambda: nn.Parameter(value.detach().clone(), requires_grad=False),
    }
    name = rng.choice(list(ways))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ways[name]()
        except (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError):
            return value


def _inference(value: Tensor) -> Tensor:
    with torch.inference_mode():
        return value.detach().clone()


def a_module(rng: random.Random) -> tuple[nn.Module, nn.Module]:
    """A layer or a cell, twice: as the kernel and as torch computes it."""
    options = {
        "inner_steps": rng.choice([0, 1, 1, 2]),
        "layer_norm": rng.random() < 0.8,
        "nonlinearity": rng.choice(["relu", "tanh"]),
        "integration": rng.random() < 0.2,
        "bias": rng.random() < 0.8,
        "learn_decay": rng.random() < 0.2,
        "dtype": rng.choice([torch.float32, torch.float64, torch.float32, torch.bfloat16]),
    }
    sizes = rng.randint(1, 5), rng.choice([1, 3, 8, 17, 64])
    kind: type = FastWeightsCell
    if rng.random() < 0.6:
        kind = FastWeights
        options |= {
            "batch_first": rng.random() < 0.3,
            "bidirectional": rng.random() < 0.2,
            "num_layers": rng.choice([1, 1, 2]),
        }
    ours, theirs = kind(*sizes, **options), kind(*sizes, **options, backend="torch")
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def a_call(module: nn.Module, rng: random.Random) -> tuple[list[object], dict[str, object]]:
    """Arguments that fit."""
    H, features, dtype = module.hidden_size, module.input_size, module._like.dtype
    batch = rng.choice([(), (1,), (3,), (17,), (64,)] if H == 64 else [(), (1,), (3,), (17,)])
    layer = isinstance(module, FastWeights)
    T = rng.choice([0, 1, 1, 2, 5, 30]) if layer else None
    steps = batch if T is None else (*batch, T) if batch and module.batch_first else (T, *batch)
    x: object = torch.randn(*steps, features).to(dtype)
    rows = (len(module._suffixes),) if layer else ()
    args: list[object] = [x]
    signals: dict[str, object] = {}
    if rng.random() < 0.5:
        pair = torch.rand(*rows, *batch, H).to(dtype), torch.rand(*rows, *batch, H, H).to(dtype)
        args.append(FastWeightsState(*pair) if rng.random() < 0.7 else pair)
    for name in ("reset", "wipe", "store", "read", "integrate"):
        if rng.random() < 0.15 and (name != "integrate" or module.integration):
            signals[name] = (
                torch.rand(steps) < 0.5 if name in ("reset", "wipe", "integrate") else torch.rand(steps).to(dtype)
            )
    if layer and rng.random() < 0.2:
        signals["lengths"] = torch.randint(0, T + 1, batch)
        if T and batch and rng.random() < 0.5:
            x = pack_padded_sequence(x, signals.pop("lengths").clamp(min=1), module.batch_first, enforce_sorted=False)
            args[0] = x
            signals.clear()
    return args, signals


def spoil_one(args: list[object], signals: dict[str, object], rng: random.Random) -> None:
    places: list[object] = [*range(len(args)), *signals]
    place = rng.choice(places)
    where = signals if isinstance(place, str) else args
    value = where[place]  # type: ignore[index]
    if isinstance(value, FastWeightsState):
        way = rng.random()
        if way < 0.4:  # as a transform of its parts would, unchecked
            value = FastWeightsState.made_of(*(spoil(part, rng) if rng.random() < 0.6 else part for part in value))
        elif way < 0.6:
            value = pytree.tree_map(lambda part: part[..., :1, :] if part.dim() > 1 else part, value)
        else:
            value = tuple(spoil(part, rng) if rng.random() < 0.6 else part for part in value)
    elif isinstance(value, tuple) and not isinstance(value, PackedSequence):
        value = tuple(spoil(part, rng) if rng.random() < 0.6 else part for part in value)
    elif isinstance(value, PackedSequence):
        parts = list(value)
        parts[rng.randrange(4)] = spoil(parts[rng.randrange(4)], rng)
        try:
            value = PackedSequence(*parts)
        except Exception:
            return
    else:
        value = spoil(value, rng)
    where[place] = value  # type: ignore[index]


def spoil_weight(modules: tuple[nn.Module, nn.Module], rng: random.Random) -> None:
    name, weight = rng.choice(list(modules[0].named_parameters()))
    value = spoil(weight.detach(), rng)
    if not isinstance(value, Tensor) or value.dtype == torch.bool:
        return
    in_place = rng.random() < 0.5
    for module in modules:
        try:
            if in_place:
                getattr(module, name).data = value
            elif value.is_floating_point():
                setattr(module, name, nn.Parameter(value))
        except Exception:
            continue


def call(module: nn.Module, args: list[object], signals: dict[str, object], mode: str) -> list[Tensor]:
    with {"grad": torch.enable_grad, "none": torch.no_grad, "inference": torch.inference_mode}[mode]():
        found = module(*args, **signals)
        state = found if isinstance(found, FastWeightsState) else found[1]
        output = state.h if found is state else found[0]
        output = output.data if isinstance(output, PackedSequence) else output
        if mode == "grad" and output.requires_grad:
            (output.float().sum() + state.A.float().sum()).backward()
        grads = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        again = module(args[0], state, **signals)  # and on from there
        last = again if isinstance(again, FastWeightsState) else again[1]
        return [output, state.h, state.A, last.h, *grads]


def state_call(state: FastWeightsState, rng: random.Random) -> None:
    value = spoil(torch.tensor([True, False, True]), rng)
    rng.choice(
        [
            lambda: state.where(value),
            lambda: state.where(value, state),
            lambda: state.index_select(value),
            lambda: state.to(value),
            lambda: FastWeightsState(spoil(state.h, rng), state.A),
            lambda: FastWeightsState(state.h, spoil(state.A, rng)),
            lambda: setattr(state, rng.choice(["h", "A"]), value),
        ]
    )()


def one(seed: int) -> str:
    """What became of a call: "taken", or the name of the exception. AssertionError: two paths disagree."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    if rng.random() < 0.1:
        state = FastWeightsState(torch.rand(1, 3, 5), torch.rand(1, 3, 5, 5))
        try:
            state_call(state, rng)
        except Exception as error:
            return type(error).__name__
        return "taken"
    modules = a_module(rng)
    args, signals = a_call(modules[0], rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        try:
            if rng.random() < 0.25:
                spoil_weight(modules, rng)
            else:
                spoil_one(args, signals, rng)
        except Exception:  # torch refuses to make something so wrong
            continue
    mode = rng.choice(["grad", "none", "none", "inference"])
    results = []
    for module in modules:
        try:
            results.append(call(module, args, signals, mode))
        except Exception as error:
            results.append(error)
    ours, theirs = results
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        if isinstance(ours, Exception) != isinstance(theirs, Exception):
            raised = [repr(found) if isinstance(found, Exception) else "a result" for found in results]
            raise AssertionError(f"one path raises: {raised}")
        return type(ours).__name__
    for actual, expected in zip(ours, theirs, strict=True):
        if type(actual) in (Tensor, nn.Parameter) and not actual.is_meta:
            actual, expected = actual.to_dense(), expected.to_dense()  # of sparse x
            near = {torch.float64: 1e-6, torch.float32: 2e-2}.get(actual.dtype, 0.2)
            # Numbers near the corner of a ReLU, and large ones, may part: a share of them.
            # Of what is not finite one path may leave out what the other multiplies by zero.
            both = actual.double().isfinite() & expected.double().isfinite()
            close = torch.isclose(actual.double()[both], expected.double()[both], near, near)
            if close.double().mean() < 0.9:
                raise AssertionError(f"{actual} is not {expected}")
    return "taken"


def run(first: int, count: int, heartbeat: bool = False) -> Counter[str]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: Counter[str] = Counter()
    for seed in range(first, first + count):
        if heartbeat:
            print(f"seed {seed}", flush=True)
        try:
            found[one(seed)] += 1
        except AssertionError as error:
            print(f"seed {seed}: {error}", file=sys.stderr, flush=True)
            found["disagree"] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(dict(run(args.seed, args.calls, heartbeat=True)))
        return
    print(kernel.backend())
    total, crashes, start, block = Counter(), [], time.monotonic(), 2000
    for first in range(args.seed, args.seed + args.calls, block):
        count = min(block, args.seed + args.calls - first)
        command = [sys.executable, __file__, "--child", "--seed", str(first), "--calls", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        if done.returncode:
            crashes.append(f"{lines[-1] if lines else first}: exit {done.returncode}\n{done.stderr[-3000:]}")
        else:
            total.update(eval(lines[-1]))
        sys.stderr.write(
            "".join(line + "\n" for line in done.stderr.splitlines() if "disagree" in line or "seed" in line)
        )
        finished = first + count - args.seed
        left = (time.monotonic() - start) / finished * (args.calls - finished)
        print(f"{finished} of {args.calls} calls, {left:.0f} s left, {len(crashes)} crashes, {dict(total)}", flush=True)
    print("\n".join(crashes))
    sys.exit(bool(crashes or total["disagree"]))


if __name__ == "__main__":
    main()
