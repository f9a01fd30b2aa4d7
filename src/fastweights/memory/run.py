"""A run: T steps of B sequences in chunks, what computing it leaves for its backward, and what that finds.

Three files compute runs: `chunked`, `kernel` and `triton`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .equations import Dynamics


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


def saved_shapes(run: Run, dynamics: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Of what `forward` returns for a backward to come; (0,): nothing."""
    (T, B, features), H = run.x.shape, run.W.shape[0]
    S, n = dynamics.inner_steps, run.chunks
    norms = 0 if run.gain is None else S + dynamics.normalize_start
    last = (0,) if n == 1 else (B, H, H)
    kept = (S, T, B, H), (norms, T, B, H), (norms, T, B, 1), (max(n - 2, 0), B, H, H)
    return (T, B, H), (T, B, H), last, (T, B, features), *kept


def only(where: Tensor | None, value: Tensor) -> Tensor:
    """A value where it counts, else 0, whatever it is there; None: it counts everywhere."""
    return value if where is None else torch.where(where, value, 0.0)


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
        h0, before = None if h0 is None else only(kept[:first], h0), only(kept[first:], before)
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
