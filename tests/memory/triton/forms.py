"""Calls of layers with random options, on the CPU, whose kernels are compiled for GPUs instead of run.

    TRITON_INTERPRET=0 python tests/memory/triton/forms.py --count 100

A kernel has as many forms as there are options: each has to compile, for each kind of GPU, in each dtype.
"""

import argparse
import random

import torch
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastweights import FastWeights, FastWeightsCell
from fastweights.memory import triton

GPUS = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)]
KINDS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64"}
compiled = set()


def launch(backward, like, tensors, numbers, options):
    """In place of `triton._launch`: what would be launched is compiled, once for each GPU."""
    kernel, H = triton._kernels()[backward], like.shape[-1]
    for gpu in GPUS:
        width, rows, launched = triton.tiles(H, like.dtype, backward, gpu.backend == "hip")
        signature, constants, aligned = {}, {}, {}
        given = (*tensors, *numbers, *options, H, width, rows)
        for place, (name, value) in enumerate(zip(kernel.arg_names, given, strict=True)):
            if isinstance(value, torch.Tensor):
                signature[name], aligned[(place,)] = KINDS[value.dtype], [["tt.divisibility", 16]]
            elif name in kernel.arg_names[len(tensors) :][: len(numbers)]:
                signature[name] = "i32"
            else:
                signature[name], constants[name] = "constexpr", value
        form = (backward, gpu.arch, *signature.items(), *constants.items())
        if form not in compiled:
            compile_kernel(ASTSource(kernel, signature, constants, aligned), target=gpu, options=launched)
            compiled.add(form)


def call(choose):
    """A layer of any options, forward and backward, with any signals."""
    flag = [True, False]
    dtype, H = choose([torch.float32, torch.float32, torch.float64]), choose([1, 16, 50, 64])
    options = {name: choose(flag) for name in ("layer_norm", "normalize_start", "learn_decay", "learn_rate", "bias")}
    options |= {"settling": choose(["sustained", "identity"]), "nonlinearity": choose(["relu", "tanh"])}
    integrates = choose(flag)
    layer = FastWeights(3, H, inner_steps=choose([0, 1, 2]), integration=integrates, dtype=dtype, **options)
    layer._chunk_size = choose([None, 2])
    T, B = 6, 2
    signals = {name: torch.rand(T, B) < 0.5 for name in ("reset", "wipe") if choose(flag)}
    signals |= {name: torch.rand(T, B, dtype=dtype) for name in ("store", "read") if choose(flag)}
    if integrates:
        signals["integrate"] = torch.rand(T, B) < 0.5
    if choose(flag):
        signals["lengths"] = torch.tensor([4, 6])
    wants, state = choose(flag), None
    if choose(flag):
        state = tuple(torch.zeros(*shape, dtype=dtype, requires_grad=wants) for shape in ((1, B, H), (1, B, H, H)))
    output, after = layer(torch.zeros(T, B, 3, dtype=dtype), state, **signals)
    (output.sum() + (after.A.sum() if choose(flag) else 0)).backward()
    with torch.no_grad():
        cell = FastWeightsCell(3, H, dtype=dtype)
        cell(torch.zeros(B, 3, dtype=dtype), cell(torch.zeros(B, 3, dtype=dtype)))


def main():
    """Compile so many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpus", nargs="+", type=int, default=range(len(GPUS)), help="which, by number")
    options = parser.parse_args()
    GPUS[:] = [GPUS[number] for number in options.gpus]
    triton.ON_CPU, triton._launch = True, launch
    chosen = random.Random(options.seed)
    for _ in range(options.count):
        call(chosen.choice)
    print(f"{len(compiled)} kernels compiled")


if __name__ == "__main__":
    main()
