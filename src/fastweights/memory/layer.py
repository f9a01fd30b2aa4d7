"""FastWeights and FastWeightsCell: recurrent layers with a fast associative memory, after nn.RNN and nn.RNNCell."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard, cast, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from . import checks, kernel, triton
from .batch import FLAGS, Batch
from .equations import Dynamics
from .export import exported
from .modes import exporting, full_precision, watched
from .scan import Slow, observe, scan
from .state import End, FastWeightsState
from .weights import Controls, Weights, weigh

NO_CONTROLS = Controls()
# Single steps without gradients: where the fast weights of all sequences together have so many numbers, reading and
# writing them takes longer than attention to the states so far, of which there may be one for every FEW units.
WIDE, FEW = 1 << 18, 4


class Trace(NamedTuple):
    """What a layer did at every step, for plots and for understanding. Time comes before batch, always.

    Args:
        hidden: h_0 … h_S of every step, (layers·directions, T, S+1, B, H).
        attention: what inner iteration s of step t paid to step τ, η λ^{t-τ} h_τᵀ h_s times the `read` of t and the
            `store` of τ: (layers·directions, T, S, B, T). Zero for steps not yet seen.
    """

    hidden: Tensor
    attention: Tensor


SLOW = ("weight_ih", "bias", "weight_hh", "norm_weight", "norm_bias")  # in all layers, in the order of `kernel.step`
State = FastWeightsState | tuple[Tensor, Tensor] | None  # what a caller may give
_Observed = list[tuple[Tensor, Tensor]] | None


class _FastWeightsBase(nn.Module):
    """The options and the slow weights that a layer and a cell have in common."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        inner_steps: int,
        decay: float,
        rate: float,
        layer_norm: bool,
        normalize_start: bool,
        settling: str,
        nonlinearity: str,
        integration: bool,
        learn_decay: bool,
        learn_rate: bool,
        backend: str,
    ) -> None:
        super().__init__()
        checks.integer("input_size", input_size, 1)
        checks.integer("hidden_size", hidden_size, 1)
        checks.integer("inner_steps", inner_steps, 0)
        checks.number("decay", decay, 0, 1, open_ends=learn_decay)
        checks.number("rate", rate, 0, open_ends=learn_rate)
        checks.choice("settling", settling, ("sustained", "identity"))
        checks.choice("nonlinearity", nonlinearity, ("relu", "tanh"))
        checks.choice("backend", backend, ("auto", "torch", "kernel", "triton"))
        if backend == "kernel" and not kernel.AVAILABLE:
            raise ValueError(f"backend 'kernel' cannot be used: {kernel.backend().reason}")
        if backend == "triton" and not triton.AVAILABLE:
            raise ValueError(f"backend 'triton' cannot be used: {triton.MISSING}")
        self.input_size, self.hidden_size = input_size, hidden_size
        self.inner_steps, self.settling, self.nonlinearity = inner_steps, settling, nonlinearity
        self.layer_norm, self.normalize_start = layer_norm, normalize_start
        self.decay, self.rate, self.integration = float(decay), float(rate), integration
        self.learn_decay, self.learn_rate = learn_decay, learn_rate
        self.backend = backend
        self._chunk_size: int | None = None  # None: chosen by size
        self._names: dict[str, list[str]] = {}  # of the weights in `SLOW`, by suffix
        self._fitting: dict[str, kernel.Fitting] = {}
        self._steps: dict[str, kernel.Steps] = {}
        self._wide = -(-WIDE // hidden_size**2) * input_size  # features of all sequences

    def _add_weights(self, suffix: str, input_size: int, bias: bool, device: Any, dtype: torch.dtype | None) -> None:
        checks.floating("dtype", dtype)
        H = self.hidden_size
        self._names[suffix] = [name + suffix for name in SLOW]
        of_slow = (H, input_size), (H,), (H, H), (H,), (H,)
        self._fitting[suffix], self._steps[suffix] = kernel.Fitting(of_slow), kernel.Steps(of_slow)
        shapes: dict[str, tuple[int, ...] | None] = {
            "weight_ih": (H, input_size),
            "weight_hh": (H, H),
            "weight_integration": (H, H) if self.integration else None,
            "bias": (H,) if bias else None,
            "norm_weight": (H,) if self.layer_norm else None,
            "norm_bias": (H,) if self.layer_norm else None,
            "decay_logit": (1,) if self.learn_decay else None,
            "rate_log": (1,) if self.learn_rate else None,
        }
        for name, shape in shapes.items():
            parameter = None if shape is None else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name + suffix, parameter)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As the paper says: W = 0.05·I, the input weights U(-1/√H, 1/√H), gain 1, biases 0; λ and η as given.

        The integration matrix starts as W does.
        """
        bound = 1 / math.sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            if "weight_ih" in name:
                parameter.uniform_(-bound, bound)
            elif "weight_hh" in name or "weight_integration" in name:
                nn.init.eye_(parameter).mul_(0.05)
            elif "norm_weight" in name:
                parameter.fill_(1)
            elif "decay_logit" in name:
                parameter.fill_(math.log(self.decay / (1 - self.decay)))
            elif "rate_log" in name:
                parameter.fill_(math.log(self.rate))
            else:
                parameter.zero_()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in state_dict:  # which had no dimension once
            if name.startswith((prefix + "decay_logit", prefix + "rate_log")) and state_dict[name].dim() == 0:
                state_dict[name] = state_dict[name].reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __prepare_scriptable__(self) -> None:
        raise NotImplementedError(
            f"torch.jit.script cannot compile {type(self).__name__}: use torch.export.export or torch.compile instead"
        )

    def _scan(
        self,
        x: Tensor,
        suffix: str,
        h0: Tensor | None,
        A0: Tensor | None,
        lengths: Tensor | None,
        controls: Controls,
        observed: _Observed = None,
    ) -> tuple[Tensor, End]:
        """`scan` of x (T, B, I) with the weights of this suffix; what `observe` sees is added to `observed`."""
        C, b, W, gain, shift = weights = self._weights(suffix)
        W_int = None if controls.integrate is None else getattr(self, "weight_integration" + suffix)
        slow, dtype = Slow(C, b, W, W_int, gain, shift), W.dtype
        fused = (
            self.backend in ("auto", "kernel")
            and W_int is None
            and not watched()
            and self._fitting[suffix](weights, dtype)
        )
        if not fused:
            slow = Slow(*checks.weights(slow, self.hidden_size, x.shape[-1], suffix))
        decay_logit = getattr(self, "decay_logit" + suffix) if self.learn_decay else None
        rate_log = getattr(self, "rate_log" + suffix) if self.learn_rate else None
        for name, number in (("decay_logit", decay_logit), ("rate_log", rate_log)):
            if number is not None:
                checks.scalar(name + suffix, number, slow.W)
        if dtype.itemsize < torch.float32.itemsize:
            # Half precision is for storage: sums of squares would overflow in it, and errors add up.
            tensors = [None if t is None else t.float() for t in (*slow, x, h0, A0, decay_logit, rate_log)]
            *weights, x, h0, A0, decay_logit, rate_log = tensors  # type: ignore[assignment]
            slow = Slow(*weights)
        elif x.dtype != dtype:  # under autocast
            x = x.to(dtype)
        decay = self.decay if decay_logit is None else decay_logit.sigmoid().squeeze()
        rate = self.rate if rate_log is None else rate_log.exp().squeeze()
        dynamics = Dynamics(self.inner_steps, self.settling, self.nonlinearity, self.normalize_start)
        if not fused:
            code, there = (triton, True) if triton.takes(x) else (kernel, kernel.AVAILABLE and x.is_cpu)
            fused = self.backend != "torch" and there and (watched() or code.covers(slow))
            if self.backend == "triton" and code is not triton:
                raise ValueError(f"backend 'triton' takes tensors on a GPU (CUDA or ROCm), got {x.device}")
            if self.backend == "kernel" and not x.is_cpu:
                raise ValueError(f"backend 'kernel' takes tensors on the CPU, got {x.device}")
            if self.backend == "auto" and x.is_cpu and not kernel.AVAILABLE:
                kernel.warn_once()
        arguments = (x, slow, h0, A0, decay, rate, lengths, controls, dynamics)
        with full_precision(x.device):
            if observed is not None:
                observed.append(observe(*arguments))
            if exporting():
                hs, end = exported(*arguments, fused, isinstance(self, FastWeightsCell))
            else:
                hs, end = scan(*arguments, fused, self._chunk_size)
        return (hs, end) if hs.dtype == dtype else (hs.to(dtype), end._replace(dtype=dtype))

    def _step(self, x: Tensor, state: FastWeightsState | None, suffix: str) -> FastWeightsState | None:
        """The state after a step of x (…, I) without signals, by one call of the kernel.

        None where that does not do: with gradients, say, while tracing, or if something does not fit.
        """
        if torch.is_grad_enabled() or watched():
            return None
        if type(x) is not Tensor or self.backend == "torch" or self.learn_decay or self.learn_rate:
            return None
        weights = self._weights(suffix)
        if self.backend == "triton" or (triton.takes(x) and self.backend == "auto"):
            options = Dynamics(self.inner_steps, self.settling, self.nonlinearity, self.normalize_start)
            stepped = triton.step(x, weights, state, self._steps[suffix].shapes, options, self.decay, self.rate)
            return None if stepped is None else FastWeightsState.made_of(*stepped)
        if x.numel() >= self._wide and (step := self._step_after(x, state, weights, suffix)) is not None:
            return step
        h, A = (None, None) if state is None else (state.h, state.A)
        dynamics = (self.inner_steps, self.settling == "identity", self.nonlinearity == "tanh", self.normalize_start)
        new = self._steps[suffix](x, weights, h, A, *dynamics, self.decay, self.rate)
        return None if new is None else FastWeightsState.made_of(*new)

    def _step_after(
        self, x: Tensor, state: FastWeightsState | None, weights: list[Any], suffix: str
    ) -> FastWeightsState | None:
        """The same by attention to all states so far, as long as they are few; None: they are not, or are not known."""
        H, (*batch, features) = self.hidden_size, x.shape
        B = math.prod(batch)
        fits = features == self.input_size and checks.fit(weights, self._steps[suffix].shapes, x.dtype)
        if B * H**2 < WIDE or not fits:
            return None
        checks.memory("x", x)

        def seen(T: int) -> Weights:
            return weigh(T, T, self.decay, self.rate, NO_CONTROLS, x)

        past = x.new_empty(0, B, H) if state is None else state.past((*batch, H), seen)
        if past is None or len(past) >= H // FEW:
            return None
        if state is not None and not checks.fit((state.h,), ((*batch, H),), x.dtype):
            return None
        if not kernel.covers((x, past)):
            return None
        T, after = len(past), seen(len(past) + 1)
        before = None if state is None else state.h.reshape(B, H)
        dynamics = (self.inner_steps, self.settling == "identity", self.nonlinearity == "tanh", self.normalize_start)
        states = self._steps[suffix].after(
            past, before, x.reshape(B, features), weights, after.w[0, 0, T, :T], *dynamics
        )
        end = End(T + 1, states, None, None, None, after, None, None, x.dtype)
        return FastWeightsState.left_by((end,), (*batch, H))

    def _weights(self, suffix: str) -> list[Any]:
        """Those of `SLOW`; by `getattr`, which is slow, only where one is not a plain parameter (parametrized, say)."""
        parameters = self._parameters
        try:
            return [parameters[name] for name in self._names[suffix]]
        except KeyError:
            return [getattr(self, name + suffix) for name in SLOW]

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, option in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, None)
            if name == "bias":  # which is a parameter of a cell
                value = value is not None and value is not False
            if isinstance(value, int | float | str) and value != option.default and "size" not in name:
                text += f", {name}={value!r}"
        return text

    def _zeros(self, rows: int | None, batch_size: int | None) -> FastWeightsState:
        if batch_size is not None:
            checks.integer("batch_size", batch_size, 0)
        shape = [size for size in (rows, batch_size, self.hidden_size) if size is not None]
        return FastWeightsState(self._like.new_zeros(shape), self._like.new_zeros(*shape, self.hidden_size))

    @property
    def _like(self) -> Tensor:
        """A weight, of the dtype and on the device of all."""
        raise NotImplementedError

    def flatten_parameters(self) -> None:
        """Nothing: there is no other layout for the weights. Code for `nn.RNN` calls it."""


class FastWeights(_FastWeightsBase):
    """A recurrent layer with fast weights, called like `nn.RNN` (Ba et al. 2016).

    Besides the hidden state h, every sequence has a matrix A of fast weights that decays and is rewritten at every
    step, so that each new state is drawn towards recent ones it resembles. For every step, in the paper's letters::

        z = W h + C x + b,    h_0 = f(z),    h_{s+1} = f(LN[z + A h_s])  (S times),    h = h_S,    A = λ A + η h hᵀ

    Args:
        input_size: features of x.
        hidden_size: units, H.
        num_layers: layers stacked on each other, each with a memory of its own.
        inner_steps: S, how often a state settles under the fast weights. 0 is a plain RNN that never reads its memory:
            h = f(z), or f(LN[z]) with `normalize_start`.
        decay: λ in [0, 1], what is left of A after a step.
        rate: η ≥ 0, how strongly a state is written into A.
        layer_norm: normalise inside the inner loop, with a gain and a bias per unit shared by its S iterations.
        normalize_start: normalise h_0 too. The paper does not, and it learns better so. Nothing without `layer_norm`.
        settling: "sustained" keeps z during settling (the paper's method 1); "identity" drops it and adds the identity
            to A, h_{s+1} = f(LN[(I + A) h_s]) (method 2).
        nonlinearity: f, "relu" or "tanh".
        integration: have a second transition matrix, `weight_integration_l0` (H, H), for the steps that `integrate`
            marks: those that put together what was seen before, say.
        bias: b, with the input weights.
        batch_first: x, output and the per-step signals are (B, T, …) instead of (T, B, …). The state is not affected.
        dropout: between stacked layers, while training.
        bidirectional: a second net reads the sequence backwards; the outputs are concatenated.
        learn_decay: train λ = sigmoid(`decay_logit_l0`), one per layer and direction; `decay` is where it starts.
        learn_rate: train η = exp(`rate_log_l0`) likewise.
        backend: what computes it: "kernel" (fused, on the CPU) or "triton" (fused, on a CUDA or ROCm GPU), both float32
            and float64; "torch" (anything, anywhere); or "auto": whatever is best where the tensors are.
            `fastweights.backend()` tells for the CPU, `fastweights.backend("cuda")` for a GPU.

    Parameters are named as in `nn.RNN`: `weight_ih_l0` (H, I) is C, `weight_hh_l0` (H, H) is W, then `bias_l0`,
    `norm_weight_l0`, `norm_bias_l0` (H,) each; `_reverse` for the other direction.

    >>> layer = FastWeights(input_size=10, hidden_size=20)
    >>> output, state = layer(torch.randn(7, 3, 10))
    >>> output.shape, state.h.shape, state.A.shape
    (torch.Size([7, 3, 20]), torch.Size([1, 3, 20]), torch.Size([1, 3, 20, 20]))
    >>> output, state = layer(torch.randn(5, 3, 10), state)  # the memory goes on
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        inner_steps: int = 1,
        decay: float = 0.95,
        rate: float = 0.5,
        layer_norm: bool = True,
        normalize_start: bool = False,
        settling: str = "sustained",
        nonlinearity: str = "relu",
        integration: bool = False,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        learn_decay: bool = False,
        learn_rate: bool = False,
        backend: str = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            inner_steps=inner_steps,
            decay=decay,
            rate=rate,
            layer_norm=layer_norm,
            normalize_start=normalize_start,
            settling=settling,
            nonlinearity=nonlinearity,
            integration=integration,
            learn_decay=learn_decay,
            learn_rate=learn_rate,
            backend=backend,
        )
        checks.integer("num_layers", num_layers, 1)
        checks.number("dropout", dropout, 0, 1)
        if dropout > 0 and num_layers == 1:
            warnings.warn(f"dropout={dropout} acts between layers, and num_layers is 1: it has no effect", stacklevel=2)
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional = float(dropout), bidirectional
        self._suffixes = [f"_l{n}{way}" for n in range(num_layers) for way in ("", "_reverse")[: 1 + bidirectional]]
        for row, suffix in enumerate(self._suffixes):
            size = input_size if row <= bidirectional else hidden_size * (1 + bidirectional)
            self._add_weights(suffix, size, bias, device, dtype)
        self.reset_parameters()

    @overload
    def forward(
        self,
        x: Tensor,
        state: State = None,
        *,
        hx: State = None,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        wipe: Tensor | None = None,
        store: Tensor | None = None,
        read: Tensor | None = None,
        integrate: Tensor | None = None,
    ) -> tuple[Tensor, FastWeightsState]: ...

    @overload
    def forward(
        self,
        x: PackedSequence,
        state: State = None,
        *,
        hx: State = None,
        lengths: None = None,
        reset: Tensor | None = None,
        wipe: Tensor | None = None,
        store: Tensor | None = None,
        read: Tensor | None = None,
        integrate: Tensor | None = None,
    ) -> tuple[PackedSequence, FastWeightsState]: ...

    def forward(
        self,
        x: Tensor | PackedSequence,
        state: State = None,
        *,
        hx: State = None,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        wipe: Tensor | None = None,
        store: Tensor | None = None,
        read: Tensor | None = None,
        integrate: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, FastWeightsState]:
        """Run a batch of sequences.

        Args:
            x: (T, B, I); (B, T, I) with `batch_first`; (T, I) for a single sequence; or a `PackedSequence`.
            state: where the sequences stand, from an earlier call, or a pair (h, A); None: h and A are zero.
            hx: the same, by the name that it has in `nn.RNN`.
            lengths: (B,), a tensor or a list: how many steps of each sequence count. Output is zero past them, and the
                state is that of each sequence's own last step, or the one it came with if it has none.
            reset: bool, or 0 and 1 of any dtype, laid out like x without its features (or with one), or with a 1 for
                the batch, for all sequences: before this step the sequence starts anew, h and A zero.
            wipe: likewise: before this step h is zeroed and A is kept.
            store: in [0, 1], likewise: scales what this step writes into A. Decay goes on regardless.
            read: in [0, 1], likewise: scales what this step reads from A.
            integrate: as `reset`: in this step the integration matrix takes the place of W (see `integration`).

        In a bidirectional layer, `reset` and `wipe` before step t part t-1 from t in both directions.

        Returns:
            The hidden states of the last layer at every step, laid out like x, and the state after the last step.
        """
        start = FastWeightsState.given(state, hx)
        if lengths is reset is wipe is store is read is integrate is None and self._like_a_scan(x):
            if len(x) == 1 and (step := self._step(x, start, "_l0")) is not None:
                return step.h.clone(), step
            if start is None:
                checks.inputs(x, (3,), self.input_size, self._like)
                hs, end = self._scan(x, "_l0", None, None, None, NO_CONTROLS)
                return hs, FastWeightsState.left_by((end,), (1, x.shape[1], self.hidden_size))
        signals = {"reset": reset, "wipe": wipe, "store": store, "read": read, "integrate": integrate}
        batch = self._arrange(x, start, lengths, signals)
        output, new_state = self._run(batch, start)
        return batch.restore(output), new_state

    def _like_a_scan(self, x: Tensor | PackedSequence) -> TypeGuard[Tensor]:
        """Whether a scan takes x as it is: most calls, and small nets would feel the detour."""
        plain = type(x) is Tensor and x.dim() == 3 and x.shape[0] > 0
        return plain and len(self._suffixes) == 1 and not self.batch_first

    @torch.no_grad()
    def trace(
        self,
        x: Tensor,
        state: State = None,
        *,
        hx: State = None,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        wipe: Tensor | None = None,
        store: Tensor | None = None,
        read: Tensor | None = None,
        integrate: Tensor | None = None,
    ) -> Trace:
        """Run as `forward` does, and tell what happened inside: see `Trace`.

        >>> layer = FastWeights(10, 20, inner_steps=3)
        >>> hidden, attention = layer.trace(torch.randn(7, 2, 10))
        >>> hidden.shape, attention.shape
        (torch.Size([1, 7, 4, 2, 20]), torch.Size([1, 7, 3, 2, 7]))
        """
        signals = {"reset": reset, "wipe": wipe, "store": store, "read": read, "integrate": integrate}
        start = FastWeightsState.given(state, hx)
        batch = self._arrange(x, start, lengths, signals)
        T, B = batch.x.shape[:2]
        rows, S, like = len(self._suffixes), self.inner_steps, self._like
        hidden, attention = like.new_zeros(rows, T, S + 1, B, self.hidden_size), like.new_zeros(rows, T, S, B, T)
        observed: list[tuple[Tensor, Tensor]] = []
        self._run(batch, start, observed)
        for row, (states, paid) in enumerate(observed):
            hidden[row], attention[row] = states, paid
        if self.bidirectional:
            for row in range(1, rows, 2):
                hidden[row] = batch.turn(hidden[row].transpose(1, 2)).transpose(1, 2)
                turned = batch.turn(attention[row].transpose(1, 2))  # (T, B, S, τ)
                attention[row] = batch.turn(turned.permute(3, 1, 2, 0)).permute(3, 2, 1, 0)
        return Trace(hidden[:, :, :, 0], attention[:, :, :, 0]) if batch.single else Trace(hidden, attention)

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of every layer and direction, as `nn.RNN` has them."""
        named = dict(self.named_parameters())
        return [[p for name, p in named.items() if name.endswith(suffix)] for suffix in self._suffixes]

    def initial_state(self, batch_size: int | None = None) -> FastWeightsState:
        """The state that sequences start from: zeros, for so many of them; None: for one without a batch."""
        return self._zeros(len(self._suffixes), batch_size)

    @property
    def _like(self) -> Tensor:
        weight = self._parameters.get("weight_hh_l0")
        return cast(Tensor, self.weight_hh_l0) if weight is None else weight

    def _arrange(
        self,
        x: Tensor | PackedSequence,
        state: FastWeightsState | None,
        lengths: Tensor | Sequence[int] | None,
        signals: dict[str, Tensor | None],
    ) -> Batch:
        checks.integrate(signals["integrate"], self.integration)
        batch = Batch.arrange(x, lengths, signals, self.input_size, self.batch_first, self._like)
        if state is not None:
            checks.state(state, (len(self._suffixes), *batch.state_shape, self.hidden_size), self._like)
        return batch

    def _run(
        self, batch: Batch, state: FastWeightsState | None, observed: _Observed = None
    ) -> tuple[Tensor, FastWeightsState]:
        """The output (T, B, directions·H) and the state after it."""
        (T, B), H, rows = batch.x.shape[:2], self.hidden_size, len(self._suffixes)
        ways = 1 + self.bidirectional
        if T == 0:
            zero = self._like.new_zeros
            shape = (rows, *batch.state_shape, H)
            start = FastWeightsState(zero(shape), zero(*shape, H)) if state is None else state.clone()
            return zero(0, B, ways * H), start
        h0 = None if state is None else state.h.reshape(rows, B, H)
        A0 = None if state is None else state.A.reshape(rows, B, H, H)
        output, ends = batch.x, []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                output = F.dropout(output, self.dropout, self.training)
            outputs = []
            for row in range(layer * ways, (layer + 1) * ways):
                backwards = row % ways == 1
                x, controls = (batch.turn(output), batch.turned_controls()) if backwards else (output, batch.controls)
                h, A = None if h0 is None else h0[row], None if A0 is None else A0[row]
                hs, end = self._scan(x, self._suffixes[row], h, A, batch.lengths, controls, observed)
                ends.append(end)
                outputs.append(batch.turn(hs) if backwards else hs)
            output = outputs[0] if ways == 1 else torch.cat(outputs, -1)
        return output, FastWeightsState.left_by(tuple(ends), (rows, *batch.state_shape, H))


class FastWeightsCell(_FastWeightsBase):
    """One step of `FastWeights`, called like `nn.RNNCell`: for loops of your own, agents and streams.

    The arguments are those of `FastWeights`; the parameters have its names without `_l0`. A state has `h` (B, H) and
    `A` (B, H, H), or (H,) and (H, H) for an x without a batch. Without gradients and signals, a step is one call of the
    kernel.

    >>> cell = FastWeightsCell(10, 20)
    >>> state = None
    >>> for x in torch.randn(7, 3, 10):
    ...     state = cell(x, state)
    >>> state.h.shape, state.A.shape
    (torch.Size([3, 20]), torch.Size([3, 20, 20]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        inner_steps: int = 1,
        decay: float = 0.95,
        rate: float = 0.5,
        layer_norm: bool = True,
        normalize_start: bool = False,
        settling: str = "sustained",
        nonlinearity: str = "relu",
        integration: bool = False,
        bias: bool = True,
        learn_decay: bool = False,
        learn_rate: bool = False,
        backend: str = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            inner_steps=inner_steps,
            decay=decay,
            rate=rate,
            layer_norm=layer_norm,
            normalize_start=normalize_start,
            settling=settling,
            nonlinearity=nonlinearity,
            integration=integration,
            learn_decay=learn_decay,
            learn_rate=learn_rate,
            backend=backend,
        )
        self._add_weights("", input_size, bias, device, dtype)
        self.reset_parameters()

    def forward(
        self,
        x: Tensor,
        state: State = None,
        *,
        hx: State = None,
        reset: Tensor | None = None,
        wipe: Tensor | None = None,
        store: Tensor | None = None,
        read: Tensor | None = None,
        integrate: Tensor | None = None,
    ) -> FastWeightsState:
        """The state after one step of x, (B, I) or (I,), with signals (B,) or (): see `FastWeights.forward`."""
        start = FastWeightsState.given(state, hx)
        plain = reset is wipe is store is read is integrate is None and isinstance(x, Tensor) and x.dim() in (1, 2)
        if plain and (step := self._step(x, start, "")) is not None:
            return step
        H, like = self.hidden_size, self._like
        checks.inputs(x, (1, 2), self.input_size, like)
        checks.integrate(integrate, self.integration)
        if start is not None:
            checks.state(start, (*x.shape[:-1], H), like)
        signals = {"reset": reset, "wipe": wipe, "store": store, "read": read, "integrate": integrate}
        given: dict[str, Tensor | None] = {}
        for name, signal in signals.items():  # as a sequence of one step
            if signal is not None:
                shape = tuple(x.shape[:-1])
                given[name] = checks.control(name, signal, shape, x.device, flags=name in FLAGS).unsqueeze(0)
        batch = Batch.arrange(x.unsqueeze(0), None, given, self.input_size, False, like)
        B = batch.x.shape[1]
        h0 = None if start is None else start.h.reshape(B, H)
        A0 = None if start is None else start.A.reshape(B, H, H)
        _, end = self._scan(batch.x, "", h0, A0, None, batch.controls)
        return FastWeightsState.left_by((end,), (*x.shape[:-1], H))

    def initial_state(self, batch_size: int | None = None) -> FastWeightsState:
        """The state that sequences start from: zeros, for so many of them; None: for one without a batch."""
        return self._zeros(None, batch_size)

    @property
    def _like(self) -> Tensor:
        weight = self._parameters.get("weight_hh")
        return cast(Tensor, self.weight_hh) if weight is None else weight
