"""A stretch of a sequence in plain torch, attending to its own states and to the fast weights that came before it.

The portable twin of the fused kernel: any device, any floating dtype, with a backward through time written by hand
(weight gradients are one matrix product after the loop). Inside a chunk of K steps, with M the states so far::

    A(t) q = Σ_{τ<t} w[t, τ] M[τ] (M[τ]ᵀ q) + p[t] A0 q

`w` and `p` carry decay, rate, store, read and resets, so their gradients are autograd's business, not this file's.
"""

from collections.abc import Callable
from dataclasses import astuple
from typing import Any, NamedTuple

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
    h0: Tensor  # (B, H)
    A0: Tensor | None  # (B, H, H); None: zero
    w: Tensor  # (B or 1, K, K)
    p: Tensor  # (B or 1, K)
    keep: Tensor | None  # (K, B): 0 where the hidden state is wiped before the step, else 1


class Saved(NamedTuple):
    """What a chunk's forward leaves for its backward; N is the number of layer norms in a step."""

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
    u, W, gain, shift, h0, A0, w, p, keep = chunk
    h = h0
    states: list[Tensor] = []
    for t in range(len(u)):
        previous = h if keep is None else h * keep[t].unsqueeze(-1)
        M = torch.stack(states, 1) if states else u.new_zeros(u.shape[1], 0, u.shape[2])
        recall = _recall(M, w[:, t, :t], A0, p[:, t : t + 1])
        h = _settle(u[t] + previous @ W.T, recall, gain, shift, dynamics)[0][-1]
        states.append(h)
    return torch.stack(states)


def forward(chunk: Chunk, dynamics: Dynamics) -> Saved:
    """The hidden states, and what `backward` wants to know of the way there."""
    u, W, gain, shift, h0, A0, w, p, keep = chunk
    K, B, H = u.shape
    queries, normals, scales = (u.new_empty(n, K, B, size) for n, size in _sizes(H, gain is not None, dynamics))
    hs, M = u.new_empty(K, B, H), u.new_empty(B, K, H)
    h = h0
    for t in range(K):
        previous = h if keep is None else h * keep[t].unsqueeze(-1)
        recall = _recall(M[:, :t], w[:, t, :t], A0, p[:, t : t + 1])
        path, norms = _settle(u[t] + previous @ W.T, recall, gain, shift, dynamics)
        h = hs[t] = M[:, t] = path[-1]
        for s, query in enumerate(path[:-1]):
            queries[s, t] = query
        for n, (normal, scale) in enumerate(norms):
            normals[n, t], scales[n, t] = normal, scale
    return Saved(hs, queries, normals, scales)


def _sizes(H: int, layer_norm: bool, dynamics: Dynamics) -> tuple[tuple[int, int], ...]:
    """The first and last sizes of queries, normals and scales."""
    norms = (dynamics.inner_steps + dynamics.normalize_start) if layer_norm else 0
    return (dynamics.inner_steps, H), (norms, H), (norms, 1)


def backward(grad_hs: Tensor, chunk: Chunk, saved: Saved, dynamics: Dynamics) -> Gradients:
    """Gradients of u, W, gain, shift, h0, A0, w and p, from that of the hidden states.

    Those of gain, shift and A0 are empty where the forward had none.
    """
    _, W, gain, _, h0, A0, w, p, keep = chunk
    hs, queries, normals, scales = saved
    K, B, H = hs.shape
    M = hs.transpose(0, 1).contiguous()  # (B, K, H)
    sustained = dynamics.settling == "sustained"
    first = int(dynamics.normalize_start)  # the layer norm of the first inner step
    grad_u, grad_M, grad_activated = torch.empty_like(hs), torch.zeros_like(M), torch.empty_like(normals)
    grad_summed = torch.empty_like(queries)  # of what went into each inner step: (S, K, B, H)
    grad_w = hs.new_zeros(B, K, K)

    def through(grad: Tensor, h: Tensor, n: int, t: int) -> Tensor:
        """From the gradient of f(LN[v]) to that of v; n is which of the step's layer norms, -1 for none."""
        grad = grad * _slope(h, dynamics.nonlinearity)
        if gain is None or n < 0:
            return grad
        grad_activated[n, t] = grad
        return _normalize_backward(grad * gain, normals[n, t], scales[n, t])

    from_next = torch.zeros_like(h0)
    for t in reversed(range(K)):
        past, weight = M[:, :t], w[:, t, :t]
        grad = grad_hs[t] + grad_M[:, t] + from_next
        grad_z = torch.zeros_like(h0)
        for s in reversed(range(dynamics.inner_steps)):
            after = hs[t] if s == dynamics.inner_steps - 1 else queries[s + 1, t]
            query = queries[s, t]
            grad_v = through(grad, after, first + s, t)
            grad_summed[s, t] = grad_v
            scores, grad_scores = (past @ torch.stack((query, grad_v), -1)).unbind(-1)  # (B, t) each
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

    previous = torch.cat((h0.unsqueeze(0), hs[:-1]))
    if keep is not None:
        previous = previous * keep.unsqueeze(-1)
    grad_W = grad_u.reshape(-1, H).T @ previous.reshape(-1, H)
    grad_gain, grad_shift, grad_A0 = (hs.new_empty(0) for _ in range(3))
    if gain is not None:
        grad_gain, grad_shift = (grad_activated * normals).sum((0, 1, 2)), grad_activated.sum((0, 1, 2))
    grad_p = p.new_zeros(B, K)
    if A0 is not None:
        grad_read = grad_summed.flatten(0, 1).transpose(0, 1)  # (B, S·K, H)
        asked = queries.flatten(0, 1).transpose(0, 1)
        strength = p.repeat(1, dynamics.inner_steps).unsqueeze(-1)
        grad_A0 = (grad_read * strength).transpose(1, 2) @ asked
        recalled = asked @ A0.transpose(1, 2)
        grad_p = (grad_read * recalled).sum(-1).reshape(B, dynamics.inner_steps, K).sum(1)
    grad_w, grad_p = grad_w.sum_to_size(w.shape), grad_p.sum_to_size(p.shape)
    return grad_u, grad_W, grad_gain, grad_shift, from_next, grad_A0, grad_w, grad_p


