"""What a sequence leaves behind: the hidden state and the fast weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from . import checks
from .chunked import fold
from .modes import full_precision
from .weights import Weights


def last_of(hs: Tensor, h0: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Each sequence's own last state of hs (T, B, H), in memory of its own; h0 where it has no step."""
    if lengths is None:
        return hs[-1].clone()
    place = (lengths - 1).clamp(min=0).reshape(1, -1, 1).expand(1, *hs.shape[1:])
    last, start = hs.gather(0, place).squeeze(0), 0.0 if h0 is None else h0
    return torch.where(lengths.unsqueeze(-1) > 0, last, start)


class End(NamedTuple):
    """What B sequences of T steps leave behind, before anybody looks at it. No caller has these tensors."""

    T: int
    states: Tensor  # (T, B, H), or of the last chunk alone
    h: Tensor | None  # (B, H): the last state of each sequence; None: it can be had from `states`
    h0: Tensor | None  # (B, H): where they started; None: zero
    A: Tensor | None  # (B, H, H): the fast weights before the last chunk; None: zero
    weights: Weights | None  # None: `after` is known
    lengths: Tensor | None  # (B,)
    reset: Tensor | None  # (steps of the last chunk, B)
    dtype: torch.dtype  # of the state: it may have been computed in another
    after: Tensor | None = None  # (B, H, H): the fast weights after all steps, if somebody built them

    def hidden(self) -> Tensor:
        """The hidden state, (B, H)."""
        h = last_of(self.states, self.h0, self.lengths) if self.h is None else self.h
        return h.to(self.dtype)

    def matrix(self) -> Tensor:
        """The fast weights, (B, H, H)."""
        if self.after is not None:
            return self.after.to(self.dtype)
        assert self.weights is not None
        left, p_left = self.weights.at_end(self.T, self.lengths)
        states = self.states[self.states.shape[0] - left.shape[-1] :].transpose(0, 1)
        return fold(self.A, p_left, states, left, self.reset).to(self.dtype)

    def detach(self) -> End:
        def cut(value: Any) -> Any:
            return value.detach() if isinstance(value, Tensor) else value

        weights = None if self.weights is None else Weights(*map(cut, self.weights))
        return End(*map(cut, self))._replace(weights=weights)


