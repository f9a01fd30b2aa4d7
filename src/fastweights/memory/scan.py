"""Runs a sequence: chooses the form, weighs the past, and hands stretches of it to the code that computes them.

Short sequences attend to all their own states. Long ones are cut into chunks: attention inside a chunk, and at its end
the states are folded into A, which the next chunk reads. So time is linear in T, and there is one H×H matrix per
chunk rather than per step. Both are the paper's equations, exactly.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from . import autograd, chunk
from .equations import Dynamics
from .state import Fold


class Controls(NamedTuple):
    """What a caller asks of single steps, (T, B) each; None: the same everywhere, at no cost."""

    active: Tensor | None = None  # bool, False past a sequence's end
    reset: Tensor | None = None  # bool
    wipe: Tensor | None = None  # bool
    store: Tensor | None = None
    read: Tensor | None = None

    def absent(self) -> bool:
        """Whether no step differs from another, for as long as a sequence lasts."""
        return self.reset is self.wipe is self.store is self.read is None

    def part(self, steps: slice) -> Controls:
        return Controls(*(None if control is None else control[steps] for control in self))


class Slow(NamedTuple):
    """The slow weights that a scan needs; those of the input are in `u` already."""

    W: Tensor  # (H, H)
    gain: Tensor | None  # (H,)
    shift: Tensor | None  # (H,)


def chunk_length(T: int, H: int) -> int:
    """How many steps attend to each other before they are folded into A."""
    length = min(max(H, 64), 256)
    return length if T > 2 * length else T


class Weights(NamedTuple):
    """How strongly each of K steps sees what is before it, and what would be left of it for a step after each."""

    w: Tensor  # (B or 1, K, K): state τ at step t
    p: Tensor  # (B or 1, K): the A from before
    w_left: Tensor  # (B or 1, K+1, K): the same, whatever is read
    p_left: Tensor  # (B or 1, K+1)

    def left(self, count: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is left at the end, (B or 1, K) and (B or 1,), for sequences of `count` steps (B,); None: all K."""
        if count is None:
            return self.w_left[:, -1], self.p_left[:, -1]
        if self.w_left.shape[0] == 1:
            return self.w_left[0, count], self.p_left[0, count].expand_as(count)
        sequences = torch.arange(len(count), device=count.device)
        return self.w_left[sequences, count], self.p_left.expand(len(count), -1)[sequences, count]


def weigh(K: int, decay: float | Tensor, rate: float | Tensor, controls: Controls, like: Tensor) -> Weights:
    """Decay, rate and controls as weights of the past."""
    if isinstance(decay, float) and isinstance(rate, float) and controls.absent():
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if not traced and type(like) is Tensor:
            return _plain_weights(K, decay, rate, like.dtype, like.device)
    return _weights(K, decay, rate, controls, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def _plain_weights(K: int, decay: float, rate: float, dtype: torch.dtype, device: torch.device) -> Weights:
    with torch.inference_mode(False):  # they outlive the call that asked first
        return _weights(K, decay, rate, Controls(), dtype, device)


def _weights(
    K: int,
    decay: float | Tensor,
    rate: float | Tensor,
    controls: Controls,
    dtype: torch.dtype,
    device: torch.device,
) -> Weights:
    reset, store, read = (None if c is None else c.T for c in (controls.reset, controls.store, controls.read))
    steps = torch.arange(K + 1, device=device)
    before = steps[:, None] > steps[None, :K]  # (K+1, K)
    age = (steps[:, None] - steps[None, :K] - 1).clamp(min=0).to(dtype)
    w, p = (rate * decay**age).unsqueeze(0), (decay ** steps.to(dtype)).unsqueeze(0)
    if reset is not None:
        episode = reset.cumsum(1)
        at = torch.cat((episode, episode[:, -1:]), 1)
        before = before & (at[:, :, None] == episode[:, None, :])
        p = torch.where(at == 0, p, 0.0)
    w = torch.where(before, w, 0.0)
    if store is not None:
        w = w * store[:, None, :]
    if read is None:
        return Weights(w[:, :K], p[:, :K], w, p)
    return Weights(w[:, :K] * read[:, :, None], p[:, :K] * read, w, p)


def scan(
    u: Tensor,
    slow: Slow,
    h0: Tensor | None,
    A0: Tensor | None,
    decay: float | Tensor,
    rate: float | Tensor,
    controls: Controls,
    dynamics: Dynamics,
    *,
    fused: bool = False,
    chunk_size: int | None = None,
) -> tuple[Tensor, Fold]:
    """Run the recurrence over u = C x + b, (T, B, H) with T > 0, from h0 (B, H) and A0 (B, H, H), None for zero.

    Returns the hidden states (T, B, H), zero where a step is not active, and the fast weights at the end of each
    sequence, ready to be folded.
    """
    T, _, H = u.shape
    K = min(chunk_size or chunk_length(T, H), T)
    wiped, pieces, h, A = _blank(controls), [], h0, A0
    for n, part in enumerate((u,) if K == T else torch.split(u, K)):
        steps = slice(n * K, n * K + len(part))
        keep = None if wiped is None else (~wiped[steps]).to(u.dtype)
        count = None if controls.active is None else controls.active[steps].sum(0)
        weights = weigh(len(part), decay, rate, controls if K == T else controls.part(steps), u)
        hs = autograd.run(chunk.Chunk(part, *slow, h, A, weights.w, weights.p, keep, count), dynamics, fused)
        pieces.append(hs)
        w_left, p_left = weights.left(count)
        fold = Fold(A, p_left, hs, w_left)
        if steps.stop < T:
            h, A = hs[-1], fold.matrix()
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)), fold


def observe(
    u: Tensor,
    slow: Slow,
    h0: Tensor | None,
    A0: Tensor | None,
    decay: float | Tensor,
    rate: float | Tensor,
    controls: Controls,
    dynamics: Dynamics,
) -> tuple[Tensor, Tensor]:
    """As `scan`, but tells what happened on the way.

    Returns h_0 … h_S of every step (T, S+1, B, H), and what inner step s of step t paid to state τ (T, S, B, T).
    """
    T, wiped = len(u), _blank(controls)
    keep = None if wiped is None else (~wiped).to(u.dtype)
    count = None if controls.active is None else controls.active.sum(0)
    w, p, *_ = weigh(T, decay, rate, controls, u)
    hs, queries, _, _ = chunk.forward(chunk.Chunk(u, *slow, h0, A0, w, p, keep, count), dynamics)
    hidden = torch.cat((queries, hs.unsqueeze(0))).transpose(0, 1)
    scores = torch.einsum("stbh,rbh->tsbr", queries, hs)
    return hidden, scores * w.transpose(0, 1).unsqueeze(1)


def _blank(controls: Controls) -> Tensor | None:
    """Where the hidden state is zero before the step, (T, B): resets and wipes."""
    if controls.reset is None or controls.wipe is None:
        return controls.wipe if controls.reset is None else controls.reset
    return controls.reset | controls.wipe
