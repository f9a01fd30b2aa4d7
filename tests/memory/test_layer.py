"""FastWeights against the paper's equations, and as a citizen of PyTorch."""

import copy
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import reference
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

from fastweights import FastWeights, FastWeightsCell, FastWeightsState
from fastweights.memory import kernel
from fastweights.memory.equations import AttentionMemory, MatrixMemory
from fastweights.memory.layer import FEW, WIDE

BACKENDS = ["torch", "kernel"] if kernel.AVAILABLE else ["torch"]


def random_weights(layer):
    """Every parameter off its initial value, so that none can be left out unseen."""
    for name, parameter in layer.named_parameters():
        if "decay" not in name and "rate" not in name:
            nn.init.uniform_(parameter, -0.5, 0.5)
        if "norm_weight" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return layer


def random_state(layer, B, requires_grad=False):
    shape = (layer.num_layers * (1 + layer.bidirectional), B, layer.hidden_size)
    like = layer.weight_hh_l0
    h, A = torch.rand_like(like.new_empty(shape)), torch.randn_like(like.new_empty(*shape, shape[-1])) * 0.1
    return FastWeightsState(h.requires_grad_(requires_grad), A.requires_grad_(requires_grad))


def projection(*tensors):
    """A scalar that depends on every element in its own way."""
    return sum((t * torch.cos(torch.arange(t.numel(), dtype=t.dtype).view_as(t))).sum() for t in tensors)


def gradients(total, leaves):
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]


def difference(ours, theirs):
    """The largest, relative to the largest in each tensor where that is above 1."""
    assert [a.shape for a in ours] == [b.shape for b in theirs]
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.numel()]
    return max([((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs], default=0.0)


def assert_equals_reference(layer, x, state=None, form=MatrixMemory, **signals):
    """To 1e-10, values and gradients of everything that can have one."""
    leaves = [x, *layer.parameters(), *(s for s in signals.values() if s.requires_grad), *(state or ())]

    def by_equations(form):
        values = reference(layer, x, state, form=form, **signals)
        return [*values, *gradients(projection(*values), leaves)]

    output, new = layer(x, state, **signals)
    ours = [output, new.h, new.A, *gradients(projection(output, new.h, new.A), leaves)]
    expected = by_equations(form)
    if not difference(ours, expected) <= 1e-10:
        # Over many steps some nets blow rounding errors up, so that the paper's own two forms differ.
        other = AttentionMemory if form is MatrixMemory else MatrixMemory
        assume(difference(by_equations(other), expected) < 1e-12)
        assert difference(ours, expected) <= 1e-10


@st.composite
def cases(draw, dtype=torch.float64, longest=70):
    """A layer with any options, and a call with any arguments."""
    layer_norm, nonlinearity = draw(st.booleans()), draw(st.sampled_from(["relu", "tanh"]))
    bounded = layer_norm or nonlinearity == "tanh"  # else states grow as h ← h³
    T = draw(st.integers(0, longest if bounded else 6))
    B, H = draw(st.integers(0 if T else 1, 5)), draw(st.sampled_from([1, 2, 3, 5, 7, 13]))
    learn_decay, learn_rate = draw(st.booleans()), draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 1000)))
    layer = FastWeights(
        draw(st.integers(1, 5)),
        H,
        draw(st.integers(1, 2)),
        inner_steps=draw(st.integers(0, 3)),
        decay=draw(st.sampled_from([0.5, 0.95] if learn_decay else [0, 0.5, 0.95, 1])),
        rate=draw(st.sampled_from([0.1, 0.5] if learn_rate else [0, 0.1, 0.5, 1])),
        layer_norm=layer_norm,
        normalize_start=draw(st.booleans()),
        settling=draw(st.sampled_from(["sustained", "identity"])),
        nonlinearity=nonlinearity,
        bias=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        learn_decay=learn_decay,
        learn_rate=learn_rate,
        integration=draw(st.booleans()),
        backend=draw(st.sampled_from(BACKENDS)),
        dtype=dtype,
    )
    random_weights(layer)
    layer._chunk_size = draw(st.one_of(st.none(), st.integers(1, T + 1)))
    x = torch.randn(T, B, layer.input_size, dtype=dtype).mul_(1 if bounded else 0.2).requires_grad_()
    state = random_state(layer, B, requires_grad=True) if draw(st.booleans()) else None
    signals = {
        "lengths": torch.randint(0, T + 1, (B,)),
        "reset": torch.rand(T, B) < 0.2,
        "wipe": torch.rand(T, B) < 0.2,
        "store": torch.rand(T, B, dtype=dtype).requires_grad_(),
        "read": torch.rand(T, B, dtype=dtype).requires_grad_(),
    }
    if layer.integration:
        signals["integrate"] = torch.rand(T, B) < draw(st.sampled_from([0.1, 0.9]))
    chosen = draw(st.sets(st.sampled_from(sorted(signals))))
    signals = {name: signals[name] for name in sorted(chosen)}
    for name in chosen - {"lengths"}:  # one for all sequences
        if B and draw(st.booleans()):
            signals[name] = signals[name].detach()[:, :1].requires_grad_(signals[name].requires_grad)
    if not bounded:
        assume(all((value.abs() < 1e6).all() for value in layer(x, state, **signals)[1]))
    return layer, x, state, signals


