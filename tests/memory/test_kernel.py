"""The fused kernel: equal to its torch twin, whatever it is given, and harmless where it is missing."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from fastweights import FastWeights, FastWeightsCell, backend
from fastweights.memory import chunk, kernel
from fastweights.memory.equations import Dynamics

needs_kernel = pytest.mark.skipif(not kernel.AVAILABLE, reason=f"no kernel: {kernel.STATUS.reason}")


@st.composite
def chunks(draw):
    """Any sizes around the number of lanes, any options, all the ways that tensors can lie in memory."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    K, B, H = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 7, 8, 9, 16, 17, 33])), draw(st.integers(1, 19))
    norm, before, start, shared = (draw(st.booleans()) for _ in range(4))
    torch.manual_seed(draw(st.integers(0, 100)))

    def random(*shape):
        layout = draw(st.sampled_from(["plain", "transposed", "offset"]))
        if layout == "transposed":
            return (0.4 * torch.rand(shape[::-1], dtype=dtype) - 0.1).permute(*range(len(shape) - 1, -1, -1))
        if layout == "offset":
            return (0.4 * torch.rand(torch.Size(shape).numel() + 1, dtype=dtype) - 0.1)[1:].reshape(shape)
        return 0.4 * torch.rand(shape, dtype=dtype) - 0.1

    rows = 1 if shared else B
    steps = torch.randint(0, K + 1, (B,)) if draw(st.booleans()) else None
    active = torch.ones(K, B) if steps is None else (torch.arange(K).unsqueeze(1) < steps)
    w, p = torch.tril(random(rows, K, K), -1), random(rows, K)
    if steps is not None:
        w = w * active.T.unsqueeze(1) * active.T.unsqueeze(2)
    keep = ((torch.rand(K, B) > 0.2) & active.bool()).to(dtype) if steps is not None or draw(st.booleans()) else None
    stretch = chunk.Chunk(
        random(K, B, H) * active.unsqueeze(-1),
        random(H, H),
        random(H) if norm else None,
        random(H) if norm else None,
        random(B, H) if start else None,
        random(B, H, H) if before else None,
        w.to(dtype),
        p,
        keep,
        steps,
    )
    settling, nonlinearity = draw(st.sampled_from(["sustained", "identity"])), draw(st.sampled_from(["relu", "tanh"]))
    dynamics = Dynamics(draw(st.integers(0, 3)), settling, nonlinearity, draw(st.booleans()))
    return stretch, dynamics, random(K, B, H) * active.unsqueeze(-1), active.to(dtype).unsqueeze(-1)


@needs_kernel
@settings(max_examples=150)
@given(chunks())
def test_equals_its_torch_twin(case):
    stretch, dynamics, grad_hs, active = case
    theirs = chunk.forward(stretch, dynamics)
    assume((theirs.hs.abs() < 1e3).all())  # without layer norm a ReLU net may grow as h ← h³
    ours = kernel.forward(stretch, dynamics)
    exact = stretch.u.dtype == torch.float64
    # In float32 a state next to ReLU's corner may fall on either side: the numbers are compared in float64 only.
    if exact:
        torch.testing.assert_close(ours.hs, theirs.hs * active, rtol=1e-9, atol=1e-9)
    gradients = kernel.backward(grad_hs, stretch, ours, dynamics, weights=True)
    expected = chunk.backward(grad_hs, stretch, theirs, dynamics, weights=True)
    for n, (actual, wanted) in enumerate(zip(gradients, expected, strict=True)):
        assert actual.shape == wanted.shape
        if exact:
            wanted = wanted * active if n == 0 else wanted
            scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
            torch.testing.assert_close(actual / scale, wanted / scale, rtol=0, atol=1e-9)
        else:
            assert actual.isfinite().all()


@needs_kernel
@pytest.mark.parametrize("options", [{}, {"learn_decay": True, "layer_norm": False, "nonlinearity": "tanh"}])
def test_the_number_of_threads_does_not_matter(options):
    layer = FastWeights(7, 13, inner_steps=2, **options)
    x, lengths = torch.randn(9, 100, 7), torch.randint(0, 10, (100,))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            layer.zero_grad()
            output, state = layer(x, lengths=lengths)
            (output.sum() + state.h.sum()).backward()
            torch.set_num_threads(1)
            results.append([output, state.h, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    finally:
        torch.set_num_threads(before)
    kernel_only = {"norm_weight_l0", "norm_bias_l0"}  # the others go through torch's own products, which may differ
    names = ["output", "h", *(name for name, p in layer.named_parameters() if p.grad is not None)]
    for other in results[1:]:
        for name, one, many in zip(names, results[0], other, strict=True):
            if name in kernel_only | {"output", "h"}:
                assert torch.equal(one, many), name
            else:
                torch.testing.assert_close(one, many)


@needs_kernel
def test_tensors_without_memory_never_reach_the_kernel():
    x = torch.randn(4, 1, 3)
    with FakeTensorMode():
        fake, layer, cell = torch.randn(4, 1, 3), FastWeights(3, 5), FastWeightsCell(3, 5)
        output, state = layer(fake)
        assert output.shape == (4, 1, 5)
        (output.sum() + state.A.sum()).backward()
        with torch.no_grad():
            assert cell(fake[0]).A.shape == (1, 5, 5)
    assert FastWeights(3, 5)(x)[0].isfinite().all()  # nothing of it was kept for later


@needs_kernel
def test_nan_stays_nan():
    layer = FastWeights(3, 5, backend="kernel", layer_norm=False)
    x = torch.randn(4, 20, 3)
    x[2, 7, 1] = torch.nan
    output, _ = layer(x)
    assert output[2:, 7].isnan().any()
    assert output[:, torch.arange(20) != 7].isfinite().all()


def test_backend_says_what_and_why():
    name, reason = backend()
    assert name.startswith("kernel" if kernel.AVAILABLE else "torch")
    assert reason in str(backend())
    done = subprocess.run([sys.executable, "-m", "fastweights"], capture_output=True, text=True, check=True)
    assert str(backend()) in done.stdout


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("off", "FASTWEIGHTS_KERNEL is 'off'"), ("/nowhere", "was not built"), (None, "cannot be loaded")],
)
def test_without_the_kernel_the_torch_path_is_used(setting, reason, tmp_path):
    if setting is None:
        setting = str(tmp_path)
        (tmp_path / "libfastweights_baseline.so").write_bytes(b"not a library")
    code = """
import torch, fastweights
print(fastweights.backend())
print(fastweights.FastWeights(3, 5)(torch.zeros(2, 1, 3))[0].shape)
fastweights.FastWeights(3, 5, backend="kernel")
"""
    environment = {**os.environ, "FASTWEIGHTS_KERNEL": setting}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.startswith("torch: ")
    assert reason in done.stdout
    assert "[2, 1, 5]" in done.stdout
    assert "ValueError: backend 'kernel' cannot be used" in done.stderr


@needs_kernel
def test_what_the_kernel_does_not_cover_goes_to_torch():
    half, fused = FastWeights(3, 5, dtype=torch.bfloat16), FastWeights(3, 5, backend="kernel")
    assert half(torch.zeros(2, 1, 3, dtype=torch.bfloat16))[0].dtype == torch.bfloat16
    with pytest.raises(ValueError, match="backend 'kernel' takes float32 or float64 on the CPU, got torch.bfloat16"):
        fused.bfloat16()(torch.zeros(2, 1, 3, dtype=torch.bfloat16))