# The same two functions for autograd, and as operators that torch.compile takes as they are.


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.dynamics = Dynamics(*inputs[9:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:9], *output)


def _backward(ctx: Any, grad_hs: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    chunk, saved = Chunk(*ctx.saved_tensors[:9]), Saved(*ctx.saved_tensors[9:])
    rest = (None,) * 5  # keep and the dynamics
    if grad_hs is None:
        return (None,) * 8 + rest
    if torch.compiler.is_compiling():
        grads = backward_op(grad_hs, *saved, *chunk, *astuple(ctx.dynamics))
    elif torch.is_grad_enabled():  # create_graph: these gradients will be differentiated in turn
        return *_differentiable_backward(ctx, grad_hs, chunk), *rest
    else:
        grads = backward(grad_hs, chunk, saved, ctx.dynamics)
    return *(None if given is None else grad for given, grad in zip(chunk, grads, strict=False)), *rest


def _differentiable_backward(ctx: Any, grad_hs: Tensor, chunk: Chunk) -> list[Tensor | None]:
    # Aliases, so that the gradient of W, say, stops here and leaves out what h0 owes to W.
    aliases: Any = [None if tensor is None else tensor.view_as(tensor) for tensor in chunk]
    hs = differentiable(Chunk(*aliases), ctx.dynamics)
    wanted = [i for i in range(8) if ctx.needs_input_grad[i]]
    found = torch.autograd.grad(hs, [aliases[i] for i in wanted], grad_hs, create_graph=True, allow_unused=True)
    grads: list[Tensor | None] = [None] * 8
    for i, grad in zip(wanted, found, strict=True):
        grads[i] = grad
    return grads


class ChunkFunction(torch.autograd.Function):
    """`forward` with `backward` as its derivative, and `differentiable` as its derivative's."""

    @staticmethod
    def forward(*args: Any) -> Saved:
        return forward(Chunk(*args[:9]), Dynamics(*args[9:]))

    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward)


@torch.library.custom_op("fastweights::chunk", mutates_args=())
def forward_op(
    u: Tensor,
    W: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    h0: Tensor,
    A0: Tensor | None,
    w: Tensor,
    p: Tensor,
    keep: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    return forward(Chunk(u, W, gain, shift, h0, A0, w, p, keep), dynamics)


@forward_op.register_fake
def _(u: Tensor, W: Tensor, gain: Tensor | None, *others: Any) -> Any:
    sizes = _sizes(u.shape[-1], gain is not None, Dynamics(*others[-4:]))
    return torch.empty_like(u), *(u.new_empty(n, *u.shape[:2], size) for n, size in sizes)


@torch.library.custom_op("fastweights::chunk_backward", mutates_args=())
def backward_op(
    grad_hs: Tensor,
    hs: Tensor,
    queries: Tensor,
    normals: Tensor,
    scales: Tensor,
    u: Tensor,
    W: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    h0: Tensor,
    A0: Tensor | None,
    w: Tensor,
    p: Tensor,
    keep: Tensor | None,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dynamics = Dynamics(inner_steps, settling, nonlinearity, normalize_start)
    chunk = Chunk(u, W, gain, shift, h0, A0, w, p, keep)
    return backward(grad_hs, chunk, Saved(hs, queries, normals, scales), dynamics)


@backward_op.register_fake
def _(grad_hs: Tensor, *others: Any) -> Any:
    chunk = Chunk(*others[4:13])
    return tuple(grad_hs.new_empty(0 if tensor is None else tensor.shape) for tensor in chunk[:8])


forward_op.register_autograd(_backward, setup_context=_setup_context)
