"""Decay, rate and the caller's controls as weights: how strongly each step sees what came before it."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .modes import watched


class Controls(NamedTuple):
    """What a caller asks of single steps, (T, B) each; None: the same everywhere, at no cost.

    `store` and `read` may be (T, 1), for all sequences.
    """

    reset: Tensor | None = None  # bool
    wipe: Tensor | None = None  # bool
    store: Tensor | None = None
    read: Tensor | None = None
    integrate: Tensor | None = None  # bool

    def masks(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """`keep`, `reset` and `integrate` of a run: where the hidden state is not zeroed before the step; as given."""
        reset, wipe, _, _, integrate = self
        if reset is wipe is integrate is None:
            return None, None, None
        blank = wipe if reset is None else reset if wipe is None else reset | wipe
        keep = None if blank is None else ~blank
        keep, reset, integrate = (None if mask is None else mask.to(dtype) for mask in (keep, reset, integrate))
        return keep, reset, integrate


class Weights(NamedTuple):
    """For n chunks of K steps. n or 1, B or 1: the same for all."""

    w: Tensor  # (n or 1, B or 1, K, K): how step t of a chunk sees its state τ
    p: Tensor  # (n or 1, B or 1, K): and the A from before the chunk
    w_left: Tensor  # (n or 1, B or 1, K+1, K): what a step after t steps would see, whatever it reads
    p_left: Tensor  # (n or 1, B or 1, K+1)

    def between(self, n: int, lengths: Tensor | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """What A has after each chunk but the last, of its states and of the A before: (n-1 or 1, B or 1, K), (…)."""
        if n == 1:
            return None, None
        if lengths is None:
            chunks = slice(min(n - 1, self.w_left.shape[0]))
            return self.w_left[chunks, :, -1], self.p_left[chunks, :, -1]
        return self._after(torch.arange(n - 1, device=lengths.device), lengths)

    def at_end(self, T: int, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same for the last chunk, after all T steps: (B or 1, as many as it has), (B or 1,)."""
        K = self.w.shape[-1]
        n = -(-T // K)
        steps = T - (n - 1) * K
        if lengths is None:
            # `select`, since an index that is a symbol would be taken for its value while torch.compile traces.
            return self.w_left[-1].select(1, steps)[:, :steps], self.p_left[-1].select(1, steps)
        left, p_left = self._after(torch.arange(n - 1, n, device=lengths.device), lengths)
        return left[0, :, :steps], p_left[0]

    def _after(self, chunks: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """After as many steps of these chunks as each sequence has: (chunks, B, K), (chunks, B)."""
        K = self.w.shape[-1]
        counts = (lengths - K * chunks.unsqueeze(1)).clamp(0, K)
        sequences = torch.arange(lengths.shape[0], device=lengths.device).expand_as(counts)

        def after(weights: Tensor) -> Tensor:
            n, B = weights.shape[:2]
            of_all = torch.zeros_like(counts)
            return weights[chunks.unsqueeze(1) if n > 1 else of_all, sequences if B > 1 else of_all, counts]

        return after(self.w_left), after(self.p_left)


def weigh(T: int, K: int, decay: float | Tensor, rate: float | Tensor, controls: Controls, like: Tensor) -> Weights:
    """The weights of T steps in chunks of K, in the dtype and on the device of `like`."""
    reset, _, store, read, _ = controls
    if reset is None and store is None and read is None:
        if isinstance(decay, float) and isinstance(rate, float) and not watched() and not like.is_meta:
            return _plain_weights(K, decay, rate, like.dtype, like.device)
        return _weights(K, decay, rate, like.dtype, like.device)
    n = -(-T // K)

    def in_chunks(signal: Tensor | None) -> Tensor | None:
        """(T, B) as (n, B, K), zero past the end."""
        return None if signal is None else F.pad(signal.T, (0, n * K - T)).reshape(-1, n, K).transpose(0, 1)

    signals = (in_chunks(reset), in_chunks(store), in_chunks(read))
    return _weights(K, decay, rate, like.dtype, like.device, *signals)


@functools.lru_cache(maxsize=64)
def _plain_weights(K: int, decay: float, rate: float, dtype: torch.dtype, device: torch.device) -> Weights:
    with torch.inference_mode(False):  # they outlive the call that asked first
        return _weights(K, decay, rate, dtype, device)


def _weights(
    K: int,
    decay: float | Tensor,
    rate: float | Tensor,
    dtype: torch.dtype,
    device: torch.device,
    reset: Tensor | None = None,
    store: Tensor | None = None,
    read: Tensor | None = None,
) -> Weights:
    steps = torch.arange(K + 1, device=device)
    before = steps[:, None] > steps[None, :K]  # (K+1, K)
    age = (steps[:, None] - steps[None, :K] - 1).clamp(min=0).to(dtype)
    w, p = (rate * decay**age)[None, None], (decay ** steps.to(dtype))[None, None]
    if reset is not None:
        episode = reset.cumsum(-1)
        at = torch.cat((episode, episode[..., -1:]), -1)
        before = before & (at.unsqueeze(-1) == episode.unsqueeze(-2))
        p = torch.where(at == 0, p, 0.0)
    w = torch.where(before, w, 0.0)
    if store is not None:
        w = w * store.unsqueeze(-2)
    if read is None:
        return Weights(w[..., :K, :], p[..., :K], w, p)
    return Weights(w[..., :K, :] * read.unsqueeze(-1), p[..., :K] * read, w, p)
