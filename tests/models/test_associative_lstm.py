"""AssociativeLSTM against its paper's equations in complex numbers, and its memory against the noise the paper says."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from fastweights.models.associative_lstm import (
    AssociativeLSTM,
    AssociativeLSTMState,
    bound,
    complex_product,
    draw_permutations,
    permuted,
    read,
    run_by_steps,
    store,
)


def as_complex(halves):
    return torch.complex(halves[0], halves[1])


def random_layer(features, H, scale=1.0, **options):
    """In float64, every parameter off its initial value, and large enough that vectors are cut as well as not."""
    layer = AssociativeLSTM(features, H, **options).double()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -scale, scale)
    return layer


def random_state(layer, B):
    h = torch.randn(B, layer.output_size, dtype=torch.float64, requires_grad=True)
    c = torch.randn(layer.copies, B, layer.hidden_size, dtype=torch.float64, requires_grad=True)
    return AssociativeLSTMState(h, c)


def projection(*tensors):
    """A scalar that depends on every element in its own way."""
    return sum((t * torch.cos(torch.arange(t.numel(), dtype=t.dtype).view_as(t))).sum() for t in tensors)


def reference(layer, x, state, moduli):
    """The paper's equations in complex numbers: one sequence, one step, one head and one copy at a time."""
    N, K, S = layer.hidden_size // 2, layer.heads, layer.copies

    def cut(z):
        moduli.append(z.detach().abs())
        return torch.stack([number / max(1, number.abs()) for number in z])

    outputs, last_h, last_c = [], [], []
    for b in range(x.shape[1]):
        h = state.h[b]
        c = [torch.complex(state.c[s, b, :N], state.c[s, b, N:]) for s in range(S)]
        for t in range(len(x)):
            rows = list((layer.weight_ih @ x[t, b] + layer.weight_hh @ h + layer.bias).split(N))
            g_f = rows.pop(0).sigmoid()
            g_i, g_o = [rows.pop(0).sigmoid() for _ in range(K)], [rows.pop(0).sigmoid() for _ in range(K)]
            vectors = [cut(torch.complex(re, im)) for re, im in zip(rows[: 3 * K], rows[3 * K :], strict=True)]
            u, r_i, r_o = vectors[:K], vectors[K : 2 * K], vectors[2 * K :]
            for s in range(S):
                c[s] = g_f * c[s]
                for k in range(K):
                    c[s] = c[s] + r_i[k][layer.permutations[s]] * (g_i[k] * u[k])
            heads = []
            for k in range(K):
                total = 0
                for s in range(S):
                    total = total + r_o[k][layer.permutations[s]] * c[s]
                head = g_o[k] * cut(total / S)
                heads += [head.real, head.imag]
            h = torch.cat(heads)
            outputs.append(h)
        last_h.append(h)
        last_c.append(torch.stack([torch.cat((copy.real, copy.imag)) for copy in c]))
    return (
        torch.stack(outputs).view(x.shape[1], len(x), -1).transpose(0, 1),
        torch.stack(last_h),
        torch.stack(last_c, 1),
    )


@pytest.mark.parametrize(
    ("T", "B", "features", "H", "copies", "heads"), [(5, 3, 7, 10, 3, 2), (3, 1, 1, 2, 1, 1), (4, 2, 3, 6, 5, 3)]
)
def test_equals_the_equations(T, B, features, H, copies, heads):
    layer = random_layer(features, H, copies=copies, heads=heads, seed=3)
    x = torch.randn(T, B, features, dtype=torch.float64, requires_grad=True)
    state = random_state(layer, B)
    leaves = [x, *state, *layer.parameters()]
    moduli = []
    expected = reference(layer, x, state, moduli)
    share_cut = (torch.cat(moduli) > 1).double().mean()
    assert 0.05 < share_cut < 0.95
    output, new = layer(x, state)
    ours = [output, *new, *torch.autograd.grad(projection(output, *new), leaves)]
    theirs = [*expected, *torch.autograd.grad(projection(*expected), leaves)]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def by_steps(layer, x, state):
    h, c = (None, None) if state is None else state
    return run_by_steps(x, h, c, layer.weight_ih, layer.weight_hh, layer.bias, layer.permutations)


