"""The GPU kernels, compiled for GPUs that need not be here: registers, spills and shared memory, as a Markdown table.

    python benchmarks/compiled.py                                 # prints it
    python benchmarks/compiled.py --write docs/gpu.md             # puts it between the marks there
    python benchmarks/compiled.py --targets sm_80 --units 64 200

Of each kernel two forms: for one chunk without signals, in the paper's settings; and with all there is: chunks, an
initial state, lengths, every signal, an integration matrix, learned λ and η.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "0"  # before the kernels are imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastweights.memory.equations import EPS
from fastweights.memory.triton.kernel_backward import backward_kernel
from fastweights.memory.triton.kernel_forward import NUMBERS, forward_kernel
from fastweights.memory.triton.tiles import tiles

# Target, and the shared memory that a program may have on the smallest card of its kind, in bytes.
TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 99 << 10),  # and sm_86, sm_89, whose cards have less than an A100
    "sm_90": (GPUTarget("cuda", 90, 32), 227 << 10),
    "sm_120": (GPUTarget("cuda", 120, 32), 99 << 10),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 << 10),
}
UNITS = (16, 50, 64, 100, 128, 200, 256, 512)
OF_CHUNKS = {"left", "p_left", "A", "matrices", "twice", "from_after"}
OF_STARTS = {"h0", "A0", "grad_h0", "grad_A"}
OF_SIGNALS = {"W_int", "keep", "since", "integrate", "lengths"}
LEARNED = {"grad_w", "grad_p", "grad_left", "grad_p_left"}
FORMS = {"plain": OF_CHUNKS | OF_STARTS | OF_SIGNALS | LEARNED, "all": set[str]()}  # what is None
BEGIN, END = "<!-- compiled: benchmarks/compiled.py -->", "<!-- /compiled -->"


class Usage(NamedTuple):
    """Of a compiled kernel: registers of a thread, bytes that it spills, bytes of shared memory of a program."""

    registers: int
    spills: int
    shared: int


def compiled(target: str, H: int, backward: bool, form: str, dtype: torch.dtype = torch.float32) -> Usage:
    """What a kernel takes on a GPU, as it would be launched there."""
    gpu, _ = TARGETS[target]
    kernel = backward_kernel if backward else forward_kernel
    width, rows, options = tiles(H, dtype, backward, gpu.backend == "hip")
    constants: dict[str, Any] = {
        "EPS": EPS,
        "IDENTITY": False,
        "TANH": False,
        "NORMALIZED_START": True,
        "H": H,
        "WIDTH": width,
    }
    constants |= {"ROWS": rows, "ASYMMETRIC": "A0" not in FORMS[form]}
    constants |= dict.fromkeys(FORMS[form])
    number = "*fp64" if dtype is torch.float64 else "*fp32"
    kinds = dict.fromkeys(NUMBERS, "i32") | {"since": "*i32", "lengths": "*i64"}
    kinds |= dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, number) for name in kernel.arg_names}
    aligned = {(n,): [["tt.divisibility", 16]] for n, kind in enumerate(signature.values()) if kind.startswith("*")}
    constants = {name: value for name, value in constants.items() if name in signature}
    made = triton.compile(ASTSource(kernel, signature, constants, aligned), target=gpu, options=options)
    registers, spills = _of_rocm(made) if gpu.backend == "hip" else _of_cuda(made, gpu.arch)
    return Usage(registers, spills, made.metadata.shared)


def _of_cuda(made: Any, arch: int) -> tuple[int, int]:
    """As the assembler says; the one that comes with Triton."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    assembler = folder / ("ptxas-blackwell" if arch >= 100 else "ptxas")
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "kernel.ptx")
        source.write_text(made.asm["ptx"])
        name = f"sm_{arch}" + ("a" if arch >= 90 else "")
        command = [str(assembler), "-v", f"--gpu-name={name}", str(source), "-o", f"{temporary}/kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (registers,), (spills,) = re.findall(r"Used (\d+) registers", said), re.findall(r"(\d+) bytes spill stores", said)
    return int(registers), int(spills)


def _of_rocm(made: Any) -> tuple[int, int]:
    """As the assembly says: vector registers, and what of memory each thread has for those that did not fit."""
    found = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)\s", made.asm["amdgcn"])}
    return found["vgpr_count"], 4 * found["vgpr_spill_count"]


def table(targets: list[str], units: list[int]) -> str:
    """In Markdown: registers / bytes spilled / bytes of shared memory."""
    lines = ["| GPU | H | warps | forward | backward | forward, everything | backward, everything |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for target in targets:
        gpu, room = TARGETS[target]
        for H in units:
            cells = [compiled(target, H, backward, form) for form in FORMS for backward in (False, True)]
            if max(cell.shared for cell in cells) > room:
                raise SystemExit(f"H={H} needs more shared memory than {target} has: {cells}")
            warps = tiles(H, torch.float32, False, gpu.backend == "hip")[2]["num_warps"]
            numbers = [f"{cell.registers} / {cell.spills} / {cell.shared}" for cell in cells]
            lines.append(f"| {target} | {H} | {warps} | " + " | ".join(numbers) + " |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--units", nargs="+", type=int, default=UNITS, metavar="H")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a page with the marks that the table goes between")
    options = parser.parse_args()
    found = table(options.targets, options.units)
    if options.write:
        before, _, rest = options.write.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        options.write.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}")


if __name__ == "__main__":
    main()
