"""A stretch of a sequence in plain torch, attending to its own states and to the fast weights that came before it.

The portable twin of the fused kernel: any device, any floating dtype, with a backward through time written by hand
(weight gradients are one matrix product after the loop). Inside a chunk of K steps, with M the states so far::

    A(t) q = Σ_{τ<t} w[t, τ] M[τ] (M[τ]ᵀ q) + p[t] A0 q

`w` and `p` carry decay, rate, store, read and resets, so their gradients are autograd's business, not this file's.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .equations import EPS, Dynamics

Recall = Callable[[Tensor], Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Chunk(NamedTuple):
    """K steps of B sequences, and what they start from. B or 1: the same for every sequence."""

    u: Tensor  # (K, B, H): C x + b
    W: Tensor  # (H, H)
    gain: Tensor | None  # (H,); None: no layer norm
    shift: Tensor | None  # (H,)
    h0: Tensor | None  # (B, H); None: zero
    A0: Tensor | None  # (B, H, H); None: zero
    w: Tensor  # (B or 1, K, K)
    p: Tensor  # (B or 1, K)
    keep: Tensor | None  # (K, B): 0 where the hidden state is wiped before the step, else 1
    steps: Tensor | None  # (B,): how many of the steps count; None: all. Past them states are zero


class Saved(NamedTuple):
    """What a chunk's forward leaves for its backward; N is the number of layer norms in a step.

    The kernel has a layout of its own: `queries` only where there is an A0, all the rest in `normals`, no `scales`.
    """

    hs: Tensor  # (K, B, H)
    queries: Tensor  # (S, K, B, H): h_0 … h_{S-1}
    normals: Tensor  # (N, K, B, H)
    scales: Tensor  # (N, K, B, 1)


def _activate(v: Tensor, nonlinearity: str) -> Tensor:
    return torch.relu(v) if nonlinearity == "relu" else torch.tanh(v)


def _slope(h: Tensor, nonlinearity: str) -> Tensor:
    """f'(v), from h = f(v)."""
    return (h > 0).to(h.dtype) if nonlinearity == "relu" else 1 - h * h


def _normalize(v: Tensor) -> tuple[Tensor, Tensor]:
    """Give v mean 0 and variance 1 over the features; also, what it was multiplied by."""
    centred = v - v.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    return centred * scale, scale


def _normalize_backward(grad: Tensor, normal: Tensor, scale: Tensor) -> Tensor:
    along = (grad * normal).mean(-1, keepdim=True)
    return scale * (grad - grad.mean(-1, keepdim=True) - normal * along)


