"""The oracle itself: against numbers worked out by hand, and its two forms against each other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastweights.memory.equations import LN, AttentionMemory, Dynamics, MatrixMemory, SlowWeights, run


def test_two_steps_by_hand():
    # H = I = 2, W = I/2, C = I, no layer norm, S = 1, λ = 1/2, η = 1.
    slow = SlowWeights(torch.eye(2) / 2, torch.eye(2), None, None, None)
    memory = MatrixMemory(torch.zeros(1, 2, 2), torch.tensor(0.5), torch.tensor(1.0))
    x = torch.tensor([[[1.0, -3.0]], [[2.0, 1.0]]])
    hs, last = run(x, torch.zeros(1, 2), memory, slow, Dynamics(1))
    # Step 1: A = 0, so h = relu(x) = (1, 0) and A = [[1, 0], [0, 0]].
    assert hs[0, 0].tolist() == [1, 0]
    # Step 2: z = (1/2, 0) + (2, 1) = (2.5, 1) = h_0; A h_0 = (2.5, 0); h = (5, 1).
    assert hs[1, 0].tolist() == [5, 1]
    assert last[0].tolist() == [5, 1]
    # A = [[1, 0], [0, 0]] / 2 + [[25, 5], [5, 1]].
    assert memory.A[0].tolist() == [[25.5, 5], [5, 1]]


def test_method_two_by_hand():
    slow = SlowWeights(torch.eye(2) / 2, torch.eye(2), None, None, None)
    memory = MatrixMemory(torch.tensor([[[0.0, 1], [1, 0]]]), torch.tensor(0.5), torch.tensor(1.0))
    hs, _ = run(torch.tensor([[[1.0, -3]]]), torch.zeros(1, 2), memory, slow, Dynamics(2, "identity"))
    # h_0 = (1, 0); h_1 = h_0 + A h_0 = (1, 1); h_2 = h_1 + A h_1 = (2, 2).
    assert hs[0, 0].tolist() == [2, 2]


def test_layer_norm_is_torchs():
    v, gain, shift = torch.randn(5, 7), torch.randn(7), torch.randn(7)
    torch.testing.assert_close(LN(v, gain, shift), torch.nn.functional.layer_norm(v, (7,), gain, shift, 1e-5))


@given(
    T=st.integers(0, 12),
    S=st.integers(0, 3),
    settling=st.sampled_from(["sustained", "identity"]),
    decay=st.sampled_from([0.0, 0.5, 1.0]),
    controlled=st.booleans(),
)
def test_both_forms_agree_in_values_and_gradients(T, S, settling, decay, controlled):
    B, H, size = 3, 5, 4
    generator = torch.Generator().manual_seed(T * 10 + S)

    def random(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5

    leaves = [random(H, H), random(H, size), random(H), random(H), random(H), random(H, H), random(T, B, size)]
    leaves += [random(B, H), random(B, H, H), torch.tensor(decay, dtype=torch.float64), random()]
    signals = {}
    if controlled:
        signals = {
            "lengths": torch.randint(0, T + 1, (B,), generator=generator),
            "reset": random(T, B) > 0.3,
            "wipe": random(T, B) > 0.3,
            "store": random(T, B) + 0.5,
            "read": random(T, B) + 0.5,
            "integrate": random(T, B) > 0.3,
        }
    results = []
    for form in (MatrixMemory, AttentionMemory):
        *slow, x, h, A, lam, eta = inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        memory = form(A, lam, eta)
        output, last = run(x, h, memory, SlowWeights(*slow), Dynamics(S, settling), **signals)
        values = (output, last, memory.A)
        total = sum(
            (value * torch.linspace(1, 2, value.numel(), dtype=torch.float64).view_as(value)).sum() for value in values
        )
        grads = torch.autograd.grad(total, inputs, allow_unused=True)
        results.append(
            (*values, *(torch.zeros_like(i) if g is None else g for i, g in zip(inputs, grads, strict=True)))
        )
    for matrix, attention in zip(*results, strict=True):
        torch.testing.assert_close(attention, matrix, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_keeps_the_dtype(dtype):
    slow = SlowWeights(*(torch.rand(s, dtype=dtype) for s in [(3, 3), (3, 2), (3,), (3,), (3,)]))
    memory = MatrixMemory(
        torch.zeros(1, 3, 3, dtype=dtype), torch.tensor(0.9, dtype=dtype), torch.tensor(0.5, dtype=dtype)
    )
    hs, _ = run(torch.rand(4, 1, 2, dtype=dtype), torch.zeros(1, 3, dtype=dtype), memory, slow, Dynamics())
    assert hs.dtype == memory.A.dtype == dtype