@settings(max_examples=400)
@given(cases(), st.sampled_from([MatrixMemory, AttentionMemory]))
def test_equals_the_equations(case, form):
    layer, x, state, signals = case
    assert_equals_reference(layer, x, state, form=form, **signals)


@settings(max_examples=60)
@given(cases(dtype=torch.float32, longest=20))
def test_equals_the_equations_in_float32(case):
    layer, x, state, signals = case
    exact = copy.deepcopy(layer).double()
    kept = {name: s.detach().double() if s.is_floating_point() else s for name, s in signals.items()}
    twin = x.detach().double().requires_grad_()

    def values_and_gradients(output, leaves):
        return [output, *gradients(projection(output), leaves)]

    true = values_and_gradients(
        reference(exact, twin, state and state.to(torch.float64), **kept)[0], [twin, *exact.parameters()]
    )
    oracle = values_and_gradients(reference(layer, x, state, **signals)[0], [x, *layer.parameters()])
    ours = values_and_gradients(layer(x, state, **signals)[0], [x, *layer.parameters()])

    # Normalising few features, or a state next to ReLU's corner, blows rounding errors up, the oracle's too.
    assume(difference(oracle, true) < 1e-5)
    assert difference(ours, true) < 1e-4


@pytest.mark.parametrize("T", [1, 2, 63, 65, 128, 129, 200, 300])
def test_the_size_that_is_chosen_is_exact_too(T):
    layer = random_weights(FastWeights(3, 5, dtype=torch.float64))
    assert_equals_reference(layer, torch.randn(T, 2, 3, dtype=torch.float64, requires_grad=True))


@settings(max_examples=60)
@given(cases(longest=30), st.data())
def test_pieces_with_carried_state_equal_the_whole(case, data):
    layer, x, state, signals = case
    signals.pop("lengths", None)
    if layer.bidirectional:
        return
    cuts = sorted(data.draw(st.lists(st.integers(0, len(x)), max_size=4)))
    leaves = [x, *layer.parameters(), *(state or ()), *(s for s in signals.values() if s.requires_grad)]
    output, end = layer(x, state, **signals)
    pieces, carried = [], state
    for start, stop in zip([0, *cuts], [*cuts, len(x)], strict=True):
        piece, carried = layer(x[start:stop], carried, **{name: s[start:stop] for name, s in signals.items()})
        pieces.append(piece)
    joined = torch.cat(pieces)
    whole, in_pieces = (output, end.h, end.A), (joined, carried.h, carried.A)
    assert difference(in_pieces, whole) < 1e-9
    assert difference(gradients(projection(*in_pieces), leaves), gradients(projection(*whole), leaves)) < 1e-8