def gradients(results, leaves, **options):
    return torch.autograd.grad(projection(*results), leaves, allow_unused=True, materialize_grads=True, **options)


SIZES = [
    (1, 1, 1, 2, 1, 1),
    (2, 0, 3, 4, 2, 2),
    (1, 3, 2, 6, 3, 2),
    (2, 1, 3, 4, 2, 1),
    (5, 3, 7, 10, 3, 2),
    (4, 5, 3, 14, 1, 3),
]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(("T", "B", "features", "H", "copies", "heads"), SIZES)
def test_equals_its_steps(T, B, features, H, copies, heads, given):
    layer = random_layer(features, H, copies=copies, heads=heads)
    x = torch.randn(T, B, features, dtype=torch.float64, requires_grad=True)
    state = random_state(layer, B) if given else None
    leaves = [x, *(state or ()), *layer.parameters()]
    output, new = layer(x, state)
    ours, theirs = [output, *new], by_steps(layer, x, state)
    torch.testing.assert_close(ours, list(theirs), rtol=1e-12, atol=1e-12)
    for arriving in ([0, 1, 2], [0], [1], [2]):
        grads = [gradients([results[i] for i in arriving], leaves, retain_graph=True) for results in (ours, theirs)]
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        output, new = layer(x, state)
    assert not output.requires_grad
    torch.testing.assert_close([output, *new], ours, rtol=0, atol=0)


@pytest.mark.parametrize(("T", "B", "features", "H", "copies", "heads"), [*SIZES, (11, 128, 100, 20, 4, 3)])
def test_single_precision_is_near_double(T, B, features, H, copies, heads):
    double = random_layer(features, H, scale=0.5, copies=copies, heads=heads)
    single = deepcopy(double).float()
    x = torch.randn(T, B, features, dtype=torch.float64)
    found = []
    for layer in (single, double):
        leaves = [x.to(layer.weight_hh.dtype).requires_grad_(), *layer.parameters()]
        output, state = layer(leaves[0])
        found.append([output, *state, *torch.autograd.grad(output.square().sum(), leaves)])
    torch.testing.assert_close([tensor.double() for tensor in found[0]], found[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wanted", [[0], [1], [2], [3, 4, 5], [0, 2], [1, 4]])
def test_gradients_of_some(wanted):
    layer = random_layer(3, 6, copies=2, heads=2).requires_grad_(False)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    state = AssociativeLSTMState(*(tensor.detach() for tensor in random_state(layer, 2)))
    leaves = [[x, *state, *layer.parameters()][i].requires_grad_() for i in wanted]
    output, new = layer(x, state)
    ours, theirs = gradients([output, *new], leaves), gradients(by_steps(layer, x, state), leaves)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    torch.manual_seed(0)
    layer = random_layer(2, 4, copies=2, heads=2)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)

    def call(x, h, c, *parameters):
        output, state = layer(x, AssociativeLSTMState(h, c))
        return output, *state

    assert torch.autograd.gradcheck(call, (x, *random_state(layer, 2), *layer.parameters()))


def test_gradients_cannot_be_differentiated():
    layer = random_layer(2, 4)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="gradients of an AssociativeLSTM cannot be differentiated"):
        torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)


def test_results_are_their_own():
    """What a caller does to a state reaches neither the output nor the gradients."""
    layer = random_layer(2, 2, copies=1, heads=1)
    x = torch.randn(3, 1, 2, dtype=torch.float64, requires_grad=True)
    output, state = layer(x)
    (expected,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    before = output.detach().clone()
    for tensor in state:
        tensor.detach().fill_(7)
    assert output.equal(before)
    assert torch.autograd.grad(output.sum(), x)[0].equal(expected)


def test_function_transforms():
    layer = random_layer(3, 6)
    x, tangent = torch.randn(2, 4, 2, 3, dtype=torch.float64).unbind(0)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(layer(x)[0].square().sum(), x)
    gradient = torch.func.grad(lambda x: layer(x)[0].square().sum())(x)
    torch.testing.assert_close(gradient, expected)
    _, slope = torch.func.jvp(lambda x: layer(x)[0].square().sum(), (x,), (tangent,))
    torch.testing.assert_close(slope, (expected * tangent).sum())
    with torch.autograd.forward_ad.dual_level():
        dual = layer(torch.autograd.forward_ad.make_dual(x.detach(), tangent))[0].square().sum()
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, slope)


