"""What a sequence leaves behind: the hidden state and the fast weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .chunked import fold
from .weights import Weights


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for this kind of device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, where it is on: the recurrence and its memory keep the dtype of the weights."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()


class End(NamedTuple):
    """What B sequences of T steps leave behind, before anybody looks at it."""

    hs: Tensor  # (T, B, H)
    h0: Tensor | None  # (B, H): where they started; None: zero
    A: Tensor | None  # (B, H, H): the fast weights before the last chunk; None: zero
    weights: Weights
    lengths: Tensor | None  # (B,)

    def h(self) -> Tensor:
        """Each sequence's own last state, (B, H); h0 where it has no step."""
        if self.lengths is None:
            return self.hs[-1].clone()
        place = (self.lengths - 1).clamp(min=0).reshape(1, -1, 1).expand(1, *self.hs.shape[1:])
        last, start = self.hs.gather(0, place).squeeze(0), 0.0 if self.h0 is None else self.h0
        return torch.where(self.lengths.unsqueeze(-1) > 0, last, start)

    def matrix(self) -> Tensor:
        """The fast weights, (B, H, H)."""
        left, p_left = self.weights.at_end(len(self.hs), self.lengths)
        states = self.hs[len(self.hs) - left.shape[-1] :].transpose(0, 1)
        return fold(self.A, p_left, states, left)

    def map(self, function: Callable[[Tensor], Tensor]) -> End:
        def of(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else function(tensor)

        weights = Weights(*(function(tensor) for tensor in self.weights))
        return End(function(self.hs), of(self.h0), of(self.A), weights, self.lengths)


class FastWeightsState:
    """The state of a `FastWeights` layer between two calls: `h` and `A`.

    `A` is what the *next* step reads: it already holds the last `h`. After a sequence, both are built when first looked
    at, so a caller who only wants the layer's output does not pay for them.

    Args:
        h: hidden states, (layers·directions, B, H); without the B for unbatched input; (B, H) or (H,) for a cell.
        A: fast weights, `h`'s shape with one more H.

    >>> state = FastWeightsState(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8, 8))
    >>> state.index_select(torch.tensor([0, 2])).A.shape
    torch.Size([1, 2, 8, 8])
    >>> h, A = state.detach()
    """

    _h: Tensor | None = None
    _A: Tensor | None = None
    _ends: tuple[End, ...] = ()
    _shape: tuple[int, ...] = ()  # of h
    _grad = False  # whether the call that left the ends recorded a graph
    _versions: tuple[int, ...] | None = None

    def __init__(self, h: Tensor, A: Tensor) -> None:
        for name, tensor in (("h", h), ("A", A)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if h.dim() == 0 or A.shape != (*h.shape, h.shape[-1]):
            raise ValueError(
                f"A must have the shape of h with its last size repeated, {(*h.shape, *h.shape[-1:])} "
                f"for h {tuple(h.shape)}; got {tuple(A.shape)}"
            )
        if A.dtype != h.dtype or A.device != h.device:
            raise ValueError(f"A must be {h.dtype} on {h.device}, as h is; got {A.dtype} on {A.device}")
        self._h, self._A = h, A

    @classmethod
    def left_by(cls, ends: tuple[End, ...], shape: tuple[int, ...]) -> FastWeightsState:
        """A state that is built on demand, with an `h` of this shape: one end per row of it, or one for a cell."""
        state = cls.__new__(cls)
        state._shape, state._grad = shape, torch.is_grad_enabled()
        if not torch.compiler.is_compiling():
            if ends[0].hs.is_inference():  # such tensors do not count their changes
                ends = tuple(end._replace(hs=end.hs.clone()) for end in ends)
            else:
                state._versions = tuple(end.hs._version for end in ends)
        state._ends = ends
        return state

    @classmethod
    def made_of(cls, h: Tensor, A: Tensor) -> FastWeightsState:
        """A state of tensors known to fit, unchecked."""
        state = cls.__new__(cls)
        state._h, state._A = h, A
        return state

    @property
    def h(self) -> Tensor:
        """Hidden states."""
        if self._h is None:
            self._h = self._build(End.h, self._shape)
        return self._h

    @property
    def A(self) -> Tensor:
        """Fast weights: what the next step reads."""
        if self._A is None:
            self._A = self._build(End.matrix, (*self._shape, self._shape[-1]))
        return self._A

    def past(self, shape: tuple[int, ...], weights: Callable[[int], Weights]) -> Tensor | None:
        """All states since h and A were zero, (T, B, H), if they are known, and if these weights are how they are seen.

        Args:
            shape: that h must have.
            weights: for so many steps.
        """
        if self._A is not None or len(self._ends) != 1 or self._shape != shape:
            return None
        if self._versions != (self._ends[0].hs._version,):  # which is an error, once h or A is looked at
            return None
        hs, h0, A, seen, lengths = self._ends[0]
        return hs if h0 is A is lengths is None and seen is weights(len(hs)) else None

    def _build(self, part: Callable[[End], Tensor], shape: tuple[int, ...]) -> Tensor:
        def build() -> Tensor:
            parts = [part(end) for end in self._ends]
            return (parts[0] if len(parts) == 1 else torch.stack(parts)).reshape(shape)

        if torch.compiler.is_compiling():
            return build()
        hs = self._ends[0].hs
        if self._versions is not None and self._versions != tuple(end.hs._version for end in self._ends):
            raise RuntimeError(
                "the layer's output was changed in place before the state was built from it: "
                "look at state.h and state.A first, or change a clone of the output"
            )
        # As part of the graph of the call that left it, and as precisely, wherever it is looked at first.
        with torch.inference_mode(hs.is_inference()), torch.set_grad_enabled(self._grad), full_precision(hs.device):
            return build()

    def detach(self) -> FastWeightsState:
        """The same state, cut off from the graph that made it: for truncated backpropagation through time."""
        if self._h is not None and self._A is not None:
            return FastWeightsState.made_of(self._h.detach(), self._A.detach())
        state = FastWeightsState.left_by(tuple(end.map(Tensor.detach) for end in self._ends), self._shape)
        state._h, state._A = (None if part is None else part.detach() for part in (self._h, self._A))
        state._grad, state._versions = False, self._versions
        return state

    def to(self, *args: Any, **kwargs: Any) -> FastWeightsState:
        """Move or cast, with the arguments of `torch.Tensor.to`."""
        return FastWeightsState(self.h.to(*args, **kwargs), self.A.to(*args, **kwargs))

    def index_select(self, index: Tensor) -> FastWeightsState:
        """The states of the sequences in `index` (a 1-d tensor of batch positions), in that order."""
        batch = self.h.dim() - 2
        if batch < 0:
            raise ValueError(f"index_select needs a state with a batch, got h of shape {tuple(self.h.shape)}")
        return FastWeightsState(self.h.index_select(batch, index), self.A.index_select(batch, index))

    def tensors(self) -> dict[str, Tensor]:
        """`{"h": …, "A": …}`, contiguous: what safetensors saves. Back with `FastWeightsState(**tensors)`."""
        return {"h": self.h.contiguous(), "A": self.A.contiguous()}

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.h, self.A))

    def __reduce__(self) -> tuple[type[FastWeightsState], tuple[Tensor, Tensor]]:
        return FastWeightsState, (self.h, self.A)

    def __repr__(self) -> str:
        shape, size = tuple(self.h.shape), self.h.shape[-1]
        return f"FastWeightsState(h={shape}, A={(*shape, size)}, dtype={self.h.dtype}, device={self.h.device})"


def _flatten(state: FastWeightsState) -> tuple[list[Tensor], None]:
    return [state.h, state.A], None


def _unflatten(tensors: Any, _: None) -> FastWeightsState:
    # Not through __init__: transforms put placeholders where the tensors were.
    return FastWeightsState.made_of(*tensors)


pytree.register_pytree_node(FastWeightsState, _flatten, _unflatten, serialized_type_name="fastweights.FastWeightsState")
