"""Sequences as a caller has them (batch first, single, packed, of many lengths) and as a scan wants them: (T, B, …)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from . import checks
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
    packed: PackedSequence | None

    @classmethod
    def arrange(
        cls,
        x: Tensor | PackedSequence,
        lengths: Tensor | None,
        signals: dict[str, Tensor | None],
        input_size: int,
        batch_first: bool,
        like: Tensor,
    ) -> Batch:
        """Check every argument against the others and the weights (`like`), then lay them out time first."""
        packed = x if isinstance(x, PackedSequence) else None
        if isinstance(x, PackedSequence):
            if lengths is not None:
                raise ValueError("lengths must be None when x is a PackedSequence, which has its own")
            checks.inputs(x.data, (2,), input_size, like)
            x, lengths = pad_packed_sequence(x)
            lengths, batch_first = lengths.to(x.device), False
        checks.inputs(x, (2, 3), input_size, like)
        single = x.dim() == 2
        batch_first = batch_first and not single
        shape = tuple(x.shape[:-1])  # what a per-step signal looks like
        T, B = (shape[0], 1) if single else shape[::-1] if batch_first else shape
        if lengths is not None:
            checks.lengths(lengths, T, () if single else (B,), x.device)
        for name, signal in signals.items():
            if signal is not None:
                batch = None if single else 0 if batch_first else 1
                checks.control(name, signal, shape, x.device, flags=name in FLAGS, batch=batch)

        def time_first(tensor: Tensor) -> Tensor:
            return tensor.unsqueeze(1) if single else tensor.transpose(0, 1) if batch_first else tensor

        x = time_first(x)
        if lengths is not None:
            lengths = lengths.reshape(B).long()
        given = {name: time_first(signal) for name, signal in signals.items() if signal is not None}
        for name, signal in given.items():
            if name not in FLAGS:
                signal = signal.to(like.dtype)
            elif lengths is not None:
                signal = signal & (torch.arange(T, device=x.device).unsqueeze(1) < lengths)
            # One amount for all sequences stays one: how the past is seen is then the same for all, too.
            given[name] = signal if name not in FLAGS and lengths is None else signal.expand(T, B)
        return cls(x, lengths, Controls(**given), single, batch_first, packed)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The batch part of the caller's states: () for a single sequence."""
        return () if self.single else (self.x.shape[1],)

    def restore(self, output: Tensor) -> Tensor | PackedSequence:
        """(T, B, …) in the caller's layout."""
        if self.packed is None:
            return output.squeeze(1) if self.single else output.transpose(0, 1) if self.batch_first else output
        order, lengths = self.packed.sorted_indices, self.lengths
        if order is not None and lengths is not None:
            output, lengths = output.index_select(1, order), lengths.index_select(0, order)
        data = pack_padded_sequence(output, lengths.cpu()).data if lengths is not None else output
        return PackedSequence(data, self.packed.batch_sizes, order, self.packed.unsorted_indices)

    def turn(self, tensor: Tensor) -> Tensor:
        """(T, B, …) with every sequence backwards; what is past its end stays there."""
        if self.lengths is None:
            return tensor.flip(0)
        steps = torch.arange(len(tensor), device=tensor.device).unsqueeze(1)
        places = torch.where(steps < self.lengths, self.lengths - 1 - steps, steps)  # (T, B)
        places = places.reshape(places.shape + (1,) * (tensor.dim() - 2))
        return tensor.gather(0, places.expand_as(tensor))

    def turned_controls(self) -> Controls:
        """The controls for a net that reads backwards: a reset before step t parts t-1 from t all the same."""
        reset, wipe, store, read, integrate = self.controls

        def cut(signal: Tensor) -> Tensor:
            return self.turn(torch.cat((signal[1:], torch.zeros_like(signal[:1]))))

        return Controls(
            None if reset is None else cut(reset),
            None if wipe is None else cut(wipe),
            None if store is None else self.turn(store),
            None if read is None else self.turn(read),
            None if integrate is None else self.turn(integrate),
        )
