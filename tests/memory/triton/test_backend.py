"""Which code computes on which device, and what is said where it cannot."""

import pytest
import torch

from fastweights import FastWeights, FastWeightsCell, backend
from fastweights.memory import triton

needs_triton = pytest.mark.skipif(not triton.AVAILABLE, reason=triton.MISSING)


def test_each_device_has_its_own():
    assert backend() == backend("cpu") == backend(torch.device("cpu"))
    assert str(backend("mps")) == "torch: there is no fused code for mps"
    assert backend("meta").name == "torch"
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        backend("gpu")


@needs_triton
def test_a_gpu_that_is_not_here():
    name, reason = backend("cuda:1")
    assert name.startswith("triton (")
    assert reason.startswith("triton 3.")
    assert reason.endswith("torch finds no GPU here") is not torch.cuda.is_available()


def test_without_triton_the_torch_path_is_used_and_asking_for_it_is_refused(monkeypatch):
    monkeypatch.setattr(triton, "AVAILABLE", False)
    assert str(backend("cuda")) == f"torch: {triton.MISSING}"
    with pytest.raises(ValueError, match="backend 'triton' cannot be used: the package triton, which comes with torch"):
        FastWeights(2, 3, backend="triton")
    monkeypatch.setattr(triton, "ON_CPU", True)
    assert not triton.takes(torch.zeros(1))


@needs_triton
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("grad", [True, False])
def test_tensors_elsewhere_are_refused(device, grad):
    x = torch.zeros(2, 3, device=device)
    with torch.set_grad_enabled(grad):
        for module, given in ((FastWeights, x.unsqueeze(0)), (FastWeightsCell, x)):
            with pytest.raises(
                ValueError, match=rf"backend 'triton' takes tensors on a GPU \(CUDA or ROCm\), got {device}"
            ):
                module(3, 4, backend="triton", device=device)(given)


@needs_triton
def test_only_numbers_of_one_dtype_on_one_device_are_covered(monkeypatch):
    x = torch.zeros(2)
    assert not triton.covers((x,))
    monkeypatch.setattr(triton, "ON_CPU", True)
    assert triton.covers((x, None, x))
    assert not triton.covers((x, x.double()))
    assert not triton.covers((x.half(),))
    assert not triton.covers((x, x.to("meta")))