# The laws of the layer


@settings(max_examples=50)
@given(cases(longest=20), st.data())
def test_a_sequence_does_not_see_its_batch_mates(case, data):
    layer, x, state, signals = case
    if not x.shape[1]:
        return
    b = data.draw(st.integers(0, x.shape[1] - 1))
    output, new = layer(x, state, **signals)
    alone = {
        name: s[b : b + 1] if name == "lengths" else s.expand(x.shape[:2])[:, b : b + 1] for name, s in signals.items()
    }
    own, own_state = layer(x[:, b : b + 1], state and state.index_select(torch.tensor([b])), **alone)
    torch.testing.assert_close(own[:, 0], output[:, b], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own_state.A[:, 0], new.A[:, b], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_without_rate_it_is_a_layer_normed_rnn(inner_steps):
    layer = random_weights(FastWeights(3, 5, rate=0, inner_steps=inner_steps))
    x = torch.randn(9, 2, 3)
    h, outputs = torch.zeros(2, 5), []
    for step in x:
        z = h @ layer.weight_hh_l0.T + step @ layer.weight_ih_l0.T + layer.bias_l0
        h = torch.relu(nn.functional.layer_norm(z, (5,), layer.norm_weight_l0, layer.norm_bias_l0))
        outputs.append(h)
    torch.testing.assert_close(layer(x)[0], torch.stack(outputs))


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_without_inner_steps_it_is_nn_rnn(nonlinearity):
    layer = random_weights(FastWeights(3, 5, 2, inner_steps=0, nonlinearity=nonlinearity, bidirectional=True))
    rnn = nn.RNN(3, 5, 2, nonlinearity=nonlinearity, bidirectional=True)
    for name, parameter in rnn.named_parameters():
        source = getattr(layer, name.replace("bias_ih", "bias"), None)
        parameter.data.copy_(torch.zeros_like(parameter) if source is None else source)
    x = torch.randn(7, 4, 3)
    output, state = layer(x)
    expected, h = rnn(x)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(state.h, h)


def test_both_methods_agree_while_the_memory_is_empty():
    methods = [
        FastWeights(3, 5, rate=0, layer_norm=False, inner_steps=3, settling=s) for s in ("sustained", "identity")
    ]
    methods[1].load_state_dict(random_weights(methods[0]).state_dict())
    x = torch.randn(6, 2, 3)
    torch.testing.assert_close(methods[0](x)[0], methods[1](x)[0])


def test_reset_equals_a_new_sequence():
    layer = random_weights(FastWeights(3, 5))
    x, reset = torch.randn(9, 2, 3), torch.zeros(9, 2, dtype=torch.bool)
    reset[4] = True
    output, state = layer(x, reset=reset)
    torch.testing.assert_close(output[:4], layer(x[:4])[0])
    fresh, fresh_state = layer(x[4:])
    torch.testing.assert_close(output[4:], fresh)
    torch.testing.assert_close(state.A, fresh_state.A)


def test_reset_parts_both_directions():
    layer = random_weights(FastWeights(3, 5, bidirectional=True))
    x, reset = torch.randn(9, 2, 3), torch.zeros(9, 2, dtype=torch.bool)
    reset[4] = True
    torch.testing.assert_close(layer(x, reset=reset)[0], torch.cat((layer(x[:4])[0], layer(x[4:])[0])))


def test_wipe_keeps_the_memory():
    layer = random_weights(FastWeights(3, 5))
    x, wipe = torch.randn(9, 2, 3), torch.zeros(9, 2, dtype=torch.bool)
    wipe[4] = True
    output, _ = layer(x, wipe=wipe)
    _, state = layer(x[:4])
    expected, _ = layer(x[4:], FastWeightsState(torch.zeros_like(state.h), state.A))
    torch.testing.assert_close(output[4:], expected)


def test_the_integration_matrix_takes_the_place_of_W():
    layer = random_weights(FastWeights(3, 5, integration=True))
    plain = FastWeights(3, 5)
    plain.load_state_dict({name: value for name, value in layer.state_dict().items() if "integration" not in name})
    x, everywhere = torch.randn(9, 2, 3), torch.ones(9, 2, dtype=torch.bool)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])
    torch.testing.assert_close(layer(x, integrate=~everywhere)[0], plain(x)[0])
    plain.load_state_dict({**plain.state_dict(), "weight_hh_l0": layer.weight_integration_l0})
    torch.testing.assert_close(layer(x, integrate=everywhere)[0], plain(x)[0])
    layer(x, integrate=everywhere)[0].sum().backward()
    assert layer.weight_hh_l0.grad.count_nonzero() == 0
    assert layer.weight_integration_l0.grad.count_nonzero() > 0


