"""Sequences in plain torch: attention inside a chunk of steps, and between chunks the fast weights themselves.

The portable twin of the fused kernels: any device, any floating dtype, with a backward through time written by hand
(weight gradients are one matrix product after the loop). With M the states of the chunk so far, and A the fast weights
that it started from::

    A(t) q = Σ_{τ<t} w[t, τ] M[τ] (M[τ]ᵀ q) + p[t] A q           inside the chunk
    A ← p_left A + Σ_τ left[τ] M[τ] M[τ]ᵀ                        at its end

These weights carry decay, rate, store, read and resets, so their gradients are autograd's business, not this file's.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .equations import EPS, Dynamics
from .run import WEIGHTS, Gradients, Run, Saved, only, outer, saved_shapes, sums_to_size, transition_gradients

Recall = Callable[[Tensor], Tensor]


def _activate(v: Tensor, nonlinearity: str) -> Tensor:
    return torch.relu(v) if nonlinearity == "relu" else torch.tanh(v)


def _activate_backward(grad: Tensor, h: Tensor, nonlinearity: str) -> Tensor:
    """From the gradient of h = f(v) to that of v; where v is not a number, as torch has it."""
    backward = torch.ops.aten.threshold_backward if nonlinearity == "relu" else torch.ops.aten.tanh_backward
    back: Tensor = backward(grad, h, 0) if nonlinearity == "relu" else backward(grad, h)
    return back


def _normalize(v: Tensor) -> tuple[Tensor, Tensor]:
    """Give v mean 0 and variance 1 over the features; also, what it was multiplied by."""
    centred = v - v.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    return centred * scale, scale


def settle(
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


class Sight(NamedTuple):
    """What a step sees past the resets before it, bool; None: all.

    The weights of all else are 0 anyway, but 0 times NaN is NaN, which a reset has to stop, too.
    """

    states: Tensor | None  # (B, t, 1): of the chunk
    A: Tensor | None  # (B, 1): from before it


def _sight(reset: Tensor | None, k: int) -> Sight:
    """Of step k of a chunk with these resets, (K, B); of the step after them all for k = -1."""
    if reset is None:
        return Sight(None, None)
    episode = reset.cumsum(0)
    seen = episode if k == -1 else episode[:k]
    return Sight((seen == episode[k]).T.unsqueeze(-1), (episode[k] == 0).unsqueeze(-1))


def _recall(M: Tensor, w: Tensor, A: Tensor | None, p: Tensor, sight: Sight) -> Recall:
    """From q to A(t) q, for the states so far M (B, t, H), w (B or 1, t) and p (B or 1, 1)."""
    M = only(sight.states, M)

    def recall(q: Tensor) -> Tensor:
        scores = (M @ q.unsqueeze(-1)).squeeze(-1) * w  # (B, t)
        total = (scores.unsqueeze(1) @ M).squeeze(1)
        return total if A is None else total + only(sight.A, p * (A @ q.unsqueeze(-1)).squeeze(-1))

    return recall


def _recalled(
    M: Tensor, M_t: Tensor, k: int, w: Tensor, A: Tensor | None, p: Tensor, sight: Sight
) -> Callable[[Tensor, Tensor], Tensor]:
    """From q and z to z + A(t) q, as `_recall` by fewer operations, for the first k states M (B, K, H), M_t (B, H, K).

    w is (B or 1, 1, K), p (B or 1, 1).
    """
    M, M_t, w = only(sight.states, M.narrow(1, 0, k)), M_t.narrow(2, 0, k), w.narrow(2, 0, k)
    if sight.states is not None:
        M_t = M.transpose(1, 2)

    def recall(q: Tensor, z: Tensor) -> Tensor:
        total = torch.baddbmm(z.unsqueeze(1), torch.bmm(q.unsqueeze(1), M_t) * w, M).squeeze(1)
        if A is None:
            return total
        read = torch.bmm(A, q.unsqueeze(2)).squeeze(2)
        return torch.addcmul(total, p, read) if sight.A is None else total + only(sight.A, p * read)

    return recall


def _settled(
    z: Tensor, recall: Callable[[Tensor, Tensor], Tensor], gain: Tensor | None, shift: Tensor | None, dynamics: Dynamics
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor, Tensor]]]:
    """h_0 … h_S, and of each layer norm what it normalised, its mean, and what it was multiplied by."""
    norms = []

    def activate(v: Tensor, normalized: bool) -> Tensor:
        if normalized and gain is not None:
            v = v - v.mean(-1, keepdim=True)  # torch subtracts it after it has multiplied, and digits are lost
            activated, mean, scale = torch.native_layer_norm(v, gain.shape, gain, shift, EPS)
            norms.append((v, mean, scale))
            v = activated
        return _activate(v, dynamics.nonlinearity)

    hs = [activate(z, dynamics.normalize_start)]
    for _ in range(dynamics.inner_steps):
        hs.append(activate(recall(hs[-1], z if dynamics.settling == "sustained" else hs[-1]), True))
    return hs, norms


def fold(A: Tensor | None, p_left: Tensor, M: Tensor, left: Tensor, reset: Tensor | None) -> Tensor:
    """Fast weights (B, H, H): p_left A + Σ_τ left[τ] M[τ] M[τ]ᵀ for M (B, T, H), left (B or 1, T), p_left (B or 1,)."""
    sight = _sight(reset, -1)
    M = only(sight.states, M)
    folded = (left.unsqueeze(-1) * M).transpose(1, 2) @ M
    if A is None:
        return folded
    before = p_left[:, None, None] * A
    return folded + (before if sight.A is None else only(sight.A.unsqueeze(-1), before))


def _of(chunk: int, tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor[chunk if len(tensor) > 1 else 0]


def _transit(run: Run, t: int, h: Tensor) -> Tensor:
    """What step t makes of the hidden state before it, (B, H)."""
    previous = h if run.keep is None else only(run.keep[t].unsqueeze(-1) > 0, h)
    if run.W_int is None or run.integrate is None:
        return previous @ run.W.T
    return torch.where(run.integrate[t].unsqueeze(-1) > 0, previous @ run.W_int.T, previous @ run.W.T)


def _transit_backward(run: Run, t: int, grad: Tensor) -> Tensor:
    """From the gradient of what `_transit` made to that of h."""
    back = grad @ run.W
    if run.W_int is not None and run.integrate is not None:
        back = torch.where(run.integrate[t].unsqueeze(-1) > 0, grad @ run.W_int, back)
    return back if run.keep is None else only(run.keep[t].unsqueeze(-1) > 0, back)


def differentiable(run: Run, dynamics: Dynamics) -> tuple[Tensor, Tensor | None]:
    """`hs` and `A` of `Saved`, by operations that autograd, vmap and jvp see through, to any order."""
    T, B, _ = run.x.shape
    H = run.W.shape[0]
    u = F.linear(run.masked(), run.C, run.b)
    h = u.new_zeros(B, H) if run.h0 is None else run.h0
    A, everything = run.A0, []
    for chunk in range(run.chunks):
        states: list[Tensor] = []
        w, p, reset = _of(chunk, run.w), _of(chunk, run.p), run.resets_of(chunk)
        for k, t in enumerate(range(T)[run.steps_of(chunk)]):
            M = torch.stack(states, 1) if states else u.new_zeros(B, 0, H)
            recall = _recall(M, w[:, k, :k], A, p[:, k : k + 1], _sight(reset, k))
            h = settle(u[t] + _transit(run, t, h), recall, run.gain, run.shift, dynamics)[0][-1]
            if run.steps is not None:
                h = torch.where((t < run.steps).unsqueeze(-1), h, 0.0)
            states.append(h)
        everything += states
        if chunk < run.chunks - 1:
            A = fold(A, _of(chunk, run.p_left), torch.stack(states, 1), _of(chunk, run.left), reset)
    return torch.stack(everything), None if run.chunks == 1 else A


def forward(run: Run, dynamics: Dynamics, for_backward: bool) -> Saved:
    """The hidden states, and what `backward` wants to know of the way there."""
    T, B, _ = run.x.shape
    H = run.W.shape[0]
    x = run.masked()
    u = F.linear(x, run.C, run.b)
    hs, h, A = torch.empty_like(u), u.new_zeros(B, H) if run.h0 is None else run.h0, run.A0
    # Every operation of the loop costs a launch: what can be done before it or after it, for all steps, is.
    every_u, every_h, W = u.unbind(), hs.unbind(), run.W.t()
    norms = 0 if run.gain is None else dynamics.inner_steps + dynamics.normalize_start
    queries: list[list[Tensor]] = [[] for _ in range(dynamics.inner_steps)]
    normals: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in range(norms)]
    matrices: list[Tensor] = []
    for chunk in range(run.chunks):
        steps, reset = run.steps_of(chunk), run.resets_of(chunk)
        weights, reads = _of(chunk, run.w).unsqueeze(2).unbind(1), _of(chunk, run.p).unsqueeze(2).unbind(1)
        M = hs[steps].transpose(0, 1)  # (B, K, H), of which a step sees what was made before it
        M_t = M.transpose(1, 2)
        for k, t in enumerate(range(T)[steps]):
            if run.integrate is None and run.keep is None:
                z = torch.addmm(every_u[t], h, W)
            else:
                z = every_u[t] + _transit(run, t, h)
            recall = _recalled(M, M_t, k, weights[k], A, reads[k], _sight(reset, k))
            path, made = _settled(z, recall, run.gain, run.shift, dynamics)
            h = path[-1] if run.steps is None else torch.where((t < run.steps).unsqueeze(-1), path[-1], 0.0)
            every_h[t].copy_(h)
            if for_backward:
                for s, query in enumerate(path[:-1]):
                    queries[s].append(query)
                for number, norm in enumerate(made):
                    normals[number].append(norm)
        if chunk < run.chunks - 1:
            A = fold(A, _of(chunk, run.p_left), M, _of(chunk, run.left), reset)
            matrices.append(A)
    last = None if run.chunks == 1 else A
    if not for_backward:
        return Saved(hs, hs[run.steps_of(run.chunks - 1)].clone(), last)
    *_, some_queries, some_normals, some_scales, some_matrices = saved_shapes(run, dynamics)
    sums, means, scales = (
        _stacked([[made[part] for made in of_step] for of_step in normals], u, shape)
        for part, shape in enumerate((some_normals, some_scales, some_scales))
    )
    return Saved(
        hs,
        hs.clone(),
        last,
        x.clone() if x is run.x else x,
        _stacked(queries, u, some_queries),
        (sums - means) * scales,
        scales,
        _stacked([matrices[:-1]], u, some_matrices).view(some_matrices),
    )


def _stacked(lists: Sequence[Sequence[Tensor]], like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this shape, of the tensors in all lists, one after the other."""
    tensors = [tensor for each in lists for tensor in each]
    return torch.stack(tensors).view(shape) if tensors else like.new_empty(shape)


