"""AssociativeLSTM: an LSTM whose cell is a memory of pairs, bound by complex products (Danihelka et al. 2016).

A complex tensor is a real one here, whose first axis holds its two halves: real and imaginary. The batch is the last
axis, so that a unit's numbers lie together and permuting units moves whole rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..memory import checks
from ..memory.products import product


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


# h at every step, (T, B, output_size), then h and c after the last one, as a state has them.
Results = tuple[Tensor, Tensor, Tensor]


def run_by_steps(
    x: Tensor,
    h: Tensor | None,
    c: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    permutations: Tensor,
) -> Results:
    """A run as the equations say it, which whatever torch can do to its operations applies to."""
    (T, B, _), (S, N), (F, M) = x.shape, permutations.shape, weight_hh.shape
    K = M // (2 * N)
    h = x.new_zeros(M, B) if h is None else h.t()
    c = x.new_zeros(2, S, N, B) if c is None else c.reshape(S, B, 2, N).permute(2, 0, 3, 1)
    hs = []
    by_input = torch.addmm(bias.unsqueeze(1), weight_ih, x.flatten(0, 1).t())  # (F, T·B)
    for z in by_input.view(F, T, B).unbind(1):
        z = torch.addmm(z, weight_hh, h)  # (F, B)
        gates, vectors = z.split((N + 2 * K * N, 6 * K * N))
        g_f, g_i, g_o = gates.sigmoid().view(1 + 2 * K, N, B).split((1, K, K))
        u, r = bound(vectors.view(2, 3 * K, N, B)).split((K, 2 * K), 1)
        r_i, r_o = permuted(r, permutations).chunk(2, 1)  # (2, K, copies, N, B)
        c = store(g_f * c, r_i, g_i * u)  # (2, copies, N, B)
        h = (g_o * bound(read(c, r_o))).transpose(0, 1).reshape(M, B)
        hs.append(h.t())
    return torch.stack(hs), hs[-1].contiguous(), c.permute(1, 3, 0, 2).reshape(S, B, 2 * N)


class _Saved(NamedTuple):
    """What the backward of a run needs of its forward. It gathers permuted keys anew, which is faster than saving them.

    Here and below, y_re, y_im and the like are views of what they are named after, made once for all steps: a view
    takes about as long as an operation on the few numbers of a step.
    """

    weight_ih: Tensor  # (F, I)
    weight_hh: Tensor  # (F, output_size)
    entered: Tensor  # (T, B, J), all that entered a step: x, 1, the last h, and zeros that only fill up
    permutations: Tensor  # (copies, N)
    gates: Tensor  # (T, 1 + 2·K, N, B): g_f, g_i, g_o
    vectors: Tensor  # (T, 2, 3·K, N, B): u, r_i, r_o
    scales: Tensor  # (T, 3·K, N, B), by which `bound` made them of û, r̂_i, r̂_o
    found: Tensor  # (T, 2, K, N, B), what was read, bound
    found_scales: Tensor  # (T, K, N, B)
    memory: Tensor  # (T + 1, 2, copies, N, B), before every step and at the end


def _bound(z: Tensor, y: Tensor, scale: Tensor) -> None:
    """Write `bound(z)` to y."""
    re, im = z.unbind(0)
    torch.mul(re, re, out=scale)
    scale.addcmul_(im, im).clamp_(min=1).rsqrt_()
    torch.mul(z, scale, out=y)


def _bound_backward(
    y: tuple[Tensor, ...], scale: Tensor, dy: tuple[Tensor, ...], dz: Tensor, dot: Tensor, cut: Tensor
) -> None:
    """Write the gradient to dz: that of y but, of a number that was cut, without the part along it. Spoils dy.

    Args:
        y, dy: as a whole, its real half, its imaginary half.
        dot, cut: scratch.
    """
    torch.mul(y[1], dy[1], out=dot)
    torch.lt(scale, 1, out=cut)
    dot.addcmul_(y[2], dy[2]).mul_(cut)
    dy[0].addcmul_(y[0], dot, value=-1)
    torch.mul(dy[0], scale, out=dz)


def _terms(axis: int, keys: Tensor, others: Tensor, turned: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What to multiply and add up for the sum over an axis of keys ⊛ others, of which `turned` is i times.

    With others and turned times -i, the same for the keys' conjugates.
    """
    parts = zip(keys.unbind(axis), others.unbind(axis), turned.unbind(axis), strict=True)
    return [pair for key, other, turn in parts for pair in ((key[0], other), (key[1], turn))]


