"""How a program cuts its matrices, by H: a table, so that nothing is tuned at the first call."""

import torch

# Width (H rounded up): rows of a block, warps. A thread holds ROWS · WIDTH / (32 · warps) numbers of a block.
TABLE = {16: (16, 1), 32: (32, 1), 64: (64, 4), 128: (64, 8), 256: (32, 8), 512: (16, 8), 1024: (16, 16)}


def tiles(H: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Width, rows of a block, warps."""
    width = max(16, 1 << (H - 1).bit_length())
    rows, warps = TABLE.get(width, (8, 16))
    return width, max(rows * 4 // dtype.itemsize, 8), warps
