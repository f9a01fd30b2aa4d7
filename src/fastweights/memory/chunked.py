"""Sequences in plain torch: attention inside a chunk of steps, and between chunks the fast weights themselves.

The portable twin of the fused kernel: any device, any floating dtype, with a backward through time written by hand
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

Recall = Callable[[Tensor], Tensor]


class Run(NamedTuple):
    """T steps of B sequences in n chunks of K, the last perhaps shorter, and what they start from.

    B or 1, n or 1: the same for all.
    """

    x: Tensor  # (T, B, I)
    C: Tensor  # (H, I)
    b: Tensor | None  # (H,)
    W: Tensor  # (H, H)
    W_int: Tensor | None  # (H, H): takes the place of W where `integrate` says so; None: nowhere
    gain: Tensor | None  # (H,); None: no layer norm
    shift: Tensor | None  # (H,)
    h0: Tensor | None  # (B, H); None: zero
    A0: Tensor | None  # (B, H, H); None: zero
    w: Tensor  # (n or 1, B or 1, K, K)
    p: Tensor  # (n or 1, B or 1, K)
    left: Tensor | None  # (n-1 or 1, B or 1, K), 0 past a sequence's end; None: there is one chunk
    p_left: Tensor | None  # (n-1 or 1, B or 1), 1 past a sequence's end
    keep: Tensor | None  # (T, B): 0 where the hidden state is zeroed before the step, else 1
    reset: Tensor | None  # (T, B): 1 where the fast weights are zeroed before the step too, else 0; None: nowhere
    integrate: Tensor | None  # (T, B): 1 where W_int takes the place of W, else 0; None where there is no W_int
    steps: Tensor | None  # (B,): how many of the steps count; None: all. Past them states are zero, whatever x is

    @property
    def chunks(self) -> int:
        return -(-self.x.shape[0] // self.w.shape[-1])

    def steps_of(self, chunk: int) -> slice:
        K = self.w.shape[-1]
        return slice(chunk * K, min((chunk + 1) * K, self.x.shape[0]))

    def resets_of(self, chunk: int) -> Tensor | None:
        return None if self.reset is None else self.reset[self.steps_of(chunk)]

    def active(self) -> Tensor | None:
        """Which steps count, (T, B); None: all."""
        if self.steps is None:
            return None
        return torch.arange(self.x.shape[0], device=self.steps.device).unsqueeze(1) < self.steps

    def masked(self) -> Tensor:
        """x, and zero past each sequence's end, where it may be anything."""
        active = self.active()
        return self.x if active is None else torch.where(active.unsqueeze(-1), self.x, 0.0)


WEIGHTS = Run._fields.index("w")  # of the past: this and the three that follow


class Saved(NamedTuple):
    """What a forward returns and leaves for its backward; N is the number of layer norms in a step.

    The caller may write to `hs` and to the x of the run at any time, so a state and a backward have copies of them.
    Without a backward to come, all after `A` is None. The kernel has a layout of its own, all of it in `queries`, and
    no copy of x, which it can tell to be another.
    """

    hs: Tensor  # (T, B, H): the caller's
    states: Tensor  # (T, B, H): a copy; without a backward to come that of the last chunk alone
    A: Tensor | None  # (B, H, H): the fast weights that the last chunk starts from; None: there is one chunk
    x: Tensor | None = None  # (T, B, I): a copy
    queries: Tensor | None = None  # (S, T, B, H): h_0 … h_{S-1}
    normals: Tensor | None = None  # (N, T, B, H)
    scales: Tensor | None = None  # (N, T, B, 1)
    matrices: Tensor | None = None  # (n-2, B, H, H): the fast weights that the chunks between start from


class Gradients(NamedTuple):
    """Of the first tensors of a `Run`; None where it has none, or where it is not wanted."""

    x: Tensor | None = None
    C: Tensor | None = None
    b: Tensor | None = None
    W: Tensor | None = None
    W_int: Tensor | None = None
    gain: Tensor | None = None
    shift: Tensor | None = None
    h0: Tensor | None = None
    A0: Tensor | None = None
    w: Tensor | None = None
    p: Tensor | None = None
    left: Tensor | None = None
    p_left: Tensor | None = None


def _activate(v: Tensor, nonlinearity: str) -> Tensor:
    return torch.relu(v) if nonlinearity == "relu" else torch.tanh(v)


def _slope(h: Tensor, nonlinearity: str) -> Tensor:
    """f'(v), from h = f(v); of what is not a number, 1, as torch has it."""
    return (h <= 0).logical_not().to(h.dtype) if nonlinearity == "relu" else 1 - h * h


