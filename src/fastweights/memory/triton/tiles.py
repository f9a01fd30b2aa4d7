"""How a program cuts its matrices, by H and kind of GPU: a table, so that nothing is tuned at the first call."""

from __future__ import annotations

import torch

# H rounded up: rows of a block in the forward and in the backward, warps of 32 threads. A thread holds
# rows · width / (32 · warps) numbers of a block: 8 to 16, so that none are spilled.
TABLE = {
    16: (16, 16, 1),
    32: (16, 16, 1),
    64: (32, 32, 4),
    128: (32, 32, 8),
    256: (16, 16, 8),
    512: (8, 8, 8),
    1024: (8, 4, 8),
}
REGISTERS = 1 << 16  # that the threads of a program share on an NVIDIA GPU


def tiles(H: int, dtype: torch.dtype, backward: bool, rocm: bool) -> tuple[int, int, dict[str, int]]:
    """Width, rows of a block, and how to launch."""
    width = max(16, 1 << (H - 1).bit_length())
    *rows, warps = TABLE.get(width, (2, 2, 16))
    height = max(2, rows[backward] * torch.float32.itemsize // dtype.itemsize)
    if rocm:  # where a warp has 64 threads
        return width, height, {"num_warps": max(warps // 2, 1), "num_stages": 1}
    # Left to itself the assembler spills to make room for more programs, of which there are few.
    return width, height, {"num_warps": warps, "num_stages": 1, "maxnreg": min(255, REGISTERS // (32 * warps))}
