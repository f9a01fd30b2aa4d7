"""Runs a sequence: chooses the form, weighs the past, and hands it to the code that computes it.

Short sequences attend to all their own states. Long ones are cut into chunks: attention inside a chunk, and at its end
the states are folded into A, which the next chunk reads. So time is linear in T, and there is one H×H matrix per
chunk rather than per step. Both are the paper's equations, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from . import autograd, chunked
from .equations import Dynamics
from .run import Run
from .state import End, last_of
from .weights import Controls, weigh


class Slow(NamedTuple):
    """The slow weights."""

    C: Tensor  # (H, I)
    b: Tensor | None  # (H,)
    W: Tensor  # (H, H)
    W_int: Tensor | None  # (H, H); None where no step integrates
    gain: Tensor | None  # (H,)
    shift: Tensor | None  # (H,)


def chunk_length(T: int, H: int) -> int:
    """How many steps attend to each other before they are folded into A."""
    length = min(12 + H // 5, 128)
    return length if T > 4 * length else T


def scan(
    x: Tensor,
    slow: Slow,
    h0: Tensor | None,
    A0: Tensor | None,
    decay: float | Tensor,
    rate: float | Tensor,
    lengths: Tensor | None,
    controls: Controls,
    dynamics: Dynamics,
    fused: bool = False,
    chunk_size: int | None = None,
) -> tuple[Tensor, End]:
    """Run the recurrence over x (T, B, I) with T > 0, from h0 (B, H) and A0 (B, H, H), None for zero.

    Returns the hidden states (T, B, H), zero past a sequence's end, and what each sequence leaves behind.
    """
    T, H = x.shape[0], slow.W.shape[0]
    K = min(chunk_size or chunk_length(T, H), T)
    weights = weigh(T, K, decay, rate, controls, x)
    left, p_left = weights.between(-(-T // K), lengths)
    run = Run(x, *slow, h0, A0, weights.w, weights.p, left, p_left, *controls.masks(x.dtype), lengths)
    for_backward = torch.is_grad_enabled() and wants_gradients(run)
    if for_backward and A0 is not None and h0 is not None:
        h0, A0 = autograd.snapshot(h0), autograd.snapshot(A0)
        run = run._replace(h0=h0, A0=A0)
    hs, states, A = autograd.run_through(run, dynamics, fused, for_backward)
    # Without a backward, h0 is the caller's, who may write to it.
    h = None if for_backward or lengths is None else last_of(hs, h0, lengths)
    reset = None if run.reset is None else run.resets_of(run.chunks - 1)
    end = End(T, states, h, h0, A0 if K == T else A, weights, lengths, reset, x.dtype)
    return hs, end


def wants_gradients(tensors: Iterable[Tensor | None]) -> bool:
    return True in [tensor.requires_grad for tensor in tensors if tensor is not None]


def observe(
    x: Tensor,
    slow: Slow,
    h0: Tensor | None,
    A0: Tensor | None,
    decay: float | Tensor,
    rate: float | Tensor,
    lengths: Tensor | None,
    controls: Controls,
    dynamics: Dynamics,
) -> tuple[Tensor, Tensor]:
    """As `scan`, but tells what happened on the way.

    Returns h_0 … h_S of every step (T, S+1, B, H), and what inner step s of step t paid to state τ (T, S, B, T).
    """
    T = x.shape[0]
    w, p, *_ = weigh(T, T, decay, rate, controls, x)
    masks = controls.masks(x.dtype)
    saved = chunked.forward(Run(x, *slow, h0, A0, w, p, None, None, *masks, lengths), dynamics, True)
    assert saved.queries is not None
    hidden = torch.cat((saved.queries, saved.hs.unsqueeze(0))).transpose(0, 1)
    scores = torch.einsum("stbh,rbh->tsbr", saved.queries, saved.hs)
    return hidden, scores * w[0].transpose(0, 1).unsqueeze(1)