def _settle(
    z: Tensor, recall: Recall, gain: Tensor | None, shift: Tensor | None, dynamics: Dynamics
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """h_0 … h_S, and what each layer norm made on the way."""
    normals = []

    def activate(v: Tensor, normalized: bool) -> Tensor:
        if normalized and gain is not None and shift is not None:
            normals.append(_normalize(v))
            v = torch.addcmul(shift, normals[-1][0], gain)
        return _activate(v, dynamics.nonlinearity)

    hs = [activate(z, dynamics.normalize_start)]
    for _ in range(dynamics.inner_steps):
        base = z if dynamics.settling == "sustained" else hs[-1]
        hs.append(activate(base + recall(hs[-1]), True))
    return hs, normals


def _recall(M: Tensor, w: Tensor, A0: Tensor | None, p: Tensor) -> Recall:
    """From q to A q, for the states so far M (B, t, H), w (B or 1, t) and p (B or 1, 1)."""

    def recall(q: Tensor) -> Tensor:
        scores = (M @ q.unsqueeze(-1)).squeeze(-1) * w  # (B, t)
        total = (scores.unsqueeze(1) @ M).squeeze(1)
        return total if A0 is None else total + p * (A0 @ q.unsqueeze(-1)).squeeze(-1)

    return recall


def differentiable(chunk: Chunk, dynamics: Dynamics) -> Tensor:
    """The hidden states (K, B, H), by operations that autograd, vmap and jvp see through, to any order."""
    _, W, gain, shift, h0, A0, w, p, keep, steps = chunk
    u = _until(steps, chunk.u)
    h = u.new_zeros(u.shape[1:]) if h0 is None else h0
    states: list[Tensor] = []
    for t in range(len(u)):
        previous = h if keep is None else h * keep[t].unsqueeze(-1)
        M = torch.stack(states, 1) if states else u.new_zeros(u.shape[1], 0, u.shape[2])
        recall = _recall(M, w[:, t, :t], A0, p[:, t : t + 1])
        h = _settle(u[t] + previous @ W.T, recall, gain, shift, dynamics)[0][-1]
        if steps is not None:
            h = torch.where((t < steps).unsqueeze(-1), h, 0.0)
        states.append(h)
    return torch.stack(states)


def _until(steps: Tensor | None, sequences: Tensor) -> Tensor:
    """(K, B, H) with zeros past each sequence's end."""
    if steps is None:
        return sequences
    active = torch.arange(len(sequences), device=steps.device).unsqueeze(1) < steps  # (K, B)
    return torch.where(active.unsqueeze(-1), sequences, 0.0)


def forward(chunk: Chunk, dynamics: Dynamics) -> Saved:
    """The hidden states, and what `backward` wants to know of the way there."""
    _, W, gain, shift, h0, A0, w, p, keep, steps = chunk
    u = _until(steps, chunk.u)
    K, B, H = u.shape
    hs, queries, normals, scales = (u.new_empty(shape) for shape in saved_shapes(chunk, dynamics))
    M = u.new_empty(B, K, H)
    h = u.new_zeros(B, H) if h0 is None else h0
    for t in range(K):
        previous = h if keep is None else h * keep[t].unsqueeze(-1)
        recall = _recall(M[:, :t], w[:, t, :t], A0, p[:, t : t + 1])
        path, norms = _settle(u[t] + previous @ W.T, recall, gain, shift, dynamics)
        h = path[-1] if steps is None else torch.where((t < steps).unsqueeze(-1), path[-1], 0.0)
        hs[t] = M[:, t] = h
        for s, query in enumerate(path[:-1]):
            queries[s, t] = query
        for n, (normal, scale) in enumerate(norms):
            normals[n, t], scales[n, t] = normal, scale
    return Saved(hs, queries, normals, scales)


def saved_shapes(chunk: Chunk, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns."""
    K, B, H = chunk.u.shape
    S = dynamics.inner_steps
    norms = 0 if chunk.gain is None else S + dynamics.normalize_start
    return (K, B, H), (S, K, B, H), (norms, K, B, H), (norms, K, B, 1)


def backward(grad_hs: Tensor, chunk: Chunk, saved: Saved, dynamics: Dynamics, weights: bool) -> Gradients:
    """Gradients of u, W, gain, shift, h0, A0, w and p, from that of the hidden states.

    Those of gain, shift, h0 and A0 are empty where the forward had none, those of w and p where `weights` is False.
    """
    _, W, gain, _, _, A0, w, p, keep, steps = chunk
    hs, queries, normals, scales = saved
    grad_hs = _until(steps, grad_hs)
    K, B, H = hs.shape
    M = hs.transpose(0, 1).contiguous()  # (B, K, H)
    sustained = dynamics.settling == "sustained"
    first = int(dynamics.normalize_start)  # the layer norm of the first inner step
    grad_u, grad_M, grad_activated = torch.empty_like(hs), torch.zeros_like(M), torch.empty_like(normals)
    grad_sums = torch.empty_like(queries)  # of what went into each inner step: (S, K, B, H)
    grad_w = hs.new_zeros(B, K, K) if weights else hs.new_empty(0)

    def through(grad: Tensor, h: Tensor, n: int, t: int) -> Tensor:
        """From the gradient of f(LN[v]) to that of v; n is which of the step's layer norms, -1 for none."""
        grad = grad * _slope(h, dynamics.nonlinearity)
        if gain is None or n < 0:
            return grad
        grad_activated[n, t] = grad
        return _normalize_backward(grad * gain, normals[n, t], scales[n, t])

    from_next = torch.zeros_like(hs[0])
    for t in reversed(range(K)):
        past, weight = M[:, :t], w[:, t, :t]
        grad = grad_hs[t] + grad_M[:, t] + from_next
        grad_z = torch.zeros_like(from_next)
        for s in reversed(range(dynamics.inner_steps)):
            after = hs[t] if s == dynamics.inner_steps - 1 else queries[s + 1, t]
            query = queries[s, t]
            grad_v = through(grad, after, first + s, t)
            grad_sums[s, t] = grad_v
            scores, grad_scores = (past @ torch.stack((query, grad_v), -1)).unbind(-1)  # (B, t) each
            if weights:
                grad_w[:, t, :t] += scores * grad_scores
            weighted = torch.stack((scores * weight, grad_scores * weight), -1)  # (B, t, 2)
            grad_M[:, :t] += weighted @ torch.stack((grad_v, query), 1)
            grad = (weighted[..., 1].unsqueeze(1) @ past).squeeze(1)
            if A0 is not None:
                grad = grad + p[:, t : t + 1] * (grad_v.unsqueeze(1) @ A0).squeeze(1)
            if sustained:
                grad_z += grad_v
            else:
                grad = grad + grad_v
        start = queries[0, t] if dynamics.inner_steps else hs[t]
        grad_z += through(grad, start, first - 1, t)
        grad_u[t] = grad_z
        from_next = grad_z @ W
        if keep is not None:
            from_next = from_next * keep[t].unsqueeze(-1)

    grad_gain, grad_shift = hs.new_empty(0), hs.new_empty(0)
    if gain is not None:
        grad_gain, grad_shift = (grad_activated * normals).sum((0, 1, 2)), grad_activated.sum((0, 1, 2))
    grad_W, grad_A0, grad_p = products(chunk, hs, queries, grad_u, grad_sums, weights)
    if weights:
        grad_w = grad_w.sum_to_size(w.shape)
    grad_h0 = hs.new_empty(0) if chunk.h0 is None else from_next
    return grad_u, grad_W, grad_gain, grad_shift, grad_h0, grad_A0, grad_w, grad_p


def products(
    chunk: Chunk, hs: Tensor, queries: Tensor, grad_u: Tensor, grad_sums: Tensor, weights: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of W, A0 and p, which are matrix products over all steps at once; empty as in `backward`."""
    (K, B, H), A0, p = hs.shape, chunk.A0, chunk.p
    kept = grad_u if chunk.keep is None else grad_u * chunk.keep.unsqueeze(-1)
    grad_W = kept[1:].reshape(-1, H).T @ hs[:-1].reshape(-1, H)
    if chunk.h0 is not None:
        grad_W = grad_W.addmm(kept[0].T, chunk.h0)
    if A0 is None:
        return grad_W, hs.new_empty(0), p.new_zeros(p.shape) if weights else hs.new_empty(0)
    S = len(queries)
    grad_read = grad_sums.flatten(0, 1).transpose(0, 1)  # (B, S·K, H)
    asked = queries.flatten(0, 1).transpose(0, 1)
    grad_A0 = (grad_read * p.repeat(1, S).unsqueeze(-1)).transpose(1, 2) @ asked
    if not weights:
        return grad_W, grad_A0, hs.new_empty(0)
    recalled = asked @ A0.transpose(1, 2)
    grad_p = (grad_read * recalled).sum(-1).reshape(B, S, K).sum(1)
    return grad_W, grad_A0, grad_p.sum_to_size(p.shape)
