"""AssociativeLSTM: an LSTM whose cell is a memory of pairs, bound by complex products (Danihelka et al. 2016).

A complex tensor is a real one here, whose first axis holds its two halves: real and imaginary. The batch is the last
axis, so that a unit's numbers lie together and permuting units moves whole rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..memory import checks


class AssociativeLSTMState(NamedTuple):
    """The state of an `AssociativeLSTM` between two calls: the output of the last step, and the memory's copies.

    Args:
        h: (B, output_size).
        c: (copies, B, hidden_size), the real halves of the units before the imaginary ones.

    >>> state = AssociativeLSTMState(h=torch.zeros(3, 60), c=torch.zeros(4, 3, 20))
    >>> output, state = AssociativeLSTM(input_size=10, hidden_size=20)(torch.randn(7, 3, 10), state)
    """

    h: Tensor
    c: Tensor


def bound(z: Tensor) -> Tensor:
    """Complex numbers cut to at most modulus 1, their phase kept: z / max(1, |z|), for z (2, …).

    >>> bound(torch.tensor([[3.0, 0.3], [4.0, 0.4]]))
    tensor([[0.6000, 0.3000],
            [0.8000, 0.4000]])
    """
    re, im = z.unbind(0)
    # Clamped before the root, whose slope at 0 is infinite.
    return z * torch.addcmul(re * re, im, im).clamp(min=1).rsqrt()


def complex_product(a: Tensor, b: Tensor) -> Tensor:
    """The product of complex numbers (2, …), unit by unit; shapes broadcast.

    >>> complex_product(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[-5.],
            [10.]])
    """
    (a_re, a_im), (b_re, b_im) = a.unbind(0), b.unbind(0)
    re = torch.addcmul(a_re * b_re, a_im, b_im, value=-1)
    return torch.stack((re, torch.addcmul(a_re * b_im, a_im, b_re)))


def draw_permutations(copies: int, units: int, seed: int) -> Tensor:
    """A random order of the units for every copy, (copies, N); the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(units, generator=generator) for _ in range(copies)])


def permuted(keys: Tensor, permutations: Tensor) -> Tensor:
    """Keys (2, K, N, B) as each copy sees them: its units in its own order, (2, K, copies, N, B)."""
    shape = (*keys.shape[:2], *permutations.shape, *keys.shape[3:])
    return keys.index_select(2, permutations.flatten()).reshape(shape)