class FastWeightsState:
    """The state of a `FastWeights` layer between two calls: `h` and `A`, as a pair.

    It is a snapshot: nothing that is done afterwards to x, to the output or to the state that went in changes it.
    `A` is what the *next* step reads: it already holds the last `h`. After a sequence that started from zero, `A` is
    built when it is first looked at, so a caller who only wants the layer's output does not pay for it.

    Args:
        h: hidden states, (layers·directions, B, H); without the B for unbatched input; (B, H) or (H,) for a cell.
        A: fast weights, `h`'s shape with one more H.

    >>> state = FastWeightsState(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8, 8))
    >>> state.index_select(torch.tensor([0, 2])).A.shape
    torch.Size([1, 2, 8, 8])
    >>> h, A = state.detach()
    >>> done = torch.tensor([True, False, False, True])
    >>> state = state.where(~done)  # zero for the sequences that are done
    """

    _h: Tensor | None = None
    _A: Tensor | None = None
    _ends: tuple[End, ...] = ()
    _shape: tuple[int, ...] = ()  # of h
    _grad = False  # whether the call that left the ends recorded a graph

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
        checks.memory("h", h)
        checks.memory("A", A)
        self._h, self._A = h, A

    @classmethod
    def left_by(cls, ends: tuple[End, ...], shape: tuple[int, ...]) -> FastWeightsState:
        """A state with an `h` of this shape, whose `A` is built on demand: one end per row of it, or one for a cell."""
        state = cls.__new__(cls)
        state._ends, state._shape, state._grad = ends, shape, torch.is_grad_enabled()
        if any(end.A is not None and end.weights and end.T == end.weights.w.shape[-1] for end in ends):
            state._A = state._build(End.matrix, (*shape, shape[-1]))  # a state that went in goes on
        return state

    @classmethod
    def made_of(cls, h: Tensor, A: Tensor) -> FastWeightsState:
        """A state of tensors known to fit, unchecked."""
        state = cls.__new__(cls)
        state._h, state._A = h, A
        return state

    @classmethod
    def given(cls, value: object, hx: object) -> FastWeightsState | None:
        """The state that a caller gave, by one of these two names, perhaps as a pair."""
        if value is None:
            value = hx
        elif hx is not None:
            raise TypeError("state and hx are the same argument: give one of them")
        if isinstance(value, tuple | list) and len(value) == 2:
            value = cls(*value)
        if value is None or isinstance(value, cls):
            return value
        raise TypeError(f"state must be a FastWeightsState(h, A), a pair (h, A) or None, got {type(value).__name__}")

    @property
    def h(self) -> Tensor:
        """Hidden states."""
        if self._h is None:
            self._h = self._build(End.hidden, self._shape)
        return self._h

    @h.setter
    def h(self, value: Tensor) -> None:
        self.__init__(value, self.A)  # type: ignore[misc]

    @property
    def A(self) -> Tensor:
        """Fast weights: what the next step reads."""
        if self._A is None:
            self._A = self._build(End.matrix, (*self._shape, self._shape[-1]))
        return self._A

    @A.setter
    def A(self, value: Tensor) -> None:
        self.__init__(self.h, value)  # type: ignore[misc]

    def past(self, shape: tuple[int, ...], weights: Callable[[int], Weights]) -> Tensor | None:
        """All states since A was zero, (T, B, H), if they are known, and if these weights are how they are seen.

        Args:
            shape: that h must have.
            weights: for so many steps.
        """
        if self._A is not None or len(self._ends) != 1 or self._shape != shape:
            return None
        T, states, _, _, A, seen, lengths, reset, *_ = self._ends[0]
        return states if A is lengths is reset is None and seen is weights(T) else None

    def _build(self, part: Callable[[End], Tensor], shape: tuple[int, ...]) -> Tensor:
        def build() -> Tensor:
            parts = [part(end) for end in self._ends]
            return (parts[0] if len(parts) == 1 else torch.stack(parts)).reshape(shape)

        if torch.compiler.is_compiling():
            return build()
        states = self._ends[0].states
        # As part of the graph of the call that left it, and as precisely, wherever it is looked at first.
        with (
            torch.inference_mode(states.is_inference()),
            torch.set_grad_enabled(self._grad),
            full_precision(states.device),
        ):
            return build()

    @property
    def dtype(self) -> torch.dtype:
        return self.h.dtype

    @property
    def device(self) -> torch.device:
        return self.h.device

    def detach(self) -> FastWeightsState:
        """The same state, cut off from the graph that made it: for truncated backpropagation through time."""
        if self._h is not None and self._A is not None:
            return FastWeightsState.made_of(self._h.detach(), self._A.detach())
        state = FastWeightsState.__new__(FastWeightsState)
        state._ends, state._shape = tuple(end.detach() for end in self._ends), self._shape
        state._h, state._A = (None if part is None else part.detach() for part in (self._h, self._A))
        return state

    def clone(self) -> FastWeightsState:
        """A copy in memory of its own; gradients flow through it."""
        return FastWeightsState(self.h.clone(), self.A.clone())

    def to(self, *args: Any, **kwargs: Any) -> FastWeightsState:
        """Move or cast, with the arguments of `torch.Tensor.to`."""
        return FastWeightsState(self.h.to(*args, **kwargs), self.A.to(*args, **kwargs))

    def cpu(self) -> FastWeightsState:
        """The state in the CPU's memory."""
        return self.to("cpu")

    def index_select(self, index: Tensor) -> FastWeightsState:
        """The states of the sequences in `index` (a 1-d tensor of batch positions), in that order."""
        self._check_batch("index_select")
        if not isinstance(index, Tensor):
            raise TypeError(f"index must be a tensor, got {type(index).__name__}")
        checks.memory("index", index)
        batch = self.h.dim() - 2
        return FastWeightsState(self.h.index_select(batch, index), self.A.index_select(batch, index))

    def where(self, condition: Tensor, other: FastWeightsState | None = None) -> FastWeightsState:
        """This state for the sequences for which `condition` (B,) holds, `other` (None: zero) for the rest.

        `state.where(~done)` is what the next episodes start from. 0 and 1 of any dtype do as well as False and True.
        """
        self._check_batch("where")
        B = self.h.shape[-2]
        if not isinstance(condition, Tensor):
            raise TypeError(f"condition must be a tensor, got {type(condition).__name__}")
        if condition.shape not in ((B,), (B, 1)):
            raise ValueError(f"condition must have shape {(B,)}, one per sequence; got {tuple(condition.shape)}")
        checks.memory("condition", condition)
        if other is not None and not isinstance(other, FastWeightsState):
            raise TypeError(f"other must be a FastWeightsState or None, got {type(other).__name__}")
        if other is not None and other.h.shape != self.h.shape:
            raise ValueError(f"other must have h of shape {tuple(self.h.shape)}, got {tuple(other.h.shape)}")
        keep = condition.reshape(B, 1) != 0
        h, A = (0.0, 0.0) if other is None else other
        return FastWeightsState(torch.where(keep, self.h, h), torch.where(keep.unsqueeze(-1), self.A, A))

    def _check_batch(self, name: str) -> None:
        if self.h.dim() < 2:
            raise ValueError(f"{name} needs a state with a batch, got h of shape {tuple(self.h.shape)}")

    def tensors(self) -> dict[str, Tensor]:
        """`{"h": …, "A": …}`, contiguous: what safetensors saves. Back with `FastWeightsState(**tensors)`."""
        return {"h": self.h.contiguous(), "A": self.A.contiguous()}

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.h, self.A))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> Tensor:
        return (self.h, self.A)[place]

    def __reduce__(self) -> tuple[type[FastWeightsState], tuple[Tensor, Tensor]]:
        return FastWeightsState, (self.h, self.A)

    def __repr__(self) -> str:
        shape, size = tuple(self.h.shape), self.h.shape[-1]
        return f"FastWeightsState(h={shape}, A={(*shape, size)}, dtype={self.h.dtype}, device={self.h.device})"


