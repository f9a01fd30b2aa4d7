"""One step of a trained net as a module, (x, h, A) → (answer, h, A): what streams and exported programs run."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ..memory import FastWeights, FastWeightsCell
from .agent import Agent
from .glimpses import GlimpseNet
from .retrieval import RetrievalNet


def cell_of(layer: FastWeights) -> FastWeightsCell:
    """The cell that does what a step of this layer does.

    >>> layer = FastWeights(3, 5, decay=0.9)
    >>> x = torch.randn(1, 2, 3)
    >>> torch.allclose(cell_of(layer)(x[0]).h, layer(x)[1].h[0], atol=1e-6)
    True
    """
    if layer.num_layers != 1 or layer.bidirectional:
        raise ValueError(f"layer must be a single one in one direction, got {layer}")
    names = inspect.signature(FastWeightsCell).parameters.keys() - {"device", "dtype"}
    options: dict[str, Any] = {name: getattr(layer, name) for name in names}
    cell = FastWeightsCell(**options, dtype=next(layer.parameters()).dtype)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    return cell.eval()


class Step(nn.Module):
    """One step of a net whose core is fast weights.

    Args:
        net: a net of retrieval, of glimpses or an agent, whose weights the step has a copy of.

    >>> step = Step(RetrievalNet("fast-weights", 50, characters=37, answers=10))
    >>> answer, h, A = step(torch.tensor([5, 7]), torch.zeros(2, 50), torch.zeros(2, 50, 50))
    >>> answer.shape, h.shape, A.shape
    (torch.Size([2, 10]), torch.Size([2, 50]), torch.Size([2, 50, 50]))
    """

    def __init__(self, net: RetrievalNet | GlimpseNet | Agent) -> None:
        super().__init__()
        core = getattr(net, "core", None)
        if not isinstance(core, FastWeights):
            raise ValueError(f"net must have a core of fast weights, got one of {type(core or net).__name__}")
        self.net, self.cell = net, cell_of(core)

    @property
    def units(self) -> int:
        return self.cell.hidden_size

    def forward(self, x: Tensor, h: Tensor, A: Tensor, t: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What the net says after x, and its new state.

        Args:
            x: (B,) characters; (B, pixels) of a screen or a glimpse.
            h, A: (B, H) and (B, H, H); zeros at the beginning.
            t: for glimpses, (), the number of the glimpse.
        """
        net, signals, features = self.net, {}, x
        if isinstance(net, RetrievalNet):
            features = nn.functional.embedding(x, net.expand(net.embedding))
        elif isinstance(net, Agent):
            features = net.look(x).relu()
        else:
            assert t is not None
            known: Any = net.inputs
            seen = torch.cat((x, known[t].expand(x.shape[0], -1)), -1)
            features = net.embedding(seen)
            signals = {name: getattr(net, name)[t].expand(x.shape[0]) for name in net.control_signals}
        h, A = self.cell(features, (h, A), **signals)
        return (net.policy if isinstance(net, Agent) else net.readout)(h), h, A
