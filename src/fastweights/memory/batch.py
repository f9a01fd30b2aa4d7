"""Sequences as a caller has them (batch first, single, packed, of many lengths) and as a scan wants them: (T, B, …)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from . import checks
from .autograd import snapshot
from .weights import Controls

FLAGS = ("reset", "wipe", "integrate")  # signals that are bool, and say nothing past a sequence's end


@dataclass
class Batch:
    """Checked sequences, time first, with what is needed to give an answer in the caller's own layout."""

    x: Tensor  # (T, B, I)
    lengths: Tensor | None  # (B,)
    controls: Controls  # (T, B) each, or (T, 1)
    single: bool
    batch_first: bool
    packed: PackedSequence | None  # the caller's
    order: Tensor | None  # its sorted_indices

    @classmethod
    def arrange(
        cls,
        x: Tensor | PackedSequence,
        lengths: Tensor | Sequence[int] | None,
        signals: dict[str, Tensor | None],
        input_size: int,
        batch_first: bool,
        like: Tensor,
    ) -> Batch:
        """Check every argument against the others and the weights (`like`), then lay them out time first."""
        packed, order = x if isinstance(x, PackedSequence) else None, None
        if isinstance(x, PackedSequence):
            if lengths is not None:
                raise ValueError("lengths must be None when x is a PackedSequence, which has its own")
            checks.packed(x, input_size, like)
            # A backward needs to know, too, where each sequence's steps are.
            sizes, order, back = (None if part is None else snapshot(part) for part in x[1:])
            x, lengths = pad_packed_sequence(PackedSequence(x.data, sizes, order, back))
            lengths, batch_first = lengths.to(x.device), False
        checks.inputs(x, (2, 3), input_size, like)
        single = x.dim() == 2
        batch_first = batch_first and not single
        shape = tuple(x.shape[:-1])  # what a per-step signal looks like
        T, B = (shape[0], 1) if single else shape[::-1] if batch_first else shape
        if lengths is not None:
            lengths = checks.lengths(lengths, T, () if single else (B,), x.device)
        batch = None if single else 0 if batch_first else 1
        given = {
            name: snapshot(checks.control(name, signal, shape, x.device, flags=name in FLAGS, batch=batch))
            for name, signal in signals.items()
            if signal is not None
        }

        def time_first(tensor: Tensor) -> Tensor:
            return tensor.unsqueeze(1) if single else tensor.transpose(0, 1) if batch_first else tensor

        x = time_first(x)
        if lengths is not None:
            lengths = snapshot(lengths.reshape(B).long())
        for name, signal in given.items():
            signal = time_first(signal)
            if name not in FLAGS:
                signal = signal.to(like.dtype)
            elif lengths is not None:
                signal = signal & (torch.arange(T, device=x.device).unsqueeze(1) < lengths)
            # One amount for all sequences stays one: how the past is seen is then the same for all, too.
            given[name] = signal if name not in FLAGS and lengths is None else signal.expand(T, B)
        return cls(x, lengths, Controls(**given), single, batch_first, packed, order)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The batch part of the caller's states: () for a single sequence."""
        return () if self.single else (self.x.shape[1],)

    def restore(self, output: Tensor) -> Tensor | PackedSequence:
        """(T, B, …) in the caller's layout."""
        if self.packed is None:
            return output.squeeze(1) if self.single else output.transpose(0, 1) if self.batch_first else output
        lengths = self.lengths
        if self.order is not None and lengths is not None:
            output, lengths = output.index_select(1, self.order), lengths.index_select(0, self.order)
        data = pack_padded_sequence(output, lengths.cpu()).data if lengths is not None else output
        return PackedSequence(data, *self.packed[1:])

    def turn(self, tensor: Tensor) -> Tensor:
        """(T, B, …) with every sequence backwards; what is past its end stays there."""
        if self.lengths is None:
            return tensor.flip(0)
        steps = torch.arange(tensor.shape[0], device=tensor.device).unsqueeze(1)
        places = torch.where(steps < self.lengths, self.lengths - 1 - steps, steps)  # (T, B)
        places = places.reshape(places.shape + (1,) * (tensor.dim() - 2))
        return tensor.gather(0, places.expand_as(tensor))

    def turned_controls(self) -> Controls:
        """The controls for a net that reads backwards: a reset before step t parts t-1 from t all the same."""
        reset, wipe, store, read, integrate = self.controls

        def cut(signal: Tensor) -> Tensor:
            return self.turn(F.pad(signal, (0, 0, 0, 1))[1:])

        return Controls(
            None if reset is None else cut(reset),
            None if wipe is None else cut(wipe),
            None if store is None else self.turn(store),
            None if read is None else self.turn(read),
            None if integrate is None else self.turn(integrate),
        )