def test_store_nothing_still_decays():
    layer = random_weights(FastWeights(3, 5, decay=0.5))
    start = random_state(layer, 2)
    _, state = layer(torch.randn(3, 2, 3), start, store=torch.zeros(3, 2))
    torch.testing.assert_close(state.A, start.A / 8)


def test_read_nothing_is_blind_to_the_memory():
    layer = random_weights(FastWeights(3, 5))
    x, start = torch.randn(6, 2, 3), random_state(layer, 2)
    other = FastWeightsState(start.h, torch.randn_like(start.A))
    outputs = [layer(x, state, read=torch.zeros(6, 2))[0] for state in (start, other)]
    torch.testing.assert_close(*outputs)


def test_bool_store_and_read_are_zero_and_one():
    layer = random_weights(FastWeights(3, 5))
    x, store, read = torch.randn(6, 2, 3), torch.rand(6, 2) < 0.5, torch.rand(6, 2) < 0.5
    torch.testing.assert_close(layer(x, store=store, read=read)[0], layer(x, store=store.float(), read=read.float())[0])


# Shapes and layouts


def test_batch_first_and_single_sequences():
    layer = random_weights(FastWeights(3, 5, 2, bidirectional=True))
    x, reset, store = torch.randn(7, 4, 3), torch.rand(7, 4) < 0.3, torch.rand(7, 4)
    lengths = torch.tensor([7, 0, 3, 5])
    output, state = layer(x, lengths=lengths, reset=reset, store=store)
    layer.batch_first = True
    turned, same = layer(x.transpose(0, 1), lengths=lengths, reset=reset.T, store=store.T)
    torch.testing.assert_close(turned, output.transpose(0, 1))
    torch.testing.assert_close(same.A, state.A)
    for b in range(4):  # batch_first says nothing of a single sequence
        own, one = layer(x[:, b], lengths=lengths[b], reset=reset[:, b], store=store[:, b])
        assert one.h.shape == (4, 5)
        torch.testing.assert_close(own, output[:, b])
        torch.testing.assert_close(one.A, state.A[:, b])
        layer(x[:, b], one)


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_packed_sequences(enforce_sorted, bidirectional):
    lengths = [6, 5, 5, 1] if enforce_sorted else [5, 1, 6, 5]
    layer = random_weights(FastWeights(3, 5, 2, bidirectional=bidirectional))
    sequences = [torch.randn(n, 3) for n in lengths]
    packed = pack_sequence(sequences, enforce_sorted=enforce_sorted)
    start = random_state(layer, 4)
    output, state = layer(packed, start)
    assert isinstance(output, PackedSequence)
    for ours, theirs in zip(output[1:], packed[1:], strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    for b, (sequence, own) in enumerate(zip(sequences, nn.utils.rnn.unpack_sequence(output), strict=True)):
        expected, end = layer(sequence, FastWeightsState(start.h[:, b], start.A[:, b]))
        torch.testing.assert_close(own, expected)
        torch.testing.assert_close(state.h[:, b], end.h)
        torch.testing.assert_close(state.A[:, b], end.A)


def test_packed_with_batch_first_and_signals():
    layer = random_weights(FastWeights(3, 5, batch_first=True))
    x, reset, lengths = torch.randn(4, 6, 3), torch.rand(4, 6) < 0.3, torch.tensor([2, 6, 5, 3])
    expected, _ = layer(x, lengths=lengths, reset=reset)
    output, _ = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False), reset=reset.T)
    torch.testing.assert_close(nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0], expected)