def _normalize(v: Tensor) -> tuple[Tensor, Tensor]:
    """Give v mean 0 and variance 1 over the features; also, what it was multiplied by."""
    centred = v - v.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    return centred * scale, scale


def _normalize_backward(grad: Tensor, normal: Tensor, scale: Tensor) -> Tensor:
    along = (grad * normal).mean(-1, keepdim=True)
    return scale * (grad - grad.mean(-1, keepdim=True) - normal * along)


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


def _seen(where: Tensor | None, value: Tensor) -> Tensor:
    return value if where is None else torch.where(where, value, 0.0)


def _recall(M: Tensor, w: Tensor, A: Tensor | None, p: Tensor, sight: Sight) -> Recall:
    """From q to A(t) q, for the states so far M (B, t, H), w (B or 1, t) and p (B or 1, 1)."""
    M = _seen(sight.states, M)

    def recall(q: Tensor) -> Tensor:
        scores = (M @ q.unsqueeze(-1)).squeeze(-1) * w  # (B, t)
        total = (scores.unsqueeze(1) @ M).squeeze(1)
        return total if A is None else total + _seen(sight.A, p * (A @ q.unsqueeze(-1)).squeeze(-1))

    return recall


def fold(A: Tensor | None, p_left: Tensor, M: Tensor, left: Tensor, reset: Tensor | None) -> Tensor:
    """Fast weights (B, H, H): p_left A + Σ_τ left[τ] M[τ] M[τ]ᵀ for M (B, T, H), left (B or 1, T), p_left (B or 1,)."""
    sight = _sight(reset, -1)
    M = _seen(sight.states, M)
    folded = (left.unsqueeze(-1) * M).transpose(1, 2) @ M
    if A is None:
        return folded
    before = p_left[:, None, None] * A
    return folded + (before if sight.A is None else _seen(sight.A.unsqueeze(-1), before))


