"""The net of the associative retrieval task."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..memory import Trace
from .cores import make_core


class RetrievalNet(nn.Module):
    """Character → 50 → 100 → recurrent core → 100 ReLUs → logits of the digits, read at the last step.

    Args:
        core: the recurrent core, by name: see `make_core`.
        units: its size.
        characters: how many different tokens there are.
        answers: how many different answers.
        embedding_range: embeddings start as U(-range, range).
        input_range, recurrent_init, options: of the core.
        dropout: the share of what the core gives that is left out at random while training.

    >>> net = RetrievalNet("fast-weights", 50, characters=37, answers=10)
    >>> net(torch.randint(37, (3, 11))).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        core: str,
        units: int,
        *,
        characters: int,
        answers: int,
        embedding_range: float = 1.0,
        input_range: float = 0.0,
        recurrent_init: float = 0.0,
        dropout: float = 0.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.settings = {
            "core": core,
            "units": units,
            "characters": characters,
            "answers": answers,
            "embedding_range": embedding_range,
            "input_range": input_range,
            "recurrent_init": recurrent_init,
            "dropout": dropout,
            "options": dict(options or {}),
        }
        self.embedding = nn.Parameter(torch.empty(characters, 50).uniform_(-embedding_range, embedding_range))
        self.expand = nn.Linear(50, 100)
        self.core = make_core(core, 100, units, input_range=input_range, recurrent_init=recurrent_init, options=options)
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Sequential(nn.Linear(self.core.output_size, 100), nn.ReLU(), nn.Linear(100, answers))  # type: ignore[arg-type]

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, answers) for tokens (B, T)."""
        output, _ = self.core(self.inputs(tokens))
        return self.readout(self.dropout(output[-1]))  # type: ignore[no-any-return]

    def inputs(self, tokens: Tensor) -> Tensor:
        """What the core sees of tokens (B, T): (T, B, 100)."""
        # Expanded once per character of the alphabet, not once per character of every string.
        return functional.embedding(tokens.t(), self.expand(self.embedding))

    def trace(self, tokens: Tensor) -> Trace:
        """What a core of fast weights did with tokens (B, T)."""
        return self.core.trace(self.inputs(tokens))  # type: ignore[operator, no-any-return]
