"""The paper's equations, literal and slow: the oracle that every other path is tested against.

Ba, Hinton, Mnih, Leibo, Ionescu (2016), "Using Fast Weights to Attend to the Recent Past", section 3.
At every step, with the paper's letters::

    z        = W h(t) + C x(t) + b                    the boundary condition
    h_0      = f(z)                                   the preliminary state, not normalised
    h_{s+1}  = f(LN[z + A(t) h_s])                    S times; method 2: f(LN[(I + A(t)) h_s])
    h(t+1)   = h_S
    A(t+1)   = λ A(t) + η h(t+1) h(t+1)ᵀ

The fast weights have two exact forms, `MatrixMemory` and `AttentionMemory`: the same numbers, the same gradients.
Any dtype; autograd does the backward.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

EPS = 1e-5


class SlowWeights(NamedTuple):
    """What gradient descent learns. `b`, or `gain` and `shift` (no layer norm), or `W_int`, may be None."""

    W: Tensor  # (H, H)
    C: Tensor  # (H, I)
    b: Tensor | None  # (H,)
    gain: Tensor | None  # (H,)
    shift: Tensor | None  # (H,)
    W_int: Tensor | None = None  # (H, H): the integration transition matrix


class Dynamics(NamedTuple):
    """How a state settles: S, method 1 ("sustained") or 2 ("identity"), f, and whether h_0 is normalised too."""

    inner_steps: int = 1
    settling: str = "sustained"
    nonlinearity: str = "relu"
    normalize_start: bool = False


def f(v: Tensor, nonlinearity: str) -> Tensor:
    return torch.relu(v) if nonlinearity == "relu" else torch.tanh(v)


def LN(v: Tensor, gain: Tensor | None, shift: Tensor | None) -> Tensor:
    """Layer normalisation over the features of one sequence at one step; nothing where there is no gain."""
    if gain is None or shift is None:
        return v
    mean = v.mean(-1, keepdim=True)
    variance = ((v - mean) ** 2).mean(-1, keepdim=True)
    return (v - mean) / (variance + EPS).sqrt() * gain + shift


class Memory(Protocol):
    """The fast weights of a batch of sequences."""

    def recall(self, h: Tensor) -> Tensor:
        """A h, (B, H) to (B, H)."""

    def write(self, h: Tensor, store: Tensor, active: Tensor) -> None:
        """A ← λ A + store η h hᵀ where `active` (B,)."""

    def clear(self, where: Tensor) -> None:
        """A ← 0 where `where` (B,)."""

    @property
    def A(self) -> Tensor:
        """The matrix that the next step reads, (B, H, H)."""


class MatrixMemory:
    """A itself, one H×H matrix per sequence: A(t) = λ A(t-1) + η h(t) h(t)ᵀ."""

    def __init__(self, A: Tensor, decay: Tensor, rate: Tensor) -> None:
        self._A, self.decay, self.rate = A, decay, rate

    def recall(self, h: Tensor) -> Tensor:
        return torch.einsum("bij,bj->bi", self._A, h)

    def write(self, h: Tensor, store: Tensor, active: Tensor) -> None:
        outer = torch.einsum("b,bi,bj->bij", store, h, h)
        self._A = torch.where(active[:, None, None], self.decay * self._A + self.rate * outer, self._A)

    def clear(self, where: Tensor) -> None:
        self._A = torch.where(where[:, None, None], 0.0, self._A)

    @property
    def A(self) -> Tensor:
        return self._A


class AttentionMemory:
    """The stored states themselves: A(t) h = η Σ_τ λ^{t-τ} h(τ) [h(τ)ᵀ h]."""

    def __init__(self, A: Tensor, decay: Tensor, rate: Tensor) -> None:
        self.before, self.decay, self.rate = A, decay, rate
        self.strength_before = A.new_ones(len(A))  # (B,)
        self.states: list[Tensor] = []  # (B, H) each
        self.strengths: list[Tensor] = []  # (B,) each: η store λ^{t-τ}

    def recall(self, h: Tensor) -> Tensor:
        total = self.strength_before[:, None] * torch.einsum("bij,bj->bi", self.before, h)
        for state, strength in zip(self.states, self.strengths, strict=True):
            total = total + strength[:, None] * state * (state * h).sum(-1, keepdim=True)
        return total

    def write(self, h: Tensor, store: Tensor, active: Tensor) -> None:
        self.strength_before = torch.where(active, self.decay * self.strength_before, self.strength_before)
        self.strengths = [torch.where(active, self.decay * strength, strength) for strength in self.strengths]
        self.states.append(h)
        self.strengths.append(torch.where(active, self.rate * store, 0.0))

    def clear(self, where: Tensor) -> None:
        self.strength_before = torch.where(where, 0.0, self.strength_before)
        self.strengths = [torch.where(where, 0.0, strength) for strength in self.strengths]

    @property
    def A(self) -> Tensor:
        total = self.strength_before[:, None, None] * self.before
        for state, strength in zip(self.states, self.strengths, strict=True):
            total = total + torch.einsum("b,bi,bj->bij", strength, state, state)
        return total


def settle(z: Tensor, memory: Memory, slow: SlowWeights, dynamics: Dynamics, read: Tensor) -> Tensor:
    """From the boundary condition to the next hidden state, (B, H) to (B, H)."""
    start = LN(z, slow.gain, slow.shift) if dynamics.normalize_start else z
    h = f(start, dynamics.nonlinearity)
    for _ in range(dynamics.inner_steps):
        sustained = z if dynamics.settling == "sustained" else h
        h = f(LN(sustained + read[:, None] * memory.recall(h), slow.gain, slow.shift), dynamics.nonlinearity)
    return h


def run(
    x: Tensor,
    h: Tensor,
    memory: Memory,
    slow: SlowWeights,
    dynamics: Dynamics,
    *,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    wipe: Tensor | None = None,
    store: Tensor | None = None,
    read: Tensor | None = None,
    integrate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Feed `x` (T, B, I) to a net in state `h` (B, H) with `memory`, which is updated in place.

    Returns the hidden states (T, B, H), zero past a sequence's length, and the last state of each sequence (B, H).
    """
    T, B = x.shape[:2]
    everywhere, ones = torch.ones(B, dtype=torch.bool, device=x.device), x.new_ones(B)
    outputs = []
    for t in range(T):
        active = everywhere if lengths is None else t < lengths
        if reset is not None:
            memory.clear(reset[t] & active)
            h = torch.where((reset[t] & active)[:, None], 0.0, h)
        if wipe is not None:
            h = torch.where((wipe[t] & active)[:, None], 0.0, h)
        from_h = h @ slow.W.T
        if integrate is not None and slow.W_int is not None:
            from_h = torch.where(integrate[t][:, None], h @ slow.W_int.T, from_h)
        z = from_h + x[t] @ slow.C.T
        if slow.b is not None:
            z = z + slow.b
        new = settle(z, memory, slow, dynamics, ones if read is None else read[t])
        memory.write(new, ones if store is None else store[t], active)
        h = torch.where(active[:, None], new, h)
        outputs.append(torch.where(active[:, None], new, 0.0))
    return torch.stack(outputs) if outputs else x.new_zeros(0, *h.shape), h
