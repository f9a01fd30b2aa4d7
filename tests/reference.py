"""A `FastWeights` layer computed by the oracle: the paper's equations, layer by layer and way by way; random runs."""

import torch
from torch import Tensor

from fastweights import FastWeights, FastWeightsState
from fastweights.memory import equations
from fastweights.memory.chunked import Run
from fastweights.memory.equations import AttentionMemory, Dynamics, MatrixMemory, SlowWeights


def slow_weights(layer: FastWeights, suffix: str) -> SlowWeights:
    names = ("weight_hh", "weight_ih", "bias", "norm_weight", "norm_bias")
    return SlowWeights(*(getattr(layer, name + suffix) for name in (*names, "weight_integration")))


def backwards(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence reversed within its own length, one by one."""
    ends = [len(x)] * x.shape[1] if lengths is None else lengths.tolist()
    turned = [torch.cat((x[:end, b].flip(0), x[end:, b])) for b, end in enumerate(ends)]
    return torch.stack(turned, 1) if turned else x


def reference(
    layer: FastWeights,
    x: Tensor,
    state: FastWeightsState | None = None,
    *,
    form: type[MatrixMemory] | type[AttentionMemory] = MatrixMemory,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    wipe: Tensor | None = None,
    store: Tensor | None = None,
    read: Tensor | None = None,
    integrate: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (T, B, ways·H), h (layers·ways, B, H) and A (layers·ways, B, H, H), for x (T, B, I)."""
    B, H, ways = x.shape[1], layer.hidden_size, 1 + layer.bidirectional
    dynamics = Dynamics(layer.inner_steps, layer.settling, layer.nonlinearity, layer.normalize_start)
    hs, As = [], []
    for number in range(layer.num_layers):
        outputs = []
        for way in range(ways):
            row, suffix = number * ways + way, f"_l{number}" + ("_reverse" if way else "")
            decay = getattr(layer, "decay_logit" + suffix).sigmoid() if layer.learn_decay else x.new_tensor(layer.decay)
            rate = getattr(layer, "rate_log" + suffix).exp() if layer.learn_rate else x.new_tensor(layer.rate)
            h0 = x.new_zeros(B, H) if state is None else state.h[row]
            memory = form(x.new_zeros(B, H, H) if state is None else state.A[row], decay, rate)
            signals = {"reset": reset, "wipe": wipe, "store": store, "read": read, "integrate": integrate}
            signals = {name: None if s is None else s.expand(x.shape[:2]) for name, s in signals.items()}
            given = x
            if way:
                given = backwards(x, lengths)
                for name, signal in signals.items():
                    if signal is not None and name in ("reset", "wipe"):  # before t means: between t-1 and t
                        signal = torch.cat((signal[1:], torch.zeros_like(signal[:1])))
                        if lengths is not None:
                            signal = signal & (torch.arange(len(x)).unsqueeze(1) < lengths - 1)
                    signals[name] = None if signal is None else backwards(signal, lengths)
            output, h = equations.run(
                given, h0, memory, slow_weights(layer, suffix), dynamics, lengths=lengths, **signals
            )
            outputs.append(backwards(output, lengths) if way else output)
            hs.append(h)
            As.append(memory.A)
        x = torch.cat(outputs, -1)
    return x, torch.stack(hs), torch.stack(As)


def random_run(
    T,
    B,
    features,
    H,
    K,
    *,
    norm=True,
    bias=True,
    before=True,
    start=True,
    shared=False,
    wiped=True,
    parted=False,
    integrated=True,
    steps=False,
    dtype=torch.float64,
    lay=lambda tensor: tensor,
):
    """A run of random numbers, with weights of the past that no decay would give; `lay` puts a tensor into memory."""

    def random(*shape):
        return lay(0.4 * torch.rand(shape, dtype=dtype) - 0.1)

    n, rows = -(-T // K), 1 if shared else B
    chunks = 1 if shared else n
    lengths = torch.randint(0, T + 1, (B,)) if steps else None
    counts = torch.ones(T, B) > 0 if lengths is None else torch.arange(T).unsqueeze(1) < lengths
    left, p_left = None, None
    if n > 1:
        left, p_left = random(max(chunks - 1, 1), rows, K), random(max(chunks - 1, 1), rows)
        if lengths is not None:  # past its end, a sequence's A stays as it is
            place = K * torch.arange(n - 1).unsqueeze(1)
            left = left.expand(n - 1, B, K) * (place.unsqueeze(-1) + torch.arange(K) < lengths.unsqueeze(-1))
            p_left = torch.where(place < lengths, p_left.expand(n - 1, B), 1.0)
    return Run(
        x=random(T, B, features),
        C=random(H, features),
        b=random(H) if bias else None,
        W=random(H, H),
        W_int=random(H, H) if integrated else None,
        gain=random(H) if norm else None,
        shift=random(H) if norm else None,
        h0=random(B, H) if start else None,
        A0=random(B, H, H) if before else None,
        w=torch.tril(lay(torch.rand(chunks, rows, K, K, dtype=dtype)), -1),
        p=random(chunks, rows, K),
        left=left,
        p_left=p_left,
        keep=(torch.rand(T, B) > 0.2).to(dtype) if wiped else None,
        reset=((torch.rand(T, B) < 0.2) & counts).to(dtype) if parted else None,
        # In some steps of all sequences, in others of some, in others of none.
        integrate=(torch.rand(T, B) > 2 * torch.rand(T, 1) - 0.5).to(dtype) if integrated else None,
        steps=lengths,
    )