def _flatten(state: FastWeightsState) -> tuple[list[Tensor], None]:
    return [state.h, state.A], None


def _flatten_with_keys(state: FastWeightsState) -> tuple[list[tuple[pytree.KeyEntry, Tensor]], None]:
    return [(pytree.GetAttrKey("h"), state.h), (pytree.GetAttrKey("A"), state.A)], None


def _unflatten(tensors: Any, _: None) -> FastWeightsState:
    # Not through __init__: transforms put placeholders where the tensors were.
    return FastWeightsState.made_of(*tensors)


def _collate(states: list[FastWeightsState], **_: Any) -> FastWeightsState:
    """States of single sequences as that of a batch."""
    batch = states[0].h.dim() - 1
    return FastWeightsState(*(torch.stack(parts, batch) for parts in zip(*states, strict=True)))


# Where torch looks into what a module takes and returns: transforms and export, data loaders, files, and
# DistributedDataParallel, which looks into dataclasses.
pytree.register_pytree_node(
    FastWeightsState,
    _flatten,
    _unflatten,
    serialized_type_name="fastweights.FastWeightsState",
    flatten_with_keys_fn=_flatten_with_keys,
)
default_collate_fn_map[FastWeightsState] = _collate
torch.serialization.add_safe_globals([FastWeightsState])
_fields = dataclasses.make_dataclass("_Fields", ["h", "A"])
FastWeightsState.__dataclass_fields__ = _fields.__dataclass_fields__  # type: ignore[attr-defined]
