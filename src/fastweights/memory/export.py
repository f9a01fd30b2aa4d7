"""A sequence in an exported program: one operator, or, for ONNX, a loop of plain operations; whatever T is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan as loop
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from . import checks, kernel
from .chunked import settle
from .equations import Dynamics
from .modes import watched
from .scan import Slow, scan
from .state import End
from .weights import Controls

SLOW, CONTROLS = len(Slow._fields), len(Controls._fields)


def exported(
    x: Tensor,
    slow: Slow,
    h0: Tensor | None,
    A0: Tensor | None,
    decay: float | Tensor,
    rate: float | Tensor,
    lengths: Tensor | None,
    controls: Controls,
    dynamics: Dynamics,
    fused: bool,
    single: bool,
) -> tuple[Tensor, End]:
    """As `scan`, which looks at T and so cannot be part of a program for every T."""
    if torch.onnx.is_in_onnx_export():  # which has no gradients, and the loop of torch cannot be exported with them
        x, *parts, decay, rate = map(_without_gradient, (x, *slow, h0, A0, decay, rate))
        *weights, h0, A0 = parts
        slow = Slow(*weights)
        # A number would be written in float32, whatever x is.
        decay, rate = (value if isinstance(value, Tensor) else x.new_full((), value) for value in (decay, rate))
    arguments = (x, slow, h0, A0, decay, rate, lengths, controls, dynamics)
    if single or not torch.compiler.is_exporting():
        hs, h, A = _by_steps(*arguments, _unrolled)
    elif torch.onnx.is_in_onnx_export():
        hs, h, A = _by_steps(*arguments, _repeated)
    else:
        learned = [value if isinstance(value, Tensor) else None for value in (decay, rate)]
        given = [1.0 if isinstance(value, Tensor) else value for value in (decay, rate)]
        hs, h, A = sequence_op(x, *slow, h0, A0, *learned, *controls, lengths, *given, *dynamics, fused)
    return hs, End(x.shape[0], hs, h, None, None, None, None, None, x.dtype, A)


def _without_gradient(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


@torch.library.custom_op("fastweights::sequence", mutates_args=())
def sequence_op(
    x: Tensor,
    C: Tensor,
    b: Tensor | None,
    W: Tensor,
    W_int: Tensor | None,
    gain: Tensor | None,
    shift: Tensor | None,
    h0: Tensor | None,
    A0: Tensor | None,
    learned_decay: Tensor | None,
    learned_rate: Tensor | None,
    reset: Tensor | None,
    wipe: Tensor | None,
    store: Tensor | None,
    read: Tensor | None,
    integrate: Tensor | None,
    lengths: Tensor | None,
    decay: float,
    rate: float,
    inner_steps: int,
    settling: str,
    nonlinearity: str,
    normalize_start: bool,
    fused: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (x, C, b, W, W_int, gain, shift, h0, A0, learned_decay, learned_rate, reset, wipe, store, read, integrate)
    return _sequence(*tensors, lengths, decay, rate, inner_steps, settling, nonlinearity, normalize_start, fused)


def _sequence(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """hs, h and A, given what `sequence_op` takes."""
    slow, (h0, A0, decay, rate, *rest) = Slow(*others[:SLOW]), others[SLOW:]
    controls, (lengths, *numbers) = Controls(*rest[:CONTROLS]), rest[CONTROLS:]
    decay, rate = (number if value is None else value for value, number in zip((decay, rate), numbers[:2], strict=True))
    # A program may be run on other tensors than those that it was made with.
    slow = Slow(*checks.weights(slow, slow.W.shape[0], x.shape[-1], ""))
    fused = numbers[-1] and not watched() and kernel.covers((x, *slow))
    hs, end = scan(x, slow, h0, A0, decay, rate, lengths, controls, Dynamics(*numbers[2:-1]), fused)
    return hs, end.hidden(), end.matrix()


@sequence_op.register_fake
def _(x: Tensor, C: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    T, B, H = *x.shape[:2], C.shape[0]
    return x.new_empty(T, B, H), x.new_empty(B, H), x.new_empty(B, H, H)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = [value if isinstance(value, Tensor) else None for value in inputs]
    ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """By doing it again: what a run saves for its backward has a size that depends on T in too many ways."""
    with torch.enable_grad():
        # Aliases, so that the gradient of W, say, stops here and leaves out what h0 owes to W.
        inputs = [
            other if tensor is None else tensor.view_as(tensor)
            for tensor, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        results = _sequence(*inputs)
    wanted = [place for place, need in enumerate(ctx.needs_input_grad) if need]
    found = torch.autograd.grad(
        results,
        [inputs[place] for place in wanted],
        grads,
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    gradients = dict(zip(wanted, found, strict=True))
    return tuple(gradients.get(place) for place in range(len(inputs)))


sequence_op.register_autograd(_backward, setup_context=_setup_context)


def _by_steps(
    x: Tensor,
    slow: Slow,
    h0: Tensor | None,
    A0: Tensor | None,
    decay: float | Tensor,
    rate: float | Tensor,
    lengths: Tensor | None,
    controls: Controls,
    dynamics: Dynamics,
    repeat: Callable[[Any, Any, Any], Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """hs, h and A, step by step through A as in the equations; `repeat` the step from a start over what it is given."""
    (T, B, _), (C, b, W, W_int, gain, shift) = x.shape, slow
    H = W.shape[0]
    h0 = x.new_zeros(B, H) if h0 is None else h0
    A0 = x.new_zeros(B, H, H) if A0 is None else A0
    signals = controls._asdict()
    if lengths is not None:
        signals["active"] = torch.arange(T, device=x.device).unsqueeze(1) < lengths
        x = torch.where(signals["active"].unsqueeze(-1), x, 0.0)
    given = {name: signal.unsqueeze(-1) for name, signal in signals.items() if signal is not None}  # (T, B, 1) each
    given["u"] = F.linear(x, C, b)

    def step(carry: tuple[Tensor, Tensor], now: dict[str, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        before, A_before = h, A = carry
        for name in ("reset", "wipe"):
            if name in now:
                h = torch.where(now[name], 0.0, h)
        if "reset" in now:
            A = torch.where(now["reset"].unsqueeze(-1), 0.0, A)
        z = h @ W.t()
        if "integrate" in now and W_int is not None:
            z = torch.where(now["integrate"], h @ W_int.t(), z)

        def recall(q: Tensor) -> Tensor:
            read = (A @ q.unsqueeze(-1)).squeeze(-1)
            return read * now["read"] if "read" in now else read

        h = settle(now["u"] + z, recall, gain, shift, dynamics)[0][-1]
        stored = rate * h * now["store"] if "store" in now else rate * h
        A = decay * A + stored.unsqueeze(-1) * h.unsqueeze(-2)
        if "active" not in now:
            return (h, A), h.clone()
        active = now["active"]
        out = torch.where(active, h, 0.0)
        return (torch.where(active, h, before), torch.where(active.unsqueeze(-1), A, A_before)), out

    (h, A), hs = repeat(step, (h0, A0), given)
    return hs, h, A


def _unrolled(step: Any, carry: Any, given: dict[str, Tensor]) -> Any:
    """In a trace for one T: `unbind` is what complains, when it is used, of another."""
    outputs, names = [], list(given)
    for now in zip(*(given[name].unbind() for name in names), strict=True):
        carry, output = step(carry, dict(zip(names, now, strict=True)))
        outputs.append(output)
    return carry, torch.stack(outputs)


def _repeated(step: Any, carry: Any, given: dict[str, Tensor]) -> Any:
    # torch.compile, which `loop` calls, fails at views of tensors with sizes that are symbols.
    start, inputs = tree_map(torch.clone, (carry, given))
    return loop(step, start, inputs, dim=0)
