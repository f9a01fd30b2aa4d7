"""Test vectors of the kernel for CPUs that this machine is not: runs, with values and gradients from the oracle.

    python tests/vectors.py FILE [--count 60]

`tests/vectors.cpp` reads them, calls the kernel that it was built with, in every arrangement, and compares. `make arm`
does both for 64-bit ARM, under qemu-user.
"""

import argparse
import random
import struct
from pathlib import Path

import torch
from torch import Tensor

from fastweights.memory import equations
from fastweights.memory.equations import Dynamics, MatrixMemory, SlowWeights
from fastweights.memory.scan import chunk_length
from fastweights.memory.weights import Controls, weigh

FLAGS = ("bias", "norm", "start", "before", "parted", "wiped")


def case(rng: random.Random, dtype: torch.dtype) -> bytes:
    """One run: numbers, then the tensors that it has, then what comes of it, each tensor with its size before it.

    Empty where a net without layer norm grew beyond all bounds, which proves nothing.
    """
    T, B, features, H = rng.randint(1, 40), rng.choice((1, 2, 3, 5, 9, 17)), rng.randint(1, 9), rng.randint(1, 45)
    K = rng.choice((T, rng.randint(1, T), chunk_length(T, H)))
    K = min(K, T)
    has = {flag: rng.random() < 0.5 for flag in FLAGS}
    dynamics = Dynamics(
        rng.randint(0, 3), rng.choice(("sustained", "identity")), rng.choice(("relu", "tanh")), rng.random() < 0.5
    )
    decay, rate = 0.9, 0.3 if has["norm"] else 0.02

    def leaf(*shape: int, when: bool = True) -> Tensor | None:
        return (0.5 * torch.randn(shape, dtype=dtype)).requires_grad_() if when else None

    x, C, W = leaf(T, B, features), leaf(H, features), leaf(H, H)
    b, gain, shift = leaf(H, when=has["bias"]), leaf(H, when=has["norm"]), leaf(H, when=has["norm"])
    h0, A0 = leaf(B, H, when=has["start"]), leaf(B, H, H, when=has["before"])
    reset = torch.rand(T, B) < 0.2 if has["parted"] else None
    wipe = torch.rand(T, B) < 0.2 if has["wiped"] else None
    assert x is not None
    assert C is not None
    assert W is not None
    zero = x.new_zeros
    memory = MatrixMemory(
        zero(B, H, H) if A0 is None else A0, torch.tensor(decay, dtype=dtype), torch.tensor(rate, dtype=dtype)
    )
    hs, _ = equations.run(
        x, zero(B, H) if h0 is None else h0, memory, SlowWeights(W, C, b, gain, shift), dynamics, reset=reset, wipe=wipe
    )
    if not (hs.abs() < 100).all():
        return b""
    grad_hs = torch.rand_like(hs)
    leaves = [b, gain, shift, h0, A0, C, W, x]
    grads = torch.autograd.grad(hs, [t for t in leaves if t is not None], grad_hs, allow_unused=True)
    found = iter(grads)
    expected = []
    for tensor in leaves:
        grad = None if tensor is None else next(found)
        expected.append(None if tensor is None else zero(tensor.shape) if grad is None else grad)
    weights = weigh(T, K, decay, rate, Controls(reset=reset), x.detach())
    left, p_left = weights.between(-(-T // K), None)
    keep, parted, _ = Controls(reset=reset, wipe=wipe).masks(dtype)

    def packed(tensor: Tensor | None) -> bytes:
        if tensor is None:
            return struct.pack("q", 0)
        numbers = tensor.detach().contiguous().flatten()
        kind = "f" if dtype == torch.float32 else "d"
        return struct.pack("q", len(numbers)) + struct.pack(f"{len(numbers)}{kind}", *numbers.tolist())

    def stride(tensor: Tensor | None) -> tuple[int, int]:
        if tensor is None:
            return 0, 0
        n, rows = tensor.shape[:2]
        size = tensor[0, 0].numel()
        return rows * size if n > 1 else 0, size if rows > 1 else 0

    past = (weights.w, weights.p, left, p_left)
    strides = [number for tensor in past for number in stride(tensor)]
    numbers = [dtype == torch.float32, T, B, features, H, dynamics.inner_steps, K, dynamics.settling == "identity"]
    numbers += [dynamics.nonlinearity == "tanh", dynamics.normalize_start, *strides]
    u = x @ C.T
    tensors = (x, C, b, W, gain, shift, h0, A0, *past, keep, parted, u, grad_hs, hs, *expected)
    return struct.pack(f"{len(numbers)}q", *numbers) + b"".join(map(packed, tensors))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)
    # In float32, a state next to ReLU's corner may fall on either side: most are compared in float64.
    cases: list[bytes] = []
    while len(cases) < args.count:
        found = case(rng, torch.float32 if len(cases) % 6 == 5 else torch.float64)
        cases += [found] if found else []
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_bytes(struct.pack("q", len(cases)) + b"".join(cases))


if __name__ == "__main__":
    main()