def test_starts_from_zero():
    layer = random_layer(3, 4)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    zero = AssociativeLSTMState(torch.zeros(2, 12).double(), torch.zeros(4, 2, 4).double())
    torch.testing.assert_close(layer(x), layer(x, zero))


def test_continues_where_it_stopped():
    layer = random_layer(3, 10, scale=0.5)
    x = torch.randn(9, 2, 3, dtype=torch.float64, requires_grad=True)
    whole, end = layer(x)
    pieces, state = [], None
    for piece in x.split((1, 5, 3)):
        output, state = layer(piece, state)
        pieces.append(output)
    in_pieces = [torch.cat(pieces), *state]
    torch.testing.assert_close(in_pieces, [whole, *end], rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(projection(*values), x)[0] for values in (in_pieces, [whole, *end])]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(layer(x[1:])[0], whole[1:], atol=1e-3)  # what came before matters


def test_gradients_are_finite_where_everything_is_zero():
    layer = AssociativeLSTM(3, 4)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    x = torch.zeros(3, 2, 3, requires_grad=True)
    output, state = layer(x)
    leaves = [x, *layer.parameters()]
    ours, theirs = gradients([output, *state], leaves), gradients(by_steps(layer, x, None), leaves)
    assert all(grad.isfinite().all() for grad in ours)
    torch.testing.assert_close(ours, theirs)
    z = torch.zeros(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(bound(z).sum(), z)
    torch.testing.assert_close(slope, torch.ones(2, 3), rtol=0, atol=0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.9), (1.1, 3.0)])
def test_gradient_of_bound(low, high):
    modulus, phase = torch.empty(5).uniform_(low, high).double(), torch.rand(5).double() * 2 * math.pi
    z = torch.stack((modulus * phase.cos(), modulus * phase.sin())).requires_grad_()
    assert torch.autograd.gradcheck(bound, z)


def test_bound_keeps_phases_and_small_moduli():
    z = torch.randn(2, 100, dtype=torch.float64)
    before, after = as_complex(z), as_complex(bound(z))
    torch.testing.assert_close(after.angle(), before.angle())
    torch.testing.assert_close(after.abs(), before.abs().clamp(max=1))


