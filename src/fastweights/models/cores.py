"""Recurrent cores by name: each takes (x, state) and gives (output, state), time first."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..memory import FastWeights
from .associative_lstm import AssociativeLSTM

CORES = ("irnn", "lstm", "a-lstm", "fast-weights")
OF_FAST_WEIGHTS = ("decay", "rate", "inner_steps", "layer_norm", "normalize_start", "settling")  # and of no other


def without(core: str) -> frozenset[str]:
    """The hyperparameters of other cores.

    >>> sorted(without("irnn") & {"rate", "recurrent_init"}), sorted(without("lstm") & {"rate", "recurrent_init"})
    (['rate'], ['rate', 'recurrent_init'])
    """
    found = () if core == "fast-weights" else OF_FAST_WEIGHTS
    return frozenset(found if core in ("irnn", "fast-weights") else (*found, "recurrent_init"))


def make_core(
    name: str,
    input_size: int,
    units: int,
    *,
    input_range: float = 0.0,
    recurrent_init: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A recurrent layer, initialised; the number of features that it gives is its `output_size`.

    Args:
        name: "irnn" (ReLU), "lstm", "a-lstm" (associative, Danihelka et al. 2016) or "fast-weights".
        input_range: the input weights start as U(-range, range); 0: as is usual for the layer, U(-1/√H, 1/√H).
        recurrent_init: W of "irnn" or "fast-weights" starts as this times I; 0: as 0.5 and 0.05 times I.
        options: more arguments of `FastWeights` or `AssociativeLSTM`.

    >>> core = make_core("irnn", 10, 20)
    >>> output, state = core(torch.randn(7, 3, 10))
    >>> output.shape, core.output_size
    (torch.Size([7, 3, 20]), 20)
    """
    options = dict(options or {})
    if name not in CORES:
        raise ValueError(f"core must be one of {', '.join(map(repr, CORES))}; got {name!r}")
    if options and name in ("irnn", "lstm"):
        raise ValueError(f"options must be empty for {name!r}, got {options}")
    if not 0 <= input_range < math.inf:
        raise ValueError(f"input_range must be at least 0 and finite, got {input_range}")
    if not 0 <= recurrent_init < math.inf:
        raise ValueError(f"recurrent_init must be at least 0 and finite, got {recurrent_init}")
    if recurrent_init and "recurrent_init" in without(name):
        raise ValueError(f"recurrent_init must be 0 for {name!r}, which has no single W; got {recurrent_init}")
    core: Any
    if name == "irnn":
        core = nn.RNN(input_size, units, nonlinearity="relu")
    elif name == "lstm":
        core = nn.LSTM(input_size, units)
    elif name == "a-lstm":
        core = AssociativeLSTM(input_size, units, **options)
    else:
        core = FastWeights(input_size, units, **options)
    with torch.no_grad():
        if name == "irnn" or recurrent_init:
            nn.init.eye_(core.weight_hh_l0).mul_(recurrent_init or 0.5)
        for parameter, values in core.named_parameters():
            if parameter.startswith("weight_ih") and input_range:
                values.uniform_(-input_range, input_range)
            elif name in ("irnn", "lstm") and parameter.startswith("bias"):
                values.zero_()
                if name == "lstm" and "ih" in parameter:
                    values[units : 2 * units] = 1  # remember, to begin with
    if not hasattr(core, "output_size"):
        core.output_size = units
    return core  # type: ignore[no-any-return]


def run_episodes(core: nn.Module, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
    """Run a core of `make_core` over x (T, B, features) in which episodes end and others begin.

    Args:
        state: from an earlier call, or None.
        reset: (T, B) bool: before this step the sequence starts anew; None: none does. It is looked at: on the CPU,
            wherever the core is, that costs no waiting.

    >>> core, x = make_core("lstm", 10, 20), torch.randn(7, 3, 10)
    >>> output, _ = run_episodes(core, x, None, torch.tensor([False, False, True, False, False, False, False])[:, None])
    >>> torch.allclose(output[2:], core(x[2:])[0])
    True
    """
    if reset is None:
        return core(x, state)  # type: ignore[no-any-return]
    reset = reset.expand(x.shape[:2])
    if isinstance(core, FastWeights):
        return core(x, state, reset=reset.to(x.device) if reset.any() else None)  # type: ignore[no-any-return]
    # The other layers know no resets: they run from one to the next.
    starts = [0, *(t for t in reset.any(1).nonzero().flatten().tolist() if t)]
    outputs = []
    for start, stop in zip(starts, [*starts[1:], len(x)], strict=True):
        if state is not None and reset[start].any():
            state = _zeroed(state, reset[start].to(x.device))
        output, state = core(x[start:stop], state)
        outputs.append(output)
    return torch.cat(outputs), state


def _zeroed(state: Any, where: Tensor) -> Any:
    """A state of `nn.RNN`, `nn.LSTM` or `AssociativeLSTM` with these sequences at zero."""
    if isinstance(state, Tensor):
        return state.masked_fill(where.unsqueeze(-1), 0.0)
    parts = [_zeroed(part, where) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