def _of(chunk: int, tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor[chunk if len(tensor) > 1 else 0]


def _transit(run: Run, t: int, h: Tensor) -> Tensor:
    """What step t makes of the hidden state before it, (B, H)."""
    previous = h if run.keep is None else _seen(run.keep[t].unsqueeze(-1) > 0, h)
    if run.W_int is None or run.integrate is None:
        return previous @ run.W.T
    return torch.where(run.integrate[t].unsqueeze(-1) > 0, previous @ run.W_int.T, previous @ run.W.T)


def _transit_backward(run: Run, t: int, grad: Tensor) -> Tensor:
    """From the gradient of what `_transit` made to that of h."""
    back = grad @ run.W
    if run.W_int is not None and run.integrate is not None:
        back = torch.where(run.integrate[t].unsqueeze(-1) > 0, grad @ run.W_int, back)
    return back if run.keep is None else _seen(run.keep[t].unsqueeze(-1) > 0, back)


def step_after(
    past: Tensor, h: Tensor | None, x: Tensor, weights: Sequence[Tensor | None], w: Tensor, dynamics: Dynamics
) -> Tensor:
    """The state (B, H) after a step of x (B, I) from h, with `past` (T, B, H), all states since A was zero.

    Args:
        h: None: zero.
        weights: C, b, W, gain, shift, as in `Run`.
        w: how the step sees the states before it, (B or 1, T).
    """
    C, b, W, gain, shift = weights
    assert C is not None
    assert W is not None
    z = F.linear(x, C, b)
    if h is not None:
        z = torch.addmm(z, h, W.T)

    def recall(q: Tensor) -> Tensor:
        # Not by batched products as in `_recall`, which take longer for so few numbers of each sequence.
        scores = (past * q).sum(-1, keepdim=True) * w.t().unsqueeze(-1)  # (T, B, 1)
        return (scores * past).sum(0)

    return settle(z, recall, gain, shift, dynamics)[0][-1]


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
    K, H = run.w.shape[-1], run.W.shape[0]
    x = run.masked()
    u = F.linear(x, run.C, run.b)
    hs, h, A = u.new_empty(T, B, H), u.new_zeros(B, H) if run.h0 is None else run.h0, run.A0
    if for_backward:
        *_, queries, normals, scales, matrices = (u.new_empty(shape) for shape in saved_shapes(run, dynamics))
    for chunk in range(run.chunks):
        w, p, reset, M = _of(chunk, run.w), _of(chunk, run.p), run.resets_of(chunk), u.new_empty(B, K, H)
        if for_backward and 0 < chunk < run.chunks - 1 and A is not None:
            matrices[chunk - 1] = A
        for k, t in enumerate(range(T)[run.steps_of(chunk)]):
            recall = _recall(M[:, :k], w[:, k, :k], A, p[:, k : k + 1], _sight(reset, k))
            path, norms = settle(u[t] + _transit(run, t, h), recall, run.gain, run.shift, dynamics)
            h = path[-1] if run.steps is None else torch.where((t < run.steps).unsqueeze(-1), path[-1], 0.0)
            hs[t] = M[:, k] = h
            if for_backward:
                for s, query in enumerate(path[:-1]):
                    queries[s, t] = query
                for n, (normal, scale) in enumerate(norms):
                    normals[n, t], scales[n, t] = normal, scale
        if chunk < run.chunks - 1:
            A = fold(A, _of(chunk, run.p_left), M, _of(chunk, run.left), reset)
    last = None if run.chunks == 1 else A
    if not for_backward:
        return Saved(hs, hs[run.steps_of(run.chunks - 1)].clone(), last)
    return Saved(hs, hs.clone(), last, x.clone() if x is run.x else x, queries, normals, scales, matrices)


def saved_shapes(run: Run, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns for a backward to come; (0,): nothing."""
    (T, B, features), H = run.x.shape, run.W.shape[0]
    S, n = dynamics.inner_steps, run.chunks
    norms = 0 if run.gain is None else S + dynamics.normalize_start
    last = (0,) if n == 1 else (B, H, H)
    kept = (S, T, B, H), (norms, T, B, H), (norms, T, B, 1), (max(n - 2, 0), B, H, H)
    return (T, B, H), (T, B, H), last, (T, B, features), *kept


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
    grad_u, grad_activated = torch.empty_like(hs), torch.empty_like(normals)
    grad_sums = torch.empty_like(queries)  # of what went into each inner step: (S, T, B, H)
    K, n = run.w.shape[-1], run.chunks
    grad_w, grad_p = hs.new_zeros(n, B, K, K), hs.new_zeros(n, B, K)
    grad_left, grad_p_left = hs.new_zeros(n - 1, B, K), hs.new_zeros(n - 1, B)

    def through(grad: Tensor, h: Tensor, n: int, t: int) -> Tensor:
        """From the gradient of f(LN[v]) to that of v; n is which of the step's layer norms, -1 for none."""
        grad = grad * _slope(h, dynamics.nonlinearity)
        if gain is None or n < 0:
            return grad
        grad_activated[n, t] = grad
        return _normalize_backward(grad * gain, normals[n, t], scales[n, t])

    from_next = torch.zeros_like(hs[0])
    for chunk in reversed(range(n)):
        steps, reset = run.steps_of(chunk), run.resets_of(chunk)
        A = run.A0 if chunk == 0 else last if chunk == n - 1 else matrices[chunk - 1]
        M = hs[steps].transpose(0, 1).contiguous()  # (B, K, H)
        grad_M = torch.zeros_like(M)
        if chunk < n - 1 and grad_A is not None:  # grad_A: of the fast weights after the chunk
            left, p_left, sight = _of(chunk, run.left), _of(chunk, run.p_left), _sight(reset, -1)
            seen = _seen(sight.states, M)
            pulled = seen @ (grad_A + grad_A.transpose(1, 2))
            grad_M += _seen(sight.states, left.unsqueeze(-1) * pulled)
            grad_left[chunk] = (pulled * seen).sum(-1) / 2
            if A is not None:
                grad_p_left[chunk] = (grad_A * _seen(None if sight.A is None else sight.A.unsqueeze(-1), A)).sum((1, 2))
            grad_A = p_left[:, None, None] * grad_A
            if sight.A is not None:
                grad_A = _seen(sight.A.unsqueeze(-1), grad_A)
        w, p = _of(chunk, run.w), _of(chunk, run.p)
        for k, t in reversed(list(enumerate(range(T)[steps]))):
            sight, weight = _sight(reset, k), w[:, k, :k]
            past = _seen(sight.states, M[:, :k])
            grad = grad_hs[t] + grad_M[:, k] + from_next
            grad_z = torch.zeros_like(from_next)
            for s in reversed(range(S)):
                after = hs[t] if s == S - 1 else queries[s + 1, t]
                query = queries[s, t]
                grad_v = through(grad, after, first + s, t)
                grad_sums[s, t] = grad_v
                scores, grad_scores = (past @ torch.stack((query, grad_v), -1)).unbind(-1)  # (B, k) each
                grad_w[chunk, :, k, :k] += scores * grad_scores
                weighted = torch.stack((scores * weight, grad_scores * weight), -1)  # (B, k, 2)
                grad_M[:, :k] += _seen(sight.states, weighted @ torch.stack((grad_v, query), 1))
                grad = (weighted[..., 1].unsqueeze(1) @ past).squeeze(1)
                if A is not None:
                    read = _seen(sight.A, (grad_v.unsqueeze(1) @ A).squeeze(1))
                    grad_p[chunk, :, k] += (read * query).sum(-1)
                    grad = grad + p[:, k : k + 1] * read
                if sustained:
                    grad_z += grad_v
                else:
                    grad = grad + grad_v
            start = queries[0, t] if S else hs[t]
            grad_z += through(grad, start, first - 1, t)
            grad_u[t] = grad_z
            from_next = _transit_backward(run, t, grad_z)
        if A is not None:
            asked = p[:, : M.shape[1]].T.unsqueeze(-1) * grad_sums[:, steps]  # (S, K, B, H)
            if reset is not None:
                asked = _seen((reset.cumsum(0) == 0).unsqueeze(-1), asked)
            asked = asked.flatten(0, 1)
            read_from = asked.permute(1, 2, 0) @ queries[:, steps].flatten(0, 1).transpose(0, 1)
            grad_A = read_from if grad_A is None else grad_A + read_from

    grad_u = grad_u.view(-1, H)
    before = hs.view(-1, H)[: (T - 1) * B]
    grad_W, grad_W_int = transition_gradients(grad_u, run.keep, run.integrate, run.h0, B, before)
    grad_gain, grad_shift = None, None
    if gain is not None:
        grad_gain, grad_shift = (grad_activated * normals).sum((0, 1, 2)), grad_activated.sum((0, 1, 2))
    return Gradients(
        x=(grad_u @ run.C).view(x.shape),
        C=outer(grad_u, x.flatten(0, 1)),
        b=grad_u.sum(0),
        W=grad_W,
        W_int=grad_W_int,
        gain=grad_gain,
        shift=grad_shift,
        h0=from_next,
        A0=grad_A if grad_A is not None or run.A0 is None else torch.zeros_like(run.A0),
        **sums_to_size(run, w=grad_w, p=grad_p, left=grad_left, p_left=grad_p_left),
    )


def outer(a: Tensor, b: Tensor) -> Tensor:
    """The sum over rows of their outer products, aᵀ b."""
    return a.t() @ b


def transition_gradients(
    grad_u: Tensor,
    keep: Tensor | None,
    integrate: Tensor | None,
    h0: Tensor | None,
    first: int,
    before: Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = outer,
) -> tuple[Tensor, Tensor | None]:
    """Of W and W_int, from the gradients of what went into the steps (rows, H).

    The `first` rows follow h0, the others `before`; `keep` and `integrate` have a number per row, 0 or 1.
    """

    def gradient(early: Tensor, start: Tensor | None, later: Tensor, before: Tensor) -> Tensor:
        grad = product(later, before)
        return grad if start is None else grad + product(early, start)

    if keep is not None:  # a state that is zeroed may have been NaN
        kept = keep.reshape(-1, 1) > 0
        h0, before = None if h0 is None else _seen(kept[:first], h0), _seen(kept[first:], before)
    if integrate is None:
        return gradient(grad_u[:first], h0, grad_u[first:], before), None
    with_W_int = integrate.reshape(-1)
    with_W = grad_u * (1 - with_W_int).unsqueeze(-1)
    grad_W = gradient(with_W[:first], h0, with_W[first:], before)
    if not grad_u.is_cpu:  # where looking for them would have the CPU wait
        masked = grad_u * with_W_int.unsqueeze(-1)
        return grad_W, gradient(masked[:first], h0, masked[first:], before)
    # Few steps integrate, as a rule.
    early, later = with_W_int[:first].nonzero().squeeze(1), with_W_int[first:].nonzero().squeeze(1)
    start = None if h0 is None else h0[early]
    return grad_W, gradient(grad_u[:first][early], start, grad_u[first:][later], before[later])


def sums_to_size(run: Run, **grads: Tensor) -> dict[str, Tensor]:
    """Gradients of all n chunks and B sequences, as those of what is perhaps the same for all."""
    shapes = {name: getattr(run, name) for name in grads}
    return {name: grads[name].sum_to_size(like.shape) for name, like in shapes.items() if like is not None}