def test_complex_product():
    a, b = torch.randn(2, 3, 1, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(as_complex(complex_product(a, b)), as_complex(a) * as_complex(b))


def random_phases(*shape):
    phase = torch.rand(shape) * 2 * math.pi
    return torch.stack((phase.cos(), phase.sin()))


def retrieval_noise(items, copies, units=256, batch=64):
    """The mean squared modulus of what reading by conjugate keys gives beyond the values stored, themselves of 1."""
    permutations = draw_permutations(copies, units, seed=items)
    keys, values = random_phases(items, units, batch), random_phases(items, units, batch)
    memory = store(torch.zeros(2, copies, units, batch), permuted(keys, permutations), values)
    conjugate = keys * torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    return (read(memory, permuted(conjugate, permutations)) - values).square().sum(0).mean().item()


def test_one_item_is_read_without_noise():
    assert retrieval_noise(1, copies=4) < 1e-12


@pytest.mark.parametrize("copies", [1, 4, 16])
@pytest.mark.parametrize("items", [2, 6, 11])
def test_noise_grows_with_the_items_and_falls_with_the_copies(items, copies):
    units = 256
    # Two copies send a unit to the same place with probability 1 / units, and then share its noise.
    expected = (items - 1) / copies * (1 + (copies - 1) / units)
    assert retrieval_noise(items, copies, units) == pytest.approx(expected, rel=0.05)


def test_permutations_are_drawn_from_the_seed_alone():
    one, other = AssociativeLSTM(3, 100, seed=5), AssociativeLSTM(8, 100, heads=1, seed=5)
    assert one.permutations.equal(other.permutations)
    assert one.permutations.sort(1).values.equal(torch.arange(50).expand(4, 50))
    assert len(one.permutations.unique(dim=0)) == 4
    assert not (one.permutations == torch.arange(50)).all(1).any()
    assert not one.permutations.equal(AssociativeLSTM(3, 100, seed=6).permutations)


def test_permutations_are_saved():
    layer, other = AssociativeLSTM(3, 20, seed=0), AssociativeLSTM(3, 20, seed=1)
    x = torch.randn(5, 2, 3)
    expected = layer(x)[0]
    for name, parameter in layer.named_parameters():
        other.get_parameter(name).data.copy_(parameter)
    assert not torch.allclose(other(x)[0], expected, atol=1e-4)  # the parameters alone do not make the layer
    other.load_state_dict(layer.state_dict())
    assert other.permutations.equal(layer.permutations)
    assert other(x)[0].equal(expected)


def test_initial_parameters():
    layer = AssociativeLSTM(9, 8, heads=2)
    forget, rest = layer.bias.split((4, len(layer.bias) - 4))
    assert (forget == 1).all()
    assert (rest == 0).all()
    for weight in (layer.weight_ih, layer.weight_hh):
        assert 0.24 < weight.max() <= 0.25  # 1 / √16
        assert -0.25 <= weight.min() < -0.24


def test_layout():
    layer = AssociativeLSTM(3, 10, copies=2, heads=4)
    assert layer.output_size == 40
    output, state = layer(torch.randn(6, 5, 3))
    assert (output.shape, state.h.shape, state.c.shape) == ((6, 5, 40), (5, 40), (2, 5, 10))
    assert state.h.equal(output[-1])
    assert output.is_contiguous()
    assert state.h.is_contiguous()
    assert state.c.is_contiguous()
    assert repr(layer) == "AssociativeLSTM(3, 10, copies=2, heads=4, seed=0)"


CONSTRUCTOR = [
    ({"input_size": 0}, ValueError, "input_size must be at least 1, got 0"),
    ({"hidden_size": 0}, ValueError, "hidden_size must be at least 2, got 0"),
    ({"hidden_size": 7}, ValueError, "hidden_size must be even, .*; got 7"),
    ({"hidden_size": 4.0}, TypeError, r"hidden_size must be an int, got 4.0 \(float\)"),
    ({"copies": 0}, ValueError, "copies must be at least 1, got 0"),
    ({"heads": 0}, ValueError, "heads must be at least 1, got 0"),
    ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    ({"seed": None}, TypeError, r"seed must be an int, got None \(NoneType\)"),
]


@pytest.mark.parametrize(("options", "error", "message"), CONSTRUCTOR)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        AssociativeLSTM(**{"input_size": 3, "hidden_size": 4} | options)


X, H0, C0 = torch.randn(5, 2, 3), torch.zeros(2, 12), torch.zeros(4, 2, 4)
State = AssociativeLSTMState
CALL = [
    ((X[0],), ValueError, r"x must have 3 dimensions, got shape \(2, 3\)"),
    ((X[..., :2],), ValueError, r"x must have 3 features \(input_size\).*got 2"),
    ((X[:0],), ValueError, r"x must have at least 1 step, got shape \(0, 2, 3\)"),
    ((X.double(),), TypeError, "x must be torch.float32, as the weights are; got torch.float64"),
    (([1.0],), TypeError, "x must be a tensor, got list"),
    ((X, (H0, C0)), TypeError, r"state must be an AssociativeLSTMState\(h, c\) or None, got tuple"),
    ((X, State(H0, None)), TypeError, "state must have a tensor c, got NoneType"),
    ((X, State(H0[:1], C0)), ValueError, r"state must have h of shape \(2, 12\), got \(1, 12\)"),
    ((X, State(H0, C0[:3])), ValueError, r"state must have c of shape \(4, 2, 4\), got \(3, 2, 4\)"),
    ((X, State(H0, C0.double())), ValueError, "state must have c in torch.float32 on cpu.*; got torch.float64 on cpu"),
    ((X, State(H0.to("meta"), C0)), ValueError, "state must have h in torch.float32 on cpu.*; got .* on meta"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), CALL)
def test_bad_calls(arguments, error, message):
    with pytest.raises(error, match=message):
        AssociativeLSTM(3, 4)(*arguments)
