"""What a sequence leaves behind: the hidden state and the fast weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for this kind of device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, where it is on: the recurrence and its memory keep the dtype of the weights."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()


class Fold(NamedTuple):
    """Fast weights not yet built: A = before_strength·before + Σ_τ strength_τ h_τ h_τᵀ.

    `before` is None where the past was empty. A leading 1 instead of B means: the same for every sequence.
    """

    before: Tensor | None  # (B, H, H)
    before_strength: Tensor  # (B or 1,)
    states: Tensor  # (T, B, H)
    strengths: Tensor  # (B or 1, T)

    def matrix(self) -> Tensor:
        """A, (B, H, H), as part of the graph that the states belong to."""
        with full_precision(self.states.device):
            states = self.states.transpose(0, 1)
            A = (self.strengths.unsqueeze(-1) * states).transpose(1, 2) @ states
            if self.before is not None:
                A = A + self.before_strength[:, None, None] * self.before
            return A

    def map(self, function: Callable[[Tensor], Tensor]) -> Fold:
        return Fold(*(None if tensor is None else function(tensor) for tensor in self))  # type: ignore[arg-type]


class FastWeightsState:
    """The state of a `FastWeights` layer between two calls: `h` and `A`.

    `A` is what the *next* step reads: it already holds the last `h`. It is built when it is first looked at, so a
    caller who only wants `h` does not pay for it.

    Args:
        h: hidden states, (layers·directions, B, H); without the B for unbatched input; (B, H) or (H,) for a cell.
        A: fast weights, `h`'s shape with one more H.

    >>> state = FastWeightsState(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8, 8))
    >>> state.index_select(torch.tensor([0, 2])).A.shape
    torch.Size([1, 2, 8, 8])
    >>> h, A = state.detach()
    """

    h: Tensor
    _A: Tensor | None
    _folds: tuple[Fold, ...]
    _grad: bool  # whether the call that left the folds recorded a graph
    _versions: tuple[int, ...] | None

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
        self._set(h, A)

    @classmethod
    def from_folds(cls, h: Tensor, folds: tuple[Fold, ...]) -> FastWeightsState:
        """A state whose A is built on demand, one fold per row of `h`; a single one and `h` (B, H) for a cell."""
        state = cls.__new__(cls)
        state._set(h, None, folds)
        return state

    @classmethod
    def made_of(cls, h: Tensor, A: Tensor) -> FastWeightsState:
        """A state of tensors known to fit, unchecked."""
        state = cls.__new__(cls)
        state._set(h, A)
        return state

    def _set(self, h: Tensor, A: Tensor | None, folds: tuple[Fold, ...] = ()) -> None:
        self.h, self._A, self._grad, self._versions = h, A, torch.is_grad_enabled(), None
        if folds and not torch.compiler.is_compiling():
            if torch.is_inference_mode_enabled():  # its tensors do not count their changes
                folds = tuple(fold._replace(states=fold.states.clone()) for fold in folds)
            else:
                self._versions = tuple(fold.states._version for fold in folds)
        self._folds = folds

    @property
    def A(self) -> Tensor:
        """Fast weights: what the next step reads."""
        if self._A is None:
            self._A, self._folds = self._build(), ()
        return self._A

    def _build(self) -> Tensor:
        if torch.compiler.is_compiling():
            return self._stack()
        if self._versions is not None and self._versions != tuple(fold.states._version for fold in self._folds):
            raise RuntimeError(
                "the layer's output was changed in place before state.A was built from it: "
                "look at state.A first, or change a clone of the output"
            )
        # As part of the graph of the call that left it, wherever it is looked at first.
        with torch.inference_mode(self.h.is_inference()), torch.set_grad_enabled(self._grad):
            return self._stack()

    def _stack(self) -> Tensor:
        matrices = [fold.matrix() for fold in self._folds]
        A = matrices[0].unsqueeze(0) if len(matrices) == 1 else torch.stack(matrices)
        return A.reshape(*self.h.shape, self.h.shape[-1])

    def detach(self) -> FastWeightsState:
        """The same state, cut off from the graph that made it: for truncated backpropagation through time."""
        if self._A is not None:
            return FastWeightsState(self.h.detach(), self._A.detach())
        state = FastWeightsState.from_folds(self.h.detach(), tuple(fold.map(Tensor.detach) for fold in self._folds))
        state._grad = False
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