def backward(
    grad_hs: Tensor, grad_A: Tensor | None, run: Run, saved: Saved, dynamics: Dynamics, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients that are `wanted` (as in `Gradients`), and perhaps others, from those of `hs` and `A`."""
    gain = run.gain
    _, hs, last, x, queries, normals, scales, matrices = saved
    assert x is not None
    assert queries is not None
    assert normals is not None
    assert scales is not None
    assert matrices is not None
    T, B, H = hs.shape
    S, sustained = dynamics.inner_steps, dynamics.settling == "sustained"
    first = int(dynamics.normalize_start)  # the layer norm of the first inner step
    if (active := run.active()) is not None:
        grad_hs = torch.where(active.unsqueeze(-1), grad_hs, 0.0)
    K, n, learned = run.w.shape[-1], run.chunks, any(wanted[WEIGHTS:])
    grad_w, grad_p = hs.new_zeros(n, B, K, K), hs.new_zeros(n, B, K)
    grad_left, grad_p_left = hs.new_zeros(n - 1, B, K), hs.new_zeros(n - 1, B)
    every_h, every_query = hs.unbind(), queries.flatten(0, 1).unbind()
    every_normal, every_scale = normals.flatten(0, 1).unbind(), scales.flatten(0, 1).unbind()
    grad_u: list[Tensor] = []  # from the last step to the first, as are the next
    grad_sums: list[list[Tensor]] = [[] for _ in range(S)]  # of what went into each inner step
    grad_activated: list[list[Tensor]] = [[] for _ in range(len(normals))]
    zeros, ones = scales.new_zeros(B, 1), scales.new_ones(B, 1)

    def through(grad: Tensor, h: Tensor, n: int, t: int) -> Tensor:
        """From the gradient of f(LN[v]) to that of v; n is which of the step's layer norms, -1 for none."""
        grad = _activate_backward(grad, h, dynamics.nonlinearity)
        if gain is None or n < 0:
            return grad
        grad_activated[n].append(grad)
        normal, only_this = every_normal[n * T + t], [True, False, False]
        back = torch.ops.aten.native_layer_norm_backward(grad, normal, gain.shape, zeros, ones, gain, None, only_this)
        scaled: Tensor = back[0] * every_scale[n * T + t]
        return scaled

    from_next = torch.zeros_like(hs[0])
    for chunk in reversed(range(n)):
        steps, reset = run.steps_of(chunk), run.resets_of(chunk)
        A = run.A0 if chunk == 0 else last if chunk == n - 1 else matrices[chunk - 1]
        M = hs[steps].transpose(0, 1).contiguous()  # (B, K, H)
        M_t = M.transpose(1, 2)
        grad_M = grad_hs[steps].transpose(0, 1).clone(memory_format=torch.contiguous_format)
        if chunk < n - 1 and grad_A is not None:  # grad_A: of the fast weights after the chunk
            left, p_left, sight = _of(chunk, run.left), _of(chunk, run.p_left), _sight(reset, -1)
            seen = only(sight.states, M)
            pulled = seen @ (grad_A + grad_A.transpose(1, 2))
            grad_M += only(sight.states, left.unsqueeze(-1) * pulled)
            grad_left[chunk] = (pulled * seen).sum(-1) / 2
            if A is not None:
                grad_p_left[chunk] = (grad_A * only(None if sight.A is None else sight.A.unsqueeze(-1), A)).sum((1, 2))
            grad_A = p_left[:, None, None] * grad_A
            if sight.A is not None:
                grad_A = only(sight.A.unsqueeze(-1), grad_A)
        weights, reads = _of(chunk, run.w).unsqueeze(2).unbind(1), _of(chunk, run.p).unsqueeze(2).unbind(1)
        every_grad = grad_M.unbind(1)
        for k, t in reversed(list(enumerate(range(T)[steps]))):
            sight, weight, past, past_t = _sight(reset, k), weights[k].narrow(2, 0, k), M.narrow(1, 0, k), M_t
            past = only(sight.states, past)
            past_t = M_t.narrow(2, 0, k) if sight.states is None else past.transpose(1, 2)
            grad, grad_z = every_grad[k] + from_next, None
            for s in reversed(range(S)):
                query = every_query[s * T + t]
                grad_v = through(grad, every_h[t] if s == S - 1 else every_query[(s + 1) * T + t], first + s, t)
                grad_sums[s].append(grad_v)
                pair = torch.stack((query, grad_v), 1)
                scores = torch.bmm(pair, past_t)  # (B, 2, k)
                weighted = scores * weight
                asked = weighted.flip(1).transpose(1, 2)
                if sight.states is None:
                    grad_M.narrow(1, 0, k).baddbmm_(asked, pair)
                else:
                    grad_M[:, :k] += only(sight.states, asked @ pair)
                grad = torch.bmm(weighted.narrow(1, 1, 1), past).squeeze(1)
                if learned:
                    grad_w[chunk, :, k, :k] += scores.prod(1)
                if A is not None:
                    read = only(sight.A, torch.bmm(grad_v.unsqueeze(1), A).squeeze(1))
                    grad = torch.addcmul(grad, reads[k], read)
                    if learned:
                        grad_p[chunk, :, k] += (read * query).sum(-1)
                if sustained:
                    grad_z = grad_v if grad_z is None else grad_z + grad_v
                else:
                    grad = grad + grad_v
            grad = through(grad, every_query[t] if S else every_h[t], first - 1, t)
            grad_u.append(grad if grad_z is None else grad_z + grad)
            from_next = _transit_backward(run, t, grad_u[-1])
        if A is not None and S:
            length = M.shape[1]
            of_chunk = torch.stack([grad for each in grad_sums for grad in reversed(each[-length:])])
            asked = _of(chunk, run.p)[:, :length].T.unsqueeze(-1) * of_chunk.view(S, length, B, H)  # (S, K, B, H)
            if reset is not None:
                asked = only((reset.cumsum(0) == 0).unsqueeze(-1), asked)
            asked = asked.flatten(0, 1)
            read_from = asked.permute(1, 2, 0) @ queries[:, steps].flatten(0, 1).transpose(0, 1)
            grad_A = read_from if grad_A is None else grad_A + read_from

    rows, before = torch.cat(grad_u[::-1]), hs.view(-1, H)[: (T - 1) * B]
    grad_W, grad_W_int = transition_gradients(rows, run.keep, run.integrate, run.h0, B, before)
    grad_gain, grad_shift = None, None
    if gain is not None:
        activated = _stacked([each[::-1] for each in grad_activated], hs, normals.shape)
        grad_gain, grad_shift = (activated * normals).sum((0, 1, 2)), activated.sum((0, 1, 2))
    return Gradients(
        x=(rows @ run.C).view(x.shape),
        C=outer(rows, x.flatten(0, 1)),
        b=rows.sum(0),
        W=grad_W,
        W_int=grad_W_int,
        gain=grad_gain,
        shift=grad_shift,
        h0=from_next,
        A0=grad_A if grad_A is not None or run.A0 is None else torch.zeros_like(run.A0),
        **sums_to_size(run, w=grad_w, p=grad_p, left=grad_left, p_left=grad_p_left),
    )