def store(memory: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The memory (2, copies, N, B) with K values (2, K, N, B) added, each bound to its key.

    Args:
        memory: a sum of products of keys and values, in every copy with the keys' units in another order.
        keys: as the copies see them, (2, K, copies, N, B).
        values: what to find under them.
    """
    return memory + complex_product(keys, values.unsqueeze(2)).sum(1)


def read(memory: Tensor, keys: Tensor) -> Tensor:
    """What the memory (2, copies, N, B) has under keys (2, K, copies, N, B), averaged over the copies: (2, K, N, B).

    The conjugate of a key of modulus 1 gives back what was stored under that key, and noise from everything else. The
    noise differs from copy to copy: for values of modulus 1, the average has a variance of (items - 1) / copies.
    """
    return complex_product(keys, memory.unsqueeze(1)).mean(2)


class AssociativeLSTM(nn.Module):
    """A recurrent layer that stores key-value pairs in its cell and reads them by key, called like `nn.LSTM`.

    For every step, with complex units, ⊛ their product, ⊙ that with a real gate, P_s a fixed permutation of them::

        g_f = σ(ĝ_f),  per head:  g_i = σ(ĝ_i),  g_o = σ(ĝ_o),  u, r_i, r_o = bound(û), bound(r̂_i), bound(r̂_o)
        c_s = g_f ⊙ c_s + Σ_heads P_s r_i ⊛ (g_i ⊙ u)                                   in every copy s
        h = g_o ⊙ bound(mean_s(P_s r_o ⊛ c_s))                                          of every head

    where all that has a hat is an affine map of x and the last h. Keys to read by are learned apart from those to
    write by, so neither is conjugated. That the outputs of the heads are concatenated is our reading of the paper.

    Args:
        input_size: features of x.
        hidden_size: H, twice the complex units N of a copy.
        copies: of the memory, each with its own permutation. More copies, less noise, no more parameters.
        heads: K, how many pairs a step stores and reads.
        seed: of the permutations, which stay fixed and are saved with the parameters.

    Parameters are `weight_ih` (F, I), `weight_hh` (F, output_size) and `bias` (F,). Their F = N + 8·K·N rows are ĝ_f,
    the ĝ_i of the heads, their ĝ_o, then the real halves of the heads' û, of their r̂_i, of their r̂_o, then the
    imaginary halves alike. Of each head's H outputs, the first N are the real halves.

    >>> layer = AssociativeLSTM(input_size=10, hidden_size=20, copies=4, heads=3)
    >>> output, state = layer(torch.randn(7, 3, 10))
    >>> output.shape, state.h.shape, state.c.shape
    (torch.Size([7, 3, 60]), torch.Size([3, 60]), torch.Size([4, 3, 20]))
    >>> output, state = layer(torch.randn(5, 3, 10), state)  # the memory goes on
    """

    permutations: Tensor  # (copies, N)

    def __init__(self, input_size: int, hidden_size: int, *, copies: int = 4, heads: int = 3, seed: int = 0) -> None:
        super().__init__()
        checks.integer("input_size", input_size, 1)
        checks.integer("hidden_size", hidden_size, 2)
        checks.integer("copies", copies, 1)
        checks.integer("heads", heads, 1)
        checks.integer("seed", seed, 0)
        if hidden_size % 2:
            raise ValueError(f"hidden_size must be even, for complex units of two halves; got {hidden_size}")
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, heads * hidden_size
        self.copies, self.heads, self.seed = copies, heads, seed
        N = hidden_size // 2
        rows = N + 8 * heads * N
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, self.output_size))
        self.bias = nn.Parameter(torch.empty(rows))
        self.register_buffer("permutations", draw_permutations(copies, N, seed))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights U(-1/√output_size, 1/√output_size); biases 0, but 1 for the forget gate. Not the permutations."""
        limit = 1 / math.sqrt(self.output_size)
        self.weight_ih.uniform_(-limit, limit)
        self.weight_hh.uniform_(-limit, limit)
        self.bias.zero_()[: self.hidden_size // 2] = 1

    def forward(self, x: Tensor, state: AssociativeLSTMState | None = None) -> tuple[Tensor, AssociativeLSTMState]:
        """Run a batch of sequences.

        Args:
            x: (T, B, I), at least one step.
            state: where the sequences stand, from an earlier call; None: h and c are zero.

        Returns:
            h at every step, (T, B, output_size), and the state after the last step.
        """
        checks.inputs(x, (3,), self.input_size, self.weight_hh)
        if len(x) == 0:
            raise ValueError(f"x must have at least 1 step, got shape {tuple(x.shape)}")
        (T, B), K, N = x.shape[:2], self.heads, self.hidden_size // 2
        h, c = self._start(B, state)
        hs = []
        by_input = torch.addmm(self.bias.unsqueeze(1), self.weight_ih, x.flatten(0, 1).t())  # (F, T·B)
        for z in by_input.view(len(self.bias), T, B).unbind(1):
            z = torch.addmm(z, self.weight_hh, h)  # (F, B)
            gates, vectors = z.split((N + 2 * K * N, 6 * K * N))
            g_f, g_i, g_o = gates.sigmoid().view(1 + 2 * K, N, B).split((1, K, K))
            u, r = bound(vectors.view(2, 3 * K, N, B)).split((K, 2 * K), 1)
            r_i, r_o = permuted(r, self.permutations).chunk(2, 1)  # (2, K, copies, N, B)
            c = store(g_f * c, r_i, g_i * u)  # (2, copies, N, B)
            h = (g_o * bound(read(c, r_o))).transpose(0, 1).reshape(self.output_size, B)
            hs.append(h.t())
        c = c.permute(1, 3, 0, 2).reshape(self.copies, B, self.hidden_size)
        return torch.stack(hs), AssociativeLSTMState(hs[-1].contiguous(), c)

    def _start(self, B: int, state: AssociativeLSTMState | None) -> tuple[Tensor, Tensor]:
        """The state as the loop has it: h (output_size, B) and c (2, copies, N, B)."""
        like, N = self.weight_hh, self.hidden_size // 2
        if state is None:
            return like.new_zeros(self.output_size, B), like.new_zeros(2, self.copies, N, B)
        if not isinstance(state, AssociativeLSTMState):
            raise TypeError(f"state must be an AssociativeLSTMState(h, c) or None, got {type(state).__name__}")
        shapes = (B, self.output_size), (self.copies, B, self.hidden_size)
        for name, tensor, shape in zip(state._fields, state, shapes, strict=True):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"state must have a tensor {name}, got {type(tensor).__name__}")
            if tensor.shape != shape:
                raise ValueError(f"state must have {name} of shape {shape}, got {tuple(tensor.shape)}")
            if tensor.dtype != like.dtype or tensor.device != like.device:
                raise ValueError(
                    f"state must have {name} in {like.dtype} on {like.device}, as the weights are; "
                    f"got {tensor.dtype} on {tensor.device}"
                )
        return state.h.t(), state.c.reshape(self.copies, B, 2, N).permute(2, 0, 3, 1)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, copies={self.copies}, heads={self.heads}, seed={self.seed}"
