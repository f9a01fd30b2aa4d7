"""Matrix products in the CPU's memory."""

import torch
from torch import Tensor


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product a @ b of a (…, K) and b (K, N); never a view.

    In float32 on a CPU it is oneDNN's, where torch has that: on AMD's CPUs with AVX-512 it is twice as fast as that of
    torch.mm, and its last bits do not depend on the number of threads. It takes no numbers that overlap in memory.
    """
    plain = a.dtype is torch.float32 and a.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if plain and a.numel() and b.numel() and (b.is_contiguous() or b.t().is_contiguous()):
        found = torch.ops.mkldnn._linear_pointwise(a.reshape(-1, a.shape[-1]), b.t(), None, "none", [], "")
        return torch.ops.aten._unsafe_view(found, (*a.shape[:-1], b.shape[-1]))  # type: ignore[no-any-return]
    return torch.matmul(a, b)