def _key_rows(permutations: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Which rows of the vectors (2·3·K·N, B) are those of the permuted r_i (2·K·copies·N, B), and which of r_o."""
    N = permutations.shape[1]
    starts = torch.arange(0, 6 * K * N, N, device=permutations.device).view(2, 3, K, 1)
    _, r_i, r_o = (starts + permutations.flatten()).unbind(1)
    return r_i.flatten(), r_o.flatten()


def _by_step(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(tensor.unbind(0) for tensor in tensors), strict=True))


def _run(
    x: Tensor,
    h: Tensor | None,
    c: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    permutations: Tensor,
    *,
    keep: bool,
) -> tuple[Results, _Saved]:
    """`run_by_steps` in place, and what `_Run` needs to go back, or without `keep` that of the last step alone."""
    (T, B, D), (S, N), (F, M), new = x.shape, permutations.shape, weight_hh.shape, weight_hh.new_empty
    K, G, slots = M // (2 * N), F - 3 * M, T if keep else 1
    # Filled up to a multiple of 16, for which products are up to a fifth faster.
    J, filling = D + 1 + M, -(D + 1 + M) % 16
    weight = torch.cat((weight_ih, bias.unsqueeze(1), weight_hh, weight_hh.new_zeros(F, filling)), 1)
    output, entered = new(T, B, M), new(T, B, J + filling)
    entered[:, :, :D], entered[:, :, D], entered[:, :, J:] = x, 1, 0
    entered[0, :, D + 1 : J] = 0 if h is None else h
    gates, vectors, scales = new(slots, 1 + 2 * K, N, B), new(slots, 2, 3 * K, N, B), new(slots, 3 * K, N, B)
    found, found_scales = new(slots, 2, K, N, B), new(slots, K, N, B)
    memory = new(T + 1 if keep else 1, 2, S, N, B)
    memory[0] = 0 if c is None else c.reshape(S, B, 2, N).permute(2, 0, 3, 1)

    q, h_now, keys = new(2, K, N, B), new(M, B), new(2, K, S, N, B)
    key_rows = keys.flatten(0, 3)
    h_heads, h_t = h_now.view(K, 2, N, B).transpose(0, 1), h_now.t()
    # The halves of a complex tensor after the negative of the imaginary one: the first two are i times the last two.
    v_three, c_three = new(3, K, 1, N, B), new(3, 1, S, N, B)
    v, v_im, v_minus = v_three[1:, :, 0], v_three[2], v_three[0]
    c_now, c_im, c_minus = c_three[1:, 0].copy_(memory[0]), c_three[2], c_three[0]
    to_c, to_q = _terms(1, keys, v_three[1:], v_three[:2]), _terms(2, keys, c_three[1:], c_three[:2])
    rows_i, rows_o = _key_rows(permutations, K)
    g_views = _by_step(gates, gates[:, 0], gates[:, 1 : K + 1], gates[:, K + 1 :])
    y_views = _by_step(vectors, vectors[:, :, :K], vectors.flatten(1, 3), scales, found, found_scales)
    enter, h_enters = entered.mT.unbind(0), entered[:, :, D + 1 : J].unbind(0)
    outputs, memories = output.unbind(0), memory.unbind(0)
    for t in range(T):
        slot = t if keep else 0
        (g, g_f, g_i, g_o), (y, u, rows, scale, f, f_scale) = g_views[slot], y_views[slot]
        z = product(weight, enter[t])
        torch.sigmoid(z[:G].view(1 + 2 * K, N, B), out=g)
        _bound(z[G:].view(2, 3 * K, N, B), y, scale)
        torch.mul(g_i, u, out=v)
        torch.neg(v_im, out=v_minus)
        torch.index_select(rows, 0, rows_i, out=key_rows)
        c_now.mul_(g_f)
        for r, value in to_c:
            c_now.addcmul_(r, value)
        torch.neg(c_im, out=c_minus)
        if keep:
            memories[t + 1].copy_(c_now)
        torch.index_select(rows, 0, rows_o, out=key_rows)
        q.zero_()
        for r, copy in to_q:
            q.addcmul_(r, copy, value=1 / S)
        _bound(q, f, f_scale)
        torch.mul(g_o, f, out=h_heads)
        outputs[t].copy_(h_t)
        if t + 1 < T:
            h_enters[t + 1].copy_(outputs[t])
    c = new(S, B, 2, N).copy_(c_now.permute(1, 3, 0, 2)).view(S, B, 2 * N)
    saved = _Saved(weight_ih, weight_hh, entered, permutations, gates, vectors, scales, found, found_scales, memory)
    return (output, output[-1].clone(), c), saved


class _Run(torch.autograd.Function):
    """`_run` with its hand-written backward. The gradients of the weights are one product over all steps."""

    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Results:
        results, saved = _run(*tensors, keep=True)
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_h: Tensor | None, grad_c: Tensor | None) -> Any:
        # Not once_differentiable, which says nothing when the gradients that arrive are constants.
        if torch.is_grad_enabled():
            raise RuntimeError("gradients of an AssociativeLSTM cannot be differentiated: create_graph must be False")
        saved = _Saved(*ctx.saved_tensors)
        weight_ih, weight_hh, entered, permutations, gates, vectors, scales, found, found_scales, memory = saved
        (T, B, J), (S, N), (F, M), new = entered.shape, permutations.shape, weight_hh.shape, weight_hh.new_empty
        K, G, D = M // (2 * N), F - 3 * M, weight_ih.shape[1]
        need_x, need_h, need_c = ctx.needs_input_grad[:3]

        back, dh = weight_hh.t().contiguous(), new(M, B)
        dh[:] = 0 if grad_h is None else grad_h.t()
        dz, dg, slopes = new(T, F, B), new(1 + 2 * K, N, B), new(1 + 2 * K, N, B)
        dy, dot, cut = new(2, 3 * K, N, B), new(3 * K, N, B), new(3 * K, N, B)
        dy_rows, du, dr, dys, (dg_f, dg_i, dg_o) = (
            dy.flatten(0, 2),
            dy[:, :K],
            dy[:, K:],
            (dy, *dy),
            dg.split((1, K, K)),
        )
        v, dv, df, f_dot, f_cut = new(2, K, N, B), new(2, K, N, B), new(2, K, N, B), dot[:K], cut[:K]
        (v_re, v_im), (dv_re, dv_im), dfs = v.unsqueeze(2), dv, (df, *df)
        keys, d_keys = new(2, K, S, N, B), new(2, K, S, N, B)
        key_rows, d_key_rows = keys.flatten(0, 3), d_keys.flatten(0, 3)
        # The halves of a complex tensor and the negative of the real one: the last two are -i times the first two.
        q_three, c_three = new(3, K, 1, N, B), new(3, 1, S, N, B)
        dq, dq_re, dq_minus, dq_all, dq_turned = q_three[:2, :, 0], q_three[0], q_three[2], q_three[:2], q_three[1:]
        dc, dc_re, dc_minus, dc_all, dc_turned = c_three[:2, 0], c_three[0], c_three[2], c_three[:2], c_three[1:]
        dc[:] = 0 if grad_c is None else grad_c.reshape(S, B, 2, N).permute(2, 0, 3, 1)
        forgotten = new(2 * S, N, B)
        forgotten_halves = forgotten.view(2, S, N, B)
        to_c, to_v = _terms(1, keys, dq_all, dq_turned), _terms(2, keys, dc_all, dc_turned)
        rows_i, rows_o = _key_rows(permutations, K)

        g_views = _by_step(gates, gates[:, 0], gates[:, 1 : K + 1], gates[:, K + 1 :])
        y_views = _by_step(vectors, vectors[:, 0], vectors[:, 1])
        u_views = _by_step(vectors[:, :, :K], vectors[:, 0, :K], vectors[:, 1, :K])
        f_views = _by_step(found, found[:, 0], found[:, 1])
        c_views = _by_step(memory[:-1], memory[1:, 0], memory[1:, 1])
        z_views = _by_step(dz, dz[:, :G].view(T, 1 + 2 * K, N, B), dz[:, G:].view(T, 2, 3 * K, N, B))
        r_views = _by_step(vectors.flatten(1, 3), scales, found_scales)
        for t in reversed(range(T)):
            (g, g_f, g_i, g_o), (u, u_re, u_im), (_, f_re, f_im) = g_views[t], u_views[t], f_views[t]
            (c_before, c_re, c_im), (rows, scale, f_scale) = c_views[t], r_views[t]
            dz_now, dz_gates, dz_vectors = z_views[t]
            if grad_output is not None:
                dh.add_(grad_output[t].t().contiguous())
            dh_heads = dh.view(K, 2, N, B).transpose(0, 1)
            dh_re, dh_im = dh_heads
            torch.mul(f_re, dh_re, out=dg_o)
            dg_o.addcmul_(f_im, dh_im)
            torch.mul(g_o, dh_heads, out=df)
            _bound_backward(f_views[t], f_scale, dfs, dq, f_dot, f_cut)
            dq.mul_(1 / S)
            torch.neg(dq_re, out=dq_minus)

            torch.index_select(rows, 0, rows_o, out=key_rows)
            for r, d in to_c:
                dc.addcmul_(r, d)
            torch.neg(dc_re, out=dc_minus)
            torch.mul(c_re, dq_all, out=d_keys)
            d_keys.addcmul_(c_im, dq_turned)
            dr.zero_()
            dy_rows.index_add_(0, rows_o, d_key_rows)

            torch.index_select(rows, 0, rows_i, out=key_rows)
            dv.zero_()
            for r, d in to_v:
                dv.addcmul_(r, d)
            torch.mul(g_i, u, out=v)
            torch.mul(v_re, dc_all, out=d_keys)
            d_keys.addcmul_(v_im, dc_turned)
            dy_rows.index_add_(0, rows_i, d_key_rows)
            torch.mul(g_i, dv, out=du)
            torch.mul(u_re, dv_re, out=dg_i)
            dg_i.addcmul_(u_im, dv_im)
            torch.mul(dc, c_before, out=forgotten_halves)
            torch.sum(forgotten, 0, keepdim=True, out=dg_f)
            dc.mul_(g_f)

            _bound_backward(y_views[t], scale, dys, dz_vectors, dot, cut)
            torch.addcmul(g, g, g, value=-1, out=slopes)
            torch.mul(dg, slopes, out=dz_gates)
            if t or need_h:
                dh = product(back, dz_now)
        dz_all = dz.transpose(0, 1).reshape(F, T * B)
        d_weight = product(dz_all, entered.view(T * B, J))
        d_ih, d_bias, d_hh, _ = d_weight.split((D, 1, M, J - D - 1 - M), 1)
        # The transpose of the product is faster than the product of transposes.
        dx = product(weight_ih.t(), dz_all).t().contiguous() if need_x else None
        return (
            dx.view(T, B, D) if dx is not None else None,
            dh.t() if need_h else None,
            dc.permute(1, 3, 0, 2).reshape(S, B, 2 * N) if need_c else None,
            d_ih,
            d_hh,
            d_bias.squeeze(1),
            None,
        )


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
        if state is not None:
            self._check_state(x.shape[1], state)
        h, c = (None, None) if state is None else state
        tensors = x, h, c, self.weight_ih, self.weight_hh, self.bias
        if (
            torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0
            or torch.compiler.is_compiling()
        ):
            output, h, c = run_by_steps(*tensors, self.permutations)
        elif torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
            output, h, c = _Run.apply(*tensors, self.permutations)  # type: ignore[no-untyped-call]
        else:
            (output, h, c), _ = _run(*tensors, self.permutations, keep=False)
        return output, AssociativeLSTMState(h, c)

    def _check_state(self, B: int, state: object) -> None:
        like = self.weight_hh
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

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, copies={self.copies}, heads={self.heads}, seed={self.seed}"