def test_what_is_past_the_end_is_never_read():
    layer = random_weights(FastWeights(3, 5, layer_norm=False))
    x = torch.randn(6, 2, 3)
    x[3:, 1] = math.nan
    x.requires_grad_()
    output, state = layer(x, lengths=torch.tensor([6, 3]))
    assert output.isfinite().all()
    assert state.A.isfinite().all()
    assert (output[3:, 1] == 0).all()
    (output.sum() + state.A.sum()).backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert (x.grad[3:, 1] == 0).all()


@pytest.mark.parametrize(("T", "B"), [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("given", [True, False])
def test_nothing_to_do(T, B, given):
    layer = FastWeights(3, 5, 2, bidirectional=True)
    start = random_state(layer, B) if given else None
    output, state = layer(torch.randn(T, B, 3), start)
    assert output.shape == (T, B, 10)
    assert state.h.shape == (4, B, 5)
    assert state.A.shape == (4, B, 5, 5)
    if T == 0:
        assert torch.equal(state.A, start.A if given else torch.zeros(4, B, 5, 5))
        hidden, attention = layer.trace(torch.randn(T, B, 3), start)
        assert hidden.shape == (4, 0, 2, B, 5)
        assert attention.shape == (4, 0, 1, B, 0)


def test_dropout_acts_between_layers_while_training():
    layer = random_weights(FastWeights(3, 50, 2, dropout=0.5))
    x = torch.randn(5, 2, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    with pytest.warns(UserWarning, match="num_layers is 1"):
        FastWeights(3, 5, dropout=0.5)


# Parameters


def test_names_and_shapes_are_those_of_nn_rnn():
    shapes = {name: tuple(p.shape) for name, p in FastWeights(3, 5, 2, bidirectional=True).named_parameters()}
    rnn = {name: tuple(p.shape) for name, p in nn.RNN(3, 5, 2, bidirectional=True).named_parameters()}
    weights = {name: shape for name, shape in rnn.items() if "weight" in name}
    assert {name: shapes[name] for name in weights} == weights
    rest = {name: shape for name, shape in shapes.items() if name not in weights}
    assert set(rest.values()) == {(5,)}
    suffixes = ("_l0", "_l0_reverse", "_l1", "_l1_reverse")
    assert set(rest) == {name + suffix for name in ("bias", "norm_weight", "norm_bias") for suffix in suffixes}


def test_initialised_as_the_paper_says():
    layer = FastWeights(100, 50, 2, learn_decay=True, learn_rate=True, decay=0.9, rate=0.3)
    assert torch.equal(layer.weight_hh_l1, 0.05 * torch.eye(50))
    assert (layer.norm_weight_l0 == 1).all()
    assert not layer.bias_l0.any()
    assert not layer.norm_bias_l1.any()
    assert layer.decay_logit_l0.sigmoid().item() == pytest.approx(0.9)
    assert layer.rate_log_l1.exp().item() == pytest.approx(0.3)
    before = layer.weight_ih_l0.clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.weight_ih_l0)


def test_copies_and_state_dicts():
    layer, other = random_weights(FastWeights(3, 5)), FastWeights(3, 5)
    x = torch.randn(4, 2, 3)
    other.load_state_dict(layer.state_dict())
    for same in (other, copy.deepcopy(layer)):
        assert torch.equal(same(x)[0], layer(x)[0])


def test_parametrized_weights():
    layer = random_weights(FastWeights(3, 5, dtype=torch.float64))
    nn.utils.parametrizations.orthogonal(layer, "weight_hh_l0")
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    assert_equals_reference(layer, x)


def test_repr_shows_what_is_unusual():
    assert repr(FastWeights(3, 5)) == "FastWeights(3, 5)"
    text = repr(FastWeights(3, 5, 2, decay=0.9, settling="identity", batch_first=True))
    assert text == "FastWeights(3, 5, num_layers=2, decay=0.9, settling='identity', batch_first=True)"


# What a trace tells


@pytest.mark.parametrize("bidirectional", [False, True])
def test_trace_adds_up_to_what_was_read(bidirectional):
    layer = random_weights(FastWeights(3, 5, 2, inner_steps=2, bidirectional=bidirectional, dtype=torch.float64))
    x, store, read = torch.randn(7, 2, 3, dtype=torch.float64), torch.rand(7, 2), torch.rand(7, 2)
    lengths = torch.tensor([7, 4])
    output, _ = layer(x, lengths=lengths, store=store, read=read)
    hidden, attention = layer.trace(x, lengths=lengths, store=store, read=read)
    top = hidden[2:, :, -1] if bidirectional else hidden[1:, :, -1]
    active = (torch.arange(7).unsqueeze(1) < lengths).unsqueeze(-1)
    torch.testing.assert_close(torch.cat(list(top), -1) * active, output)
    # By hand: S = 2 iterations of the first layer's first direction.
    recalled = torch.einsum("tsbr,rbh->tsbh", attention[0], hidden[0, :, -1])
    previous = torch.cat((torch.zeros_like(hidden[0, :1, -1]), hidden[0, :-1, -1]))
    z = previous @ layer.weight_hh_l0.T + x @ layer.weight_ih_l0.T + layer.bias_l0
    for s in range(2):
        v = nn.functional.layer_norm(z + recalled[:, s], (5,), layer.norm_weight_l0, layer.norm_bias_l0)
        torch.testing.assert_close((torch.relu(v) * active), hidden[0, :, s + 1] * active)


def test_trace_attends_to_the_past_with_decay():
    layer = random_weights(FastWeights(3, 5, decay=0.5, rate=0.3, dtype=torch.float64))
    x = torch.randn(6, 3, dtype=torch.float64)
    hidden, attention = layer.trace(x)
    assert hidden.shape == (1, 6, 2, 5)
    assert attention.shape == (1, 6, 1, 6)
    for t in range(6):
        for tau in range(6):
            paid = 0.3 * 0.5 ** (t - 1 - tau) * hidden[0, tau, -1] @ hidden[0, t, 0] if tau < t else torch.tensor(0.0)
            assert attention[0, t, 0, tau].item() == pytest.approx(paid.item(), abs=1e-12)


def test_trace_of_the_backward_way_mirrors_the_forward_one():
    layer = random_weights(FastWeights(3, 5, bidirectional=True))
    twin = FastWeights(3, 5)
    twin.load_state_dict({k.removesuffix("_reverse"): v for k, v in layer.state_dict().items() if "reverse" in k})
    x = torch.randn(6, 2, 3)
    ours, theirs = layer.trace(x), twin.trace(x.flip(0))
    torch.testing.assert_close(ours.hidden[1], theirs.hidden[0].flip(0))
    torch.testing.assert_close(ours.attention[1], theirs.attention[0].flip(0, 3))


# A citizen of PyTorch


@pytest.mark.parametrize("settling", ["sustained", "identity"])
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_and_gradgradcheck(settling, chunk_size, backend):
    options = {"inner_steps": 2, "settling": settling, "learn_decay": True, "backend": backend}
    layer = random_weights(FastWeights(2, 3, **options, dtype=torch.float64))
    layer.nonlinearity, layer._chunk_size = "tanh", chunk_size
    names = [name for name, _ in layer.named_parameters()]
    state = random_state(layer, 2)

    def run(x, h, A, store, *parameters):
        args = (x, FastWeightsState(h, A))
        weights = dict(zip(names, parameters, strict=True))
        output, new = torch.func.functional_call(layer, weights, args, {"store": store})
        return output, new.h, new.A

    inputs = [torch.randn(5, 2, 2, dtype=torch.float64), state.h, state.A, torch.rand(5, 2, dtype=torch.float64) * 0.9]
    inputs = [i.detach().requires_grad_() for i in [*inputs, *layer.parameters()]]
    torch.autograd.gradcheck(run, inputs)
    torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@settings(max_examples=25)
@given(cases(longest=6))
def test_second_derivatives_equal_the_equations(case):
    layer, x, state, signals = case
    leaves = [x, *layer.parameters(), *(s for s in signals.values() if s.requires_grad), *(state or ())]

    def second(output, h, A):
        total = projection(output, h, A)
        if not total.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        return gradients(projection(*(g for g in first if g is not None)), leaves)

    output, new = layer(x, state, **signals)
    assert difference(second(output, new.h, new.A), second(*reference(layer, x, state, **signals))) < 1e-8


@pytest.mark.parametrize(("T", "backend"), [(5, "inductor"), (200, "aot_eager")])
def test_compiles_in_one_graph(T, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    layer = random_weights(FastWeights(3, 5, inner_steps=2, bidirectional=T == 200, dtype=torch.float64))
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    x, start = torch.randn(T, 2, 3, dtype=torch.float64, requires_grad=True), random_state(layer, 2, requires_grad=True)
    leaves = [x, *start, *layer.parameters()]
    for signals in ({}, {"lengths": torch.tensor([T, 2]), "reset": torch.rand(T, 2) < 0.2, "read": torch.rand(T, 2)}):
        output, state = layer(x, start, **signals)
        same, same_state = compiled(x, start, **signals)
        torch.testing.assert_close(same, output)
        torch.testing.assert_close(same_state.A, state.A)
        ours = gradients(projection(same, same_state.A), leaves)
        for actual, expected in zip(ours, gradients(projection(output, state.A), leaves), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], layer(x)[0])


def test_the_state_stays_float32_under_autocast():
    layer = random_weights(FastWeights(3, 5))
    x = torch.randn(6, 2, 3)
    exact, _ = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = layer(x)
        _, state = layer(x.bfloat16(), state)
        late = layer(x)[1]
        assert state.h.dtype == state.A.dtype == torch.float32
        late_A = late.A
    torch.testing.assert_close(output.float(), exact, rtol=0.1, atol=0.1)
    assert late_A.dtype == torch.float32
    torch.testing.assert_close(late_A[0], reference(layer, x)[2][0], rtol=0.1, atol=0.1)
    output.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


def test_vmap_over_seeds():
    layers = [random_weights(FastWeights(3, 5, 2)) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    x, lengths = torch.randn(6, 2, 3), torch.tensor([6, 3])

    def run(parameters, buffers):
        return torch.func.functional_call(layers[0], (parameters, buffers), (x,), {"lengths": lengths})

    output, state = torch.vmap(run)(parameters, buffers)
    for n, layer in enumerate(layers):
        expected, end = layer(x, lengths=lengths)
        torch.testing.assert_close(output[n], expected)
        torch.testing.assert_close(state.A[n], end.A)


def test_forward_mode_equals_backward_mode():
    layer = random_weights(FastWeights(3, 5, dtype=torch.float64))
    x, direction = torch.randn(2, 6, 2, 3, dtype=torch.float64)
    _, along = torch.func.jvp(lambda x: layer(x)[0], (x,), (direction,))
    leaf = x.clone().requires_grad_()
    weights = torch.randn_like(along)
    (grad,) = torch.autograd.grad((layer(leaf)[0] * weights).sum(), leaf)
    torch.testing.assert_close((along * weights).sum(), (grad * direction).sum())


def test_runs_where_the_tensors_are():
    # The one other device that is on every machine: shapes without numbers. Any tensor made elsewhere would fail.
    layer = FastWeights(3, 5, 2, bidirectional=True, device="meta")
    signals = {"lengths": torch.ones(2, dtype=torch.long, device="meta"), "read": torch.ones(300, 2, device="meta")}
    output, state = layer(torch.randn(300, 2, 3, device="meta"), **signals)
    assert output.device.type == state.A.device.type == "meta"
    output.sum().backward()


def test_training_learns_to_recall():
    """The point of it all: say again what came four steps ago, which a state wiped at every step cannot."""
    generator = torch.Generator().manual_seed(0)
    layer, readout = FastWeights(16, 32), nn.Linear(32, 8)
    optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], 1e-2)
    wipe = torch.ones(5, 64, dtype=torch.bool)
    for _ in range(150):
        keys = torch.rand(64, 8, generator=generator).argsort(1)[:, :4].T  # (4, 64)
        values = torch.randint(8, (4, 64), generator=generator)
        asked = torch.randint(4, (1, 64), generator=generator)
        one_hot = nn.functional.one_hot
        pairs = torch.cat((one_hot(keys, 8), one_hot(values, 8)), -1).float()
        query = torch.cat((one_hot(keys.gather(0, asked), 8), torch.zeros(1, 64, 8)), -1).float()
        output, _ = layer(torch.cat((pairs, query)) * 3, wipe=wipe)
        answer = readout(output[-1])
        loss = nn.functional.cross_entropy(answer, values.gather(0, asked)[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (answer.argmax(1) == values.gather(0, asked)[0]).float().mean()
    assert accuracy > 0.8  # knowing only which values occurred is worth some 45 %


@pytest.mark.parametrize(
    "options",
    [{}, {"inner_steps": 2, "settling": "identity", "nonlinearity": "tanh"}, {"layer_norm": False}, {"bias": False}],
)
@pytest.mark.parametrize("first", [0, 3])
def test_single_steps_of_many_wide_sequences_are_one_run(options, first):
    """Their fast weights are left aside as long as their states are few, and built when they no longer are."""
    torch.manual_seed(0)
    layer = FastWeights(5, 64, rate=0.01, **options).double()
    cell = FastWeightsCell(5, 64, rate=0.01, **options).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x = torch.randn(20, 64, 5, dtype=torch.float64)
    assert x.shape[1] * layer.weight_hh_l0.numel() >= WIDE
    few = layer.hidden_size // FEW
    assert first < few < len(x) - 1
    with torch.no_grad():
        whole, end = layer(x)
        state = layer(x[:first])[1] if first else None
        own, built = None, []
        for t, now in enumerate(x):
            own = cell(now, own)
            torch.testing.assert_close(own.h, whole[t], rtol=0, atol=1e-12)
            if t >= first:
                output, state = layer(now.unsqueeze(0), state)
                built.append(state._A is not None)
                torch.testing.assert_close(output[0], whole[t], rtol=0, atol=1e-12)
        assert built == [t >= few for t in range(first, len(x))]
        for found in (state, own):
            torch.testing.assert_close(found.A.view_as(end.A), end.A, rtol=0, atol=1e-11)


def test_single_steps_of_many_wide_sequences_see_what_they_should_not_miss():
    layer, x = FastWeights(5, 64), torch.randn(3, 64, 5)
    with torch.no_grad():
        _, state = layer(x[:1])
        with pytest.raises(ValueError, match="state"):
            layer(x[:1, :32], state)
        # Other weights of the past than those of single steps: what was not stored is not seen.
        _, state = layer(x, store=torch.zeros(3, 1))
        torch.testing.assert_close(layer(x[:1], state)[0], layer(x[:1], FastWeightsState(state.h, 0 * state.A))[0])
        _, state = layer(x[:1])
        layer.decay = 0.5
        with_A = FastWeightsState(*layer(x[:1])[1])
        torch.testing.assert_close(layer(x[1:2], state)[0], layer(x[1:2], with_A)[0])
